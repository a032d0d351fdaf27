"""Backfill: whatever passes a blocked job, the job starts when it was told, or earlier."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.propose.backfill import Ending, ReservedStart, delays, earliest, start_at
from tests.scale import examples

GPU, WHOLE = "gpu", 8
# Arrival, size, true duration, and whether the duration is stated.
JOBS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, WHOLE), st.integers(1, 30), st.booleans()),
    min_size=1,
    max_size=14,
)


class _Pool:
    """One place, played by first come, first served with backfill, where statements are true."""

    def __init__(self, jobs: list[tuple[int, int, int, bool]]) -> None:
        self.waiting = sorted(enumerate(jobs), key=lambda it: (it[1][0], it[0]))
        self.running: dict[int, tuple[int, int, bool]] = {}
        self.promised: dict[int, int] = {}
        self.started: dict[int, int] = {}
        # The job with the reserved start, and its size.
        self.holder: tuple[int, int] | None = None

    def start(self, size: int, now: int) -> ReservedStart | None:
        free = {GPU: WHOLE - sum(it[1] for it in self.running.values())}
        ends = [Ending(str(n), end, {GPU: s}) for n, (end, s, told) in self.running.items() if told]
        return start_at("pool", free, ends, ((GPU, size),), now)

    def play(self) -> None:
        now = 0
        while self.waiting or self.running:
            self.running = {n: it for n, it in self.running.items() if it[0] > now}
            for number, (arrival, size, lasts, is_told) in list(self.waiting):
                if arrival <= now:
                    self.decide(number, size, now + lasts, now, is_told=is_told)
            now += 1

    def decide(self, number: int, size: int, ends: int, now: int, *, is_told: bool) -> None:
        """One decision of a scheduler: place it, leave the room to the holder, or become that."""
        found = self.start(size, now)
        if found is None:
            return
        if self.holder is not None and self.holder[0] != number:
            start = self.start(self.holder[1], now)
            assert start is not None
            if delays(start, "pool", ((GPU, size),), 1, ends if is_told else None):
                return
        if not found.basis:
            self.waiting = [it for it in self.waiting if it[0] != number]
            self.running[number] = ends, size, is_told
            self.started[number] = now
            if self.holder is not None and self.holder[0] == number:
                self.holder = None
        elif self.holder is None or self.holder[0] == number:
            self.holder = number, size
            # It may come earlier, and never later: no other job delayed it.
            before = self.promised.setdefault(number, found.starts_ms)
            assert found.starts_ms <= before
            self.promised[number] = found.starts_ms


@settings(max_examples=examples(200), deadline=None)
@given(JOBS)
def test_no_job_that_passes_delays_the_reserved_start(
    jobs: list[tuple[int, int, int, bool]],
) -> None:
    """So small jobs never starve a large one, also where others state no duration. [E3, V5]"""
    pool = _Pool(jobs)
    pool.play()
    assert len(pool.started) == len(jobs)
    for number, promised in pool.promised.items():
        assert pool.started[number] <= promised


def test_a_place_whose_statements_make_no_room_gives_no_start() -> None:
    """An estimate without a basis is none. [E3, M2]"""
    one = Ending("a", 50, {GPU: 2})
    assert start_at("n", {GPU: 1}, [one], ((GPU, 4),), 10) is None
    assert start_at("n", {GPU: 2}, [one], ((GPU, 4),), 10) == ReservedStart("n", 50, {GPU: 0}, "a")
    late = start_at("n", {GPU: 2}, [one], ((GPU, 4),), 60)
    assert late == ReservedStart("n", 60, {GPU: 0}, "a", is_overrun=True)


@pytest.mark.parametrize(
    "place, count, ends_ms, expected",
    [
        ("other", 9, None, False),
        ("n", 1, 100, False),
        ("n", 9, 100, False),
        ("n", 1, 101, False),
        ("n", 2, 101, True),
        ("n", 1, None, False),
        ("n", 2, None, True),
    ],
)
def test_what_ends_in_time_or_fits_beside_it_may_pass(
    place: str, count: int, ends_ms: int | None, expected: bool
) -> None:
    """[E3]"""
    start = ReservedStart("n", 100, {GPU: 3}, "a")
    assert delays(start, place, ((GPU, 2),), count, ends_ms) is expected


def test_of_several_places_the_first_in_time_is_reserved() -> None:
    """[E3]"""
    late, soon = ReservedStart("a", 9, {}), ReservedStart("b", 5, {})
    assert earliest([late, None, soon]) is soon
    assert earliest([None]) is None
