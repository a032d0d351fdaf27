"""When a cron schedule fires, also where clocks jump.

The workload controller asks for `next_fire` and, after an outage, `last_fire`. Time zone data is a
file, and pure rooms read none: the caller hands in a `Zone`, a function that says how far local
clocks are ahead of UTC at a moment. Where clocks jump, two rules hold:

- A schedule that names hours fires once per local time. It looks at the latest local time that
  clocks have ever shown: while they show a repeated hour nothing fires again, and what a skipped
  hour would have fired is made up for by one run in the first minute after the jump.
- A schedule for every hour ("*/15 * * * *") means an interval. It fires whenever clocks show a
  fitting time, so that a repeated hour gets its runs and a skipped one needs none.

Vixie cron draws the same line, at jobs with a `*`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta

from holdfast.model.cron import Schedule

# How far local clocks are ahead of UTC at a moment in UTC; negative where they are behind.
Zone = Callable[[datetime], timedelta]

# Inside, moments are whole minutes since 1970, in UTC or as local clocks show them.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_DAY = 1440
_EPOCH_DAY = date(1970, 1, 1).toordinal()
# The calendar of the standard library ends at 9999; what lies beyond is never.
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

    It is never, for a schedule that `parse` let pass, only at the end of the calendar.
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
    """The last moment after the one and up to the other at which the schedule fires, if any.

    However many runs were missed, this takes the same few steps: the next fire after a moment
    never comes earlier for a later moment, so the last one is found by halving.
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
    """The first fire of a stretch of time, by the two rules that the module states."""
    shown = max(stop - 1 + ahead for _, stop, ahead in _constant(begin - _BACK_MAX, begin, zone))
    for start, stop, ahead in _constant(begin, end, zone):
        fitting = _first_fitting(schedule, start + ahead if schedule.is_interval else shown + 1)
        if fitting is not None and max(start, fitting - ahead) < stop:
            return max(start, fitting - ahead)
        shown = max(shown, stop - 1 + ahead)
    return None


def _constant(begin: int, end: int, zone: Zone) -> Iterator[tuple[int, int, int]]:
    """Cuts time where clocks jump: start, stop and how far clocks are ahead in between.

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
