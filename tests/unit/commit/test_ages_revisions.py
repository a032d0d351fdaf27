"""The age of a revision, by the clock of the server that has seen it."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.ages import NOTED_EVERY_MS, NOTES_MAX, RevisionAges
from holdfast.model.time import Instant

DAY_MS = 86_400_000


def at(ms: int, wall_ms: int = 0) -> Instant:
    return Instant(ms, wall_ms)


def test_a_revision_is_as_old_as_the_first_answer_that_proves_it() -> None:
    """Whatever the calendar shows. [INV3]"""
    ages = RevisionAges()
    assert ages.least_ms(5, at(DAY_MS)) == 0, "nothing was seen yet"
    ages.observe(5, at(1_000, 40 * DAY_MS))
    ages.observe(9, at(31_000, -40 * DAY_MS))
    assert ages.least_ms(5, at(61_000)) == 60_000
    assert ages.least_ms(6, at(61_000)) == ages.least_ms(9, at(61_000)) == 30_000
    assert ages.least_ms(10, at(61_000)) == 0, "it has not been seen"


def test_an_answer_of_an_older_revision_proves_nothing_new() -> None:
    """[INV3]"""
    ages = RevisionAges()
    ages.observe(9, at(1_000))
    ages.observe(7, at(50_000))
    ages.observe(9, at(60_000))
    assert ages.least_ms(7, at(61_000)) == ages.least_ms(9, at(61_000)) == 60_000


def test_a_revision_after_which_nothing_comes_for_long_grows_old_as_well() -> None:
    ages = RevisionAges()
    for number in range(1, 4):
        ages.observe(number, at(number))
    ages.observe(9, at(DAY_MS))
    assert ages.least_ms(3, at(DAY_MS)) == DAY_MS - 3


def test_a_busy_store_does_not_fill_the_memory() -> None:
    """And the last hour is not forgotten for it."""
    ages = RevisionAges()
    for number in range(1, 4 * NOTES_MAX):
        ages.observe(number, at(number * NOTED_EVERY_MS))
    assert len(ages) <= NOTES_MAX
    now = at(4 * NOTES_MAX * NOTED_EVERY_MS)
    assert 3_600_000 <= ages.least_ms(1, now) <= now.monotonic_ms


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 3)), min_size=1, max_size=200))
def test_no_revision_is_taken_for_older_than_it_is(moves: list[tuple[int, int]]) -> None:
    """Nor for younger by more than the distance of two notes. [INV3]"""
    ages, ms, revision = RevisionAges(), 0, 0
    seen: list[tuple[int, int]] = []
    for more_ms, more in moves:
        ms, revision = ms + more_ms, revision + more
        ages.observe(revision, at(ms))
        seen.append((revision, ms))
    for asked in range(revision + 1):
        known_ms = seen[bisect_left(seen, (asked, 0))][1]
        age_ms = ages.least_ms(asked, at(ms))
        assert ms - known_ms - NOTED_EVERY_MS <= age_ms <= ms - known_ms
