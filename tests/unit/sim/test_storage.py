"""Transactions, reads and fates against a simulated store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.machine import Answered, FateOf, Range, Started, Txn
from holdfast.model.time import Instant
from holdfast.model.transaction import (
    ABSENT,
    Committed,
    Compare,
    CompareFailed,
    NotApplied,
    Page,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.sim import storage
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from tests.unit.sim.machines import Seen, on_start

WRITE = Transaction((Compare("k", ABSENT),), (Put("k", b"1"),))
TXN = Txn(1, WRITE, timeout_ms=1_000)


def _world(*faults: Fault, react: Any = None) -> tuple[World, Seen]:
    world = World(0)
    world.add_store()
    world.add_host("m")
    for fault in faults:
        world.faults.schedule(fault)
    world.run_until(0)
    seen = Seen(world, react or on_start(TXN))
    world.add("m", seen, store="store")
    return world, seen


def test_a_transaction_commits_and_checkers_see_it_first() -> None:
    """The author is known, and no machine has seen the revision yet. [N6]"""
    commits: list[tuple[Commit, int]] = []

    class Looking(Checker):
        def on_commit(self, world: World, commit: Commit) -> None:
            commits.append((commit, len(seen.of(Answered))))

    world, seen = _world()
    world.check(Looking())
    world.run_until(5_000_000)
    assert seen.of(Answered) == [Answered(1, Committed(1))]
    ((commit, received),) = commits
    assert (commit.store, commit.revision, commit.author, received) == ("store", 1, "m", 0)
    assert commit.changes[0].key == "k"


def test_a_refused_transaction_brings_the_current_records() -> None:
    """The caller decides again without another read. [N6]"""
    world, seen = _world(react=on_start(TXN, Txn(2, WRITE)))
    world.run_until(5_000_000)
    outcomes = sorted(type(answered.body).__name__ for answered in seen.of(Answered))
    assert outcomes == ["Committed", "CompareFailed"]
    refused = next(a.body for a in seen.of(Answered) if isinstance(a.body, CompareFailed))
    assert refused.current[0].value == b"1"


def test_an_answer_is_lost_though_the_transaction_committed() -> None:
    """After this time-out the caller does not know that the store has committed. [N5]"""
    world, seen = _world(Fault(0, "store_mute", "store", for_ms=9_000, amount=1_000))
    world.run_until(5_000_000)
    assert isinstance(seen.of(Answered)[0].body, OutcomeUnknown)
    assert seen.times_of(Answered) == [1_000]
    assert world.stores["store"].keyspace.revision == 1
    assert world.injected["store_mute"] == 1


def test_a_late_request_commits_after_its_caller_gave_up() -> None:
    """So "not found" never means that it is safe to send again. [N5]"""
    world, seen = _world(Fault(0, "store_late", "store", for_ms=9_000, amount=1_000))
    world.run_until(1_000_000)
    assert isinstance(seen.of(Answered)[0].body, OutcomeUnknown)
    assert world.stores["store"].keyspace.revision == 0
    world.run_until(5_000_000)
    assert world.stores["store"].keyspace.revision == 1


def test_asking_for_the_fate_of_a_late_request_stops_it() -> None:
    """The answer is final: the store refuses the token afterwards. [N5]"""

    def react(stimulus: Any, _now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            token = seen.seats[0].tokens.new_token()
            return (Txn(1, WRITE, token, 1_000),)
        if isinstance(stimulus, Answered) and stimulus.call == 1:
            return (FateOf(2, "0-1"),)
        return ()

    world, seen = _world(Fault(0, "store_late", "store", for_ms=500, amount=1_000), react=react)
    world.run_until(9_000_000)
    assert seen.of(Answered)[1] == Answered(2, NotApplied())
    assert world.stores["store"].keyspace.revision == 0


def test_the_fate_of_a_muted_transaction_is_that_it_applied() -> None:
    """A lost answer can be read later. [N5]"""

    def react(stimulus: Any, _now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            return (Txn(1, WRITE, seen.seats[0].tokens.new_token(), 1_000),)
        return (FateOf(2, "0-1"),) if stimulus.call == 1 else ()

    world, seen = _world(Fault(0, "store_mute", "store", for_ms=500, amount=1_000), react=react)
    world.run_until(9_000_000)
    assert seen.of(Answered)[1] == Answered(2, TokenApplied(1))


def test_a_failing_store_did_not_do_it() -> None:
    """Unavailable means that the request had no effect. [N6]"""
    world, seen = _world(Fault(0, "store_fail", "store", for_ms=9_000, amount=1_000))
    world.run_until(5_000_000)
    assert isinstance(seen.of(Answered)[0].body, Unavailable)
    assert world.stores["store"].keyspace.revision == 0


@pytest.mark.parametrize("fault", ["partition", "reboot"])
def test_a_store_out_of_reach_leaves_writes_unknown_and_reads_unavailable(fault: str) -> None:
    """A read changes nothing, so its outcome does not matter. [N6]"""
    world, seen = _world(
        Fault(0, fault, "store", "*", for_ms=9_000),
        react=on_start(TXN, Range(2, "a", "z", timeout_ms=1_000)),
    )
    world.run_until(5_000_000)
    bodies = {answered.call: type(answered.body) for answered in seen.of(Answered)}
    assert bodies == {1: OutcomeUnknown, 2: Unavailable}
    assert world.stores["store"].keyspace.revision == 0


def test_a_stalled_store_does_everything_when_it_comes_back() -> None:
    """Waiting requests are executed though their callers gave up. [N6]"""
    world, seen = _world(Fault(0, "store_stall", "store", for_ms=3_000))
    world.run_until(2_900_000)
    assert isinstance(seen.of(Answered)[0].body, OutcomeUnknown)
    assert world.stores["store"].keyspace.revision == 0
    world.run_until(5_000_000)
    assert world.stores["store"].keyspace.revision == 1


def test_a_slow_store_answers_later() -> None:
    """Slow is not failed. [N6]"""
    world, seen = _world(Fault(0, "store_slow", "store", for_ms=9_000, amount=700))
    world.run_until(5_000_000)
    assert seen.of(Answered) == [Answered(1, Committed(1))]
    assert 700 < seen.times_of(Answered)[0] < 720


def test_requests_queue_for_a_store_with_a_capacity() -> None:
    """A store that takes 100 ms for each answers the fifth after half a second. [N6]"""
    reads = [Range(call, "a", "z", timeout_ms=5_000) for call in range(5)]
    world, seen = _world(react=on_start(*reads, Range(9, "a", "z", timeout_ms=50)))
    world.stores["store"].service_us = 100_000
    world.run_until(5_000_000)
    answered = [at for at, a in seen.log if isinstance(a, Answered) and a.call != 9]
    assert len(answered) == 5
    assert 499 < answered[-1] < 620
    assert [at for at, a in seen.log if isinstance(a, Answered) and a.call == 9] == [50]


def test_a_long_history_is_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long runs have bounded history. [N6]"""
    monkeypatch.setattr(storage, "KEEP_REVISIONS", 10)
    writes = [Txn(call, Transaction((), (Put("k", b"%d" % call),))) for call in range(50)]
    world, _ = _world(react=on_start(*writes))
    world.run_until(5_000_000)
    keyspace = world.stores["store"].keyspace
    assert keyspace.revision == 50
    assert 10 <= keyspace.revision - keyspace.compacted <= 20


def test_a_request_sent_before_a_crash_still_arrives() -> None:
    """A new life may see late writes of the old one. [N6]"""
    world = World(0)
    world.add_store()
    seen = Seen(world, on_start(TXN))
    world.add("m", seen, store="store").lay_fuse(1, "crash", 60_000)
    world.run_until(5_000_000)
    assert seen.of(Answered) == []
    assert world.stores["store"].keyspace.revision == 1


def test_the_author_of_a_revision_can_crash_before_it_gets_the_answer() -> None:
    """A sweep strikes after every write. [N6]"""
    world, seen = _world(
        Fault(0, "crash_author", "store", for_ms=100, nth=1),
        react=lambda stimulus, _now: (TXN,) if isinstance(stimulus, Started) else (),
    )
    world.run_until(5_000_000)
    (answered,) = seen.of(Answered)
    assert isinstance(answered.body, CompareFailed)
    assert world.injected == {"crash": 1}


def test_reads_answer_with_pages_and_errors_are_values() -> None:
    """Nothing is raised into a machine. [N6]"""
    world, seen = _world(react=on_start(Range(1, "a", "z"), Range(2, "a", "z", at=77)))
    world.run_until(5_000_000)
    bodies = {answered.call: type(answered.body).__name__ for answered in seen.of(Answered)}
    assert bodies == {1: Page.__name__, 2: "Expired"}


def test_machines_use_the_store_that_they_were_added_with() -> None:
    """Several planes fit into one world. [N6]"""
    world = World(0)
    for name in ("eu", "us"):
        world.add_store(name)
        world.add(f"m-{name}", Seen(world, on_start(TXN)), store=name)
    world.run_until(5_000_000)
    assert [store.keyspace.revision for store in world.stores.values()] == [1, 1]
