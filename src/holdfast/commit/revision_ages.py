"""How long ago a revision of the store was written, for certain, whatever calendars say.

A stamp says what the calendar of the server that made it showed, which may have been set by any
amount, and every server makes stamps while it decides by itself. A revision is given by the store.
Each answer of the store proves that its revision, and all before it, had been written by then; so
an authority notes when, on its own monotonic clock, it has seen which revision. Nothing is ever
taken for older than it is: a clock that stands still, a server that starts anew and a revision that
was noted late all make the age smaller.

`authority.py` notes what the store answers; `operations.py` asks before it forgets anything.
"""

from __future__ import annotations

from bisect import bisect_left

import msgspec

from holdfast.model.time import Instant

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
