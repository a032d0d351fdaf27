"""Backfill: a blocked job gets a reserved start, and other work passes it only without delaying it.

This is EASY backfilling: only the first blocked job of a lane has a reserved start. It is the
earliest moment at which one place has room for it, counting on the stated durations of what runs
there. Work that would be placed there meanwhile has to end before that moment, or fit beside the
job. Statements may be wrong: work that runs longer than stated is expected to end now, so nothing
passes a job that waits for it, and a job that ends early is noticed as any other release.

`scheduler.py` asks here through `reserved_starts.py`; the benchmark of gangs with known durations
asks about one place for all. Times are milliseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

# A demand by resource, in any units that the caller uses for both.
Wanted = Sequence[tuple[str, int]]


class Ending(msgspec.Struct, frozen=True, gc=False):
    """What runs at a place, what it returns when it ends, and when that is by its statement."""

    name: str
    ends_ms: int
    units: Mapping[str, int]


class ReservedStart(msgspec.Struct, frozen=True, gc=False):
    """When and where a blocked job starts at the latest, if what runs there ends as stated.

    spare: what is free there at that moment beside the job.
    basis: the name of what has to end last; empty if there is room now.
    is_overrun: whether that should have ended already.
    """

    place: str
    starts_ms: int
    spare: Mapping[str, int]
    basis: str = ""
    is_overrun: bool = False


def start_at(
    place: str, free: Mapping[str, int], endings: Iterable[Ending], wanted: Wanted, now_ms: int
) -> ReservedStart | None:
    """The earliest moment at which this place has room; None if its stated endings make none."""
    left = dict(free)
    waiting = sorted(endings, key=lambda it: (it.ends_ms, it.name), reverse=True)
    starts_ms, last = now_ms, None
    while _is_short(left, wanted):
        if not waiting:
            return None
        last = waiting.pop()
        starts_ms = max(now_ms, last.ends_ms)
        _return(left, last)
    # What ends at the same moment makes room beside the job.
    while waiting and waiting[-1].ends_ms <= starts_ms:
        _return(left, waiting.pop())
    for resource, units in wanted:
        left[resource] -= units
    is_overrun = last is not None and last.ends_ms < now_ms
    return ReservedStart(place, starts_ms, left, last.name if last is not None else "", is_overrun)


def _is_short(left: Mapping[str, int], wanted: Wanted) -> bool:
    return any(left.get(resource, 0) < units for resource, units in wanted)


def _return(left: dict[str, int], ending: Ending) -> None:
    for resource, units in ending.units.items():
        left[resource] = left.get(resource, 0) + units


def earliest(starts: Iterable[ReservedStart | None]) -> ReservedStart | None:
    """The first of these; of equal ones the first by the name of its place."""
    found = [it for it in starts if it is not None]
    return min(found, key=lambda it: (it.starts_ms, it.place), default=None)


def delays(
    start: ReservedStart, place: str, wanted: Wanted, count: int, ends_ms: int | None
) -> bool:
    """Whether `count` times this work, placed here now, could delay the reserved start.

    `ends_ms` is when it ends by its statement; None if it states nothing.
    """
    if place != start.place or (ends_ms is not None and ends_ms <= start.starts_ms):
        return False
    return any(start.spare.get(resource, 0) < count * units for resource, units in wanted)
