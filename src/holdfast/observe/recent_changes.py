"""The last changes of all objects, in order, for watchers that come back or catch up.

A change is turned into text once for each form in which somebody watches it, however many watch.
The window is bounded by number and by size; whoever wants to go on from before it lists again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Protocol

from holdfast.model.registry import Kind
from holdfast.observe.entries import ObjectEntry, respliced
from holdfast.observe.selection import Decodings, ObjectSelection

EVENTS_MAX = 16_384
BYTES_MAX = 48 << 20

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"


class Presentation(Protocol):
    """How objects look to watchers. Forms are names that the HTTP server and its answers share."""

    def object(self, form: str, kind: Kind, data: bytes) -> bytes:
        """An object in this form."""
        ...

    def bookmark(
        self, form: str, kind: Kind, revision: int, listed: int | None, within_ms: int | None
    ) -> bytes:
        """An empty object that carries a revision, after the first list its length, and when the
        next bookmark comes if that was asked for."""
        ...


def line(kind: str, body: bytes) -> bytes:
    """One event as it goes over the wire; nothing of an object that has no such form."""
    if not body:
        return b""
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), body)


class RecentChange:
    """One object changed at one revision."""

    __slots__ = ("_lines", "after", "before", "kind", "revision")

    def __init__(
        self, kind: Kind, revision: int, before: ObjectEntry | None, after: ObjectEntry | None
    ) -> None:
        self.kind, self.revision = kind, revision
        self.before, self.after = before, after
        self._lines: dict[tuple[str, str], bytes] = {}

    @property
    def size(self) -> int:
        """About what it keeps in memory that nothing else may keep any more."""
        return len(self.before.data) if self.before is not None else 0

    def seen_by(self, selection: ObjectSelection, decodings: Decodings | None = None) -> str:
        """What kind of event this is to a watcher, or nothing.

        What enters a selection is added to it, what leaves it is deleted from it. Where many ask,
        `decodings` has what was decoded for others.
        """
        if selection.is_unconditional:
            if self.after is None:
                return DELETED
            return MODIFIED if self.before is not None else ADDED
        was = self.before is not None and selection.matches(self.before, decodings)
        now = self.after is not None and selection.matches(self.after, decodings)
        if now:
            return MODIFIED if was else ADDED
        return DELETED if was else ""

    def line(self, form: str, kind: str, presentation: Presentation) -> bytes:
        """The event in a form, made once."""
        made = self._lines.get((form, kind))
        if made is None:
            made = line(kind, presentation.object(form, self.kind, self._data(kind)))
            self._lines[form, kind] = made
        return made

    def forget_lines(self) -> None:
        """Keep the entries only: everybody who follows has got the lines by now."""
        self._lines.clear()

    def _data(self, kind: str) -> bytes:
        if kind == DELETED:
            return respliced(self.before, self.revision) if self.before is not None else b""
        return self.after.data if self.after is not None else b""


class Window:
    """Happenings by revision. A position counts all that ever were, so it stays valid."""

    def __init__(
        self, floor: int, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        # Whoever has seen everything up to the floor has missed nothing.
        self.floor = floor
        self._events_max, self._bytes_max = events_max, bytes_max
        self._bytes = 0
        self._changes: list[RecentChange] = []
        self._dropped = 0

    @property
    def end(self) -> int:
        """The position after the newest."""
        return self._dropped + len(self._changes)

    def append(self, change: RecentChange) -> None:
        self._changes.append(change)
        self._bytes += change.size
        if len(self._changes) > self._events_max or self._bytes > self._bytes_max:
            self._drop()

    def _drop(self) -> None:
        """Let go of the older half at once, since cutting the front off a list moves the rest."""
        half = (len(self._changes) + 1) // 2
        gone = self._changes[:half]
        del self._changes[:half]
        self.floor = gone[-1].revision
        self._dropped += half
        self._bytes -= sum(change.size for change in gone)

    def position_after(self, revision: int) -> int | None:
        """Where to go on from a revision, or None when what followed is not known any more."""
        if revision < self.floor:
            return None
        at = bisect_right(self._changes, revision, key=lambda h: h.revision)
        return self._dropped + at

    def position_within(self, revision: int, selection: ObjectSelection) -> int | None:
        """Where to go on for one who saw some of a revision's changes and may have missed others.

        Nothing needs repeating if the selection has one of them at most. None when they are not all
        known any more; the rest of a revision may have outlived its first half.
        """
        if revision <= self.floor:
            return None
        changes, revision_of = self._changes, lambda h: h.revision
        first = bisect_left(changes, revision, key=revision_of)
        last = bisect_right(changes, revision, lo=first, key=revision_of)
        seen = (
            change
            for change in changes[first:last]
            if change.kind is selection.kind and change.seen_by(selection)
        )
        several = next(seen, None) is not None and next(seen, None) is not None
        return self._dropped + (first if several else last)

    def since(self, position: int) -> Iterator[RecentChange] | None:
        """All from a position on, or None when some of them are gone."""
        if position < self._dropped:
            return None
        return iter(self._changes[position - self._dropped :])
