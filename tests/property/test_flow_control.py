"""Flow control under any load: bounded, work conserving, in order, fair, and complete.

Each law is a function that returns what it found broken, so that planted bugs show that it can.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.commit.flow.fair_queues import QueueBounds, QueueItem, TenantFairQueue
from holdfast.commit.flow.flow_control import (
    OWNER_LATE_MAX_MS,
    FlowController,
    QueuedRequest,
    RequestState,
    Seats,
)
from holdfast.commit.flow.request_classes import Flow, RequestClass

BOUNDS = QueueBounds(all_max=12, tenant_max=6, user_max=4)
PATIENCE_MS = 40
TABLE = {
    it: Seats(1 + it % 2, 4, 10 if it < 2 else 8, BOUNDS, PATIENCE_MS * (1 if it > 1 else 10))
    for it in RequestClass
}
CLASSES = list(RequestClass)


class Crowd:
    """Comes, leaves, gives up, and looks at everything after each step."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.controller = FlowController(TABLE, self._rng)
        self.now_ms = 0
        self.waiting: list[QueuedRequest] = []
        self.begun: list[QueuedRequest] = []
        self.broken: list[str] = []

    def run(self, steps: int) -> list[str]:
        for _ in range(steps):
            self.now_ms += int(self._rng.expovariate(0.25))
            act = self._rng.random()
            if act < 0.55:
                self._come()
            elif act < 0.85:
                # Many may be done at once, as when a store that stalled is back.
                for _ in range(min(len(self.begun), int(self._rng.paretovariate(1.0)))):
                    gone = self.begun.pop(self._rng.randrange(len(self.begun)))
                    self.controller.leave(gone, self.now_ms)
            elif self.waiting:
                self.controller.withdraw(self.waiting.pop(self._rng.randrange(len(self.waiting))))
            self._turn()
            self._look()
        return self.broken

    def _come(self) -> None:
        kind = self._rng.choice(CLASSES)
        tenant = f"t{int(3 * self._rng.random() ** 2)}"
        flow = Flow(kind, tenant, self._rng.choice("ab"))
        entry = self.controller.enter(flow, self.now_ms, cost=self._rng.randint(1, 5))
        self._note(entry)
        if entry.state is RequestState.WAITING:
            self.waiting.append(entry)

    def _note(self, entry: QueuedRequest) -> None:
        if entry.state is RequestState.BEGUN:
            self.begun.append(entry)
            bears_ms = TABLE[entry.flow.request_class].patience_ms + OWNER_LATE_MAX_MS
            if self.now_ms - entry.since_ms > bears_ms:
                self.broken.append("begun after its patience")

    def _turn(self) -> None:
        higher: dict[RequestClass, int] = {}
        for entry in self.controller.turn(self.now_ms):
            if entry not in self.waiting:
                self.broken.append("decided twice")
                continue
            self.waiting.remove(entry)
            self._note(entry)
            if entry.state is RequestState.BEGUN:
                kind = entry.flow.request_class
                executing = sum(it.flow.request_class is kind for it in self.begun)
                if executing > TABLE[kind].reserved:
                    higher[kind] = executing
        for kind in higher:
            for above in CLASSES[:kind]:
                if self._waits(above) and self._executing(above) < TABLE[above].most:
                    self.broken.append(f"{kind.label} passed {above.label}")

    def _look(self) -> None:
        if any(it.state is not RequestState.WAITING for it in self.waiting):
            self.broken.append("a request was decided without an answer")
        late = [it for it in self.waiting if it.until_ms <= self.now_ms]
        if late:
            self.broken.append("a request waits beyond its patience")
        total = sum(it.flow.request_class is not RequestClass.LIFELINE for it in self.begun)
        for kind in CLASSES:
            seats, executing, waits = TABLE[kind], self._executing(kind), self._waits(kind)
            standing = self.controller.class_loads(self.now_ms)[kind]
            if (standing.executing, standing.waiting) != (executing, waits):
                self.broken.append("the controller's own count is wrong")
            if executing > seats.most or waits > BOUNDS.all_max:
                self.broken.append("more than there may be")
            has_seat = executing < seats.reserved or (
                executing < seats.most and total < seats.ceiling
            )
            if waits and has_seat:
                self.broken.append("a seat is empty and a request waits for it")

    def _executing(self, kind: RequestClass) -> int:
        return sum(it.flow.request_class is kind for it in self.begun)

    def _waits(self, kind: RequestClass) -> int:
        return sum(it.flow.request_class is kind for it in self.waiting)


@given(st.integers(0, 2**32))
def test_any_crowd_is_served_in_order_within_bounds_and_without_empty_seats(seed: int) -> None:
    """Work conserving, bounded, higher classes first, each decided once, none too late. [E6]"""
    assert Crowd(seed).run(150) == []


def unfair(seed: int, kind: type[TenantFairQueue[QueueItem]] = TenantFairQueue) -> int:
    """How much more, in the largest costs, one backlogged tenant got than another at any time."""
    rng = random.Random(seed)
    queue = kind(QueueBounds(10_000, 10_000, 10_000))
    tenants = [f"t{n}" for n in range(rng.randint(2, 6))]
    cost_max = rng.randint(1, 10)

    def push(tenant: str) -> None:
        queue.push(QueueItem(tenant, rng.choice("ab"), rng.randint(1, cost_max)))

    for tenant in tenants:
        for _ in range(rng.choice((2, 50))):
            push(tenant)
    served: Counter[str] = Counter(dict.fromkeys(tenants, 0))
    worst = 0
    for _ in range(300):
        item = queue.pop()
        served[item.tenant] += item.cost
        push(item.tenant)
        worst = max(worst, max(served.values()) - min(served.values()))
    return worst // cost_max


@given(st.integers(0, 2**32))
def test_backlogged_tenants_are_never_further_apart_than_two_requests(seed: int) -> None:
    """However long their lines and however many their users. [G1, E6]"""
    assert unfair(seed) <= 2


@given(st.integers(0, 2**32), st.integers(2, 20))
def test_a_new_tenant_is_served_after_one_turn_of_each_other_tenant(seed: int, n: int) -> None:
    """No starvation: a first request waits for no more than one turn of each tenant. [G1, E6]"""
    rng = random.Random(seed)
    queue: TenantFairQueue[QueueItem] = TenantFairQueue(QueueBounds(100_000, 10_000, 10_000))
    for tenant in range(n):
        for _ in range(rng.randint(20, 60)):
            queue.push(QueueItem(f"t{tenant}", "u", 1))
    for _ in range(rng.randint(0, 10 * n)):
        queue.pop()
    queue.push(QueueItem("new", "u", 1))
    assert "new" in [queue.pop().tenant for _ in range(n + 1)]


# That the checks can fail --------------------------------------------------------------------


class _Uncharged(TenantFairQueue[QueueItem]):
    """Counts turns, not their cost."""

    def __init__(self, bounds: QueueBounds) -> None:
        super().__init__(bounds)
        self._costs: dict[QueueItem, int] = {}

    def push(self, item: QueueItem) -> Any:
        self._costs[item], item.cost = item.cost, 1
        return super().push(item)

    def pop(self) -> QueueItem:
        item = super().pop()
        item.cost = self._costs.pop(item)
        return item


class _ByArrival(TenantFairQueue[QueueItem]):
    """Serves the tenant that was known first as long as it waits."""

    def pop(self) -> QueueItem:
        tenant = next(it for it in self._turns.parties.values() if it.waiting)
        user = next(it for it in tenant.turns.parties.values() if it.waiting)
        item = self._first(user)
        user.line.popleft()
        self._left(item, tenant, user)
        return item


@pytest.mark.parametrize("queue", [_ByArrival, _Uncharged])
def test_an_unfair_queue_is_found_out(queue: type[TenantFairQueue[QueueItem]]) -> None:
    """The check of fairness can fail. [G1]"""
    assert max(unfair(seed, queue) for seed in range(20)) > 2


@pytest.mark.parametrize(
    "bug, law",
    [
        ("no expiry", "a request waits beyond its patience"),
        ("low first", "passed"),
        ("one a turn", "a seat is empty and a request waits for it"),
        ("leaky seats", "the controller's own count is wrong"),
    ],
)
def test_a_broken_gate_is_found_out(monkeypatch: pytest.MonkeyPatch, bug: str, law: str) -> None:
    """Each law of the crowd has teeth. [E6]"""
    turn = FlowController.turn

    def low_first(self: FlowController, now_ms: int) -> list[QueuedRequest]:
        self._lanes.reverse()
        try:
            return turn(self, now_ms)
        finally:
            self._lanes.reverse()

    def one_a_turn(self: FlowController, now_ms: int) -> list[QueuedRequest]:
        decided: list[QueuedRequest] = []
        self._expire(now_ms, decided, is_turn_over=True)
        for lane in self._lanes:
            if lane.queue and self._has_seat(lane):
                self._next(lane, now_ms, decided)
                break
        return decided

    def leaky(self: FlowController, entry: QueuedRequest, now_ms: int) -> None:
        entry.state = RequestState.OVER

    patches: dict[str, tuple[str, object]] = {
        "no expiry": ("_expire", lambda self, now_ms, decided, **_: None),
        "low first": ("turn", low_first),
        "one a turn": ("turn", one_a_turn),
        "leaky seats": ("leave", leaky),
    }
    name, planted = patches[bug]
    monkeypatch.setattr(FlowController, name, planted)
    assert any(law in broken for seed in range(40) for broken in Crowd(seed).run(150))
