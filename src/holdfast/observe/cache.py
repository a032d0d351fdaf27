"""A component's snapshot of a plane: list and watch of some kinds, with revision and age.

Schedulers, controllers and agents each own one of their plane, and may own one more of each other
plane, whose revisions and ages have nothing to do with each other. It opens a stream per kind,
receives all current objects, then the changes (`reflector`). A broken stream is resumed after the
last revision that was delivered completely. When that history is gone (Expired), the stream starts
over with a list, and what was known stays visible until the list is complete. Duplicate and late
events are skipped.

Lost events are found by the resync, which lists each kind beside its stream from time to time, and
are counted: without faults that count stays zero.

What is here may be old and never authorises anything. `age_ms` says how old it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import msgspec

from holdfast.model.errors import Expired, invariant
from holdfast.model.machine import (
    Effects,
    Ended,
    Leave,
    Open,
    Pushed,
    Rng,
    Started,
    Wake,
    Woken,
)
from holdfast.model.time import Instant
from holdfast.observe.indexer import Index, Key
from holdfast.observe.informer import SILENCE_MS, STEADY_MS, Channel, Informer
from holdfast.observe.reflector import ObjectChange
from holdfast.observe.watch_events import Follow, Reached, WatchEvent, servers_of

__all__ = ["Cache", "CacheUpdate", "Key", "ObjectChange", "is_for_cache_only"]

RETRY_MIN_MS = 100
RETRY_MAX_MS = 5_000
# This many doublings lead from the shortest pause to one longer than any limit.
_DOUBLINGS_MAX = 20
# A wake-up this late was delayed by our own process, and so were the events of the servers.
LATE_MS = 1_000

_WAKE = "cache"


def is_for_cache_only(stimulus: object) -> bool:
    """Whether a stimulus is for a cache alone; its owner sees the resulting changes."""
    if type(stimulus) is Woken:
        return stimulus.name == _WAKE or stimulus.name.startswith(f"{_WAKE}/")
    return type(stimulus) is Pushed or type(stimulus) is Ended


class CacheUpdate(msgspec.Struct, frozen=True):
    """The result of a stimulus: effects to perform, and the objects that changed."""

    effects: Effects
    changes: list[ObjectChange]


class Cache:
    """See the module's docstring.

    It owns the wake-up `cache`, or `cache/PLANE` for that of another plane. The caches of a machine
    own all its streams, which get their numbers from `numbers`.
    """

    def __init__(
        self,
        follows: Sequence[Follow],
        rng: Rng,
        *,
        resync_ms: int,
        plane: str = "",
        numbers: Iterator[int] | None = None,
    ) -> None:
        """`plane` is the other plane that it follows; machines with several caches share the
        `numbers` of their streams among them."""
        invariant(resync_ms > 0, "a cache needs a resync interval, or lost events stay lost")
        self._rng, self._plane, self._to = rng, plane, servers_of(plane)
        self._wake = f"{_WAKE}/{plane}" if plane else _WAKE
        self._resync_ms = resync_ms
        self._informers = {follow.plural: Informer(follow) for follow in follows}
        invariant(len(self._informers) == len(follows), "a cache follows each kind only once")
        self._by_stream: dict[int, Channel] = {}
        self._numbers = numbers if numbers is not None else itertools.count(1)
        # When the next wake-up is due.
        self._due_ms = 0
        # How often a kind that had been listed had to be listed again.
        self.relists = 0
        # Once every kind was listed this stays true; owners ask at every step.
        self._is_ready = False
        # The least revision and the least time of an update of all kinds. Owners ask far more often
        # than the cache changes; None until the next question after a change.
        self._revision: int | None = None
        self._updated_ms: int | None = None

    # The snapshot --------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether every kind has been listed once."""
        if not self._is_ready:
            self._is_ready = all(it.reflector.is_listed for it in self._informers.values())
        return self._is_ready

    @property
    def revision(self) -> int:
        """Everything up to this revision has been delivered, for every kind."""
        if self._revision is None:
            revisions = [it.reflector.revision for it in self._informers.values()]
            self._revision = min(revisions, default=0)
        return self._revision

    @property
    def seen(self) -> dict[str, int]:
        """The revision at which each kind is shown: streams are not equally fast."""
        return {plural: it.reflector.shown for plural, it in self._informers.items()}

    @property
    def missed(self) -> int:
        """How many objects only a list brought to light: each one is a lost event."""
        return sum(it.reflector.missed for it in self._informers.values())

    def age_ms(self, now: Instant) -> int:
        """How long ago the stream of the most silent kind last delivered something.

        Events of an incomplete list do not count.
        """
        if not self._informers:
            return 0
        if self._updated_ms is None:
            self._updated_ms = min([it.updated_ms for it in self._informers.values()])
        return now.monotonic_ms - self._updated_ms

    def troubles(self) -> dict[str, str]:
        """Why a kind is not being followed right now, or not completely, by plural."""
        found = {
            plural: _opaque(it) for plural, it in self._informers.items() if it.reflector.opaque
        }
        found.update(
            (plural, it.trouble)
            for plural, it in self._informers.items()
            if it.trouble and not it.is_live
        )
        return found

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        return self._informers[plural].reflector.indexer.objects.get((namespace, name))

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which they became known."""
        return iter(self._informers[plural].reflector.indexer.objects.values())

    def count(self, plural: str) -> int:
        return len(self._informers[plural].reflector.indexer.objects)

    def index(self, index: Index) -> None:
        """Index the objects of a kind; call it before the first object."""
        self._informers[index.plural].reflector.indexer.index(index.name, index.of)

    def found(self, index: Index, value: str) -> list[Any]:
        """The objects that an index has under a value, by namespace and name."""
        return self._informers[index.plural].reflector.indexer.found(index.name, value)

    def has(self, index: Index, value: str, is_meant: Callable[[Any], bool]) -> bool:
        """Whether an index has a matching object under a value."""
        return self._informers[index.plural].reflector.indexer.has(index.name, value, is_meant)

    # Stimuli -------------------------------------------------------------------------------------

    def step(self, stimulus: object, now: Instant) -> CacheUpdate:
        """Process a stimulus. Stimuli that are not the cache's own change nothing."""
        effects: Effects = []
        changes: list[ObjectChange] = []
        # Every stimulus of every component passes here, and most of them are not for the cache.
        if type(stimulus) is Pushed:
            self._revision = self._updated_ms = None
            channel = self._by_stream.get(stimulus.stream)
            if channel is not None:
                channel.received_ms = now.monotonic_ms
                informer = channel.informer
                take = self._take_resync if channel is informer.resync else self._take_events
                events = cast("tuple[WatchEvent, ...]", stimulus.body)
                effects = take(informer, events, changes, now)
        elif type(stimulus) is Woken:
            if stimulus.name == self._wake:
                effects = self._woken(now)
        elif type(stimulus) is Ended:
            channel = self._by_stream.pop(stimulus.stream, None)
            if channel is not None:
                effects = self._ended(channel, stimulus.body, now)
        elif type(stimulus) is Started:
            self._updated_ms = None
            for informer in self._informers.values():
                informer.updated_ms = now.monotonic_ms
                effects.append(self._open(informer.main, now))
            effects.append(self._tick(now))
        if self._plane:
            changes = [msgspec.structs.replace(it, plane=self._plane) for it in changes]
        return CacheUpdate(effects, changes)

    def _take_events(
        self,
        informer: Informer,
        events: tuple[WatchEvent, ...],
        changes: list[ObjectChange],
        now: Instant,
    ) -> Effects:
        """Process events from the stream of a kind."""
        reflector = informer.reflector
        was_live, was_listing = informer.live_ms is not None, reflector.is_listing
        is_useful, must_tick = True, False
        for event in events:
            is_useful = is_useful and reflector.take(event, changes)
            if type(event) is Reached and event.within_ms != informer.within_ms:
                informer.announce(event.within_ms)
                must_tick = True
        if not is_useful:
            informer.trouble = "the server sent an incomplete list, or one older than what is known"
            return [*self._close(informer.main), *self._reopen_later(informer.main, now)]
        if reflector.is_listing:
            return []
        informer.updated_ms = now.monotonic_ms
        if was_live:
            return [self._tick(now)] if must_tick else []
        informer.live_ms = now.monotonic_ms
        if was_listing:
            # Nothing was missed so far. A stream that was only resumed does not delay the resync.
            informer.resync.retry_at_ms = self._next_resync_ms(now)
        return [self._tick(now)]

    def _take_resync(
        self,
        informer: Informer,
        events: tuple[WatchEvent, ...],
        changes: list[ObjectChange],
        now: Instant,
    ) -> Effects:
        """Process events from the list of the resync, and close it as soon as it is complete."""
        for event in events:
            is_useful = informer.reflector.take_resync(event, changes)
            if is_useful is None:
                continue
            effects = self._close(informer.resync)
            if not is_useful:
                return [*effects, *self._reopen_later(informer.resync, now)]
            informer.resync.failures = 0
            informer.resync.retry_at_ms = self._next_resync_ms(now)
            informer.patience_ms = now.monotonic_ms + SILENCE_MS
            return [*effects, self._tick(now)]
        return []

    def _ended(self, channel: Channel, body: object, now: Instant) -> Effects:
        """Process the end of a stream, with or without an error."""
        informer = channel.informer
        channel.stream = 0
        if channel is informer.resync:
            informer.reflector.drop_resync()
            return self._reopen_later(channel, now)
        informer.trouble = str(body) if body is not None else "the server ended the stream"
        effects: Effects = []
        if isinstance(body, Expired):
            informer.reflector.must_list = True
            # The list that comes now does all that the resync would have done.
            effects += self._close(informer.resync)
        return effects + self._reopen_later(channel, now)

    # Streams and timers --------------------------------------------------------------------------

    def _open(self, channel: Channel, now: Instant) -> Open:
        channel.stream = next(self._numbers)
        channel.opened_ms = channel.received_ms = now.monotonic_ms
        self._by_stream[channel.stream] = channel
        informer = channel.informer
        since, is_list = None, channel is informer.resync
        if is_list:
            informer.reflector.begin_resync()
        else:
            informer.live_ms = None
            informer.patience_ms = now.monotonic_ms + SILENCE_MS
            was_listed = informer.reflector.is_listed
            since = informer.reflector.begin()
            if since is None and was_listed:
                self.relists += 1
        often_ms = 0 if is_list else informer.follow.bookmark_ms
        wanted = msgspec.structs.replace(
            informer.follow, since=since, is_list=is_list, bookmark_ms=often_ms
        )
        return Open(channel.stream, self._to, wanted)

    def _close(self, channel: Channel) -> Effects:
        if not channel.stream:
            return []
        if channel is channel.informer.resync:
            channel.informer.reflector.drop_resync()
        stream, channel.stream = channel.stream, 0
        del self._by_stream[stream]
        return [Leave(stream)]

    def _reopen_later(self, channel: Channel, now: Instant) -> Effects:
        """Open the stream again after a growing pause, with jitter: all lose a server at once.

        Only a stream that was healthy for a while is followed by the shortest pause. Otherwise a
        server that ends each stream after its list would be asked for lists without pause.
        """
        informer = channel.informer
        # Nothing waits for a resync, and its lists must not become a burden when they fail.
        max_ms = self._resync_ms
        if channel is informer.main:
            max_ms = RETRY_MAX_MS
            live_ms, informer.live_ms = informer.live_ms, None
            if live_ms is not None and now.monotonic_ms - live_ms >= STEADY_MS:
                channel.failures = 0
        pause_ms = min(max_ms, RETRY_MIN_MS << min(channel.failures, _DOUBLINGS_MAX))
        channel.failures += 1
        channel.retry_at_ms = now.monotonic_ms + int(pause_ms * (0.5 + self._rng.random() / 2))
        return [self._tick(now)]

    def _next_resync_ms(self, now: Instant) -> int:
        # Within the period, and not for all kinds and components at once.
        return now.monotonic_ms + int(self._resync_ms * (0.5 + self._rng.random() / 2))

    def _tick(self, now: Instant) -> Wake:
        self._due_ms = max(now.monotonic_ms + 1, self._next_due_ms())
        return Wake(self._wake, self._due_ms)

    def _next_due_ms(self) -> int:
        return min([it.due_ms for it in self._informers.values()], default=0)

    def _woken(self, now: Instant) -> Effects:
        effects: Effects = []
        now_ms = now.monotonic_ms
        if now_ms - self._due_ms >= LATE_MS:
            for channel in self._by_stream.values():
                channel.received_ms = now_ms
        due_ms = self._next_due_ms()
        if due_ms > now_ms:
            # Mostly the streams have delivered something since, and nothing is due yet.
            self._due_ms = due_ms
            return [Wake(self._wake, due_ms)]
        for informer in self._informers.values():
            main, resync = informer.main, informer.resync
            if resync.stream and now_ms >= resync.gives_up_ms(SILENCE_MS, is_listing=True):
                effects += [*self._close(resync), *self._reopen_later(resync, now)]
            if not main.stream:
                if now_ms >= main.retry_at_ms:
                    effects.append(self._open(main, now))
            elif now_ms >= informer.gives_up_ms:
                informer.trouble = "the server was silent for too long, or fell behind"
                effects += [*self._close(main), *self._reopen_later(main, now)]
            elif informer.is_live and not resync.stream and now_ms >= resync.retry_at_ms:
                effects.append(self._open(resync, now))
        return [*effects, self._tick(now)]


def _opaque(informer: Informer) -> str:
    opaque = informer.reflector.opaque
    (namespace, name), why = next(iter(opaque.items()))
    first = f"{namespace}/{name}".removeprefix("/")
    return f"this version cannot read {len(opaque)} objects, the first is {first}: {why}"
