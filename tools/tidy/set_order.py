"""The rule against iterating a set where its order could reach a decision.

The order of a set of strings changes from process to process, so a decision that depends on it
cannot be replayed. The rule looks at expressions that are evidently sets (a literal, `set(…)`, a
union of such) and at names and `self` attributes that a file annotates or fills as sets. It does
not follow values through calls, so it finds the usual mistake and not every one; the simulator's
double runs under two hash seeds find the rest.

`sorted(…)` always resolves it, and so does a dict used as an ordered set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.tidy.finding import Finding, Source, dotted

_SET_CALLS = frozenset({"set", "frozenset"})
_SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
_SET_TYPES = frozenset({"set", "frozenset", "Set", "AbstractSet", "MutableSet", "FrozenSet"})
_SET_OPERATORS = (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)

# Their result does not depend on the order of their input.
_ORDER_FREE = frozenset({"sorted", "set", "frozenset", "len", "any", "all", "sum", "min", "max"})
_ORDER_FREE_METHODS = _SET_METHODS | {"issubset", "issuperset", "isdisjoint"}
# With a key, equal keys come out in the order in which they went in.
_ORDER_FREE_WITHOUT_KEY = frozenset({"sorted", "min", "max"})
# Their result has the order of their input.
_ORDER_BOUND = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "fromkeys", "deque", "array"}
    | {"chain", "from_iterable", "islice", "product", "combinations", "permutations", "reduce"}
)

_WHY = "a set's order differs between processes; sort it, or keep a dict instead"

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def findings(source: Source) -> Iterator[Finding]:
    """Every place in one file where a set's order comes out."""
    yield from _Walker(source).visit_scope(
        source.tree.body, names=frozenset(), attributes=frozenset()
    )


class _Walker:
    """Walks scope by scope, because whether a name is a set depends on its scope."""

    def __init__(self, source: Source) -> None:
        self.source = source
        # Generators that a call consumes are judged with the call, all others by themselves.
        self.consumed = {
            id(argument)
            for call in source.nodes
            if isinstance(call, ast.Call)
            for argument in call.args
        }

    def visit_scope(
        self, body: list[ast.stmt], names: frozenset[str], attributes: frozenset[str]
    ) -> Iterator[Finding]:
        known = (names - _bound_names(body)) | _set_names(body)
        for statement in body:
            yield from self._visit(statement, known, attributes)

    def _visit_class(self, cls: ast.ClassDef, names: frozenset[str]) -> Iterator[Finding]:
        """Methods do not see the names of their class's body, only `self`."""
        attributes = _set_attributes(cls)
        for statement in cls.body:
            yield from self._visit(statement, names, attributes)

    def _visit(
        self, node: ast.AST, names: frozenset[str], attributes: frozenset[str]
    ) -> Iterator[Finding]:
        if isinstance(node, ast.ClassDef):
            yield from self._visit_class(node, names)
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (names - _parameters(node)) | _set_parameters(node)
            yield from self.visit_scope(node.body, inner, attributes)
            return
        yield from self._leaks(node, names, attributes)
        for child in ast.iter_child_nodes(node):
            yield from self._visit(child, names, attributes)

    def _leaks(
        self, node: ast.AST, names: frozenset[str], attributes: frozenset[str]
    ) -> Iterator[Finding]:
        exposing: Iterator[ast.expr] = _exposed(node)
        if isinstance(node, ast.GeneratorExp) and id(node) not in self.consumed:
            exposing = (generator.iter for generator in node.generators)
        for exposed in exposing:
            if _is_set(exposed, names, attributes):
                yield self.source.finding(exposed, "set-order", _WHY)


def _exposed(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions whose order this node exposes."""
    match node:
        case ast.For(iter=iterable):
            yield iterable
        case ast.ListComp(generators=generators) | ast.DictComp(generators=generators):
            for generator in generators:
                yield generator.iter
        case ast.Starred(value=value):
            yield value
        case ast.YieldFrom(value=value):
            yield value
        case ast.Call():
            yield from _exposed_by_call(node)


def _exposed_by_call(call: ast.Call) -> Iterator[ast.expr]:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = method or dotted(call.func)
    keyed = any(keyword.arg == "key" for keyword in call.keywords) and not method
    ties = keyed and name in _ORDER_FREE_WITHOUT_KEY
    order_free = method in _ORDER_FREE_METHODS if method else name in _ORDER_FREE and not ties
    bound = name in _ORDER_BOUND or method in {"join", "extend"} or ties
    for argument in call.args:
        # A generator has no order of its own: it exposes that of its iterable, unless its consumer
        # ignores it.
        if isinstance(argument, ast.GeneratorExp):
            if not order_free:
                yield from (generator.iter for generator in argument.generators)
        elif bound:
            yield argument
    # `some_set.pop()` takes an arbitrary element.
    if isinstance(call.func, ast.Attribute) and method == "pop" and not call.args:
        yield call.func.value


def _is_set(node: ast.expr, names: frozenset[str], attributes: frozenset[str]) -> bool:
    """Whether the expression is a set as far as this file shows."""
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return attribute in attributes
        case ast.Call(func=ast.Name(id=name)):
            return name in _SET_CALLS
        case ast.Call(func=ast.Attribute(value=value, attr=method)):
            return method in _SET_METHODS and _is_set(value, names, attributes)
        case ast.BinOp(left=left, op=op, right=right):
            if not isinstance(op, _SET_OPERATORS):
                return False
            return any(_is_set(side, names, attributes) or _is_view(side) for side in (left, right))
        case ast.IfExp(body=body, orelse=orelse):
            return any(_is_set(branch, names, attributes) for branch in (body, orelse))
        case _:
            return False


def _is_view(node: ast.expr) -> bool:
    """`d.keys()` and `d.items()` have an order, but `d.keys() & e.keys()` is a plain set."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"keys", "items"}
        and not node.args
    )


def _is_set_annotation(node: ast.expr | None) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_set_annotation(node.left) or _is_set_annotation(node.right)
    if isinstance(node, ast.Subscript):
        node = node.value
    return node is not None and dotted(node).rpartition(".")[2] in _SET_TYPES


def _set_names(body: list[ast.stmt]) -> frozenset[str]:
    """Names that the statements of one scope annotate as sets, or fill with nothing but sets."""
    filled: dict[str, bool] = {}
    for node in _own_nodes(body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
                filled[name] = _is_set_annotation(annotation)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                filled[name] = filled.get(name, True) and _is_set(value, frozenset(), frozenset())
    return frozenset(name for name, is_set in filled.items() if is_set)


def _bound_names(body: list[ast.stmt]) -> frozenset[str]:
    """Names that one scope binds for itself, hiding those of the scope around it."""
    return frozenset(
        node.id
        for node in _own_nodes(body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _set_attributes(cls: ast.ClassDef) -> frozenset[str]:
    """Attributes that a class annotates as sets, in its body or on `self`, or fills with sets."""
    found: dict[str, bool] = {}
    for node in ast.walk(cls):
        match node:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                found[name] = _is_set_annotation(node.annotation)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                is_set = _is_set(node.value, frozenset(), frozenset())
                found[name] = found.get(name, True) and is_set
    for statement in cls.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = _is_set_annotation(statement.annotation)
    return frozenset(name for name, is_set in found.items() if is_set)


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a scope without those of the functions and classes inside it."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, ast.ClassDef | _Function):
            pending.extend(ast.iter_child_nodes(node))


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    arguments = function.args
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    return frozenset(argument.arg for argument in _arguments(function))


def _set_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
    return frozenset(
        argument.arg for argument in _arguments(function) if _is_set_annotation(argument.annotation)
    )
