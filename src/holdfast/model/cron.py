"""Cron schedules: an exact parser of what crontab and Kubernetes write.

Validation parses; `firing.py` says when a parsed schedule fires. Five fields with numbers, ranges,
lists, steps and English names, or an alias such as @daily. As in Kubernetes, a date fits when the
day of the month or the day of the week does, where both are restricted; otherwise both must fit.
"""

from __future__ import annotations

import re
from datetime import date, datetime
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
    """One of the five fields: its bounds, and the names that stand for numbers in it."""

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
    """A parsed schedule: what each field allows, in ascending order. Sunday is 0."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]

    @property
    def is_interval(self) -> bool:
        """Whether it means an interval and not times of the day."""
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
        """Whether it fires when local clocks show this."""
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and self.fits_date(local.date())
        )


class _Wrong(Exception):
    """The rule that one field breaks."""


@lru_cache(maxsize=1024)
def parse(text: str) -> Schedule:
    """The schedule that a text states. Raises Invalid with every field that is wrong."""
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
