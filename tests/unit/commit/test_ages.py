"""The age of a timestamp, however the wall clock was set since."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.ages import STRETCHES_MAX, Ages
from holdfast.model.time import Instant, timestamp

NOON = 1_800_000_000_000
DAY = 86_400_000
STEPS = (0, 300_000, -300_000, DAY, -DAY, 40 * DAY, -40 * DAY)


def at(ms: int, step: int = 0) -> Instant:
    return Instant(5_000 + ms, NOON + ms + step)


def test_the_age_of_a_stamp_of_ones_own_is_exact_wherever_the_calendar_is_set() -> None:
    """[INV3]"""
    ages = Ages()
    ages.begin(at(0))
    for step in STEPS:
        ages.observe(at(1_000, DAY))
        now = at(61_000, step)
        ages.observe(now)
        stamp = timestamp(at(1_000, DAY).wall_ms)
        assert ages.likely_ms(stamp, now) == 60_000
        ages.begin(at(0))


def test_what_was_stamped_before_a_term_is_as_old_as_the_term_at_least() -> None:
    ages = Ages()
    old, ahead = timestamp(NOON - DAY), timestamp(NOON + 40 * DAY)
    assert ages.likely_ms(old, at(0)) == DAY
    ages.begin(at(0))
    assert ages.likely_ms(old, at(7_000)) == DAY + 7_000
    assert ages.likely_ms(ahead, at(7_000)) == 7_000
    ages.end()
    assert ages.likely_ms(ahead, at(9_000)) < 0, "without a term there is the calendar only"


def test_a_calendar_that_is_set_all_the_time_is_not_remembered_without_end() -> None:
    ages = Ages()
    ages.begin(at(0))
    for number in range(3 * STRETCHES_MAX):
        ages.observe(at(number * 10_000, number % 2 * DAY))
    now = at(3 * STRETCHES_MAX * 10_000)
    assert ages.likely_ms(timestamp(NOON + 40 * DAY), now) <= STRETCHES_MAX * 10_000 + 10_000


@given(st.lists(st.tuples(st.integers(100, 400_000), st.sampled_from(STEPS)), min_size=1))
def test_no_stamp_of_ones_own_is_taken_for_older_than_it_is(moves: list[tuple[int, int]]) -> None:
    ages, ms, made = Ages(), 0, []
    ages.begin(at(0))
    for more, step in moves:
        ms += more
        now = at(ms, step)
        ages.observe(now)
        made.append((ms, timestamp(now.wall_ms)))
    if len(made) >= STRETCHES_MAX:
        return
    end = at(ms, moves[-1][1])
    assert all(ages.likely_ms(stamp, end) <= ms - at_ms + 1_000 for at_ms, stamp in made)
