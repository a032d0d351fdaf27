"""Rules about names: each has one meaning in the tree, and tests use only public ones."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from tools.tidy.finding import Finding, Source

COMMAND = "the module of a command has the command's name"
CONTROLLER = "a controller's module has the name of the kind that it keeps"
# Module names that several rooms use, and why that confuses no reader.
MODULES_ALLOWED = {
    "backup": COMMAND,
    "capacity": COMMAND,
    "encryption": COMMAND,
    "repair": COMMAND,
    "status": COMMAND,
    "cron": CONTROLLER,
    "endpoints": CONTROLLER,
    "schema": "a schema of objects in the model, and of the data on disk in each store",
}
# Public classes with one name, and why.
CLASSES_ALLOWED: dict[str, str] = {}
# Underscored members that a library documents as public, and the only ways in which pytest tells
# a hook where the tests of a session have their directories, and Python what a venv links to.
_DOCUMENTED = frozenset(
    {
        *("_asdict", "_exit", "_fields", "_getframe", "_make", "_replace"),
        *("_base_executable", "_tmp_path_factory"),
    }
)
# Calls that reach a member by its name in a string; monkeypatch has two of them as methods.
_BY_STRING = frozenset({"delattr", "getattr", "hasattr", "setattr"})
# The requirements that a test proves, at the end of its docstring.
_REQUIREMENTS = re.compile(r"\s*\[[A-Z0-9,\s.-]+\]\s*$")
_ENDED = re.compile(r"[.!?][)\"'`]*$")
# What a simulation test calls to fail when the faults of its world did not happen.
DEMANDS_COVERAGE = "everything_happened"


def tree_findings(sources: Sequence[Source]) -> Iterator[Finding]:
    """Names under src that two rooms use for different things."""
    modules: dict[str, list[tuple[str, Source, ast.AST]]] = defaultdict(list)
    classes: dict[str, list[tuple[str, Source, ast.AST]]] = defaultdict(list)
    for source in sources:
        path = PurePosixPath(source.path)
        if not path.stem.startswith("__"):
            room = path.parts[2].removesuffix(".py")
            modules[path.stem].append((room, source, source.tree))
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append((source.path, source, node))
    yield from used_twice("module-twice", modules, MODULES_ALLOWED)
    yield from used_twice("class-twice", classes, CLASSES_ALLOWED)


def used_twice(
    rule: str,
    found: Mapping[str, list[tuple[str, Source, ast.AST]]],
    allowed: Mapping[str, str],
) -> Iterator[Finding]:
    """Names that stand in more than one place, and reasons for names that no longer do."""
    for name, uses in found.items():
        places = list(dict.fromkeys(place for place, _, _ in uses))
        if len(places) > 1 and name not in allowed:
            for place, source, node in uses:
                others = ", ".join(it for it in places if it != place)
                yield source.finding(node, rule, f"{name!r} is also in {others}; name it apart")
        elif len(places) == 1 and name in allowed:
            _, source, node = uses[0]
            yield source.finding(node, rule, f"{name!r} is used once; remove its reason")


def private_names(source: Source) -> Iterator[Finding]:
    """A test uses what the product offers: a private name may change with no notice."""
    own = {
        node.attr
        for node in source.nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node)
    } | {
        node.name
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in source.nodes:
        if isinstance(node, ast.Attribute):
            is_foreign = not _is_self(node) and node.attr not in own
            if _is_private(node.attr) and is_foreign:
                yield source.finding(node, "private-name", f"{node.attr} is not for tests")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if _is_private(alias.name):
                    yield source.finding(node, "private-name", f"{alias.name} is not for tests")
        elif isinstance(node, ast.Call) and _called(node) in _BY_STRING:
            for name in _string_parts(node):
                if _is_private(name) and name not in own:
                    yield source.finding(node, "private-name", f"{name} is not for tests")


def _called(node: ast.Call) -> str:
    """The last name of what is called."""
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _string_parts(node: ast.Call) -> Iterator[str]:
    """The names in the first string: a member after its owner, or the dotted path to one."""
    for argument in node.args[:2]:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            yield from argument.value.split(".")
            return


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in _DOCUMENTED


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def docstring_sentences(source: Source) -> Iterator[Finding]:
    """A docstring is a sentence: it starts with a capital letter and ends with a full stop."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in source.nodes:
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            sentences = _REQUIREMENTS.sub("", text)
            if re.match(r"[a-z]+[ ,.]", sentences):
                yield source.finding(node, "docstring", "start with a capital letter")
            if sentences and not _ends_in_block(sentences) and not _ENDED.search(sentences):
                yield source.finding(node, "docstring", "end with a full stop")


def _ends_in_block(text: str) -> bool:
    """Whether the last paragraph is an example or a table: indented, or marked for click."""
    last = text.rsplit("\n\n", maxsplit=1)[-1]
    return last.startswith((" ", "\b"))


def simulation_coverage(source: Source) -> Iterator[Finding]:
    """A campaign in which the faults do not happen proves nothing."""
    imports_world = any(name.startswith("holdfast.sim.worlds.") for name in source.meaning.values())
    calls = {
        node.func.id
        for node in source.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    if imports_world and DEMANDS_COVERAGE not in calls:
        yield source.finding(
            source.tree, "coverage", f"call {DEMANDS_COVERAGE}() with what the world must have met"
        )
