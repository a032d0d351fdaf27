"""A concurrency limit that follows measurements."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.commit.flow.concurrency_limit import (
    ALONE_MAX_MS,
    FEW_SCALE,
    INSIDE_MS,
    MEASURED_MAX_MS,
    PROBE_EVERY_MS,
    SAMPLES,
    SCALE_MAX,
    SCALE_MIN,
    SLOWDOWN,
    TURN_MS,
    TURNS,
    ConcurrencyLimit,
)

SEATS = 32


class Served:
    """A server whose requests take as long as it says, by how many are under way."""

    def __init__(self, took_ms: Callable[[float], float]) -> None:
        self.limit, self._took_ms = ConcurrencyLimit(SEATS), took_ms
        self.now_ms = 0

    def run(self, until_ms: int, *, is_short: bool = True) -> float:
        """As many at a time as the limit allows; the limit in the end, in seats."""
        while self.now_ms < until_ms:
            seats = max(1, int(self.limit.scale * SEATS))
            began_ms = self.now_ms
            self.now_ms += max(1, int(self._took_ms(seats)))
            for _ in range(seats):
                self.limit.is_short = is_short
                self.limit.observe_end(began_ms, self.now_ms, seats)
        return self.limit.scale * SEATS


def probed(took_ms: int = 5) -> ConcurrencyLimit:
    """A limit that knows what a request takes alone."""
    limit = ConcurrencyLimit(SEATS)
    for _ in range(SAMPLES):
        limit.observe_end(0, took_ms, 1)
    return limit


def test_the_first_requests_are_few_and_measure_what_one_takes_alone() -> None:
    """A server that starts under load learns no wrong measure."""
    limit = ConcurrencyLimit(SEATS)
    assert limit.scale == FEW_SCALE
    for _ in range(SAMPLES):
        limit.observe_end(0, 70, 1)
    assert limit.scale == 1
    assert limit.inside_max_ms == SLOWDOWN * 70


def test_a_limit_grows_while_requests_wait_and_nothing_becomes_slower() -> None:
    """A store that commits in groups is kept busy."""
    assert Served(lambda _: 10).run(5_000) == SCALE_MAX * SEATS
    assert Served(lambda _: 10).run(5_000, is_short=False) == SEATS


@pytest.mark.parametrize("each_ms", [0.5, 2, 8])
def test_a_limit_shrinks_until_what_is_inside_takes_no_longer_than_it_should(
    each_ms: float,
) -> None:
    """A queue behind flow control has no fair order: admit as many as the store can bear."""
    seats = Served(lambda n: 5 + each_ms * n).run(9_000)
    alone_ms = 5 + each_ms * FEW_SCALE * SEATS
    most_ms = max(INSIDE_MS, SLOWDOWN * alone_ms)
    assert 5 + each_ms * seats == pytest.approx(most_ms, rel=0.5)


def test_a_store_that_is_slow_by_nature_keeps_its_groups() -> None:
    """Slow is only what is slower than alone."""
    assert Served(lambda n: 200 + n / 10).run(60_000) > 2 * SEATS


def test_a_limit_does_not_follow_its_own_queue_upwards() -> None:
    """Under a load that never ends, the time alone is measured again and again."""
    served = Served(lambda n: 40 + 4 * n)
    alone_ms = 40 + 4 * FEW_SCALE * SEATS
    for _ in range(20):
        seats = served.run(served.now_ms + PROBE_EVERY_MS)
        assert 40 + 4 * seats <= 1.5 * SLOWDOWN * alone_ms


def test_a_store_that_becomes_slower_for_good_is_not_held_against_its_past() -> None:
    """What the least was long ago is forgotten."""
    now = [5]
    served = Served(lambda _: now[0])
    served.run(5_000)
    now[0] = 200
    assert served.run(10_000) < SEATS / 2
    assert served.run(120_000) == SCALE_MAX * SEATS


def test_a_queue_is_met_at_once_however_many_seats_are_empty() -> None:
    """Empty seats cause no queue, and removing them ends none."""
    limit = probed()
    for _ in range(SAMPLES):
        limit.observe_end(1_000, 1_000 + 2 * INSIDE_MS, 4)
    assert limit.scale == pytest.approx(0.7 * 4 / SEATS)


def test_a_few_seats_behind_a_queue_become_fewer_and_not_more() -> None:
    """As many measurements count when fewer than these are under way at once."""
    limit, now_ms = probed(), 1_000
    for _ in range(11 * SAMPLES):
        now_ms += 2 * INSIDE_MS
        limit.is_short = True
        limit.observe_end(now_ms - 2 * INSIDE_MS, now_ms, max(1, int(limit.scale * SEATS)))
        assert limit.scale <= 1
    assert now_ms < PROBE_EVERY_MS
    assert limit.scale == SCALE_MIN


def test_the_queue_of_other_servers_is_not_taken_for_a_store_slow_by_nature() -> None:
    """A probe reduces only the own requests. A server behind the queue of others must not admit
    more, because leases wait there as well: up to five times within two seconds.
    """
    limit, now_ms = probed(), 1_000
    for _ in range(40 * SAMPLES):
        now_ms += PROBE_EVERY_MS // SAMPLES
        limit.is_short = True
        limit.observe_end(now_ms - 600, now_ms, max(1, int(limit.scale * SEATS)))
        assert limit.inside_max_ms <= SLOWDOWN * ALONE_MAX_MS
    assert limit.scale == SCALE_MIN


def test_long_turns_of_the_event_loop_make_the_limit_shrink_and_one_pause_does_not() -> None:
    """A garbage collection is no overload; three long turns in a row are."""
    limit = probed()
    for _ in range(100):
        limit.observe_turn(20 * TURN_MS, TURN_MS)
        limit.observe_turn(TURN_MS, TURN_MS)
    assert limit.scale == 1
    for _ in range(TURNS):
        limit.observe_turn(TURN_MS + 1, TURN_MS)
    assert FEW_SCALE < limit.scale < 1
    for _ in range(100):
        limit.observe_turn(20 * TURN_MS, TURN_MS)
    assert limit.scale == FEW_SCALE


def test_a_limit_does_not_grow_while_turns_are_long() -> None:
    """Otherwise reads, which end at once, would outgrow every shrinking."""
    limit = probed()
    limit.observe_turn(20 * TURN_MS, TURN_MS)
    for now_ms in range(10 * SEATS):
        limit.is_short = True
        limit.observe_end(now_ms, now_ms, SEATS)
    assert limit.scale == 1
    limit.observe_turn(1, TURN_MS)
    for now_ms in range(10 * SEATS):
        limit.is_short = True
        limit.observe_end(now_ms, now_ms, SEATS)
    assert limit.scale > 1


def test_one_slow_request_among_fast_ones_changes_nothing() -> None:
    """The least of several counts: a large list is no queue."""
    limit = probed()
    for now_ms in range(2_000, 5_000):
        limit.observe_end(now_ms - (2_000 if now_ms % SAMPLES else 5), now_ms, SEATS)
    assert limit.scale == 1


def test_what_began_before_the_limit_shrank_is_not_counted_again() -> None:
    """One stall, one step: the requests that waited through it all end at once."""
    limit = probed()
    for _ in range(1_000):
        limit.observe_end(10, 3_000, SEATS)
    assert limit.scale == pytest.approx(0.7)


def test_no_request_waits_for_a_store_that_stalls() -> None:
    """A wait is as long as a seat usually takes to become free, not as long as a stall."""
    limit = probed()
    for now_ms in range(1_000):
        limit.observe_end(now_ms, now_ms + 20, SEATS)
    usual_ms = limit.wait_ms
    assert 20 < usual_ms <= 40
    for at in range(100):
        limit.observe_end(10_000 * at, 10_000 * at + 9_000, SEATS)
    assert limit.wait_ms <= 2 * INSIDE_MS < MEASURED_MAX_MS
