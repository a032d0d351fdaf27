"""Rules for the pure rooms: no waiting, no clock, no randomness, no I/O, no shared state.

The simulator proves something about the shipped code only because both run the same machines, and a
machine that queries the operating system behaves differently in the two. Imports are checked
against a list of what is allowed, since a list of every module that does I/O cannot be complete.
`set_order` has the one rule that needs more than single nodes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tools.tidy.finding import Finding, Source, full_name

PURE_ROOMS = ("model", "observe", "propose", "commit", "correct", "agent", "explain")

# Standard modules that compute and nothing else. Add one only after making sure that it has no
# clock, no randomness, no I/O and no threads; `datetime`, `uuid` and `asyncio` show the difference.
STDLIB_ALLOWED = frozenset(
    {
        "__future__",
        "abc",
        "array",
        "base64",
        "binascii",
        "bisect",
        "calendar",
        "collections",
        "contextlib",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "difflib",
        "enum",
        "fractions",
        "functools",
        "graphlib",
        "hashlib",
        "heapq",
        "hmac",
        "ipaddress",
        "itertools",
        "json",
        "keyword",
        "math",
        "numbers",
        "operator",
        "re",
        "statistics",
        "string",
        "struct",
        "textwrap",
        "types",
        "typing",
        "unicodedata",
        "uuid",
        "zlib",
    }
)
# urllib itself uses the network; this part of it only parses strings.
SUBMODULES_ALLOWED = frozenset({"urllib.parse"})
# Libraries without I/O of their own. `numpy.random` is refused below.
THIRD_PARTY_ALLOWED = frozenset({"holdfast", "msgspec", "numpy", "typing_extensions"})

# Members of allowed modules that query the machine.
MEMBERS_REFUSED = {
    "datetime.datetime.now": "a clock",
    "datetime.datetime.utcnow": "a clock",
    "datetime.datetime.today": "a clock",
    "datetime.date.today": "a clock",
    "uuid.uuid1": "randomness and a clock",
    "uuid.uuid4": "chance",
    "uuid.uuid6": "randomness and a clock",
    "uuid.uuid7": "randomness and a clock",
    "uuid.uuid8": "chance",
    "uuid.getnode": "this machine's address",
    "numpy.random": "chance",
    "numpy.fromfile": "a file",
    "numpy.load": "a file",
    "numpy.save": "a file",
    "numpy.savez": "a file",
    "numpy.memmap": "a file",
}
BUILTINS_REFUSED = {
    "open": "a file",
    "print": "the terminal",
    "input": "the terminal",
    "breakpoint": "the terminal",
    "exec": "code that no rule has read",
    "eval": "code that no rule has read",
    "__import__": "a module that no rule has read",
}
# Both differ from one process to the next, so a replayed seed would take another path.
BUILTINS_UNSTABLE = frozenset({"hash", "id"})

# What holds many things of one type.
COLLECTIONS = frozenset(
    {
        "list",
        "dict",
        "set",
        "frozenset",
        "tuple",
        "deque",
        "defaultdict",
        "Collection",
        "Iterable",
        "Iterator",
        "Mapping",
        "MutableMapping",
        "Sequence",
    }
)

# Files that may import what other pure ones may not, and why.
IMPORTS_ALLOWED = {
    (
        "src/holdfast/correct/all_controllers.py",
        "importlib",
    ): "it loads modules of its own room, which these rules have read",
}
DOCUMENT = "a part of a document, whose shape is known at run time only"
NAMED_KIND = "objects of the kind that the caller names at run time"
RECORDS = "records of all kinds, by their keys"
FIELDS = "fields of one struct that a list names, to compare or to copy all of them"
HOLDINGS = "the key of an allocation names the map of its node that has it"
COLUMNS = "arrays and maps of one class that a list names, to treat all of them alike"
# Where a collection may hold anything, or a field may be read by its name, and why. Elsewhere both
# hide from mypy which stimuli, effects, requests and objects meet.
UNTYPED_ALLOWED = {
    "src/holdfast/commit/apply/diff.py": DOCUMENT,
    "src/holdfast/commit/apply/field_sets.py": DOCUMENT,
    "src/holdfast/commit/apply/merge.py": DOCUMENT,
    "src/holdfast/commit/apply/patch.py": DOCUMENT,
    "src/holdfast/commit/apply/patch_requests.py": DOCUMENT,
    "src/holdfast/commit/apply/server_side.py": DOCUMENT,
    "src/holdfast/commit/apply/shapes.py": DOCUMENT,
    "src/holdfast/model/access/admission_rules.py": DOCUMENT,
    "src/holdfast/model/encoding/json_guard.py": DOCUMENT,
    "src/holdfast/model/encoding/schema.py": DOCUMENT,
    "src/holdfast/model/encoding/struct_checks.py": DOCUMENT,
    "src/holdfast/model/encoding/unknown_fields.py": DOCUMENT,
    "src/holdfast/commit/ledgers/ledger_sums.py": NAMED_KIND,
    "src/holdfast/model/selection/field_selector.py": NAMED_KIND,
    "src/holdfast/observe/cache.py": NAMED_KIND,
    "src/holdfast/observe/partial_decode.py": NAMED_KIND,
    "src/holdfast/observe/snapshot.py": NAMED_KIND,
    "src/holdfast/commit/draft.py": RECORDS,
    "src/holdfast/commit/objects/audit_entries.py": f"{RECORDS}; and the reasons of all requests",
    "src/holdfast/commit/ledgers/recount.py": FIELDS,
    "src/holdfast/commit/lifecycle/node_requests.py": FIELDS,
    "src/holdfast/commit/objects/field_writers.py": FIELDS,
    "src/holdfast/commit/objects/object_writes.py": FIELDS,
    "src/holdfast/explain/on_node.py": FIELDS,
    "src/holdfast/model/nodes/fence.py": FIELDS,
    "src/holdfast/model/validation/metadata.py": FIELDS,
    "src/holdfast/model/quota/weights.py": FIELDS,
    "src/holdfast/observe/feature_columns.py": COLUMNS,
    "src/holdfast/observe/node_columns.py": COLUMNS,
    "src/holdfast/explain/capacity.py": HOLDINGS,
    "src/holdfast/propose/feasibility/fleet.py": HOLDINGS,
    "src/holdfast/commit/objects/request_form.py": "a rule of form is about the name of a field",
    "src/holdfast/correct/all_controllers.py": "the class of a controller follows from its actor",
    "src/holdfast/model/meta.py": "the one place that knows which kinds have a spec and a status",
    "src/holdfast/propose/decision_rounds.py": "servers keep what only a scheduler can decode",
}


def findings(source: Source) -> Iterator[Finding]:
    """Everything in one file that its pure room excludes, except uses of sets."""
    meaning = source.meaning
    for node in source.nodes:
        yield from _suspends(source, node)
        yield from _imports(source, node)
        yield from _members(source, node, meaning)
        yield from _catches_bugs(source, node, meaning)
        if source.path not in UNTYPED_ALLOWED:
            yield from _untyped(source, node)
        if isinstance(node, ast.Global):
            yield source.finding(
                node,
                "global-state",
                "two worlds in one process would share it; keep it in a machine",
            )
    yield from _unstable(source)


def _suspends(source: Source, node: ast.AST) -> Iterator[Finding]:
    waits = isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
    if waits or (isinstance(node, ast.comprehension) and node.is_async):
        # A comprehension has no line of its own; its iterable does.
        where = node.iter if isinstance(node, ast.comprehension) else node
        yield source.finding(where, "async", "a machine never waits; return an effect instead")


def _imports(source: Source, node: ast.AST) -> Iterator[Finding]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        # `from urllib import parse` and `import urllib.parse` are equal here.
        names = [
            full if (full := f"{node.module}.{alias.name}") in SUBMODULES_ALLOWED else node.module
            for alias in node.names
        ]
    for name in dict.fromkeys(names):
        why = _import_refused(name)
        if why and (source.path, name) not in IMPORTS_ALLOWED:
            yield source.finding(node, "import", f"{name} {why}")


def _import_refused(name: str) -> str:
    """Why a pure room may not import this module; "" when it may."""
    top = name.partition(".")[0]
    if name in SUBMODULES_ALLOWED or top in STDLIB_ALLOWED or top in THIRD_PARTY_ALLOWED:
        return ""
    if top in sys.stdlib_module_names:
        return (
            "is not on the list of standard modules without I/O, clock or randomness (tools/tidy)"
        )
    return "is not among the libraries that pure rooms may use (tools/tidy)"


def _members(source: Source, node: ast.AST, meaning: dict[str, str]) -> Iterator[Finding]:
    """Uses of refused members, under any imported name, and of refused builtins."""
    if isinstance(node, ast.ImportFrom) and node.module == "numpy":
        # Checked here because `from numpy import random` may never be used by that name again.
        for alias in node.names:
            if f"numpy.{alias.name}" in MEMBERS_REFUSED:
                yield source.finding(
                    node, "impure-member", f"numpy.{alias.name} is randomness or a file"
                )
    if isinstance(node, ast.Attribute | ast.Name):
        name = full_name(node, meaning)
        if name in MEMBERS_REFUSED:
            why = f"{name} asks for {MEMBERS_REFUSED[name]}; take `now` or `rng` as an argument"
            yield source.finding(node, "impure-member", why)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        builtin = node.func.id
        if builtin in BUILTINS_REFUSED and builtin not in meaning:
            yield source.finding(
                node, "impure-builtin", f"{builtin}() reaches for {BUILTINS_REFUSED[builtin]}"
            )


def _catches_bugs(source: Source, node: ast.AST, meaning: dict[str, str]) -> Iterator[Finding]:
    """InvariantBroken must stop the process: a machine that catches it decides on broken state."""
    if not isinstance(node, ast.ExceptHandler) or node.type is None:
        return
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    for kind in caught:
        name = full_name(kind, meaning).rpartition(".")[2]
        if name in {"Exception", "BaseException", "InvariantBroken", "AssertionError"}:
            yield source.finding(
                node, "catches-bugs", f"`except {name}` would hide a broken invariant"
            )


def _untyped(source: Source, node: ast.AST) -> Iterator[Finding]:
    """Collections of anything, and fields that are read by a name."""
    match node:
        case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in COLLECTIONS:
            parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            # Of a tuple with places of their own, each place has a type.
            is_mixed = name == "tuple" and not isinstance(parts[-1], ast.Constant)
            if not is_mixed and any(isinstance(it, ast.Name) and it.id == "Any" for it in parts):
                why = f"{ast.unparse(node)}: name the union of what it holds"
                yield source.finding(node, "untyped", why)
        case ast.Call(func=ast.Name(id="getattr")):
            yield source.finding(node, "untyped", "getattr by name: match on the types instead")


def _unstable(source: Source) -> Iterator[Finding]:
    """hash() and id(), except where a class defines its own hash for use in a dict."""
    exempt: set[int] = set()
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__":
            exempt.update(id(inner) for inner in ast.walk(node))
    for node in source.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in BUILTINS_UNSTABLE
            and id(node) not in exempt
        ):
            yield source.finding(
                node, "unstable-builtin", f"{node.func.id}() differs between processes; use hashlib"
            )
