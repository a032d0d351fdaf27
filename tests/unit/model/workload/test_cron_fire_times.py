"""Firing: the moments at which a schedule fires, also where clocks jump."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.workload.cron import Schedule, Zone, last_fire, next_fire, parse

MINUTE = timedelta(minutes=1)


def zone(name: str) -> Zone:
    info = ZoneInfo(name)

    def ahead(at: datetime) -> timedelta:
        offset = at.astimezone(info).utcoffset()
        assert offset is not None
        return offset

    return ahead


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(moment: datetime, name: str) -> str:
    return moment.astimezone(ZoneInfo(name)).strftime("%Y-%m-%d %H:%M %Z")


def fires(text: str, after: str, name: str, count: int) -> list[str]:
    """The first fires after a moment in UTC, as local clocks show them."""
    shown, moment = [], utc(after)
    for _ in range(count):
        found = next_fire(parse(text), moment, zone(name))
        assert found is not None
        shown.append(local(found, name))
        moment = found
    return shown


@pytest.mark.parametrize(
    "text, after, expected",
    [
        ("* * * * *", "2026-03-01T10:00:00", "2026-03-01T10:01:00"),
        ("* * * * *", "2026-03-01T10:00:59.999", "2026-03-01T10:01:00"),
        ("* * * * *", "2026-03-01T09:59:59.999", "2026-03-01T10:00:00"),
        ("30 2 * * *", "2026-03-01T02:30:00", "2026-03-02T02:30:00"),
        ("0 0 1 1 *", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("0 0 29 2 *", "2096-03-01T00:00:00", "2104-02-29T00:00:00"),
        ("0 0 * * mon", "2026-03-01T00:00:00", "2026-03-02T00:00:00"),
        ("59 23 31 12 *", "2026-12-31T23:59:00", "2027-12-31T23:59:00"),
        # Both day fields are given: either fits. The 13th of March 2026 is a Friday.
        ("0 0 13 * fri", "2026-03-01T00:00:00", "2026-03-06T00:00:00"),
        # "*/2" restricts the day, as in Kubernetes, so Mondays are added to odd days.
        ("0 0 */2 * mon", "2026-03-01T00:00:00", "2026-03-02T00:00:00"),
        # A field that allows every day restricts nothing, however it is written.
        ("0 0 1-31 * mon", "2026-03-02T00:00:00", "2026-03-09T00:00:00"),
    ],
)
def test_the_next_fire_is_the_first_fitting_minute(text: str, after: str, expected: str) -> None:
    assert next_fire(parse(text), utc(after), zone("UTC")) == utc(expected)


def test_a_skipped_time_fires_once_right_after_the_jump() -> None:
    """Berlin skips 02:00–02:59 on 29 March 2026; every skipped minute makes one run, not 60."""
    assert fires("30 2 * * *", "2026-03-27T12:00", "Europe/Berlin", 4) == [
        "2026-03-28 02:30 CET",
        "2026-03-29 03:00 CEST",
        "2026-03-30 02:30 CEST",
        "2026-03-31 02:30 CEST",
    ]
    assert fires("* 2 * * *", "2026-03-29T00:30", "Europe/Berlin", 2) == [
        "2026-03-29 03:00 CEST",
        "2026-03-30 02:00 CEST",
    ]


def test_a_time_right_after_a_jump_fires_once_for_itself_and_the_skipped_ones() -> None:
    assert fires("0 2,3 * * *", "2026-03-29T00:30", "Europe/Berlin", 2) == [
        "2026-03-29 03:00 CEST",
        "2026-03-30 02:00 CEST",
    ]


def test_a_repeated_time_fires_once() -> None:
    """Berlin shows 02:00–02:59 twice on 25 October 2026."""
    assert fires("30 2 * * *", "2026-10-24T12:00", "Europe/Berlin", 2) == [
        "2026-10-25 02:30 CEST",
        "2026-10-26 02:30 CET",
    ]
    # The second 02:10 is already past the first 02:30, so nothing is left for today.
    assert fires("30 2 * * *", "2026-10-25T01:10", "Europe/Berlin", 1) == ["2026-10-26 02:30 CET"]


def test_an_interval_goes_on_through_both_jumps() -> None:
    assert fires("*/30 * * * *", "2026-10-25T00:00", "Europe/Berlin", 4) == [
        "2026-10-25 02:30 CEST",
        "2026-10-25 02:00 CET",
        "2026-10-25 02:30 CET",
        "2026-10-25 03:00 CET",
    ]
    assert fires("*/30 * * * *", "2026-03-29T00:30", "Europe/Berlin", 2) == [
        "2026-03-29 03:00 CEST",
        "2026-03-29 03:30 CEST",
    ]


def test_a_whole_day_that_was_skipped_is_made_up_for_once() -> None:
    """Samoa had no 30 December 2011."""
    assert fires("0 10 * * *", "2011-12-29T21:00", "Pacific/Apia", 3) == [
        "2011-12-31 00:00 +14",
        "2011-12-31 10:00 +14",
        "2012-01-01 10:00 +14",
    ]
    assert fires("0 * 30 12 *", "2011-12-29T21:00", "Pacific/Apia", 1) == ["2012-12-30 00:00 +14"]


def test_half_an_hour_can_be_skipped_as_well() -> None:
    """Lord Howe Island moves its clocks by thirty minutes."""
    assert fires("15 2 * * *", "2026-10-03T12:00", "Australia/Lord_Howe", 2) == [
        "2026-10-04 02:30 +11",
        "2026-10-05 02:15 +11",
    ]


def test_the_calendar_has_an_end_and_a_beginning() -> None:
    yearly = parse("@yearly")
    assert next_fire(yearly, datetime.max.replace(tzinfo=UTC), zone("UTC")) is None
    assert next_fire(yearly, utc("9998-06-01T00:00"), zone("UTC")) is None
    assert next_fire(yearly, datetime.min.replace(tzinfo=UTC), zone("UTC")) is not None


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    """The texts of one field: stars, numbers, ranges, steps and lists of them."""
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda p: f"{min(p)}-{max(p)}")
    item = st.one_of(number.map(str), span, st.tuples(span, st.integers(1, 7)).map("%s/%s".__mod__))
    return st.one_of(
        st.just("*"),
        st.integers(1, 30).map("*/{}".format),
        st.lists(item, min_size=1, max_size=3).map(",".join),
    )


texts = st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 7)).map(
    " ".join
)


def jumping(jumps: list[tuple[int, int]]) -> Zone:
    """A zone with these UTC offsets in minutes, each from the given minute on."""
    start = utc("2026-01-01T00:00")

    def ahead(at: datetime) -> timedelta:
        past = [minutes for since, minutes in jumps if at >= start + since * MINUTE]
        return (past[-1] if past else 0) * MINUTE

    return ahead


def walked(schedule: Schedule, begin: datetime, minutes: int, at: Zone) -> list[datetime]:
    """Every fire of a stretch, found by looking at a clock each minute."""
    found = []
    shown = max(
        (begin - back * MINUTE + at(begin - back * MINUTE)).replace(tzinfo=None)
        for back in range(1, 1_600)
    )
    for step in range(minutes):
        moment = begin + step * MINUTE
        clock = (moment + at(moment)).replace(tzinfo=None)
        if schedule.is_interval:
            due = schedule.fits(clock)
        else:
            behind = max(0, (clock - shown) // MINUTE)
            due = any(schedule.fits(clock - back * MINUTE) for back in range(behind))
        if due:
            found.append(moment)
        shown = max(shown, clock)
    return found


def asked(schedule: Schedule, begin: datetime, minutes: int, at: Zone) -> list[datetime]:
    found = []
    moment = next_fire(schedule, begin - MINUTE, at)
    while moment is not None and moment < begin + minutes * MINUTE and len(found) < 200:
        found.append(moment)
        moment = next_fire(schedule, moment, at)
    return found


@given(
    text=texts,
    first=st.integers(60, 2_000),
    gap=st.integers(60, 3_000),
    offsets=st.lists(st.integers(-12 * 4, 12 * 4), min_size=2, max_size=2),
)
def test_next_fire_agrees_with_a_walk_over_every_minute_whatever_clocks_do(
    text: str, first: int, gap: int, offsets: list[int]
) -> None:
    """Two jumps of any size and direction inside four days."""
    try:
        schedule = parse(text)
    except Invalid:
        assume(False)
    at = jumping([(first, offsets[0] * 15), (first + gap, offsets[1] * 15)])
    begin = utc("2026-01-01T00:00")
    expected = walked(schedule, begin, 4 * 1440, at)
    assert asked(schedule, begin, 4 * 1440, at) == expected[:200]


@given(text=texts, days=st.integers(0, 30), minutes=st.integers(0, 5_000))
def test_last_fire_is_the_last_of_the_walk(text: str, days: int, minutes: int) -> None:
    try:
        schedule = parse(text)
    except Invalid:
        assume(False)
    at = zone("Europe/Berlin")
    begin = utc("2026-03-20T00:00") + timedelta(days=days)
    expected = walked(schedule, begin, minutes, at)
    found = last_fire(schedule, begin - MINUTE, begin + (minutes - 1) * MINUTE, at)
    assert found == (expected[-1] if expected else None)
