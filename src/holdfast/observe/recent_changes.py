"""The last changes of all objects, in order, for watchers that resume or catch up.

A change is serialised once for each form in which it is watched, however many watchers there are.
The window is bounded by number and by size; a watcher that wants to resume from before it lists
again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Protocol

from holdfast.model.kind_declaration import Kind
from holdfast.observe.entries import ObjectEntry, with_deletion_version
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
        """An empty object that carries a revision, after the first list also its length, and the
        time of the next bookmark if that was asked for."""
        ...


def line(kind: str, body: bytes) -> bytes:
    """One event as sent to clients; empty for an object that has no such form."""
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
        """About how much memory only this change still keeps."""
        return len(self.before.data) if self.before is not None else 0

    def seen_by(self, selection: ObjectSelection, decodings: Decodings | None = None) -> str:
        """The event type that a watcher sees, or an empty string.

        What enters a selection is ADDED, what leaves it is DELETED. With many watchers, `decodings`
        has what was already decoded for others.
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
        """The event in a form, serialised once."""
        made = self._lines.get((form, kind))
        if made is None:
            made = line(kind, presentation.object(form, self.kind, self._data(kind)))
            self._lines[form, kind] = made
        return made

    def forget_lines(self) -> None:
        """Drop the serialised lines: every live watcher has received them."""
        self._lines.clear()

    def _data(self, kind: str) -> bytes:
        if kind == DELETED:
            return (
                with_deletion_version(self.before, self.revision)
                if self.before is not None
                else b""
            )
        return self.after.data if self.after is not None else b""


class Window:
    """Changes by revision. A position counts all changes ever added, so it stays valid."""

    def __init__(
        self, floor: int, events_max: int = EVENTS_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        # A watcher that has seen everything up to the floor has missed nothing.
        self.floor = floor
        self._events_max, self._bytes_max = events_max, bytes_max
        self._bytes = 0
        self._changes: list[RecentChange] = []
        self._dropped = 0

    @property
    def end(self) -> int:
        """The position after the newest change."""
        return self._dropped + len(self._changes)

    def append(self, change: RecentChange) -> None:
        self._changes.append(change)
        self._bytes += change.size
        if len(self._changes) > self._events_max or self._bytes > self._bytes_max:
            self._drop()

    def _drop(self) -> None:
        """Drop the older half at once, since removing the front of a list moves the rest."""
        half = (len(self._changes) + 1) // 2
        gone = self._changes[:half]
        del self._changes[:half]
        self.floor = gone[-1].revision
        self._dropped += half
        self._bytes -= sum(change.size for change in gone)

    def position_after(self, revision: int) -> int | None:
        """Where to resume after a revision, or None when what followed is no longer known."""
        if revision < self.floor:
            return None
        at = bisect_right(self._changes, revision, key=lambda h: h.revision)
        return self._dropped + at

    def position_within(self, revision: int, selection: ObjectSelection) -> int | None:
        """Where to resume for a watcher that saw some of a revision's changes and may lack others.

        Nothing needs repeating if the selection has at most one of them. None when not all of them
        are known: the rest of a revision may have outlived its first half.
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
        """All changes from a position on, or None when some of them are gone."""
        if position < self._dropped:
            return None
        return iter(self._changes[position - self._dropped :])
