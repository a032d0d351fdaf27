"""Cron schedules as in crontab and Kubernetes: the parser, and when a schedule fires.

Validation calls `parse`, the workload controller `next_fire` and `last_fire`. A schedule has five
fields with numbers, ranges, lists, steps and English names, or is an alias such as @daily. As in
Kubernetes, if both day fields are restricted, a date that fits either of them fits; otherwise it
must fit both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

import msgspec

from holdfast.model.errors import FieldError, Invalid

TEXT_MAX = 256
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_DAYS_IN_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_ITEM = re.compile(
    r"(?P<low>[*?]|[0-9]{1,2}|[a-z]{3})(?:-(?P<high>[0-9]{1,2}|[a-z]{3}))?(?:/(?P<step>[0-9]{1,2}))?",
    re.ASCII,
)


class _Field(msgspec.Struct, frozen=True):
    """One of the five fields: its bounds, and its names for numbers."""

    title: str
    low: int
    high: int
    names: dict[str, int] = {}
    is_day: bool = False


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31, is_day=True),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of the week", 0, 6, {n: i for i, n in enumerate(_WEEKDAYS)}, is_day=True),
)
_WEEKDAY = _FIELDS[4]
_SUNDAY_LAST = 7


class Schedule(msgspec.Struct, frozen=True):
    """A parsed schedule: the allowed values of each field, in ascending order. Sunday is 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    @property
    def is_interval(self) -> bool:
        """Whether it means an interval instead of times of the day."""
        return len(self.hours) == 24

    def fits_date(self, day: date) -> bool:
        """Whether it fires at some time of this day."""
        by_day = day.day in self.days
        by_weekday = day.isoweekday() % 7 in self.weekdays
        # A field that allows every day is not a restriction, however it is written.
        if len(self.days) < 31 and len(self.weekdays) < 7:
            return day.month in self.months and (by_day or by_weekday)
        return day.month in self.months and by_day and by_weekday

    def fits(self, local: datetime) -> bool:
        """Whether it fires at this local time."""
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and self.fits_date(local.date())
        )


class _Wrong(Exception):
    """The rule that one field breaks."""


@lru_cache(maxsize=1024)
def parse(text: str) -> Schedule:
    """Parses a schedule. Raises Invalid with every field that is wrong."""
    if len(text) > TEXT_MAX or not text.isascii():
        raise _invalid([f"must be at most {TEXT_MAX} characters of plain ASCII"])
    lowered = text.strip().lower()
    if lowered.startswith("@") and lowered not in ALIASES:
        raise _invalid([f"must be five fields or one of {', '.join(ALIASES)}"])
    parts = ALIASES.get(lowered, lowered).split()
    if len(parts) != len(_FIELDS):
        raise _invalid(
            [f"must have five fields (minute hour day month weekday), this has {len(parts)}"]
        )
    sets: list[tuple[int, ...]] = []
    rules: list[str] = []
    for field, part in zip(_FIELDS, parts, strict=True):
        try:
            sets.append(_values(field, part))
        except _Wrong as wrong:
            rules.append(str(wrong))
    if rules:
        raise _invalid(rules)
    schedule = Schedule(*sets)
    if not _possible(schedule):
        raise _invalid(["must name a day that its months have"])
    return schedule


def _invalid(rules: list[str]) -> Invalid:
    errors = tuple(FieldError(path="", value="", rule=rule) for rule in rules)
    return Invalid("; ".join(rules), errors)


def _values(field: _Field, text: str) -> tuple[int, ...]:
    """The numbers that one field allows."""
    allowed: set[int] = set()
    for item in text.split(","):
        allowed.update(_item(field, item))
    if field is _WEEKDAY and _SUNDAY_LAST in allowed:
        allowed = (allowed - {_SUNDAY_LAST}) | {0}
    return tuple(sorted(allowed))


def _item(field: _Field, text: str) -> range:
    found = _ITEM.fullmatch(text)
    if found is None:
        raise _Wrong(f"the {field.title} must be numbers, ranges, lists, steps or *")
    low, high, step = found["low"], found["high"], found["step"]
    if low == "?" and not field.is_day:
        raise _Wrong(f"the {field.title} cannot be ?; only the two day fields can")
    if low in ("*", "?"):
        if high is not None:
            raise _Wrong(f"the {field.title} cannot have a range that starts with {low}")
        first, last = field.low, field.high
    else:
        first = _number(field, low)
        # "5/15" means from 5 on, as in Kubernetes.
        last = _last(field, first, high) if high else first if step is None else field.high
    if step is not None and int(step) == 0:
        raise _Wrong(f"the {field.title} must have steps of at least 1")
    return range(first, last + 1, int(step or 1))


def _last(field: _Field, first: int, text: str) -> int:
    last = _number(field, text)
    # A week may end on a Sunday: "fri-sun" is a range although Sunday is 0.
    if field is _WEEKDAY and text == "sun" and first > 0:
        last = _SUNDAY_LAST
    if last < first:
        raise _Wrong(f"the {field.title} must not have a range that ends before it starts")
    return last


def _number(field: _Field, text: str) -> int:
    number = field.names.get(text, -1) if text.isalpha() else int(text)
    highest = _SUNDAY_LAST if field is _WEEKDAY else field.high
    if not field.low <= number <= highest:
        raise _Wrong(f"the {field.title} must be within {field.low}-{highest}")
    return number


def _possible(schedule: Schedule) -> bool:
    """Whether there is any date at all that fits; 29 February counts."""
    if len(schedule.weekdays) < 7:
        return True
    return any(schedule.days[0] <= _DAYS_IN_MONTH[month - 1] for month in schedule.months)


# When a cron schedule fires, also where clocks jump.
#
# The workload controller calls `next_fire` and, after an outage, `last_fire`. Time zone data is a
# file, and pure code reads no files: the caller passes a `Zone`, a function that returns the UTC
# offset of a moment. Where clocks jump, two rules hold:
#
# - A schedule that names hours fires once per local time. It looks at the latest local time that
#   clocks have ever shown: nothing fires again in a repeated hour, and a skipped hour that would
#   have fired causes one run in the first minute after the jump.
# - A schedule for every hour ("*/15 * * * *") means an interval. It fires whenever clocks show a
#   fitting time, so that a repeated hour gets its runs and a skipped one needs none.
#
# Vixie cron draws the same line, at jobs with a `*`.

# How far local clocks are ahead of UTC at a moment in UTC; negative where they are behind.
Zone = Callable[[datetime], timedelta]

# Inside, moments are whole minutes since 1970, in UTC or as local clocks show them.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_DAY = 1440
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# The calendar of the standard library ends at 9999; later moments never come.
_FIRST = (date(2, 1, 1).toordinal() - _EPOCH_DAY) * _DAY
_LAST = (date(9999, 1, 1).toordinal() - _EPOCH_DAY) * _DAY

# No zone has ever set its clocks back by more than a day, or been further than a day from UTC.
_BACK_MAX = _DAY + 120
_AHEAD_MAX = _DAY
_WINDOW = 2 * _DAY
_SAMPLE = 60
# 29 February can be eight years away, and a month that does not fit is skipped in one go.
_DAYS_TRIED_MAX = 9 * 366
# Each round ends with a fire or skips to the next date that fits; only a date that clocks
# jumped over costs another round.
_ROUNDS_MAX = 64


def next_fire(schedule: Schedule, after: datetime, zone: Zone) -> datetime | None:
    """The first moment after this one at which the schedule fires, in UTC; None for never.

    For a schedule that `parse` accepts, this is None only at the end of the calendar.
    """
    begin = max((after - _EPOCH) // _MINUTE + 1, _FIRST)
    for _ in range(_ROUNDS_MAX):
        if begin >= _LAST:
            return None
        found = _fire_within(schedule, begin, begin + _WINDOW, zone)
        if found is not None:
            return _EPOCH + found * _MINUTE
        begin += _WINDOW
        fitting = _first_fitting(schedule, begin - _BACK_MAX - _AHEAD_MAX)
        if fitting is None:
            return None
        begin = max(begin, fitting - _AHEAD_MAX)
    return None


def last_fire(schedule: Schedule, after: datetime, until: datetime, zone: Zone) -> datetime | None:
    """The last moment in (after, until] at which the schedule fires; None if there is none.

    The cost does not depend on the number of missed runs: the next fire after a later moment never
    comes earlier, so a binary search finds the last one.
    """
    found = next_fire(schedule, after, zone)
    if found is None or found > until:
        return None
    low, high = (after - _EPOCH) // _MINUTE, (until - _EPOCH) // _MINUTE
    while high - low > 1:
        middle = (low + high) // 2
        later = next_fire(schedule, _EPOCH + middle * _MINUTE, zone)
        if later is not None and later <= until:
            low, found = middle, later
        else:
            high = middle
    return found


def _fire_within(schedule: Schedule, begin: int, end: int, zone: Zone) -> int | None:
    """The first fire of a time range, by the two rules above."""
    shown = max(stop - 1 + ahead for _, stop, ahead in _constant(begin - _BACK_MAX, begin, zone))
    for start, stop, ahead in _constant(begin, end, zone):
        fitting = _first_fitting(schedule, start + ahead if schedule.is_interval else shown + 1)
        if fitting is not None and max(start, fitting - ahead) < stop:
            return max(start, fitting - ahead)
        shown = max(shown, stop - 1 + ahead)
    return None


def _constant(begin: int, end: int, zone: Zone) -> Iterator[tuple[int, int, int]]:
    """Splits time where clocks jump: yields start, stop and the UTC offset in between.

    Hourly samples find every jump that lasts for an hour, and no zone has shorter ones.
    """

    def ahead_at(minute: int) -> int:
        return zone(_EPOCH + minute * _MINUTE) // _MINUTE

    start, at, ahead = begin, begin, ahead_at(begin)
    while at < end:
        sample = min(at + _SAMPLE, end)
        if ahead_at(sample) == ahead:
            at = sample
            continue
        same, other = at, sample
        while other - same > 1:
            middle = (same + other) // 2
            same, other = (middle, other) if ahead_at(middle) == ahead else (same, middle)
        yield start, other, ahead
        start, at, ahead = other, other, ahead_at(other)
    if start < end:
        yield start, end, ahead


def _first_fitting(schedule: Schedule, minute: int) -> int | None:
    """The first local minute from this one on that fits the schedule."""
    day, time = divmod(minute, _DAY)
    for _ in range(_DAYS_TRIED_MAX):
        if day * _DAY >= _LAST:
            return None
        today = date.fromordinal(_EPOCH_DAY + day)
        if schedule.fits_date(today):
            found = _first_time(schedule, time)
            if found is not None:
                return day * _DAY + found
        if today.month in schedule.months:
            day, time = day + 1, 0
        else:
            day, time = _next_month(today).toordinal() - _EPOCH_DAY, 0
    return None


def _next_month(day: date) -> date:
    return (day.replace(day=1) + timedelta(days=31)).replace(day=1)


def _first_time(schedule: Schedule, time: int) -> int | None:
    """The first time of a day from this one on, in minutes since midnight."""
    for hour in schedule.hours:
        if hour * 60 + schedule.minutes[-1] < time:
            continue
        for minute in schedule.minutes:
            if hour * 60 + minute >= time:
                return hour * 60 + minute
    return None
