"""How old a stamp of the calendar is, counted on the authority's own monotonic clock.

Calendars are set forwards and back, and the next authority may have another one. So the age of what
was written down cannot be had by subtracting. The server that holds the lease `authority` remembers
how its own calendar and its monotonic clock stood to each other since it has the lease. A stamp
that it made itself is found there, and its age is exact, wherever the calendar was set since. A
stamp that is not found there was most likely made before, and is as old as the tenure at least.

Most likely, because a server that cannot reach the holder decides by itself, and stamps by its own
calendar. So nothing that must not happen early rests on this: what was accepted is forgotten by the
age of revisions (`revision_ages.py`).

`context.py` asks here. `server.py` begins a tenure and ends it.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime

import msgspec

from holdfast.model.time import Instant, wall_ms

# Time servers slew calendars by less than this; beyond it, somebody has set it.
SET_BY_MS = 1_000
# A calendar that is set more often than this within one tenure is not worth remembering: what was
# before counts as before the tenure.
STRETCHES_MAX = 64


class _Stretch(msgspec.Struct):
    """From when until when, on the monotonic clock, the calendar was so much ahead of it."""

    ahead_ms: int
    since_ms: int
    until_ms: int


class Ages:
    """See the module's docstring. Without a tenure nothing is known of any stamp."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        self._stretches: deque[_Stretch] = deque()

    def begin(self, now: Instant) -> None:
        """From now on all stamps are made here."""
        self._begun_ms = now.monotonic_ms
        self._stretches.clear()
        self.observe(now)

    def end(self) -> None:
        """Others make stamps again, by calendars of their own."""
        self._begun_ms = None
        self._stretches.clear()

    def observe(self, now: Instant) -> None:
        """Something is decided, and stamped, at this moment."""
        if self._begun_ms is None:
            return
        ahead_ms = now.wall_ms - now.monotonic_ms
        last = self._stretches[-1] if self._stretches else None
        if last is not None and abs(ahead_ms - last.ahead_ms) <= SET_BY_MS:
            last.until_ms = now.monotonic_ms
            return
        self._stretches.append(_Stretch(ahead_ms, now.monotonic_ms, now.monotonic_ms))
        if len(self._stretches) > STRETCHES_MAX:
            self._begun_ms = self._stretches.popleft().until_ms

    def likely_ms(self, stamp: datetime, now: Instant) -> int:
        """How old it is: exactly if it was made here, else as the calendar has it, and no less
        than the tenure: whoever waits need not wait for a calendar that was ahead.
        """
        told_ms = now.wall_ms - wall_ms(stamp)
        if self._begun_ms is None:
            return told_ms
        made_ms = self._made_ms(stamp)
        if made_ms is not None:
            return now.monotonic_ms - made_ms
        return max(told_ms, now.monotonic_ms - self._begun_ms)

    def _made_ms(self, stamp: datetime) -> int | None:
        """The latest moment of this tenure, on the monotonic clock, that may have this stamp."""
        found = None
        at_ms = wall_ms(stamp)
        for stretch in self._stretches:
            made_ms = at_ms - stretch.ahead_ms
            if stretch.since_ms - SET_BY_MS <= made_ms <= stretch.until_ms + SET_BY_MS:
                made_ms = min(made_ms, stretch.until_ms)
                found = made_ms if found is None else max(found, made_ms)
        return found
