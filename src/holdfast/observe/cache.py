"""A component's picture of the plane: list and watch of some kinds, with revision and age.

Schedulers, controllers and agents each own one. It opens a stream per kind, is told everything as
it is, then what changes. A broken stream is resumed after the last revision that was told whole; a
history that is gone (Expired) begins anew with a list; items that come twice or late are left out.
Items that never come are found by the resync, which lists again once in a while, and are counted:
in a world without faults that count stays zero.

What is here may be old and never authorises anything. `age_ms` says how old.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.model.errors import Expired, invariant
from holdfast.model.machine import Ended, Leave, Open, Pushed, Rng, Started, Wake, Woken
from holdfast.model.meta import Object
from holdfast.model.time import Instant
from holdfast.observe.news import SERVERS, Follow, News, Present, Reached

# A server sends a sign of life every 15 s; more silence than this means that nobody is there.
SILENCE_MS = 45_000
RETRY_MIN_MS = 100
RETRY_MAX_MS = 5_000
# How many doublings lead from the shortest pause to the longest.
_DOUBLINGS_MAX = 6

Key = tuple[str, str]


class Change(msgspec.Struct, frozen=True):
    """One object is different from what this cache knew: new, changed or gone."""

    plural: str
    before: Object | None
    after: Object | None

    @property
    def object(self) -> Object:
        """How it is, or how it was at last."""
        found = self.after if self.after is not None else self.before
        invariant(found is not None, "a change is about an object")
        return found  # type: ignore[return-value]


class Told(msgspec.Struct, frozen=True):
    """What came of a stimulus: effects to perform, and what is different now."""

    effects: list[Any]
    changes: list[Change]


Indexer = Callable[[Any], Iterable[str]]


class Cache:
    """See the module's docstring. It owns all streams of its machine and the wake-up `cache`."""

    def __init__(
        self,
        follows: Sequence[Follow],
        rng: Rng,
        *,
        resync_ms: int,
        to: str = SERVERS,
    ) -> None:
        self._rng, self._to = rng, to
        self._resync_ms = resync_ms
        self._stories = {follow.plural: _Story(follow) for follow in follows}
        invariant(len(self._stories) == len(follows), "a cache follows each kind once")
        self._by_stream: dict[int, _Story] = {}
        self._streams = 0
        # Objects that only a resync brought to light: each one is a lost event.
        self.missed = 0

    # What is known -------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether every kind has been listed once."""
        return all(story.is_listed for story in self._stories.values())

    @property
    def revision(self) -> int:
        """Everything up to this revision has been told, of every kind."""
        return min((story.complete for story in self._stories.values()), default=0)

    def age_ms(self, now: Instant) -> int:
        """How long ago the server of the quietest kind last gave a sign of life."""
        heard = min((story.heard_ms for story in self._stories.values()), default=now.monotonic_ms)
        return now.monotonic_ms - heard

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """One object, or None."""
        return self._stories[plural].shelf.get((namespace, name))

    def all(self, plural: str) -> Iterator[Any]:
        """All objects of a kind, in the order in which they became known."""
        return iter(self._stories[plural].shelf.values())

    def count(self, plural: str) -> int:
        return len(self._stories[plural].shelf)

    def index(self, plural: str, name: str, indexer: Indexer) -> None:
        """Keep objects of a kind by what `indexer` says of each; before anything is known."""
        self._stories[plural].indexes[name] = _Index(indexer)

    def found(self, plural: str, index: str, value: str) -> list[Any]:
        """The objects that an index has under a value, by namespace and name."""
        story = self._stories[plural]
        return [story.shelf[key] for key in sorted(story.indexes[index].keys.get(value, ()))]

    # Stimuli -------------------------------------------------------------------------------------

    def step(self, stimulus: Any, now: Instant) -> Told:
        """Take in a stimulus; those that are not the cache's own change nothing."""
        effects: list[Any] = []
        changes: list[Change] = []
        match stimulus:
            case Started():
                for story in self._stories.values():
                    story.heard_ms = now.monotonic_ms
                    story.resync_at_ms = now.monotonic_ms + self._resync_ms
                    effects.append(self._open(story))
                effects.append(self._tick(now))
            case Pushed(stream=stream) if stream in self._by_stream:
                story = self._by_stream[stream]
                story.heard_ms, story.failures = now.monotonic_ms, 0
                for news in stimulus.body:
                    self._take(story, news, changes, effects, now)
            case Ended(stream=stream) if stream in self._by_stream:
                story = self._by_stream.pop(stream)
                story.stream = 0
                if isinstance(stimulus.body, Expired):
                    story.must_list = True
                effects += self._again(story, now)
            case Woken(name="cache"):
                effects += self._woken(now)
        return Told(effects, changes)

    def _open(self, story: _Story) -> Open:
        self._streams += 1
        story.stream = self._streams
        story.retry_at_ms = 0
        self._by_stream[story.stream] = story
        since = None if story.must_list else story.complete
        story.listing = {} if since is None else None
        story.current = story.complete
        return Open(story.stream, self._to, msgspec.structs.replace(story.follow, since=since))

    def _close(self, story: _Story) -> list[Any]:
        if not story.stream:
            return []
        stream, story.stream = story.stream, 0
        del self._by_stream[stream]
        return [Leave(stream)]

    def _again(self, story: _Story, now: Instant) -> list[Any]:
        """Open it anew after a pause that grows, with jitter: all lose a server at once."""
        pause_ms = min(RETRY_MAX_MS, RETRY_MIN_MS << min(story.failures, _DOUBLINGS_MAX))
        story.failures += 1
        story.retry_at_ms = now.monotonic_ms + int(pause_ms * (0.5 + self._rng.random()))
        return [self._tick(now)]

    def _tick(self, now: Instant) -> Wake:
        due = [it for story in self._stories.values() for it in story.due_ms()]
        return Wake("cache", max(now.monotonic_ms + 1, min(due)))

    def _woken(self, now: Instant) -> list[Any]:
        effects: list[Any] = []
        now_ms = now.monotonic_ms
        for story in self._stories.values():
            if not story.stream:
                if story.retry_at_ms <= now_ms:
                    effects.append(self._open(story))
                    story.heard_ms = max(story.heard_ms, now_ms - SILENCE_MS // 2)
            elif now_ms - story.heard_ms >= SILENCE_MS:
                effects += self._close(story)
                story.heard_ms = now_ms
                story.retry_at_ms = now_ms
                effects += self._again(story, now)
            elif story.resync_at_ms <= now_ms:
                effects += self._close(story)
                story.must_list = True
                effects.append(self._open(story))
                story.resync_at_ms = now_ms + self._resync_ms
        return [*effects, self._tick(now)]

    # News ----------------------------------------------------------------------------------------

    def _take(
        self, story: _Story, news: News, changes: list[Change], effects: list[Any], now: Instant
    ) -> None:
        if story.listing is not None:
            match news:
                case Present():
                    story.listing[_key(news.object)] = (news.object, news.revision)
                case Reached(ends_list=True):
                    self._listed(story, news.revision, changes, effects, now)
            return
        if not story.is_new(news):
            return
        if isinstance(news, Reached):
            return
        after = news.object if isinstance(news, Present) else None
        self._put(story, _key(news.object), after, news.revision, changes)

    def _listed(
        self,
        story: _Story,
        revision: int,
        changes: list[Change],
        effects: list[Any],
        now: Instant,
    ) -> None:
        """The list is whole: what differs from before has changed, and what is not in it is gone.

        A server that is behind may list what was true before what is known here; going back in
        time is refused, and another server or a later moment is tried.
        """
        listing, story.listing = story.listing or {}, None
        if revision < story.complete:
            effects += self._close(story)
            effects += self._again(story, now)
            return
        known = story.complete if story.is_listed else -1
        for key in [key for key in story.shelf if key not in listing]:
            self._put(story, key, None, revision, changes)
            self.missed += revision == known
        for key, (obj, at) in listing.items():
            if story.revisions.get(key, -1) < at:
                self._put(story, key, obj, at, changes)
                # It changed before something that was told: its own event was lost.
                self.missed += at <= known
        story.is_listed, story.must_list = True, False
        story.complete = story.current = revision

    def _put(
        self,
        story: _Story,
        key: Key,
        after: Object | None,
        revision: int,
        changes: list[Change],
    ) -> None:
        before = story.put(key, after, revision)
        if before is not None or after is not None:
            changes.append(Change(story.follow.plural, before, after))


class _Story:
    """One kind: the objects that are known, the stream that tells of them, and how far it got."""

    def __init__(self, follow: Follow) -> None:
        self.follow = follow
        self.shelf: dict[Key, Object] = {}
        self.revisions: dict[Key, int] = {}
        self.indexes: dict[str, _Index] = {}
        self.stream = 0
        # Objects of a list that is not whole yet.
        self.listing: dict[Key, tuple[Object, int]] | None = None
        self.is_listed = False
        self.must_list = True
        # One revision may change many objects, and a stream may break between two of them: all up
        # to `complete` is told whole, `current` may be told in part.
        self.complete = self.current = 0
        self.heard_ms = self.retry_at_ms = self.resync_at_ms = self.failures = 0

    def due_ms(self) -> tuple[int, ...]:
        """When somebody has to look after it next."""
        if not self.stream:
            return (self.retry_at_ms,)
        return (self.heard_ms + SILENCE_MS, self.resync_at_ms)

    def is_new(self, news: News) -> bool:
        """Take note of how far the story is told; whether this piece was not told before."""
        if news.revision < self.current or news.revision <= self.complete:
            return False
        if isinstance(news, Reached):
            self.complete = self.current = news.revision
            return True
        if news.revision > self.current:
            self.complete, self.current = max(self.complete, self.current), news.revision
        return news.revision > self.revisions.get(_key(news.object), -1)

    def put(self, key: Key, after: Object | None, revision: int) -> Object | None:
        """Let this be known of an object; what was known before."""
        before = self.shelf.get(key)
        for index in self.indexes.values():
            index.change(key, before, after)
        if after is None:
            self.shelf.pop(key, None)
            self.revisions.pop(key, None)
        else:
            self.shelf[key] = after
            self.revisions[key] = revision
        return before


class _Index:
    """Keys by a value; a set is never iterated unsorted."""

    def __init__(self, indexer: Indexer) -> None:
        self.indexer = indexer
        self.keys: dict[str, set[Key]] = {}

    def change(self, key: Key, before: Object | None, after: Object | None) -> None:
        for value in self.indexer(before) if before is not None else ():
            there = self.keys.get(value)
            if there is not None:
                there.discard(key)
                if not there:
                    del self.keys[value]
        for value in self.indexer(after) if after is not None else ():
            self.keys.setdefault(value, set()).add(key)


def _key(obj: Object) -> Key:
    return obj.namespace, obj.name
