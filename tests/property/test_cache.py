"""The cache against a history that arrives with breaks, repetitions, losses and old servers.

Whatever happens to the events, the snapshot only goes forward; once everything gets through, it is
the truth.
"""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.model.errors import Expired, Unavailable
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.machine import Ended, Leave, Open, Pushed, Started, Wake, Woken
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.indexer import Index
from holdfast.observe.watch_events import Departed, Follow, Present, Reached, WatchEvent
from tests.scale import examples

NAMES = st.sampled_from(["a", "b", "c", "d"])
PARITY = Index("tenants", "parity", lambda it: [str(it.metadata.generation % 2)])
RESYNC_MS = 20_000
SETTLE_MS = 4 * RESYNC_MS + 60_000


class Telling:
    """One stream of a server: what it still has to say, and what it said."""

    def __init__(
        self, history: list[WatchEvent], listed: list[WatchEvent] | None, after: int
    ) -> None:
        self.todo = list(listed or ())
        self.after = after
        self.history = history
        self.said: list[tuple[WatchEvent, ...]] = []

    def take(self, count: int, up_to: int) -> tuple[WatchEvent, ...]:
        """The next pieces, of a server that has come this far."""
        if not self.todo:
            self.todo = [it for it in self.history if self.after < it.revision <= up_to]
            self.after = max(self.after, up_to)
        piece, self.todo = tuple(self.todo[:count]), self.todo[count:]
        self.said.append(piece)
        return piece

    def bookmark(self, up_to: int) -> tuple[WatchEvent, ...]:
        rest = self.take(1_000, up_to)
        return (*rest, *self.take(1_000, up_to), Reached(self.after))


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.wake_ms: int | None = None
        self.revision = 1
        self.states: list[dict[str, Tenant]] = [{}, {}]
        self.history: list[WatchEvent] = []
        self.tellings: dict[int, Telling] = {}
        self.shadow: dict[str, Tenant] = {}
        self.newest: dict[str, int] = {}
        self.lost = 0
        # How far the server is that the next stream reaches, behind the newest.
        self.lag = 0
        self.cache = Cache([Follow("tenants")], random.Random(7), resync_ms=RESYNC_MS)
        self.cache.index(PARITY)

    # The world -----------------------------------------------------------------------------------

    @initialize(names=st.lists(NAMES, unique=True))
    def begin(self, names: list[str]) -> None:
        if names:
            self.commit(dict.fromkeys(names, False))
        self.step(Started({}))

    @rule(changes=st.dictionaries(NAMES, st.booleans(), min_size=1))
    def commit(self, changes: dict[str, bool]) -> None:
        """One transaction; True deletes what is there, False makes or changes it."""
        state = dict(self.states[-1])
        self.revision += 1
        for name, is_delete in changes.items():
            old = state.pop(name, None)
            if is_delete:
                if old is not None:
                    self.history.append(Departed(old, self.revision))
                continue
            uid = old.metadata.uid if old is not None else f"uid-{self.revision}"
            meta = ObjectMeta(name=name, uid=uid, generation=self.revision)
            state[name] = Tenant(meta)
            self.history.append(Present(state[name], self.revision))
        self.states.append(state)

    @rule(lag=st.integers(0, 3))
    def lag_behind(self, lag: int) -> None:
        self.lag = lag

    @precondition(lambda self: self.tellings)
    @rule(data=st.data(), count=st.integers(0, 4), lag=st.integers(0, 2))
    def deliver(self, data: st.DataObject, count: int, lag: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.tellings)))
        self.push(stream, self.tellings[stream].take(count, self.revision - lag))

    @precondition(lambda self: self.tellings)
    @rule(data=st.data(), lag=st.integers(0, 2))
    def deliver_all(self, data: st.DataObject, lag: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.tellings)))
        self.push(stream, self.tellings[stream].bookmark(self.revision - lag))

    @precondition(lambda self: self.tellings)
    @rule(data=st.data(), count=st.integers(1, 3))
    def lose(self, data: st.DataObject, count: int) -> None:
        stream = data.draw(st.sampled_from(sorted(self.tellings)))
        self.lost += bool(self.tellings[stream].take(count, self.revision))

    @precondition(lambda self: any(it.said for it in self.tellings.values()))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        told = sorted(number for number, it in self.tellings.items() if it.said)
        stream = data.draw(st.sampled_from(told))
        piece = data.draw(st.sampled_from(self.tellings[stream].said))
        self.push(stream, piece)

    @precondition(lambda self: self.tellings)
    @rule(data=st.data(), is_expired=st.booleans())
    def break_off(self, data: st.DataObject, is_expired: bool) -> None:
        stream = data.draw(st.sampled_from(sorted(self.tellings)))
        del self.tellings[stream]
        self.step(Ended(stream, Expired("gone") if is_expired else Unavailable("broken")))

    @rule(ms=st.sampled_from([50, 1_000, RESYNC_MS, 50_000]))
    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.wake_ms is not None and self.wake_ms <= end_ms:
            self.now_ms, self.wake_ms = max(self.now_ms, self.wake_ms), None
            self.step(Woken("cache"))
        self.now_ms = end_ms

    # The shell -----------------------------------------------------------------------------------

    def push(self, stream: int, piece: tuple[WatchEvent, ...]) -> None:
        self.step(Pushed(stream, piece))

    def step(self, stimulus: Any) -> None:
        told = self.cache.step(stimulus, Instant(self.now_ms, 0))
        for effect in told.effects:
            match effect:
                case Open(stream=stream, body=Follow(since=since)):
                    assert stream not in self.tellings
                    self.tellings[stream] = self.opened(since)
                case Leave(stream=stream):
                    del self.tellings[stream]
                case Wake(at_ms=at_ms):
                    assert at_ms > self.now_ms
                    self.wake_ms = at_ms
        for change in told.changes:
            self.changed(change.before, change.after)

    def opened(self, since: int | None) -> Telling:
        if since is not None:
            return Telling(self.history, None, since)
        seen = max(1, self.revision - self.lag)
        objects = sorted(self.states[seen].values(), key=lambda it: it.metadata.generation)
        listed: list[WatchEvent] = [Present(it, it.metadata.generation) for it in objects]
        listed.append(Reached(seen, ends_list=True, listed=len(objects)))
        return Telling(self.history, listed, seen)

    def changed(self, before: Any, after: Any) -> None:
        name = (after or before).name
        assert self.shadow.pop(name, None) is before, "a change begins where the last one ended"
        if after is not None:
            self.shadow[name] = after
            assert after.metadata.generation > self.newest.get(name, 0), "an object went back"
            self.newest[name] = after.metadata.generation
            return
        uid, made = before.metadata.uid, before.metadata.generation
        later = (it.get(name) for it in self.states[made:])
        assert any(it is None or it.metadata.uid != uid for it in later), f"{name} never went"

    # What must be true ---------------------------------------------------------------------------

    @invariant()
    def the_changes_are_the_snapshot(self) -> None:
        assert {it.name: it for it in self.cache.all("tenants")} == self.shadow
        for parity in ("0", "1"):
            found = {it.name for it in self.cache.found(PARITY, parity)}
            wanted = {
                name
                for name, it in self.shadow.items()
                if str(it.metadata.generation % 2) == parity
            }
            assert found == wanted

    @invariant()
    def without_losses_the_picture_is_whole_up_to_its_revision(self) -> None:
        if self.lost:
            return
        assert self.cache.missed == 0
        revision = self.cache.revision
        truth = self.states[revision] if revision else {}
        for name, it in self.shadow.items():
            known = truth.get(name)
            made = it.metadata.generation
            assert made > revision or (known is not None and made == known.metadata.generation)
        for name, it in truth.items():
            went = any(name not in state for state in self.states[revision:])
            assert went or self.shadow[name].metadata.generation >= it.metadata.generation

    def teardown(self) -> None:
        """Once everything gets through, the snapshot is the truth within the resync's period."""
        self.lag = 0
        end_ms = self.now_ms + SETTLE_MS
        while self.now_ms < end_ms:
            self.pass_time(5_000)
            for stream in sorted(self.tellings):
                if stream in self.tellings:
                    self.push(stream, self.tellings[stream].bookmark(self.revision))
        if self.cache.is_ready or self.tellings:
            assert self.shadow == self.states[-1]
            assert self.cache.revision == self.revision
            assert self.cache.age_ms(Instant(self.now_ms, 0)) <= 5_000
        super().teardown()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
