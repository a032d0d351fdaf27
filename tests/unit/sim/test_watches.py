"""Watches on a simulated store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.model.errors import Expired
from holdfast.model.machine import Changed, Started, Txn, Unwatch, Wake, Watch, Woken
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Put, Transaction
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from holdfast.store.local_watches import BATCH_CHANGES_MAX
from tests.unit.sim.machines import Seen, on_start


class _Writer:
    """Writes w/0, w/1, … and x in turn, every 100 ms for a while."""

    def __init__(self, writes: int) -> None:
        self.left = writes
        self.calls = 0

    def __call__(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if not isinstance(stimulus, (Started, Woken)) or not self.left:
            return ()
        self.left -= 1
        self.calls += 1
        put = Put(f"w/{self.left % 5}" if self.left % 3 else "x", b"%d" % self.left)
        return Txn(self.calls, Transaction((), (put,))), Wake("write", now.monotonic_ms + 100)


def _world(
    *faults: Fault, react: Any = None, writes: int = 100, raw: bool = False
) -> tuple[World, Seen]:
    world = World(0)
    world.add_store(raw_watches=raw)
    world.add("writer", Seen(world, _Writer(writes)), store="store")
    seen = Seen(world, react or on_start(Watch(1, "w/", 0)))
    world.add("m", seen, store="store")
    for fault in faults:
        world.faults.schedule(fault)
    return world, seen


def _changes(seen: Seen) -> list[tuple[int, str]]:
    batches = [c.body for c in seen.of(Changed) if isinstance(c.body, Batch)]
    return [(change.revision, change.key) for batch in batches for change in batch.changes]


def _truth(world: World) -> list[tuple[int, str]]:
    changes = world.stores["store"].keyspace.changes("w/", after=0).changes
    return [(change.revision, change.key) for change in changes]


def test_a_watch_delivers_each_change_once_and_in_order() -> None:
    """The contract of every store. [INV10]"""
    world, seen = _world()
    world.run_until(20_000_000)
    assert _changes(seen) == _truth(world)
    assert len(_changes(seen)) == 66


@pytest.mark.parametrize(
    "fault",
    [
        Fault(2_000, "partition", "m", "*", for_ms=3_000),
        Fault(2_000, "watch_hold", "m", for_ms=3_000),
        Fault(2_000, "store_stall", "store", for_ms=3_000),
        Fault(2_000, "reboot", "store", for_ms=3_000),
        Fault(2_000, "scatter", "m", "*", for_ms=3_000, amount=900),
        Fault(2_000, "pause", "m", for_ms=3_000),
        Fault(0, "watch_hold", "m", for_ms=3_000, nth=20),
        Fault(0, "delivery_lose", "m", for_ms=9_000, amount=1_000),
    ],
    ids=lambda fault: f"{fault.kind}{fault.nth or ''}",
)
def test_behind_the_contract_faults_only_delay(fault: Fault) -> None:
    """There is no gap, no repetition and no old change under any fault. [INV10]"""
    world, seen = _world(fault)
    world.run_until(30_000_000)
    assert _changes(seen) == _truth(world)


def test_a_held_watch_is_stale_for_as_long_as_it_is_held() -> None:
    """A scheduler must work with a stale cache. [N5]"""
    world, seen = _world(Fault(2_000, "watch_hold", "m", for_ms=3_000))
    world.run_until(20_000_000)
    assert [at for at in seen.times_of(Changed) if 2_001 < at < 4_990] == []
    assert any(4_990 < at < 5_010 for at in seen.times_of(Changed))


def test_a_watch_can_be_held_from_any_of_its_deliveries_on() -> None:
    """Every stale offset can be tried. [N5]"""
    world, seen = _world(Fault(0, "watch_hold", "m", for_ms=3_000, nth=20))
    world.run_until(30_000_000)
    times = seen.times_of(Changed)
    assert times[19] - times[18] >= 3_000
    assert times[18] - times[17] < 400


def test_a_store_without_power_delivers_nothing() -> None:
    """It sends no bookmarks either. [N6]"""
    world, seen = _world(Fault(2_000, "reboot", "store", for_ms=20_000), writes=0)
    world.run_until(60_000_000)
    assert [at for at in seen.times_of(Changed) if 2_001 < at < 21_990] == []
    assert max(seen.times_of(Changed)) > 40_000


def test_a_long_backlog_arrives_in_several_batches() -> None:
    """A batch is bounded, and the rest follows without another change. [INV10]"""
    world = World(0)
    world.add_store()
    keyspace = world.stores["store"].keyspace
    for revision in range(3):
        puts = [Put(f"w/{revision}-{n}", b"") for n in range(BATCH_CHANGES_MAX)]
        keyspace.txn(Transaction((), tuple(puts)))
    seen = Seen(world, on_start(Watch(1, "w/", 0)))
    world.add("m", seen, store="store")
    world.run_until(1_000_000)
    assert [changed.body.revision for changed in seen.of(Changed)] == [1, 2, 3]


def test_a_quiet_watch_sends_bookmarks() -> None:
    """Its reader knows how old its view is. [INV10]"""
    world, seen = _world(writes=0)
    world.run_until(60_000_000)
    assert len(seen.of(Changed)) >= 11
    assert {changed.body for changed in seen.of(Changed)} == {Batch(0)}


def test_a_watch_from_a_compacted_revision_expires() -> None:
    """It ends with Expired instead of a gap. [INV10]"""
    world, seen = _world(
        Fault(2_000, "watch_hold", "m", for_ms=3_000),
        Fault(4_000, "store_compact", "store", amount=1),
    )
    world.run_until(20_000_000)
    assert isinstance(seen.of(Changed)[-1].body, Expired)
    assert _changes(seen) == _truth_before(world, seen)


def _truth_before(world: World, seen: Seen) -> list[tuple[int, str]]:
    last = max(revision for revision, _ in _changes(seen))
    everything = [(n, f"w/{(100 - n) % 5}") for n in range(1, last + 1) if (100 - n) % 3]
    assert last < world.stores["store"].keyspace.compacted
    return everything


def test_an_expired_watch_is_closed_and_can_be_opened_again() -> None:
    """After Expired it delivers nothing more. [INV10]"""

    def react(stimulus: Any, _now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            return (Watch(1, "w/", 0),)
        if isinstance(stimulus, Changed) and isinstance(stimulus.body, Expired):
            return (Watch(2, "w/", 0),)
        return ()

    world, seen = _world(Fault(2_000, "watch_expire", "m"), react=react)
    world.run_until(20_000_000)
    numbers = [changed.watch for changed in seen.of(Changed)]
    assert numbers == sorted(numbers)
    second = [c.body.changes for c in seen.of(Changed) if c.watch == 2]
    assert [(c.revision, c.key) for changes in second for c in changes] == _truth(world)


def test_unwatch_ends_the_deliveries() -> None:
    """The store drops the watch as well. [N6]"""

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            return Watch(1, "w/", 0), Wake("stop", now.monotonic_ms + 1_000)
        return (Unwatch(1),) if isinstance(stimulus, Woken) else ()

    world, seen = _world(react=react)
    world.run_until(20_000_000)
    assert max(seen.times_of(Changed)) <= 1_001
    assert world.stores["store"].watches == []


@pytest.mark.parametrize("kind", ["lose", "repeat", "stale"])
def test_a_raw_store_loses_repeats_and_travels_in_time(kind: str) -> None:
    """Below the layer that guarantees the contract a watch is lossy. [N5]"""
    world, seen = _world(Fault(0, f"delivery_{kind}", "m", nth=10), raw=True)
    world.run_until(20_000_000)
    changes, truth = _changes(seen), _truth(world)
    assert world.injected == {f"delivery_{kind}": 1}
    if kind == "lose":
        assert len(changes) < len(truth)
        assert changes == [change for change in truth if change in changes]
    else:
        assert sorted(set(changes)) == truth
        assert len(changes) > len(truth)
    went_back = changes != sorted(changes)
    assert went_back == (kind == "stale")
