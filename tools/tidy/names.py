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
# Participles that do not end in -ed, as far as functions were named by them.
_IRREGULAR = {
    *("bound", "drawn", "driven", "felt"),
    *("found", "given", "heard", "held"),
    *("kept", "known", "lost", "made"),
    *("met", "paid", "said", "seen"),
    *("sent", "shown", "spent", "taken"),
    *("told", "withdrawn", "written"),
}
# What a function returns that is called for its effect, or that raises.
_NOTHING = ("None", "Never", "NoReturn")
# Functions named by one participle, which says neither what they do nor what they give back. Those
# here are answers of a machine to a stimulus, whose names are in the past tense, and older ones. A
# new one gets a verb or a noun; one that is renamed leaves this list. By name, the classes that
# have it; empty for a function of a module.
PARTICIPLES_ALLOWED: dict[str, tuple[str, ...]] = {
    "answered": (
        "Binder",
        "Controller",
        "ControllerWorker",
        "Digests",
        "GarbageController",
        "Inflight",
        "LeaderElection",
        "NodeHeartbeats",
        "NodesController",
        "Registration",
        "RequestOperation",
        "WorkloadController",
    ),
    "assumed": ("Fleet",),
    "cached": ("CommittedState",),
    "changed": ("StoreCopy", "WatchHub"),
    "checked": ("",),
    "configured": ("",),
    "counted": ("",),
    "desired": ("",),
    "ended": ("Shim",),
    "failed": ("SchedulingQueue", "WorkQueue"),
    "found": ("Cache", "Draft", "Indexer", "ObjectTable", "Objects", "Snapshot"),
    "keyed": ("ObjectSnapshot", "StoreCopy"),
    "known": ("Interned", "VerdictCache"),
    "launched": ("ReplicaWorkers",),
    "modified": ("StoredRecords",),
    "placed": ("BatchCounts",),
    "refused": ("ReplicaCreation",),
    "retimed": ("",),
    "scoped": ("",),
    "seen": ("RequestOperation",),
    "shunned": ("",),
    "stored": ("ExamplePlane",),
    "taken": ("PortRows",),
    "undisturbed": ("",),
    "untrusted": ("Desired", "DesiredWork"),
    "used": ("Digests",),
}
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


def participles(
    sources: Sequence[Source], allowed: Mapping[str, Sequence[str]]
) -> Iterator[Finding]:
    """Public functions that give something back and are named by one participle."""
    for source in sources:
        for owner, node in _public_functions(source.tree):
            if _is_participle(node) and owner not in allowed.get(node.name, ()):
                text = f"{node.name!r} is a participle; name what it does or gives back"
                yield source.finding(node, "participle", text)


def _public_functions(
    tree: ast.Module,
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions of a module and of its public classes, each with its class."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "", node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node.name, inner


def _is_participle(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A decorated function is read as a value (property) or after `with`, and may be named so."""
    is_one = "_" not in node.name
    is_past = node.name in _IRREGULAR or re.search(r"[^e]ed$", node.name) is not None
    gives = node.returns is not None and ast.unparse(node.returns) not in _NOTHING
    return is_one and is_past and gives and not node.decorator_list


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
