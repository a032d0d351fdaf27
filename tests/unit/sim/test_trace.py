"""The trace and its digest."""

from __future__ import annotations

from holdfast.sim.event_engine import TAIL_LINES_MAX, Trace


def _digest(lines: list[str]) -> str:
    trace = Trace()
    for line in lines:
        trace.line(line)
    return trace.digest()


def test_any_two_traces_have_different_digests() -> None:
    """A changed, missing or moved line changes it, at any place. [N6]"""
    lines = [f"{number} node Woken 1" for number in range(20_000)]
    digests = {
        _digest(lines),
        _digest(lines[:-1]),
        _digest(lines[1:]),
        _digest([*lines[:9_000], "9000 node Woken 2", *lines[9_001:]]),
        _digest([lines[1], lines[0], *lines[2:]]),
    }
    assert len(digests) == 5


def test_a_digest_does_not_depend_on_earlier_digests() -> None:
    """Lines are hashed in bulk; the digest does not depend on where a bulk ends. [N6]"""
    trace = Trace()
    trace.line("a")
    trace.digest()
    trace.line("b")
    assert trace.digest() == _digest(["a", "b"])


def test_a_tail_is_the_end_of_a_full_trace() -> None:
    """A report shows the last transitions. [N6]"""
    trace = Trace(full=True, keep_text=True)
    for number in range(TAIL_LINES_MAX + 5):
        trace.detail(number, f"line {number} " + "x" * 1_000)
    assert len(trace.tail()) == TAIL_LINES_MAX
    assert f"line {TAIL_LINES_MAX + 4} " in trace.tail()[-1]
    assert len(trace.tail()[-1]) < 500
    assert "line 0 " in trace.text()
