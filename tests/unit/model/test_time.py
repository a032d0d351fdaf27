"""Moments: exact to the millisecond, there and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.time import Instant, rfc3339, timestamp, wall_ms

# The years 1 to 9999, as far as a datetime goes.
FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999


@given(ms=st.integers(FIRST, LAST))
def test_a_moment_comes_back_to_the_millisecond(ms: int) -> None:
    """No float is in between, however far away the year is."""
    moment = timestamp(ms)
    assert moment.tzinfo is UTC
    assert wall_ms(moment) == ms


@given(ms=st.integers(FIRST, LAST), micros=st.integers(0, 999), hours=st.integers(-14, 14))
def test_fractions_round_down_and_zones_do_not_matter(ms: int, micros: int, hours: int) -> None:
    """Before 1970 as well, so that order is kept."""
    moment = timestamp(ms) + timedelta(microseconds=micros)
    if FIRST + 86_400_000 < ms < LAST - 86_400_000:
        moment = moment.astimezone(timezone(timedelta(hours=hours)))
    assert wall_ms(moment) == ms


@pytest.mark.parametrize(
    "ms, text",
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_772_323_199_999, "2026-02-28T23:59:59Z"),
        (-1, "1969-12-31T23:59:59Z"),
        (FIRST, "0001-01-01T00:00:00Z"),
        (LAST, "9999-12-31T23:59:59Z"),
    ],
)
def test_people_read_whole_seconds_of_utc(ms: int, text: str) -> None:
    """Rounded down, and with four digits of year as RFC 3339 asks."""
    assert rfc3339(ms) == text
    assert datetime.fromisoformat(text) <= timestamp(ms)


def test_moments_of_one_machine_are_ordered_by_its_monotonic_clock() -> None:
    """A wall clock that was set back does not turn time around."""
    assert Instant(monotonic_ms=1, wall_ms=500) < Instant(monotonic_ms=2, wall_ms=100)
