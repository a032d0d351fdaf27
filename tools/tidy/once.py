"""Rules and bounds that two rooms spell out, each for itself.

One rule is one function, in the lowest room that needs it; so is a bound with a name. Only what is
mechanical is found: a constant of one name and one value, a function that does the same whatever
it, its arguments and its variables are called, and a condition on the same fields in any order. The
simulator is left out: what it checks it must know for itself, or a wrong rule would be right for
its checks as well.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from tools.tidy.finding import Finding, Source, dotted
from tools.tidy.names import used_twice
from tools.tidy.purity import PURE_ROOMS

RULED_ROOMS = frozenset({*PURE_ROOMS, "store", "host", "client", "cli"})
PACE = "each machine has a pace of its own, and may change it alone"
LENGTH = "how much one report names is its own matter"
PATIENCE = "how long a call may take is the caller's own matter"
UNIT = "a unit, the same everywhere"
# Constants with one name and one value in several rooms, and why that is no rule written twice.
CONSTANTS_ALLOWED = {
    "BACKOFF_MAX_MS": PACE,
    "DOUBLINGS_MAX": PACE,
    "LATE_MS": PACE,
    "COUNT_MAX": LENGTH,
    "NAMED_MAX": LENGTH,
    "TEXT_MAX": LENGTH,
    "DIGITS_MAX": "digits of different numbers",
    "FORMAT": "each file and record has a format of its own",
    "JSON": "the header of a body, sent and answered",
    "MANAGER": "the command line and the servers each sign their fields",
    "MIB": UNIT,
    "OTHERS": "the permission bits of other users",
    "PIECE_BYTES": "a list and a watch are sent in pieces, each with a size that may change alone",
    "PROBES_MAX": "probes of work, and of a history",
    "STATUS": "the name of a field of every object",
    "TIMEOUT_S": PATIENCE,
    "WAITING_MAX": "waiting renewals, and waiting records",
}
# A shorter body is found if it is an expression of this many parts, or a predicate.
STATEMENTS_MIN = 3
PARTS_MIN = 18
# The parts of a function that say nothing about what it does.
_UNSAID = frozenset(
    {"ctx", "type_comment", "returns", "annotation", "kind", "type_params", "decorator_list"}
)
Use = tuple[str, Source, ast.AST]


def findings(sources: Sequence[Source]) -> Iterator[Finding]:
    """Constants, functions and conditions that stand in two rooms, and reasons that are not needed
    any more.
    """
    conditions: dict[Any, list[Use]] = defaultdict(list)
    constants: dict[tuple[str, str], list[Use]] = defaultdict(list)
    functions: dict[Any, list[Use]] = defaultdict(list)
    names: dict[int, str] = {}
    for source in sources:
        room = PurePosixPath(source.path).parts[2].removesuffix(".py")
        if room not in RULED_ROOMS:
            continue
        for name, value, statement in _constants(source.tree):
            constants[name, ast.dump(value)].append((room, source, statement))
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_trivial(node):
                functions[_said(node)].append((room, source, node))
                names[id(node)] = node.name
            elif isinstance(node, ast.BoolOp) and _is_rule(node, source.meaning):
                conditions[_asked(node, source)].append((room, source, node))
    named: dict[str, list[Use]] = {}
    for (name, _), uses in constants.items():
        is_twice = len({room for room, _, _ in uses}) > 1
        named[name] = uses if is_twice else named.get(name, uses)
    yield from used_twice("constant-twice", named, CONSTANTS_ALLOWED)
    for uses in functions.values():
        yield from used_twice("function-twice", {names[id(uses[0][2])]: uses}, {})
    for uses in conditions.values():
        yield from used_twice("condition-twice", {ast.unparse(uses[0][2]): uses}, {})


def _constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr, ast.stmt]]:
    """The constants of a module with their values, without the underscore of a private one."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name), *_], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name.lstrip("_").isupper() and _is_literal(value):
            yield name.lstrip("_"), value, node


def _is_literal(value: ast.expr) -> bool:
    """Whether a value is written out: a number, a text, a member of an enum, or several."""
    match value:
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return bool(parts) and all(map(_is_literal, parts))
        case ast.Dict(values=parts):
            return bool(parts) and all(map(_is_literal, parts))
        case ast.BinOp(left=left, right=right):
            return _is_literal(left) and _is_literal(right)
    return isinstance(value, ast.Constant | ast.Attribute)


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _is_trivial(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether two rooms may well say the same without meaning the same."""
    nodes = [it for statement in _body(function) for it in ast.walk(statement)]
    if sum(isinstance(it, ast.stmt) for it in nodes) >= STATEMENTS_MIN:
        return False
    returned = function.returns
    is_predicate = isinstance(returned, ast.Name) and returned.id == "bool"
    if is_predicate and any(isinstance(it, ast.Compare | ast.BoolOp) for it in nodes):
        return not function.args.args
    return len(nodes) < PARTS_MIN


def _said(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
    """What a function does, whatever it, its arguments and its variables are called."""
    inside = list(ast.walk(function))
    own = {it.arg for it in inside if isinstance(it, ast.arg)}
    own |= {it.id for it in inside if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)}
    places: dict[str, int] = {}

    def said(part: Any) -> Any:
        match part:
            case ast.Name(id=name) | ast.arg(arg=name):
                return places.setdefault(name, len(places)) if name in own else name
            case ast.AST():
                fields = ast.iter_fields(part)
                return type(part), *(said(it) for name, it in fields if name not in _UNSAID)
            case list():
                return tuple(map(said, part))
        return type(part), part

    return said(function.args), said(_body(function))


def _is_rule(condition: ast.BoolOp, meaning: dict[str, str]) -> bool:
    """Whether two parts of a condition or more are about fields of an object: `node.spec.drain`,
    `status.stage in READY_STAGES`, or `keeps(replica)` of another module. Guards such as `found is
    None or found.uid != uid` are idioms.
    """
    return sum(_is_of_fields(part, meaning) for part in condition.values) > 1


def _is_of_fields(part: ast.expr, meaning: dict[str, str]) -> bool:
    match part:
        case ast.Compare(left=ast.Attribute(), comparators=[other]):
            if dotted(other).partition(".")[0] in meaning:
                return True
    for node in ast.walk(part):
        match node:
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id=name))) if name not in meaning:
                return True
            case ast.Call(func=ast.Name(id=name), args=[_, *_]) if name in meaning:
                return True
    return False


def _asked(condition: ast.BoolOp, source: Source) -> Any:
    """What a condition asks, whatever its variables are called and in whichever order."""
    own = {name for statement in source.tree.body for name in _defined(statement)}
    places: dict[str, int] = {}

    def named(name: str) -> str:
        if name in source.meaning:
            return source.meaning[name]
        return f"{source.path}:{name}" if name in own else ""

    def asked(part: Any, number: Callable[[str], Any]) -> Any:
        match part:
            case ast.Name(id=name):
                return named(name) or number(name)
            case ast.BoolOp(op=op, values=values):
                # First without the variables, for an order that does not depend on their names.
                ordered = sorted(values, key=lambda it: repr(asked(it, lambda _: 0)))
                return type(op).__name__, *(asked(it, number) for it in ordered)
            case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[other]):
                same = ast.Compare(left, [ast.Is()], [other])
                return "Not", asked(same, number)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return "Not", asked(operand, number)
            case ast.AST():
                fields = ast.iter_fields(part)
                said = (asked(it, number) for name, it in fields if name not in _UNSAID)
                return type(part).__name__, *said
            case list():
                return tuple(asked(it, number) for it in part)
        return type(part).__name__, part

    return asked(condition, lambda name: places.setdefault(name, len(places)))


def _defined(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines there."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name
