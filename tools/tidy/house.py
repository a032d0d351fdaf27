"""Rules for all of src and for unit tests that no linter in use here checks."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from tools.tidy.finding import Finding, Source, full_name

# Names that do not say what a file holds, so that any code ends up in it.
NAMES_REFUSED = frozenset(
    {"base", "common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
)
# Rooms where a check of part of a list lets the rest pass unchecked.
CHECKING_ROOMS = ("src/holdfast/model/validation/", "src/holdfast/commit/", "src/holdfast/host/")
# Text that is cut for readers or for the record checks nothing, and there are as many batches as
# needed.
_SHOWN = re.compile(r"SHOWN|RECORDED|BATCH")
# By file and bound, why this cut lets nothing pass that should be checked.
PARTIAL_ALLOWED = {
    (
        "src/holdfast/commit/quarantine_repair.py",
        "EVIDENCE_MAX",
    ): "the text of a damaged record for readers",
    (
        "src/holdfast/host/api/objects/write_routes.py",
        "TEXT_MAX",
    ): "the text itself is cut and sent",
    ("src/holdfast/host/audit/accesses.py", "TEXT_MAX"): "the text itself is cut and written",
    ("src/holdfast/host/audit/refusals.py", "TEXT_MAX"): "the text itself is cut and logged",
    (
        "src/holdfast/host/client/known_servers.py",
        "SERVERS_MAX",
    ): "a server that is left out gets no request",
    (
        "src/holdfast/host/process/metrics.py",
        "SERIES_MAX",
    ): "a series that is left out is not shown",
    ("src/holdfast/host/runtime/cgroups/groups.py", "MOUNTS_MAX"): "none found, none used",
    ("src/holdfast/host/runtime/devices.py", "DEVICES_MAX"): "a device left out is not offered",
}
_WRAPPERS = frozenset({"enumerate", "list", "reversed", "sorted", "tuple", "zip"})
_REMINDER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
_ISSUE = re.compile(r"#\d+")


def findings(source: Source) -> Iterator[Finding]:
    """The rules for every file under src."""
    yield from module_name(source)
    yield from module_docstring(source)
    yield from reminders(source)
    yield from swallowed_errors(source)
    if source.path.startswith(CHECKING_ROOMS):
        yield from partial_checks(source)
    for node in source.nodes:
        if isinstance(node, ast.Assert):
            yield source.finding(node, "assert", "-O disables it; use invariant()")


def module_name(source: Source) -> Iterator[Finding]:
    """A file, and a package, is named after the thing it holds."""
    path = PurePosixPath(source.path)
    for part in (path.stem, path.parent.name):
        words = part.split("_")
        if part in NAMES_REFUSED or words[-1] in NAMES_REFUSED:
            yield source.finding(source.tree, "module-name", f"{part!r} does not say what it holds")


def module_docstring(source: Source) -> Iterator[Finding]:
    if not ast.get_docstring(source.tree):
        yield source.finding(
            source.tree, "module-docstring", "say who calls this module, and what it is for"
        )


def reminders(source: Source) -> Iterator[Finding]:
    """A reminder without an issue number is forgotten."""
    for line, text in [*_comments(source.text), *_docstrings(source.nodes)]:
        for offset, part in enumerate(text.splitlines()):
            if _REMINDER.search(part) and not _ISSUE.search(part):
                yield Finding(
                    source.path,
                    line + offset,
                    "reminder",
                    "name the issue: TODO(#12), or do it now",
                )


def swallowed_errors(source: Source) -> Iterator[Finding]:
    """An error that no code handles and no log shows hides a defect."""
    meaning = source.meaning
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield source.finding(node, "bare-except", "name the expected errors")
            elif _catches_all(node.type) and all(_does_nothing(s) for s in node.body):
                yield source.finding(
                    node, "swallowed", "this hides every error; handle or report it"
                )
        elif (
            isinstance(node, ast.Call)
            and full_name(node.func, meaning) == "contextlib.suppress"
            and any(_catches_all(argument) for argument in node.args)
        ):
            yield source.finding(node, "swallowed", "this hides every error; handle or report it")


def partial_checks(source: Source) -> Iterator[Finding]:
    """A check of the first N entries of a longer list ignores all later ones."""
    for scope in _scopes(source.tree):
        named = _named_cuts(scope)
        walks = [it for it in scope if isinstance(it, ast.For | ast.AsyncFor | ast.comprehension)]
        cuts = dict.fromkeys(cut for walk in walks for cut in _cut_lists(walk.iter, named))
        for cut in cuts:
            if (source.path, _bound(cut)) not in PARTIAL_ALLOWED:
                yield source.finding(
                    cut, "partial-check", "refuse a list that is too long, then check all of it"
                )


def _scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """The nodes of each function, and of the module outside of them, in the order of the text."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        found, inside = list[ast.AST](), [waiting.pop()]
        while inside:
            for child in reversed(list(ast.iter_child_nodes(inside.pop()))):
                is_own = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                (waiting if is_own else inside).append(child)
                found.append(child)
        yield found


def _named_cuts(scope: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """The names that a function assigns the first part of a list to."""
    found: dict[str, ast.expr] = {}
    for node in scope:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                cuts = list(_cut_lists(value, {}))
                if cuts:
                    found[name] = cuts[0]
    return found


def _cut_lists(looked_at: ast.expr, named: Mapping[str, ast.expr]) -> Iterator[ast.expr]:
    """The first N of a list, for a constant N, among the iterables of a loop."""
    match looked_at:
        case ast.Name(id=name) if name in named:
            yield named[name]
        case ast.Call(func=ast.Name(id=name)) if name in _WRAPPERS:
            for argument in looked_at.args:
                yield from _cut_lists(argument, named)
        case _ if _bound(looked_at):
            yield looked_at


def _bound(looked_at: ast.expr) -> str:
    """The number that an expression cuts a list at, if it is the same for every list."""
    match looked_at:
        case ast.Subscript(slice=ast.Slice(lower=None, upper=most)):
            pass
        case ast.Call(func=ast.Name(id="islice") | ast.Attribute(attr="islice"), args=[_, most]):
            pass
        case _:
            return ""
    match most:
        case ast.Constant(value=value):
            return str(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name if name.isupper() and not _SHOWN.search(name) else ""
    return ""


def unit_test_findings(source: Source) -> Iterator[Finding]:
    """The rules for tests/unit: no sleep, and no mocks, which pass when the real part is broken."""
    meaning = source.meaning
    for node in source.nodes:
        if isinstance(node, ast.Call):
            name = full_name(node.func, meaning)
            zero = (
                bool(node.args)
                and isinstance(node.args[0], ast.Constant)
                and not node.args[0].value
            )
            # asyncio.sleep(0) only lets the other coroutines run.
            if name == "time.sleep" or (name == "asyncio.sleep" and not zero):
                yield source.finding(node, "sleep", "a unit test waits for events, not for time")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            imported = [f"{module}.{a.name}".lstrip(".") for a in node.names]
            if any(f"{name}.".startswith("unittest.mock.") for name in imported):
                yield source.finding(
                    node, "mock", "test against the real part or its simulated twin"
                )


def _catches_all(kind: ast.expr) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(k, ast.Name) and k.id in {"Exception", "BaseException"} for k in kinds)


def _does_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break)


def _comments(text: str) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]


def _docstrings(nodes: Iterable[ast.AST]) -> list[tuple[int, str]]:
    found = []
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                found.append((node.body[0].lineno, text))
    return found
