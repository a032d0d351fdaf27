"""Keys are taken once at a time, in the order in which they became due, with growing pauses."""

from __future__ import annotations

import pickle
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.model.errors import InvariantBroken
from holdfast.observe.inflight import Inflight
from holdfast.observe.work_queue import BACKOFF_MAX_MS, BACKOFF_MIN_MS, FairWorkQueue, WorkQueue


def test_keys_come_in_the_order_in_which_they_became_due() -> None:
    """[E6]"""
    queue: WorkQueue[str] = WorkQueue(random.Random(1))
    for key, at_ms in (("c", 30), ("a", 10), ("b", 10), ("a", 5), ("c", 40)):
        queue.add(key, at_ms)
    assert len(queue) == 3
    assert queue.next_ms == 5
    assert [queue.take(100) for _ in range(4)] == ["a", "b", "c", None]


def test_a_key_added_while_it_is_reconciled_is_reconciled_again() -> None:
    """[E1, C7.7]"""
    queue: WorkQueue[str] = WorkQueue(random.Random(1))
    queue.add("a", 0)
    assert queue.take(0) == "a"
    queue.add("a", 7)
    queue.add("a", 3)
    assert queue.take(10) is None
    queue.done("a")
    assert queue.next_ms == 3
    assert queue.take(10) == "a"
    queue.done("a")
    assert queue.next_ms is None


def test_pauses_grow_to_a_bound_and_end_with_success() -> None:
    """[E5]"""
    queue: WorkQueue[str] = WorkQueue(random.Random(1))
    now_ms, pauses = 0, []
    for _ in range(14):
        queue.add("a", now_ms)
        assert queue.take(now_ms) == "a"
        queue.add("a", now_ms)
        at_ms = queue.failed("a", now_ms)
        assert queue.take(at_ms - 1) is None
        pauses.append(at_ms - now_ms)
        now_ms = at_ms
    assert BACKOFF_MIN_MS / 2 <= pauses[0] <= BACKOFF_MIN_MS
    assert all(BACKOFF_MAX_MS / 2 <= it <= BACKOFF_MAX_MS for it in pauses[-3:])
    assert queue.failures("a") == 14
    assert queue.take(now_ms) == "a"
    queue.done("a")
    assert queue.failures("a") == 0


def test_a_key_that_was_not_taken_cannot_be_given_back() -> None:
    with pytest.raises(InvariantBroken):
        WorkQueue[str](random.Random(1)).done("a")


def test_times_that_were_replaced_do_not_pile_up() -> None:
    queue: WorkQueue[str] = WorkQueue(random.Random(1))
    queue.add("first", 0)
    queue.add("a", 10_001)
    before = len(pickle.dumps(queue))
    for at_ms in range(10_000, 0, -1):
        queue.add("a", at_ms)
    assert len(pickle.dumps(queue)) < before + 100 * 20
    assert [queue.take(1), queue.take(1)] == ["first", "a"]


def fair() -> FairWorkQueue[str]:
    """Keys such as `acme/big/17`: tenant, owner, number."""

    def flow(key: str) -> tuple[str, str]:
        tenant, owner, _ = key.split("/")
        return tenant, owner

    return FairWorkQueue(random.Random(1), flow)


def test_tenants_take_turns_and_so_do_the_owners_of_each() -> None:
    """An owner that comes last with one key waits for one key of each of the others. [E6]"""
    queue = fair()
    for number in range(1_000):
        queue.add(f"acme/big/{number}", 0)
    assert queue.take(5) == "acme/big/0"
    queue.add("acme/small/0", 7)
    queue.add("globex/only/0", 8)
    assert queue.take(6) == "acme/big/1"
    assert len(queue) == 1_000
    assert queue.next_ms == 0
    assert [queue.take(9) for _ in range(4)] == [
        "acme/big/2",
        "globex/only/0",
        "acme/small/0",
        "acme/big/3",
    ]
    assert queue.take(9) == "acme/big/4"


def test_of_one_owner_keys_come_in_the_order_in_which_they_became_due() -> None:
    """Also those that came again, and none of those that were forgotten. [E6]"""
    queue = fair()
    for key, at_ms in (("a/b/3", 30), ("a/b/1", 10), ("a/b/2", 20), ("a/b/4", 20)):
        queue.add(key, at_ms)
    assert queue.take(25) == "a/b/1"
    queue.add("a/b/2", 0)
    queue.forget("a/b/4")
    queue.add("a/b/4", 90)
    queue.add("a/b/1", 26)
    queue.done("a/b/1")
    assert [queue.take(40) for _ in range(4)] == ["a/b/2", "a/b/1", "a/b/3", None]
    assert queue.next_ms == 90
    assert queue.take(90) == "a/b/4"
    assert queue.failed("a/b/4", 90) == queue.next_ms


def test_answers_are_matched_once_and_room_is_bounded() -> None:
    asks: Inflight[str] = Inflight(2)
    first, second = asks.ask("x", "about x", 5), asks.ask("y", "about y", 6, sender="me")
    assert (first.call, second.call, second.sender, asks.room) == (1, 2, "me", 0)
    pending = asks.answered(1)
    assert pending is not None
    assert (pending.request, pending.about, pending.sent_ms) == ("x", "about x", 5)
    assert asks.answered(1) is None
    assert (len(asks), asks.room) == (1, 1)


KEYS = st.integers(0, 4)


class QueueMachine(RuleBasedStateMachine):
    """The queue beside the simplest model: the earliest time of each key, and which are taken."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: WorkQueue[int] = WorkQueue(random.Random(3))
        self.now_ms = 0
        self.due: dict[int, int] = {}
        self.taken: dict[int, int | None] = {}

    @rule(key=KEYS, after_ms=st.integers(0, 500))
    def add(self, key: int, after_ms: int) -> None:
        at_ms = self.now_ms + after_ms
        self.queue.add(key, at_ms)
        where = self.taken if key in self.taken else self.due
        known = where.get(key)
        where[key] = at_ms if known is None else min(known, at_ms)

    @rule()
    def take(self) -> None:
        key = self.queue.take(self.now_ms)
        first = min(self.due.values(), default=self.now_ms + 1)
        assert (key is None) == (first > self.now_ms)
        if key is not None:
            assert key not in self.taken
            assert self.due.pop(key) == first
            self.taken[key] = None

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), is_well=st.booleans())
    def give_back(self, data: st.DataObject, is_well: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        again = self.taken.pop(key)
        if is_well:
            self.queue.done(key)
            if again is not None:
                self.due[key] = again
        else:
            self.due[key] = self.queue.failed(key, self.now_ms)
            assert BACKOFF_MIN_MS / 2 <= self.due[key] - self.now_ms <= BACKOFF_MAX_MS

    @rule(key=KEYS)
    def forget(self, key: int) -> None:
        self.queue.forget(key)
        self.due.pop(key, None)
        if key in self.taken:
            self.taken[key] = None

    @rule(ms=st.integers(1, 2_000))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    @invariant()
    def it_knows_when_the_next_one_is_due(self) -> None:
        assert len(self.queue) == len(self.due)
        assert self.queue.next_ms == min(self.due.values(), default=None)

    def teardown(self) -> None:
        """Every key that waits is taken in the end."""
        wanted = set(self.due)
        found = {self.queue.take(self.now_ms + 2 * BACKOFF_MAX_MS) for _ in wanted}
        assert found == wanted
        super().teardown()


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
