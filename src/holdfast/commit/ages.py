"""The age of a timestamp, counted on the authority's own monotonic clock.

Wall clocks are set forwards and back, and the next authority may have another one. So subtracting
two timestamps does not give an age. The server that holds the lease `authority` remembers the
offset between its wall clock and its monotonic clock since it acquired the lease. It finds a
timestamp that it made itself in that record, and its age is exact, however the wall clock was set
since. A timestamp that it does not find there was most likely made earlier, and is at least as old
as the term.

Most likely, because a server that cannot reach the holder decides by itself, with timestamps of its
own wall clock. So nothing that must not happen early depends on this: operations are forgotten by
the age of revisions (`RevisionAges` below).

`context.py` calls this. `server.py` begins and ends a term.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from datetime import datetime

import msgspec

from holdfast.model.time import Instant, wall_ms

# Time servers slew clocks by less than this; a larger jump means that the clock was set.
SET_BY_MS = 1_000
# A wall clock that is set more often than this within one term is not worth remembering: what was
# before counts as before the term.
STRETCHES_MAX = 64


class _Stretch(msgspec.Struct):
    """An interval of the monotonic clock in which the wall clock had one offset to it."""

    ahead_ms: int
    since_ms: int
    until_ms: int


class Ages:
    """See the module's docstring. Without a term no age is known."""

    def __init__(self) -> None:
        self._begun_ms: int | None = None
        self._stretches: deque[_Stretch] = deque()

    def begin(self, now: Instant) -> None:
        """Begin a term: from now on this server makes all timestamps."""
        self._begun_ms = now.monotonic_ms
        self._stretches.clear()
        self.observe(now)

    def end(self) -> None:
        """End the term: other servers make timestamps again, by their own clocks."""
        self._begun_ms = None
        self._stretches.clear()

    def observe(self, now: Instant) -> None:
        """Note the wall clock's offset: a decision is timestamped now."""
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
        """The age of a timestamp: exact if it was made in this term. Otherwise it is the
        difference by the wall clock, and at least the length of the term, so that no caller waits
        for a clock that ran ahead.
        """
        told_ms = now.wall_ms - wall_ms(stamp)
        if self._begun_ms is None:
            return told_ms
        made_ms = self._made_ms(stamp)
        if made_ms is not None:
            return now.monotonic_ms - made_ms
        return max(told_ms, now.monotonic_ms - self._begun_ms)

    def _made_ms(self, stamp: datetime) -> int | None:
        """The latest moment of this term, on the monotonic clock, that may have this
        timestamp.
        """
        found = None
        at_ms = wall_ms(stamp)
        for stretch in self._stretches:
            made_ms = at_ms - stretch.ahead_ms
            if stretch.since_ms - SET_BY_MS <= made_ms <= stretch.until_ms + SET_BY_MS:
                made_ms = min(made_ms, stretch.until_ms)
                found = made_ms if found is None else max(found, made_ms)
        return found


# The certain age of a store revision, whatever wall clocks say.
#
# A timestamp shows the wall clock of the server that made it, which may have been set by any
# amount, and every server makes timestamps while it decides by itself. Revisions come from the
# store. Each answer of the store proves that its revision, and all before it, existed by then. So
# an authority notes which revision it saw when, on its own monotonic clock. The age is never
# overestimated: a clock that stands still, a server restart and a late note all make it smaller.
#
# `authority.py` notes what the store answers; `operations.py` asks before it forgets an operation.

# The time between two kept notes. An age may be too small by this much and no more.
NOTED_EVERY_MS = 10_000
# Two consecutive notes may be closer together, so this covers at least an hour and a half.
NOTES_MAX = 1_100


class _Note(msgspec.Struct, frozen=True, gc=False):
    """At this time of the monotonic clock this revision existed."""

    revision: int
    at_ms: int


class RevisionAges:
    """See the module's docstring."""

    __slots__ = ("_notes",)

    def __init__(self) -> None:
        # Ordered by revision and by time.
        self._notes: list[_Note] = []

    def __len__(self) -> int:
        """The number of notes that are kept."""
        return len(self._notes)

    def observe(self, revision: int, now: Instant) -> None:
        """Note that the store answered as of this revision."""
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
        """The minimum age of a revision; 0 for one that has not been seen."""
        notes = self._notes
        at = bisect_left(notes, revision, key=lambda note: note.revision)
        return now.monotonic_ms - notes[at].at_ms if at < len(notes) else 0
