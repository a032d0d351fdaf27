"""What one client may send again when servers fail, however many requests it has."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter

from holdfast.model.errors import Conflict, HoldfastError, Unavailable
from holdfast.observe.operation import (
    Begun,
    Failed,
    Finish,
    GiveUp,
    Nature,
    NextAction,
    OperationMachine,
    Pause,
    Paused,
    Replied,
    Send,
)
from holdfast.observe.retry import Budget, RetryPolicy

DOWN = Unavailable("too much to do")
PATIENT = RetryPolicy(tries_max=60, deadline_ms=60_000)


class Client:
    """Many requests at once under one budget and one clock; servers answer at once."""

    def __init__(self, budget: Budget | None, seed: int = 1) -> None:
        self.budget, self.rng = budget, random.Random(seed)
        self.sends: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self._due: list[tuple[int, int, OperationMachine]] = []
        self._number = 0

    def begin(self, now_ms: int, error: HoldfastError | None) -> None:
        operation = OperationMachine(PATIENT, Nature.READ, self.rng, self.budget)
        self._take(operation, operation.step(Begun(), now_ms), now_ms, error, "first")

    def run(self, until_ms: int, error: HoldfastError | None) -> None:
        """Let time pass; every try gets this error, or a yes."""
        while self._due and self._due[0][0] <= until_ms:
            at_ms, _, operation = heapq.heappop(self._due)
            self._take(operation, operation.step(Paused(), at_ms), at_ms, error, "again")

    def _take(
        self,
        operation: OperationMachine,
        effect: NextAction,
        now_ms: int,
        error: HoldfastError | None,
        which: str,
    ) -> None:
        while isinstance(effect, Send):
            self.sends[which] += 1
            result = Failed(error) if error is not None else Replied("yes")
            effect = operation.step(result, now_ms)
        if isinstance(effect, Pause):
            self._number += 1
            heapq.heappush(self._due, (now_ms + effect.duration_ms, self._number, operation))
        else:
            assert isinstance(effect, Finish | GiveUp)
            self.ended[type(effect).__name__] += 1


def test_retries_stay_a_tenth_of_what_is_sent_while_servers_fail() -> None:
    """A hundred requests a second bring few more beyond the reserve. [E5, I1, N3]"""
    client, free = Client(Budget()), Client(None)
    for second in range(10):
        for one in (client, free):
            for number in range(100):
                one.begin(1_000 * second + 10 * number, DOWN)
            one.run(1_000 * (second + 1), DOWN)
    assert client.sends["first"] == free.sends["first"] == 1_000
    # A tenth, the reserve, and a probe in a while.
    assert client.sends["again"] <= 100 + Budget.RESERVE + 10
    assert free.sends["again"] > 20 * client.sends["again"]


def test_all_waiting_requests_are_served_soon_after_servers_are_back() -> None:
    """No budget keeps a client down: each answer lets the next one try. [E5, C7.5]"""
    client = Client(Budget())
    for number in range(Budget.WAITING_MAX):
        client.begin(number, DOWN)
    client.run(20_000, DOWN)
    assert client.sends["again"] < 40
    client.run(32_000, None)
    assert client.ended == {"Finish": Budget.WAITING_MAX}
    assert client.sends["again"] < Budget.WAITING_MAX + 40


def test_one_request_more_than_may_wait_fails_at_once() -> None:
    """And each request that ends, with or without success, makes room. [E5, I1]"""
    budget = Budget(reserve=0, waiting_max=1)
    first, second = (
        OperationMachine(RetryPolicy(), Nature.READ, random.Random(1), budget) for _ in range(2)
    )
    for one in (first, second):
        assert isinstance(one.step(Begun(), 0), Send)
        assert isinstance(one.step(Failed(DOWN), 0), Pause)
    assert budget.spend(Budget.PROBE_MIN_MS)
    now = Budget.PROBE_MIN_MS + 1
    assert isinstance(first.step(Paused(), now), Pause)
    assert budget.waiting == 1
    gone = second.step(Paused(), now)
    assert isinstance(gone, GiveUp)
    assert "too much to do; 1 requests of this client are already waiting" in gone.error.message
    first.end()
    first.end()
    assert budget.waiting == 0


def test_a_single_request_is_tried_again_as_ever() -> None:
    """A command on a terminal has the reserve to itself. [E5]"""
    client = Client(Budget())
    client.begin(0, DOWN)
    client.run(10_000, DOWN)
    assert client.sends["again"] >= 5


def test_conflicts_cost_nothing_of_the_budget() -> None:
    """They were answered; many writers of one object are no fault of a server."""
    budget = Budget(reserve=0)
    operation = OperationMachine(RetryPolicy(), Nature.CHANGE, random.Random(1), budget)
    assert isinstance(operation.step(Begun(), 0), Send)
    assert isinstance(operation.step(Failed(Conflict("stale")), 1), Pause)
    assert isinstance(operation.step(Paused(), 2), Send)
    assert (budget.spent, budget.held_back) == (0, 0)


def test_probes_become_rarer_and_start_over_after_a_success() -> None:
    """Probes find out when servers are back. [E5, C7.5]"""
    budget = Budget(reserve=0)
    probes = [now_ms for now_ms in range(0, 60_000, 50) if budget.spend(now_ms)]
    gaps = [b - a for a, b in itertools.pairwise(probes)]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 500
    assert gaps[-1] == Budget.PROBE_MAX_MS
    # Each answer brings the next one sooner.
    for _ in range(8):
        budget.answered(was_again=True)
    assert budget.spend(60_000)
    assert not budget.spend(60_000 + Budget.PROBE_MIN_MS - 1)
    assert budget.spend(60_000 + 2 * Budget.PROBE_MIN_MS)


def test_an_answer_earns_the_next_try_only_when_servers_are_healthy() -> None:
    """Where some are answered and others refused, the servers are overloaded. [E5, I1]"""
    budget = Budget(reserve=1)
    assert budget.spend(0)
    for _ in range(3):
        for _ in range(Budget.WELL_AFTER - 1):
            budget.answered(was_again=True)
        budget.failed()
    assert not budget.spend(1)
    for _ in range(Budget.WELL_AFTER - 1):
        budget.answered(was_again=False)
    assert not budget.spend(2)
    budget.answered(was_again=True)
    assert budget.spend(3)


def test_a_request_that_fails_ends_the_row_of_answers() -> None:
    """[E5, I1]"""
    budget = Budget(reserve=1, per_cent=0)
    assert budget.spend(0)
    for _ in range(Budget.WELL_AFTER):
        one = OperationMachine(RetryPolicy(), Nature.READ, random.Random(1), budget)
        assert isinstance(one.step(Begun(), 1), Send)
        assert isinstance(one.step(Replied("yes"), 1), Finish)
    unlucky = OperationMachine(RetryPolicy(), Nature.READ, random.Random(1), budget)
    assert isinstance(unlucky.step(Begun(), 2), Send)
    assert isinstance(unlucky.step(Failed(DOWN), 2), Pause)
    # By a probe, which is answered and earns nothing.
    assert isinstance(unlucky.step(Paused(), 2_000), Send)
    assert isinstance(unlucky.step(Replied("yes"), 2_000), Finish)
    assert not budget.spend(2_001)
