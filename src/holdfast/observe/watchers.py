"""One watcher's position and queue, and an index of all watchers by what concerns them.

A watcher first catches up, piece by piece as its reader takes them: from the objects that existed
when it was opened, or from the window. Only then is it *live*: each new event goes into its queue,
and it is dropped when its reader leaves too many there.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

import msgspec

from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.kind_declaration import Kind
from holdfast.observe.entries import ObjectEntry
from holdfast.observe.entry_table import Chunk, EntrySnapshot
from holdfast.observe.recent_changes import ADDED, Presentation, RecentChange, Window, line
from holdfast.observe.selection import Decodings, ObjectSelection, Place

# What a live watcher may leave unread. Beyond it waiting is useless: its reader lists again.
QUEUE_EVENTS_MAX = 1_000
QUEUE_BYTES_MAX = 4 << 20
# How much is pushed at once while catching up.
PIECE_BYTES = 256 << 10


# How many objects one step tests while catching up. An object that must be decoded counts as
# DECODED_COST of them, one that is shown in another form, such as a table row, as more.
LOOKED_AT_ONCE = 2_000
DECODED_COST = 20
PRESENTED_COST = 80

_revision = attrgetter("revision")


class WatchRequest(msgspec.Struct, frozen=True):
    """The body with which a stream to the hub is opened.

    With `since` None the stream starts with all current objects, then come the changes.
    `is_partial` says that some changes of revision `since` itself may not have been seen yet.
    `bookmarks` asks for bookmarks, `bookmark_ms` for one that often, the first at once,
    `marks_list_end` for one after the last of the initial objects, `ends_with_list` for nothing
    after them.
    """

    selection: ObjectSelection
    since: int | None = None
    is_partial: bool = False
    form: str = ""
    bookmarks: bool = False
    bookmark_ms: int = 0
    marks_list_end: bool = False
    ends_with_list: bool = False


class Watcher:
    """One watcher. `is_waiting` means that its reader has not taken the last piece yet."""

    __slots__ = (
        "_bytes",
        "_lines",
        "_list_revision",
        "_list_sent",
        "_listed",
        "_looked",
        "_runs",
        "complete_to",
        "is_live",
        "is_over",
        "is_waiting",
        "last_sent",
        "position",
        "request",
        "since",
        "stream",
        "within_ms",
    )

    def __init__(self, stream: int, request: WatchRequest, since: int, position: int) -> None:
        self.stream, self.request = stream, request
        # Nothing up to this revision is sent: the reader has seen it, perhaps from another server.
        self.since = since
        self.position = position
        # The revision of the last event that was sent to it, and the revision up to which it had
        # received everything when it became live. Changes are sent in many steps, so it may be
        # ahead of other watchers.
        self.last_sent = self.complete_to = 0
        self.is_live = self.is_waiting = self.is_over = False
        # Within which time it gets something again, if its reader asked for that.
        self.within_ms: int | None = None
        self._lines: list[bytes] = []
        self._bytes = 0
        # While there is an initial list: the chunks that are still to be tested, the selected
        # entries in sorted runs, and once all are there, the entries that are still to be sent.
        self._looked: Iterator[Chunk] | None = None
        self._runs: list[list[ObjectEntry]] = []
        self._listed: Iterator[ObjectEntry] | None = None
        self._list_sent = 0
        self._list_revision = 0

    def begin_with(self, snapshot: EntrySnapshot, revision: int) -> None:
        """Start with the selected objects of a snapshot, which is of this revision.

        They are sent in the order of their revisions, so that a reader whose stream breaks among
        them can resume from the version of the last one: what it has not received is newer.
        """
        self._looked = iter(snapshot.chunks)
        self._list_revision = revision

    @property
    def kind(self) -> Kind:
        return self.request.selection.kind

    @property
    def has_lines(self) -> bool:
        return bool(self._lines)

    @property
    def is_too_slow(self) -> bool:
        return len(self._lines) > QUEUE_EVENTS_MAX or self._bytes > QUEUE_BYTES_MAX

    @property
    def is_full_enough(self) -> bool:
        """Whether a reader that keeps up should not have to wait for the tick."""
        return self._bytes >= PIECE_BYTES or len(self._lines) >= QUEUE_EVENTS_MAX // 2

    def add(self, text: bytes) -> None:
        """Queue a line."""
        self._lines.append(text)
        self._bytes += len(text)

    def take(self) -> bytes:
        """All that is queued, as one piece."""
        lines = self._lines
        piece = lines[0] if len(lines) == 1 else b"".join(lines)
        lines.clear()
        self._bytes = 0
        return piece

    def offer(
        self,
        change: RecentChange,
        presentation: Presentation,
        decodings: Decodings | None = None,
    ) -> bool:
        """Queue an event if it concerns this watcher. Returns whether it did."""
        if change.revision <= self.since:
            return False
        kind = change.seen_by(self.request.selection, decodings)
        if kind:
            self.last_sent = change.revision
            self.add(change.line(self.request.form, kind, presentation))
        return bool(kind)

    def bookmark(self, revision: int, presentation: Presentation, listed: int | None) -> bytes:
        """The line that says up to which revision this watcher has received everything."""
        made = presentation.bookmark(self.request.form, self.kind, revision, listed, self.within_ms)
        return line("BOOKMARK", made)

    def catch_up(self, window: Window, presentation: Presentation) -> bool:
        """Queue the next piece on the way to the present. False when the window has moved on."""
        if self._looked is not None:
            self._look(self._looked)
        if self._listed is not None:
            self._send_list(self._listed, presentation)
            self.is_over = self._listed is None and self.request.ends_with_list
        is_listing = self._looked is not None or self._listed is not None
        if self.is_over or is_listing or self._bytes >= PIECE_BYTES:
            return True
        missed = window.since(self.position)
        if missed is None:
            return False
        for looked_at, change in enumerate(missed):
            if self._bytes >= PIECE_BYTES or looked_at >= LOOKED_AT_ONCE:
                return True
            self.position += 1
            if change.kind is self.kind:
                self.offer(change, presentation)
        self.is_live = True
        return True

    def _look(self, chunks: Iterator[Chunk]) -> None:
        """Test some more entries of the snapshot."""
        selection, run = self.request.selection, list[ObjectEntry]()
        left = LOOKED_AT_ONCE // DECODED_COST if selection.decodes else LOOKED_AT_ONCE
        is_everything = selection.is_everything
        for chunk in chunks:
            run += chunk if is_everything else filter(selection.matches, chunk)
            left -= len(chunk)
            if left <= 0:
                break
        else:
            self._looked = None
        run.sort(key=_revision)
        self._runs.append(run)
        if self._looked is None:
            self._listed = merge(*self._runs, key=_revision)
            self._runs = []

    def _send_list(self, listed: Iterator[ObjectEntry], presentation: Presentation) -> None:
        form, kind = self.request.form, self.kind
        # Forms other than the plain one are made from the decoded object.
        left = LOOKED_AT_ONCE // PRESENTED_COST if form else LOOKED_AT_ONCE
        while left > 0 and self._bytes < PIECE_BYTES:
            entry = next(listed, None)
            if entry is None:
                self._listed = None
                if self.request.marks_list_end:
                    self.add(self.bookmark(self._list_revision, presentation, self._list_sent))
                return
            self.add(line(ADDED, presentation.object(form, kind, entry.data)))
            self._list_sent += 1
            left -= 1


def resume_watcher(
    stream: int, request: WatchRequest, since: int, window: Window, revision: int
) -> Watcher | HoldfastError:
    """A watcher that resumes where its reader was, or the error. `revision` is the hub's."""
    if not request.is_partial:
        position, received = window.position_after(since), since
    elif since > revision:
        # Whether the revision has more changes than the reader has seen is not known here yet.
        return Unavailable(f"revision {since} has not reached this server yet; try again")
    else:
        # The position alone decides what is repeated.
        position, received = window.position_within(since, request.selection), since - 1
    if position is None:
        return Expired(
            f"too old resource version: the changes at revision {since} are no longer known "
            f"(only those after {window.floor}); list again"
        )
    return Watcher(stream, request, received, position)


class WatcherIndex:
    """The live watchers of one kind, by the place of their selection."""

    def __init__(self) -> None:
        self._by_place: dict[Place, dict[int, Watcher]] = {}
        # How many places there are at each position; most positions have none.
        self._positions: dict[int, int] = {}

    def add(self, watcher: Watcher) -> None:
        place = watcher.request.selection.place
        if place is not None and place not in self._by_place:
            self._positions[place[0]] = self._positions.get(place[0], 0) + 1
        self._by_place.setdefault(place, {})[watcher.stream] = watcher

    def remove(self, watcher: Watcher) -> None:
        place = watcher.request.selection.place
        there = self._by_place.get(place)
        if there is None or there.pop(watcher.stream, None) is None or there:
            return
        del self._by_place[place]
        if place is not None:
            self._positions[place[0]] -= 1
            if not self._positions[place[0]]:
                del self._positions[place[0]]

    def __bool__(self) -> bool:
        """Whether the kind is watched at all; many kinds are not."""
        return bool(self._by_place)

    def watchers_of(self, change: RecentChange) -> Iterator[Watcher]:
        """The watchers that may be concerned, each once: a watcher is at one place only."""
        by_place = self._by_place
        if None in by_place:
            yield from by_place[None].values()
        before, after = change.before, change.after
        for at in self._positions:
            old = before.fields[at] if before is not None else None
            new = after.fields[at] if after is not None else None
            if old is not None and (at, old) in by_place:
                yield from by_place[at, old].values()
            if new is not None and new != old and (at, new) in by_place:
                yield from by_place[at, new].values()
