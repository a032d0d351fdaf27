"""The watch hub: a machine that follows the store once and tells any number of watchers.

It lists all objects, watches the store from there, and keeps every object in the bytes in which
clients get it (`cabinet`) and the last changes (`window`). The HTTP server reads from it directly
and opens a stream for each watch (`watchers`).

Events go out in ticks: the first one after a pause at once, those that follow soon together, and
when there are many those of TICK_MS, which costs a third for many watchers. A stream is given the
next piece when its reader has taken the last one, so that what a slow reader leaves is seen here;
when it is too much, or when the hub has lost its own place in the store's history, the stream ends
with Expired and its reader lists again. A watch is ordered, unique and without holes, or it says
so.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.model.machine import (
    Answer,
    Answered,
    Asked,
    Changed,
    End,
    Left,
    Opened,
    Push,
    Range,
    Started,
    Taken,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.registry import KINDS, Kind
from holdfast.model.time import Instant
from holdfast.observe.cabinet import Cabinet, parsed_key
from holdfast.observe.entries import Entry, Reader
from holdfast.observe.selection import Selection
from holdfast.observe.watchers import Audience, Watcher, WatchRequest, resumed
from holdfast.observe.window import Happening, Presentation, Window

TICK_MS = 20
# While there is little to tell nothing is gained by waiting: one replica that is created and bound
# is two events within a few milliseconds.
SOON_MS = 2
FEW_EVENTS = 4
RETRY_MS = 200
BOOKMARK_EVERY_MS = 15_000
# Signs of life for thousands of agents at once would hold up everybody else for half a second.
BOOKMARKS_AT_ONCE = 256
BOOKMARK_PAUSE_MS = 250
LOAD_PAGE = 2_000
REACHING_MAX = 10_000

_TICK, _LOAD, _REWATCH, _BOOKMARK = "tick", "load", "rewatch", "bookmark"


class Reach(msgspec.Struct, frozen=True, gc=False):
    """Ask to be answered once the hub has seen everything up to this revision."""

    revision: int


class Hub:
    """See the module's docstring. `presentation` says how objects look in each form.

    A `reader` may be shared by hubs of one process.
    """

    def __init__(self, presentation: Presentation, reader: Reader | None = None) -> None:
        self._presentation = presentation
        self._reader = reader if reader is not None else Reader()
        self._cabinet = Cabinet()
        self._window = Window(0)
        self._revision = 0
        # When something of each kind last changed, as far as is known.
        self._changed_at: dict[str, int] = {}
        self._listed_at = 0
        self._is_ready = False
        self._loading: tuple[int, Cabinet] | None = None
        self._calls = 0
        self._watch = 0
        self._ticking = False
        # How many events there were since a moment within the last tick or so.
        self._lately, self._lately_since_ms = 0, 0
        self._watchers: dict[int, Watcher] = {}
        self._audiences: dict[str, Audience] = {kind.plural: Audience() for kind in KINDS}
        self._dirty: dict[int, Watcher] = {}
        # Whose sign of life is due still, and when the next round begins.
        self._unmarked: list[Watcher] = []
        self._round_ms = 0
        self._reaching: list[tuple[int, int]] = []
        # Streams that were ended because their readers were too slow, those that could not go on
        # where they wanted to, and how often all had to be listed anew.
        self.dropped = self.outlived = self.relists = 0

    # What reads are answered from ------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether it has listed the store."""
        return self._is_ready

    @property
    def revision(self) -> int:
        """Everything up to this revision has been seen."""
        return self._revision

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return len(self._watchers)

    def get(self, kind: Kind, namespace: str, name: str) -> Entry | None:
        """One object as of `revision`."""
        return self._cabinet.get(kind, namespace, name)

    def select(self, selection: Selection) -> list[Entry]:
        """Objects as of `revision`, in the order of their keys."""
        return self._cabinet.select(selection)

    def count(self, kind: Kind, namespace: str = "") -> int:
        """How many objects there are of a kind."""
        return self._cabinet.count(kind, namespace)

    def changed(self, kind: Kind) -> int:
        """The revision at which something of a kind last changed, or at which all was listed."""
        return self._changed_at.get(kind.plural, self._listed_at)

    # Stimuli -------------------------------------------------------------------------------------

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        match stimulus:
            case Taken(stream=stream):
                return self._taken(stream)
            case Changed():
                return self._changed(stimulus, now)
            case Woken(name=name):
                return self._woken(name, now)
            case Opened():
                return self._opened(stimulus)
            case Left(stream=stream):
                self._forget(stream)
                return []
            case Asked():
                return self._asked(stimulus)
            case Answered():
                return self._loaded(stimulus, now)
            case Started():
                return [*self._load(), Wake(_BOOKMARK, now.monotonic_ms + BOOKMARK_EVERY_MS)]
            case _:
                return []

    def _woken(self, name: str, now: Instant) -> list[Any]:
        if name == _TICK:
            return self._tick(now)
        if name == _LOAD:
            return self._load()
        if name == _REWATCH:
            return self._follow()
        return self._bookmark(now)

    def _asked(self, asked: Asked) -> list[Any]:
        if not isinstance(asked.body, Reach):
            return [Answer(asked.call, Unavailable("the hub answers Reach only"))]
        if self._is_ready and self._revision >= asked.body.revision:
            return [Answer(asked.call, self._revision)]
        if len(self._reaching) >= REACHING_MAX:
            return [Answer(asked.call, Unavailable(f"{REACHING_MAX} readers wait already"))]
        self._reaching.append((asked.call, asked.body.revision))
        return []

    def _reached(self) -> list[Any]:
        if not self._reaching:
            return []
        done = [call for call, revision in self._reaching if revision <= self._revision]
        if done:
            self._reaching = [it for it in self._reaching if it[1] > self._revision]
        return [Answer(call, self._revision) for call in done]

    # Following the store -------------------------------------------------------------------------

    def _load(self) -> list[Any]:
        """List everything anew."""
        self._calls += 1
        self._loading = (self._calls, Cabinet())
        return [Range(self._calls, keys.OBJECTS, keys.after_prefix(keys.OBJECTS), LOAD_PAGE)]

    def _loaded(self, answered: Answered, now: Instant) -> list[Any]:
        if self._loading is None or answered.call != self._loading[0]:
            return []
        page = answered.body
        if isinstance(page, HoldfastError):
            self._loading = None
            return [Wake(_LOAD, now.monotonic_ms + RETRY_MS)]
        cabinet = self._loading[1]
        for record in page.records:
            self._shelve(cabinet, record.key, record.value, record.modified)
        if page.more_from is not None:
            self._calls += 1
            self._loading = (self._calls, cabinet)
            end = keys.after_prefix(keys.OBJECTS)
            return [Range(self._calls, page.more_from, end, LOAD_PAGE, page.revision)]
        self._loading = None
        self._cabinet, self._revision = cabinet, page.revision
        self._changed_at, self._listed_at = {}, page.revision
        self._window = Window(page.revision)
        self._is_ready = True
        return [*self._reached(), *self._follow()]

    def _shelve(self, cabinet: Cabinet, key: str, value: bytes, revision: int) -> None:
        found = parsed_key(key)
        if found is not None:
            cabinet.put(*found, self._reader.read(found[0], value, revision))

    def _follow(self) -> list[Any]:
        # Of everything, not of the objects alone: a reader waits for the store's revision, and that
        # grows with ledgers too.
        self._watch += 1
        return [Watch(self._watch, "", self._revision)]

    def _changed(self, changed: Changed, now: Instant) -> list[Any]:
        if changed.watch != self._watch:
            return []
        batch = changed.body
        if isinstance(batch, Expired):
            # Nobody may join before the new list is complete: its window would not be his.
            self._is_ready = False
            self.relists += 1
            return [*self._drop_all("the server has lost its place in the history"), *self._load()]
        if isinstance(batch, HoldfastError):
            # Watching again after the last revision loses nothing.
            return [Wake(_REWATCH, now.monotonic_ms + RETRY_MS)]
        effects: list[Any] = []
        for change in batch.changes:
            effects += self._apply(change)
        self._revision = max(self._revision, batch.revision)
        effects += self._reached()
        if now.monotonic_ms - self._lately_since_ms > TICK_MS:
            self._lately, self._lately_since_ms = 0, now.monotonic_ms
        self._lately += len(batch.changes)
        if self._dirty and not self._ticking:
            effects += self._tick(now)
        return effects

    def _apply(self, change: Any) -> list[Any]:
        # A watch may repeat itself after a reconnection; revisions tell.
        if change.revision <= self._revision:
            return []
        found = parsed_key(change.key)
        if found is None:
            return []
        kind = found[0]
        after = None
        if change.value is not None:
            after = self._reader.read(kind, change.value, change.revision)
        before = self._cabinet.put(*found, after)
        if before is None and after is None:
            return []
        self._changed_at[kind.plural] = change.revision
        happening = Happening(kind, change.revision, before, after)
        self._window.append(happening)
        effects: list[Any] = []
        audience = self._audiences[kind.plural]
        if audience:
            for watcher in list(audience.concerned(happening)):
                if watcher.tell(happening, self._presentation):
                    effects += self._queued(watcher)
            happening.forget_lines()
        return effects

    # Watchers ------------------------------------------------------------------------------------

    def _opened(self, opened: Opened) -> list[Any]:
        request = opened.body
        if not isinstance(request, WatchRequest):
            return [End(opened.stream, Unavailable("a stream to the hub is a watch"))]
        if not self._is_ready:
            return [End(opened.stream, Unavailable("the server is still reading the store"))]
        if request.since is None:
            watcher = Watcher(opened.stream, request, self._revision, self._window.end)
            watcher.begin_with(self._cabinet.select(request.selection), self._revision)
        else:
            found = resumed(opened.stream, request, request.since, self._window, self._revision)
            if isinstance(found, HoldfastError):
                self.outlived += isinstance(found, Expired)
                return [End(opened.stream, found)]
            watcher = found
        self._watchers[opened.stream] = watcher
        # The first piece may be empty; it says that the watch has begun.
        return self._advance(watcher, first=True)

    def _taken(self, stream: int) -> list[Any]:
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

    def _advance(self, watcher: Watcher, *, first: bool = False) -> list[Any]:
        """Hand over the next piece of the way to the present."""
        if not watcher.catch_up(self._window, self._presentation):
            self.dropped += 1
            return self._drop(watcher, "the watch could not catch up")
        if watcher.is_over:
            self._forget(watcher.stream)
            return [self._push(watcher), End(watcher.stream)]
        if watcher.is_live:
            self._audiences[watcher.kind.plural].add(watcher)
        return [self._push(watcher)] if watcher.has_lines or first else []

    def _queued(self, watcher: Watcher) -> list[Any]:
        """An event was added to a live watcher's queue."""
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

    def _tick(self, now: Instant) -> list[Any]:
        ready = [w for w in self._dirty.values() if not w.is_waiting and w.has_lines]
        self._dirty.clear()
        self._ticking = bool(ready)
        effects: list[Any] = [self._push(watcher) for watcher in ready]
        if ready:
            pause_ms = SOON_MS if self._lately <= FEW_EVENTS else TICK_MS
            effects.append(Wake(_TICK, now.monotonic_ms + pause_ms))
        return effects

    def _bookmark(self, now: Instant) -> list[Any]:
        if not self._unmarked:
            self._unmarked = list(self._watchers.values())
            self._round_ms = now.monotonic_ms + BOOKMARK_EVERY_MS
        turn = self._unmarked[:BOOKMARKS_AT_ONCE]
        self._unmarked = self._unmarked[BOOKMARKS_AT_ONCE:]
        at_ms = now.monotonic_ms + BOOKMARK_PAUSE_MS if self._unmarked else self._round_ms
        effects: list[Any] = [Wake(_BOOKMARK, at_ms)]
        # All who watch a kind in one form are told the same.
        lines: dict[tuple[str, str], bytes] = {}
        for watcher in turn:
            if watcher.stream not in self._watchers:
                continue
            # A reader that knows more than this server must not be led back. One that has something
            # to take learns the revision from that.
            if watcher.since > self._revision:
                continue
            if watcher.request.bookmarks and watcher.is_live and not watcher.is_waiting:
                if not watcher.has_lines:
                    about = watcher.request.form, watcher.kind.plural
                    text = lines.get(about)
                    if text is None:
                        text = watcher.bookmark(self._revision, self._presentation, None)
                        lines[about] = text
                    watcher.add(text)
                effects.append(self._push(watcher))
        return effects

    def _drop_all(self, why: str) -> list[Any]:
        return [it for watcher in list(self._watchers.values()) for it in self._drop(watcher, why)]

    def _drop(self, watcher: Watcher, why: str) -> list[Any]:
        self._forget(watcher.stream)
        return [End(watcher.stream, Expired(f"too old resource version: {why}; list again"))]

    def _forget(self, stream: int) -> None:
        watcher = self._watchers.pop(stream, None)
        self._dirty.pop(stream, None)
        if watcher is not None:
            self._audiences[watcher.kind.plural].remove(watcher)
