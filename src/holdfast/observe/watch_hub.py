"""The watch hub: a machine that follows the store once and serves any number of watchers.

It lists all objects, watches the store from there, and keeps every object in the bytes in which
clients get it (`entry_table`) and the last changes (`recent_changes`). The HTTP server reads from
it directly and opens a stream for each watch (`watchers`).

A hub that starts lists the objects as they were a while ago, at the oldest recent revision that
the store still has (`history_start`), and follows the store from there. So its window holds what
the window before the restart held, with the object before each change, and watchers resume over a
restart of their server. It is ready once it has reached the revision at which it was started.

Events go out in ticks: the first one after a pause at once, those that follow soon after it
together, and when there are many, once per TICK_MS, which costs a third for many watchers. A stream
gets the next piece when its reader has taken the last one, so that the backlog of a slow reader is
visible here. When it is too large, or when the hub has lost its own place in the store's history,
the stream ends with Expired and its reader lists again. A watch is ordered, without duplicates and
without gaps, or it ends with an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from holdfast.model import keys
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.kind_declaration import Kind
from holdfast.model.machine import (
    Answer,
    Answered,
    Asked,
    Changed,
    Effects,
    End,
    Left,
    Opened,
    Push,
    Range,
    Started,
    Stimulus,
    Taken,
    Unwatch,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.read_requests import Reach
from holdfast.model.registry import KINDS
from holdfast.model.time import Instant
from holdfast.model.transaction import Change, Page
from holdfast.observe.bookmarks import Bookmarks
from holdfast.observe.entries import EntryReader, ObjectEntry, Unreadable
from holdfast.observe.entry_table import EntrySnapshot, EntryTable, parse_key
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.observe.history_start import HistoryStart, probe_revision, read_revision
from holdfast.observe.recent_changes import EVENTS_MAX, Presentation, RecentChange, Window
from holdfast.observe.selection import Decodings, ObjectSelection
from holdfast.observe.watchers import Watcher, WatcherIndex, WatchRequest, resume_watcher

TICK_MS = 20
# While there are few events nothing is gained by waiting: one replica that is created and bound is
# two events within a few milliseconds.
SOON_MS = 2
FEW_EVENTS = 4
RETRY_MS = 200
LOAD_PAGE = 2_000
REACHING_MAX = 10_000
# How far a hub that starts goes back: about as many changes as its window keeps, and no more of
# them than a list of the present would take to read. Its start is delayed by that much at most.
RECENT_REVISIONS = 8_192
RECENT_CHANGES_MAX = 65_536

# The number of watchers, counted per change, that get an event before other requests have a turn.
SENDS_AT_ONCE_MAX = 1_000

_TICK, _LOAD, _REWATCH, _BOOKMARK = "tick", "load", "rewatch", "bookmark"
_SEND = "send"


class WatchHub:
    """See the module's docstring. `presentation` says how objects look in each form.

    A `reader` may be shared by the hubs of one process. `recent` is how many revisions of the
    store's history a hub reads when it starts.
    """

    def __init__(
        self,
        presentation: Presentation,
        reader: EntryReader | None = None,
        *,
        recent: int = RECENT_REVISIONS,
        events_max: int = EVENTS_MAX,
    ) -> None:
        self._presentation = presentation
        # Until the first list is complete: where it is read. A hub that loses its place later reads
        # the present, for what it already holds must not become older.
        self._history_start: HistoryStart | None = HistoryStart(recent) if recent > 0 else None
        # The revision from which on the hub is ready, and the changes read on the way there.
        self._ready_from = 0
        self._replayed_changes = 0
        self._reader = reader if reader is not None else EntryReader()
        self._entry_table = EntryTable()
        self._events_max = events_max
        self._window = Window(0, events_max)
        self._revision = 0
        self.history = HistoryBytes()
        # When an object of each kind last changed, as far as is known.
        self._changed_at: dict[str, int] = {}
        self._changed_in: dict[str, dict[str, int]] = {kind.plural: {} for kind in KINDS}
        self._listed_at = 0
        self._is_ready = False
        self._loading: tuple[int, EntryTable] | None = None
        self._calls = 0
        self._watch = 0
        self._ticking = False
        # The number of events since a moment within about the last tick.
        self._lately, self._lately_since_ms = 0, 0
        self._watchers: dict[int, Watcher] = {}
        self._bookmarks = Bookmarks()
        # When bookmarks are sent next.
        self._bookmark_ms = 0
        self._watcher_indexes: dict[str, WatcherIndex] = {
            kind.plural: WatcherIndex() for kind in KINDS
        }
        self._dirty: dict[int, Watcher] = {}
        # The changes that live watchers have yet to get, each with its position in the window; and
        # for the first of them the watchers that have yet to get it. Many watchers of many changes
        # would take seconds in one step.
        self._unsent: deque[tuple[int, RecentChange]] = deque()
        self._receivers: Iterator[Watcher] | None = None
        self.decodings = Decodings()
        self._reaching: list[tuple[int, int]] = []
        # Streams that were ended because their readers were too slow, those that could not resume
        # where they wanted to, and how often everything had to be listed again.
        self.dropped = self.outlived = self.relists = 0
        # The number of complete lists of everything. Revisions do not tell one from the next: those
        # of a store that was restored from a backup are lower.
        self.lists = 0
        # Stored objects that cannot be read, by key, and why.
        self.unreadable: dict[str, str] = {}

    # Reads -----------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the hub has listed the store."""
        return self._is_ready

    @property
    def revision(self) -> int:
        """Everything up to this revision has been seen."""
        return self._revision

    @property
    def _sent(self) -> int:
        """Everything up to this revision has been sent to live watchers."""
        return self._unsent[0][1].revision - 1 if self._unsent else self._revision

    @property
    def _is_sending(self) -> bool:
        """Whether a later step continues sending."""
        return self._receivers is not None

    @property
    def watchers(self) -> int:
        """The number of open streams."""
        return len(self._watchers)

    def get(self, kind: Kind, namespace: str, name: str) -> ObjectEntry | None:
        """One object as of `revision`."""
        return self._entry_table.get(kind, namespace, name)

    def select(self, selection: ObjectSelection) -> list[ObjectEntry]:
        """Objects as of `revision`, in the order of their keys, for selections of few objects."""
        return self._entry_table.select(selection)

    def candidates(self, selection: ObjectSelection) -> EntrySnapshot:
        """A snapshot as of `revision` that contains all selected objects, to test in slices."""
        return self._entry_table.candidates(selection)

    def count(self, kind: Kind, namespace: str = "") -> int:
        """The number of objects of a kind."""
        return self._entry_table.count(kind, namespace)

    def changed(self, kind: Kind) -> int:
        """The revision at which an object of a kind last changed, or of the last full list."""
        return self._changed_at.get(kind.plural, self._listed_at)

    def namespaces(self, kind: Kind) -> set[str]:
        """The namespaces that contain objects of a kind."""
        return self._entry_table.namespaces(kind)

    def namespaces_changed(self, kind: Kind, after: int) -> set[str]:
        """The namespaces in which an object of a kind has changed after a revision. The revision
        must not be before the last full list.
        """
        return {where for where, at in self._changed_in[kind.plural].items() if at > after}

    # Stimuli -------------------------------------------------------------------------------------

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        match stimulus:
            case Taken(stream=stream):
                return self._taken(stream)
            case Changed():
                return self._changed(stimulus, now)
            case Woken(name=name):
                return self._woken(name, now)
            case Opened():
                return self._opened(stimulus, now)
            case Left(stream=stream):
                self._forget(stream)
                return []
            case Asked():
                return self._asked(stimulus)
            case Answered():
                return self._answered(stimulus, now)
            case Started():
                return [*self._load(), *self._bookmark(now)]
            case _:
                return []

    def _woken(self, name: str, now: Instant) -> Effects:
        if name == _TICK:
            return self._tick(now)
        if name == _SEND:
            sent = self._send_changes(now)
            return sent if self._ticking or not self._dirty else [*sent, *self._tick(now)]
        if name == _LOAD:
            return self._load()
        if name == _REWATCH:
            return self._follow()
        return self._bookmark(now)

    def _asked(self, asked: Asked) -> Effects:
        if not isinstance(asked.body, Reach):
            return [Answer(asked.call, Unavailable("the watch hub answers only Reach requests"))]
        if self._is_ready and self._revision >= asked.body.revision:
            return [Answer(asked.call, self._revision)]
        if len(self._reaching) >= REACHING_MAX:
            text = f"{REACHING_MAX} readers already wait for a revision; try again later"
            return [Answer(asked.call, Unavailable(text))]
        self._reaching.append((asked.call, asked.body.revision))
        return []

    def _reached(self) -> Effects:
        if not self._reaching or not self._is_ready:
            return []
        done = [call for call, revision in self._reaching if revision <= self._revision]
        if done:
            self._reaching = [it for it in self._reaching if it[1] > self._revision]
        return [Answer(call, self._revision) for call in done]

    # Following the store -------------------------------------------------------------------------

    def _load(self) -> Effects:
        """List everything: the present, or the state where the recent history begins."""
        self._calls += 1
        if self._history_start is not None:
            self._history_start.begin(self._calls)
            return [read_revision(self._calls)]
        return self._list(None)

    def _list(self, at: int | None) -> Effects:
        self._calls += 1
        self._loading = (self._calls, EntryTable())
        self.unreadable = {}
        return [Range(self._calls, keys.OBJECTS, keys.after_prefix(keys.OBJECTS), LOAD_PAGE, at)]

    def _list_present(self) -> Effects:
        """Give up on the recent history and list the present."""
        self._history_start, self._ready_from = None, 0
        return self._load()

    def _answered(self, answered: Answered, now: Instant) -> Effects:
        start = self._history_start
        if start is None or answered.call != start.call:
            return self._loaded(answered, now)
        body = answered.body
        # Only a read of the past may have expired.
        if not (isinstance(body, Page) or (start.present and isinstance(body, Expired))):
            return [Wake(_LOAD, now.monotonic_ms + RETRY_MS)]
        probe = start.take_answer(body)
        if probe is None:
            self._ready_from = start.present
            return self._list(start.oldest if start.oldest < start.present else None)
        self._calls += 1
        start.call = self._calls
        return [probe_revision(self._calls, probe)]

    def _loaded(self, answered: Answered, now: Instant) -> Effects:
        if self._loading is None or answered.call != self._loading[0]:
            return []
        page = answered.body
        if not isinstance(page, Page):
            self._loading = None
            if isinstance(page, Expired):
                # Compacted while it was being read.
                return self._list_present()
            return [Wake(_LOAD, now.monotonic_ms + RETRY_MS)]
        entry_table = self._loading[1]
        for record in page.records:
            self._add_record(entry_table, record.key, record.value, record.modified)
        if page.more_from is not None:
            self._calls += 1
            self._loading = (self._calls, entry_table)
            end = keys.after_prefix(keys.OBJECTS)
            return [Range(self._calls, page.more_from, end, LOAD_PAGE, page.revision)]
        self._loading = self._history_start = None
        self._entry_table, self._revision = entry_table, page.revision
        self._changed_at, self._listed_at = {}, page.revision
        self._changed_in = {kind.plural: {} for kind in KINDS}
        self.decodings = Decodings()
        self.lists += 1
        self.history.skip_to(page.revision)
        self._window = Window(page.revision, self._events_max)
        self._is_ready = page.revision >= self._ready_from
        return [*self._reached(), *self._follow()]

    def _add_record(self, entry_table: EntryTable, key: str, value: bytes, revision: int) -> None:
        found = parse_key(key)
        if found is None:
            return
        try:
            entry_table.put(*found, self._entry(found, value, revision))
        except Unreadable as error:
            self.unreadable[key] = str(error)

    def _entry(self, found: tuple[Kind, str, str], value: bytes, revision: int) -> ObjectEntry:
        """The entry of an object. Raises Unreadable, also if the object states another name."""
        entry = self._reader.read(found[0], value, revision)
        if entry.name != found[2] or entry.namespace != found[1]:
            raise Unreadable(
                f"the object states another name: {entry.namespace}/{entry.name}"[:200]
            )
        return entry

    def _follow(self) -> Effects:
        # A watch of everything, not only of the objects: a reader waits for the store's revision,
        # and ledgers advance that too.
        self._watch += 1
        return [Watch(self._watch, "", self._revision)]

    def _changed(self, changed: Changed, now: Instant) -> Effects:
        if changed.watch != self._watch:
            return []
        batch = changed.body
        if isinstance(batch, Expired):
            # No watcher may join before the new list is complete: its window is another one.
            self._is_ready = False
            self.relists += 1
            dropped = self._drop_all("the server has lost its place in the history")
            return [*dropped, *self._list_present()]
        if isinstance(batch, HoldfastError):
            # Watching again after the last revision loses nothing.
            return [Wake(_REWATCH, now.monotonic_ms + RETRY_MS)]
        for change in batch.changes:
            self._apply(change)
        self._revision = max(self._revision, batch.revision)
        if not self._is_ready:
            self._replayed_changes += len(batch.changes)
            self._is_ready = self._revision >= self._ready_from
            if not self._is_ready and self._replayed_changes > RECENT_CHANGES_MAX:
                left, self._watch = self._watch, self._watch + 1
                return [Unwatch(left), *self._list_present()]
        effects = self._reached()
        if not self._is_sending:
            effects += self._send_changes(now)
        if now.monotonic_ms - self._lately_since_ms > TICK_MS:
            self._lately, self._lately_since_ms = 0, now.monotonic_ms
        self._lately += len(batch.changes)
        if self._dirty and not self._ticking:
            effects += self._tick(now)
        return effects

    def _apply(self, change: Change) -> None:
        # A watch may repeat changes after a reconnection; the revision shows it.
        if change.revision <= self._revision:
            return
        self.history.note(change)
        found = parse_key(change.key)
        if found is None:
            return
        kind = found[0]
        after = None
        self.unreadable.pop(change.key, None)
        if change.value is not None:
            try:
                after = self._entry(found, change.value, change.revision)
            except Unreadable as error:
                # The object exists, even if unreadable: watchers must not see it as deleted.
                self.unreadable[change.key] = str(error)
                return
        before = self._entry_table.put(*found, after)
        if before is None and after is None:
            return
        self._changed_at[kind.plural] = change.revision
        self._changed_in[kind.plural][found[1]] = change.revision
        recent = RecentChange(kind, change.revision, before, after)
        if self._watcher_indexes[kind.plural]:
            self._unsent.append((self._window.end, recent))
        self._window.append(recent)

    def _send_changes(self, now: Instant) -> Effects:
        """Send pending changes to live watchers, as much as one step may."""
        effects: Effects = []
        left = SENDS_AT_ONCE_MAX
        while self._unsent:
            position, change = self._unsent[0]
            if self._receivers is None:
                receivers = self._watcher_indexes[change.kind.plural].watchers_of(change)
                self._receivers = iter(list(receivers))
            for watcher in self._receivers:
                left -= 1
                # A watcher that left is skipped. One that came later got it while catching up.
                is_there = watcher.is_live and watcher.position <= position
                if is_there and watcher.offer(change, self._presentation, self.decodings):
                    effects += self._queued(watcher)
                if left <= 0:
                    return [*effects, Wake(_SEND, now.monotonic_ms)]
            change.forget_lines()
            self._receivers = None
            self._unsent.popleft()
        return effects

    # Watchers ------------------------------------------------------------------------------------

    def _opened(self, opened: Opened, now: Instant) -> Effects:
        request = opened.body
        if not isinstance(request, WatchRequest):
            return [End(opened.stream, Unavailable("a stream to the watch hub must be a watch"))]
        if not self._is_ready:
            return [End(opened.stream, Unavailable("the server is still reading the store"))]
        if request.since is None:
            watcher = Watcher(opened.stream, request, self._revision, self._window.end)
            watcher.begin_with(self._entry_table.candidates(request.selection), self._revision)
        else:
            found = resume_watcher(
                opened.stream, request, request.since, self._window, self._revision
            )
            if isinstance(found, HoldfastError):
                self.outlived += isinstance(found, Expired)
                return [End(opened.stream, found)]
            watcher = found
        granted = self._bookmarks.add(opened.stream, request.bookmark_ms, now.monotonic_ms)
        self._watchers[opened.stream] = watcher
        if request.bookmark_ms:
            watcher.within_ms = granted.within_ms
        # The first piece may be empty; it shows that the watch has started.
        effects = self._advance(watcher, first=True)
        due_ms = now.monotonic_ms + granted.every_ms
        if due_ms < self._bookmark_ms:
            self._bookmark_ms = due_ms
            effects.append(Wake(_BOOKMARK, due_ms))
        return effects

    def _taken(self, stream: int) -> Effects:
        watcher = self._watchers.get(stream)
        if watcher is None:
            return []
        watcher.is_waiting = False
        if not watcher.is_live:
            return self._advance(watcher)
        if watcher.has_lines:
            if not self._ticking:
                return [self._push(watcher)]
            self._dirty[stream] = watcher
        return []

    def _advance(self, watcher: Watcher, *, first: bool = False) -> Effects:
        """Push the next piece on the way to the present."""
        if not watcher.catch_up(self._window, self._presentation):
            self.dropped += 1
            return self._drop(watcher, "the watch could not catch up")
        if watcher.is_over:
            self._forget(watcher.stream)
            return [self._push(watcher), End(watcher.stream)]
        if watcher.is_live:
            watcher.complete_to = self._revision
            self._watcher_indexes[watcher.kind.plural].add(watcher)
            gets_lines = watcher.has_lines or watcher.within_ms is None
            sent = self._bookmark_revision(watcher) if first and not gets_lines else None
            if sent is not None:
                # From now on its reader knows how long this server may be silent.
                watcher.add(watcher.bookmark(sent, self._presentation, None))
        # Also push an empty piece while there is more to test: when its reader has taken it, and
        # others had their turn, the watcher continues.
        is_pushed = watcher.has_lines or first or not watcher.is_live
        return [self._push(watcher)] if is_pushed else []

    def _queued(self, watcher: Watcher) -> Effects:
        """Handle an event that was added to a live watcher's queue."""
        if watcher.is_waiting:
            if watcher.is_too_slow:
                self.dropped += 1
                return self._drop(watcher, "the watch was not read fast enough")
        elif watcher.is_full_enough:
            return [self._push(watcher)]
        else:
            self._dirty[watcher.stream] = watcher
        return []

    def _push(self, watcher: Watcher) -> Push:
        watcher.is_waiting = True
        self._dirty.pop(watcher.stream, None)
        return Push(watcher.stream, watcher.take())

    def _tick(self, now: Instant) -> Effects:
        ready = [w for w in self._dirty.values() if not w.is_waiting and w.has_lines]
        self._dirty.clear()
        self._ticking = bool(ready)
        effects: Effects = [self._push(watcher) for watcher in ready]
        if ready:
            pause_ms = SOON_MS if self._lately <= FEW_EVENTS else TICK_MS
            effects.append(Wake(_TICK, now.monotonic_ms + pause_ms))
        return effects

    def _bookmark(self, now: Instant) -> Effects:
        """Send the bookmarks that are due, as many as one turn may."""
        streams, self._bookmark_ms = self._bookmarks.due(now.monotonic_ms)
        # All watchers of a kind in one form, with the same interval, get the same line.
        lines: dict[tuple[str, str, int, int | None], bytes] = {}
        effects: Effects = [Wake(_BOOKMARK, self._bookmark_ms)]
        for stream in streams:
            watcher = self._watchers[stream]
            sent = self._bookmark_revision(watcher)
            if sent is None:
                continue
            if not watcher.has_lines:
                about = watcher.request.form, watcher.kind.plural, sent, watcher.within_ms
                text = lines.get(about)
                if text is None:
                    text = watcher.bookmark(sent, self._presentation, None)
                    lines[about] = text
                watcher.add(text)
            effects.append(self._push(watcher))
        return effects

    def _bookmark_revision(self, watcher: Watcher) -> int | None:
        """Everything up to this revision has been sent to a live watcher; None if it gets no
        bookmark now."""
        if not watcher.request.bookmarks or not watcher.is_live or watcher.is_waiting:
            return None
        sent = max(self._sent, watcher.complete_to)
        # A reader that is ahead of this server, or has part of a revision that is being sent, must
        # not be led back. A watcher with queued lines learns the revision from those.
        return sent if watcher.since <= sent and watcher.last_sent <= sent else None

    def _drop_all(self, why: str) -> Effects:
        self._unsent.clear()
        self._receivers = None
        return [it for watcher in list(self._watchers.values()) for it in self._drop(watcher, why)]

    def _drop(self, watcher: Watcher, why: str) -> Effects:
        self._forget(watcher.stream)
        return [End(watcher.stream, Expired(f"too old resource version: {why}; list again"))]

    def _forget(self, stream: int) -> None:
        watcher = self._watchers.pop(stream, None)
        self._dirty.pop(stream, None)
        self._bookmarks.remove(stream)
        if watcher is not None:
            watcher.is_live = False
            self._watcher_indexes[watcher.kind.plural].remove(watcher)
