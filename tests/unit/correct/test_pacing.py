"""The rate of background work."""

from __future__ import annotations

from holdfast.correct.pacing import RateLimiter
from tests.unit.correct.views import later


def test_some_at_once_and_then_a_bounded_rate() -> None:
    """A long wait gathers no more than the first burst. [I1]"""
    pace = RateLimiter(per_s=10, burst=3)
    assert [pace.takes(later(0)) for _ in range(4)] == [True, True, True, False]
    assert not pace.takes(later(99))
    assert pace.takes(later(100))
    assert sum(pace.takes(later(100_000)) for _ in range(9)) == 3


def test_what_matters_more_has_its_own_share() -> None:
    """Looking takes nothing. [I1]"""
    pace = RateLimiter(per_s=1, burst=4)
    assert [pace.takes(later(0), spare=2) for _ in range(3)] == [True, True, False]
    assert not pace.has(later(0), spare=2)
    assert pace.has(later(0))
    assert [pace.takes(later(0)) for _ in range(3)] == [True, True, False]


def test_a_clock_never_gives_back_what_was_taken() -> None:
    """[I1]"""
    pace = RateLimiter(per_s=10, burst=1)
    assert pace.takes(later(1_000))
    assert not pace.takes(later(0))
    assert not pace.takes(later(50))
