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

from bisect import bisect_left
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


# How long ago a revision of the store was written, for certain, whatever calendars say.
#
# A stamp says what the calendar of the server that made it showed, which may have been set by any
# amount, and every server makes stamps while it decides by itself. A revision is given by the
# store. Each answer of the store proves that its revision, and all before it, had been written by
# then; so an authority notes when, on its own monotonic clock, it has seen which revision. Nothing
# is ever taken for older than it is: a clock that stands still, a server that starts anew and a
# revision that was noted late all make the age smaller.
#
# `authority.py` notes what the store answers; `operations.py` asks before it forgets anything.

# Between two notes that are kept. An age may be too small by so much and no more.
NOTED_EVERY_MS = 10_000
# Two notes in a row may lie closer together, so this is at least an hour and a half.
NOTES_MAX = 1_100


class _Note(msgspec.Struct, frozen=True, gc=False):
    """At this moment of the monotonic clock this revision had been written."""

    revision: int
    at_ms: int


class RevisionAges:
    """See the module's docstring."""

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        # In the order of both revisions and moments.
        self._notes: list[_Note] = []

    def observe(self, revision: int, now: Instant) -> None:
        """The store has answered as of this revision."""
        notes = self._notes
        if notes and revision <= notes[-1].revision:
            return
        note = _Note(revision, now.monotonic_ms)
        if len(notes) > 1 and note.at_ms - notes[-2].at_ms <= NOTED_EVERY_MS:
            notes[-1] = note
            return
        notes.append(note)
        if len(notes) > NOTES_MAX:
            del notes[0]

    def least_ms(self, revision: int, now: Instant) -> int:
        """How long ago it was written at least; 0 for one that has not been seen."""
        notes = self._notes
        at = bisect_left(notes, revision, key=lambda note: note.revision)
        return now.monotonic_ms - notes[at].at_ms if at < len(notes) else 0
