"""The order of the queue, its pauses, and which entries an event wakes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.propose.feasibility.outcome import WakeEvent
from holdfast.propose.queue import scheduling_queue as queues
from holdfast.propose.queue.scheduling_queue import (
    AGING_EVERY,
    BACKOFF_MAX_MS,
    BACKOFF_MIN_MS,
    QueueEntry,
    SchedulingQueue,
)


def made(*names: str, lane: tuple[bool, int] = (False, 0)) -> SchedulingQueue:
    queue = SchedulingQueue(random.Random(1))
    for name in names:
        add(queue, name, lane=lane)
    return queue


def add(queue: SchedulingQueue, name: str, *, lane: tuple[bool, int] = (False, 0)) -> QueueEntry:
    tenant, _, rest = name.partition("/")
    entry = queue.add((tenant, rest), f"uid-{name}", 0, lane)
    assert entry is not None
    return entry


def order(queue: SchedulingQueue, now_ms: int = 0) -> list[str]:
    found = []
    while (entry := queue.take(now_ms)) is not None:
        found.append("/".join(entry.key))
    return found


def test_tenants_take_turns_and_each_keeps_its_own_order() -> None:
    """A tenant with a thousand replicas does not keep one with a single one waiting. [V5]"""
    queue = made("a/1", "a/2", "a/3", "b/1", "c/1", "c/2")
    assert order(queue) == ["a/1", "b/1", "c/1", "a/2", "c/2", "a/3"]


def test_what_made_way_for_other_work_goes_before_all_of_its_class() -> None:
    """Whichever tenant's turn it is; not before a more important class. [G4]"""
    queue = made("a/1", "b/1", "c/1")
    for name in ("c", "b"):
        assert queue.add((name, "victim"), f"uid-{name}", 0, (False, 0), first=True) is not None
    add(queue, "a/high", lane=(False, 1))
    assert order(queue) == ["a/high", "c/victim", "b/victim", "a/1", "b/1", "c/1"]
    assert queue.add(("c", "alone"), "uid", 0, (False, 0), first=True) is not None
    assert order(queue) == ["c/alone"]


def test_a_requeued_entry_that_waits_longest_has_the_turn_of_the_oldest() -> None:
    """[V5]"""
    queue = made()
    assert queue.add(("a", "victim"), "uid", 0, (False, 0), first=True) is not None
    found = []
    for number in range(AGING_EVERY):
        add(queue, f"a/high-{number}", lane=(False, 9))
        entry = queue.take(0)
        assert entry is not None
        found.append(entry.key[1])
    assert "victim" in found


def test_what_is_put_back_keeps_its_position_and_its_age() -> None:
    """[V5]"""
    queue = made("a/1", "a/2", "a/3", lane=(False, 1))
    taken = [queue.take(0), queue.take(0)]
    add(queue, "a/low")
    for entry in reversed(taken):
        assert entry is not None
        queue.put_back(entry)
    for _ in range(AGING_EVERY - 3):
        add(queue, "a/other", lane=(False, 9))
        assert queue.take(0) is queue.get(("a", "other"))
        queue.forget(("a", "other"))
    # This turn is of the entry that is queued longest.
    add(queue, "a/other", lane=(False, 9))
    assert order(queue) == ["a/1", "a/other", "a/2", "a/3", "a/low"]


def test_urgent_goes_before_priority_and_priority_before_age() -> None:
    """[E2]"""
    queue = made("a/old")
    add(queue, "a/high", lane=(False, 9))
    add(queue, "a/urgent", lane=(True, 0))
    assert order(queue) == ["a/urgent", "a/high", "a/old"]


def test_one_turn_in_a_few_goes_to_the_entry_that_waits_longest() -> None:
    """However much comes that is more important. [E6]"""
    queue = made("a/patient")
    for index in range(3 * AGING_EVERY):
        add(queue, f"b/{index}", lane=(False, 9))
    assert order(queue).index("a/patient") == AGING_EVERY - 1


def test_a_tenant_gets_a_bounded_number_into_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others do, and it does again when some of its own have left. [E6]"""
    monkeypatch.setattr(queues, "PENDING_PER_TENANT_MAX", 2)
    queue = made("a/1", "a/2", "b/1")
    assert queue.add(("a", "3"), "uid", 0, (False, 0)) is None
    assert queue.add(("a", "2"), "uid-a/2", 0, (False, 0)) is not None, "it is there already"
    queue.forget(("a", "1"))
    assert queue.add(("a", "3"), "uid", 0, (False, 0)) is not None
    assert sorted(order(queue)) == ["a/2", "a/3", "b/1"]


def test_adding_the_same_replica_again_changes_nothing_and_a_new_transition_is_new() -> None:
    """[E1]"""
    queue = made("a/1")
    entry = queue.take(0)
    assert entry is not None
    assert add(queue, "a/1") is entry
    assert not queue.has_ready
    assert queue.add(("a", "1"), "another", 0, (False, 0)) is not entry
    assert order(queue) == ["a/1"]


def test_pauses_grow_to_a_bound_and_have_jitter() -> None:
    """[E5]"""
    queue = made("a/1")
    now_ms, pauses = 0, []
    for _ in range(14):
        entry = queue.take(now_ms)
        assert entry is not None
        until_ms = queue.failed(entry, now_ms)
        assert queue.take(until_ms - 1) is None
        assert queue.next_ms == until_ms
        pauses.append(until_ms - now_ms)
        now_ms = until_ms
    assert BACKOFF_MIN_MS / 2 <= pauses[0] <= BACKOFF_MIN_MS
    assert max(pauses) <= BACKOFF_MAX_MS
    assert min(pauses[-4:]) >= BACKOFF_MAX_MS / 2
    assert len(set(pauses[-4:])) > 1


def test_events_do_not_shorten_a_pause() -> None:
    """[E5]"""
    queue = made("a/1")
    entry = queue.take(0)
    assert entry is not None
    queue.failed(entry, 0)
    queue.wake(entry)
    queue.wake_all()
    add(queue, "a/1")
    assert queue.take(1) is None


def test_a_conflict_is_tried_again_before_others_of_its_tenant() -> None:
    """[F9]"""
    queue = made("a/1", "a/2")
    entry = queue.take(0)
    assert entry is not None
    queue.again(entry)
    assert entry.conflicts == 1
    assert queue.take(0) is entry
    queue.failed(entry, 0)
    assert entry.conflicts == 0, "a pause begins a new turn"
    assert order(queue, 100_000) == ["a/2", "a/1"]


def test_parked_ones_are_found_by_what_could_help_them() -> None:
    """[E1]"""
    queue = made("a/1", "a/2", "a/3")
    for wake_events in ((WakeEvent.NODES,), (WakeEvent.NODES, WakeEvent.ALLOWANCE), ()):
        entry = queue.take(0)
        assert entry is not None
        queue.park(entry, wake_events)
    ((_, equivalence),) = queue.waiting_for(WakeEvent.NODES)
    assert [entry.key[1] for entry in equivalence.values()] == ["1", "2"]
    ((_, both),) = queue.waiting_for(WakeEvent.ALLOWANCE)
    assert queue.wake_some(both, 5) == 1
    assert order(queue) == ["a/2"]
    queue.wake_all()
    assert order(queue) == ["a/1", "a/3"]


def test_what_is_forgotten_is_never_taken_wherever_it_stood() -> None:
    """[E1]"""
    queue = made("a/ready", "a/pausing", "a/parked")
    for name in ("ready", "pausing", "parked"):
        entry = queue.take(0)
        assert entry is not None
        if name == "ready":
            queue.again(entry)
            queue.forget(entry.key)
        elif name == "pausing":
            queue.failed(entry, 0)
            queue.forget(entry.key)
        else:
            queue.park(entry, (WakeEvent.NODES,))
            queue.forget(entry.key)
    queue.wake_all()
    assert order(queue, 100_000) == []
    assert (len(queue), queue.next_ms, queue.has_ready) == (0, None, False)


@given(st.lists(st.tuples(st.sampled_from("atfpwxg"), st.integers(0, 5)), max_size=60))
def test_no_entry_is_lost_or_taken_twice(moves: list[tuple[str, int]]) -> None:
    """Whatever is done in whatever order, all that were not forgotten are taken once. [E1, V5]"""
    queue = SchedulingQueue(random.Random(1))
    taken: dict[str, QueueEntry] = {}
    known: set[str] = set()
    now_ms = 0
    for move, which in moves:
        name = f"{'ab'[which % 2]}/{which}"
        entry = taken.get(name)
        match move:
            case "a":
                add(queue, name)
                known.add(name)
            case "t":
                now_ms += 50
                found = queue.take(now_ms)
                if found is not None:
                    assert "/".join(found.key) not in taken
                    taken["/".join(found.key)] = found
            case "x":
                queue.forget(("ab"[which % 2], str(which)))
                known.discard(name)
                taken.pop(name, None)
            case "f" if entry is not None:
                queue.failed(taken.pop(name), now_ms)
            case "p" if entry is not None:
                queue.park(taken.pop(name), (WakeEvent.NODES,))
            case "g" if entry is not None:
                queue.again(taken.pop(name))
            case "w":
                queue.wake_all()
    queue.wake_all()
    assert sorted(order(queue, 10**9)) == sorted(known - set(taken))
    assert not queue.has_ready


def test_a_lane_that_ran_empty_does_not_spoil_the_turn_of_the_oldest() -> None:
    """The oldest of all gets a turn now and then, also when a lane has just emptied. [V5, E2]"""
    queue = made("a/old")
    turns: list[str] = []
    for number in range(3 * AGING_EVERY):
        add(queue, f"a/urgent-{number}", lane=(True, 0))
        taken = queue.take(0)
        assert taken is not None
        turns.append(taken.key[1])
        queue.park(taken, ())
    assert turns.index("old") < AGING_EVERY
    assert len(set(turns)) == len(turns)
