"""No test asserts an absolute time: no measured duration must stay below a figure.

Such a test fails on a slower or busier machine, and says nothing about the code. Three things pass:
a duration compared with another measured one, a duration that must be *at least* this long (no
machine is too fast for a wait), and a deadline of patience (`clock() < deadline`).

The search is mechanical. A duration is a difference with one part read from a clock, or a name that
such a difference was assigned to in the same function, or a name that says so (`took_s`, `elapsed`,
`cpu_ms`). A figure is a number, a CONSTANT, a constant by a key, or arithmetic of those.

A wait that ends early is the same measurement in disguise. Live and unit tests wait at least the
time of tests/patience.py for what must come true. The rule finds `asyncio.timeout`, `wait_for`,
`until`, `eventually`, `.wait`, `.join`, `.communicate` and `subprocess.run` with a smaller number,
or with a constant of the same file that is one, and a `deadline` that soon after a reading of a
clock. A function that names TimeoutError or TimeoutExpired expects the time-out, and passes; so
does what stands below `pytest.raises`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.patience import PATIENCE_S
from tools.tidy.finding import Finding, Source, full_name

CLOCKS = frozenset(
    f"time.{name}{unit}"
    for name in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
    for unit in ("", "_ns")
)
RULE = "absolute-time"
WHY = "compare it with something measured beside it (tests/yardstick.py), or wait with patience"
SHORT_RULE = "short-patience"
SHORT_WHY = f"a wait for what must come true lasts {PATIENCE_S:.0f} s at least (tests/patience.py)"
_RUNS_OUT = ("TimeoutError", "TimeoutExpired")
_PATIENT = ("tests/live/", "tests/unit/")
_SAYS_SO = re.compile(r"(took|elapsed|cpu|duration|lasted)(_(s|ms|us|ns|seconds))?")
_CONSTANT = re.compile(r"[A-Z][A-Z0-9_]*")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def findings(source: Source) -> Iterator[Finding]:
    """The rules for every file under tests."""
    for function in [source.tree, *(it for it in source.nodes if isinstance(it, _Function))]:
        own = list(_own(function))
        checks = [it for it in own if isinstance(it, ast.Assert)]
        names = _Names(own, source.meaning) if checks else None
        for check in checks:
            compared = (it for it in ast.walk(check.test) if isinstance(it, ast.Compare))
            if names is not None and any(map(names.is_bounded, compared)):
                yield source.finding(check, RULE, WHY)
        if source.path.startswith(_PATIENT):
            yield from _short_waits(source, own)


def _short_waits(source: Source, own: list[ast.AST]) -> Iterator[Finding]:
    """Each wait of a function that is shorter than the patience."""
    if any(_last_name(it) in _RUNS_OUT for it in own):
        return
    constants = {
        name: value.value
        for statement in source.tree.body
        for name, value in _given(statement)
        if isinstance(value, ast.Constant)
    }
    names = _Names([], source.meaning)
    failing = {id(inner) for node in own if _must_fail(node) for inner in ast.walk(node)}
    for node in own:
        if id(node) in failing:
            continue
        for limit in _limits(node, source.meaning, names):
            value = constants.get(limit.id) if isinstance(limit, ast.Name) else None
            if isinstance(limit, ast.Constant):
                value = limit.value
            if isinstance(value, int | float) and value < PATIENCE_S:
                yield source.finding(node, SHORT_RULE, SHORT_WHY)


def _limits(node: ast.AST, meaning: dict[str, str], names: _Names) -> Iterator[ast.expr]:
    """The time-out of this call, if it is a wait."""
    if isinstance(node, ast.Call):
        called, last = full_name(node.func, meaning), _last_name(node.func)
        if called == "asyncio.timeout":
            yield from node.args
        elif last in ("until", "eventually"):
            # The first argument is what must come true.
            yield from node.args[1:][-1:]
        elif called == "asyncio.wait_for":
            yield from node.args[1:]
        elif last in ("wait", "join"):
            yield from node.args[:1]
        ends = last in ("wait", "communicate", "wait_for") or called == "subprocess.run"
        # asyncio.wait returns what is not done by then, and fails nothing.
        if ends and called != "asyncio.wait":
            yield from (it.value for it in node.keywords if it.arg == "timeout")
    for name, value in _given(node):
        if isinstance(value, ast.BinOp) and "deadline" in name and names.is_moment(value.left):
            yield value.right


def _must_fail(node: ast.AST) -> bool:
    """Whether this is a block below `pytest.raises`."""
    return isinstance(node, ast.With) and any(
        isinstance(it.context_expr, ast.Call) and _last_name(it.context_expr.func) == "raises"
        for it in node.items
    )


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function, without those of functions inside it, whose names are separate."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, _Function | ast.Lambda):
            yield from _own(child)


class _Names:
    """The values that the names of one function hold."""

    def __init__(self, own: list[ast.AST], meaning: dict[str, str]) -> None:
        self._meaning = meaning
        self._moments: set[str] = set()
        self._durations: set[str] = set()
        given = [it for node in own for it in _given(node)]
        for kind, holds in ((self._moments, self.is_moment), (self._durations, self.is_duration)):
            kind.update(name for name, value in given if holds(value))

    def is_bounded(self, compared: ast.Compare) -> bool:
        """Whether a duration must stay below a figure."""
        sides = [compared.left, *compared.comparators]
        for less, how, more in zip(sides, compared.ops, sides[1:], strict=False):
            if isinstance(how, ast.Gt | ast.GtE):
                less, more = more, less
            elif not isinstance(how, ast.Lt | ast.LtE):
                continue
            if self.is_duration(less) and _is_figure(more):
                return True
        return False

    def is_duration(self, node: ast.expr) -> bool:
        """Also for values derived from durations: a sum, a product, a maximum."""
        if isinstance(node, ast.Name):
            said = _SAYS_SO.fullmatch(node.id.lower()) is not None
            return node.id in self._durations or (said and not _CONSTANT.fullmatch(node.id))
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Sub) and self._reads_clock(node):
                return True
            # A ratio of two durations is the intended form.
            if isinstance(node.op, ast.Div) and not _is_figure(node.right):
                return False
            return self.is_duration(node.left) or self.is_duration(node.right)
        if isinstance(node, ast.Call):
            name = full_name(node.func, self._meaning)
            return name in {"abs", "min", "max", "sum", "round"} and any(
                map(self.is_duration, node.args)
            )
        return False

    def is_moment(self, node: ast.expr) -> bool:
        """Whether this reads a clock."""
        if isinstance(node, ast.Await):
            return self.is_moment(node.value)
        return isinstance(node, ast.Call) and self._is_clock(node.func)

    def _is_clock(self, node: ast.expr) -> bool:
        if full_name(node, self._meaning) in CLOCKS:
            return True
        # The time of an event loop: asyncio.get_running_loop().time(), loop.time().
        if not isinstance(node, ast.Attribute) or node.attr != "time":
            return False
        owner = node.value.func if isinstance(node.value, ast.Call) else node.value
        return full_name(owner, self._meaning).endswith("loop")

    def _reads_clock(self, node: ast.BinOp) -> bool:
        return any(
            self.is_moment(side) or (isinstance(side, ast.Name) and side.id in self._moments)
            for side in (node.left, node.right)
        )


def _given(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Which names get which value here; a list counts as what is put into it."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((it.id, value) for it in targets if isinstance(it, ast.Name))
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = zip(target.elts, value.elts, strict=False)
                    yield from ((it.id, to) for it, to in pairs if isinstance(it, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
            yield name, value
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[value]):
            yield name, value


def _is_figure(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int() | float()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _CONSTANT.fullmatch(name) is not None
        case ast.Subscript(value=value):
            return _is_figure(value)
        case ast.BinOp(left=left, right=right):
            return _is_figure(left) and _is_figure(right)
        case ast.UnaryOp(operand=operand):
            return _is_figure(operand)
    return False
