"""The authority over a store that fails: it never claims more than it knows."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.commit.authority import FATE_TRIES_MAX
from holdfast.model.errors import HoldfastError, Invalid, OutcomeUnknown, Unavailable
from holdfast.model.lifecycle import State
from holdfast.model.machine import FateOf, Txn
from holdfast.model.refusal import Reason
from holdfast.model.requests import Accepted
from tests.plane import SCHEDULER, Plane, accepted, bind, refused


class Ready:
    """A plane with a bind that is about to be requested, and a store that fails on demand."""

    def __init__(self) -> None:
        self.plane = Plane()
        self.plane.region()
        self.plane.tenant()
        term = self.plane.term(SCHEDULER)
        node, workload = self.plane.node(), self.plane.workload(replicas=3)
        self.replicas = [self.plane.replica(workload, ordinal) for ordinal in range(3)]
        self.binds = [bind(replica, node, term) for replica in self.replicas]

    def ask(self) -> Any:
        return self.plane.ask(SCHEDULER, self.binds[0])

    def ask_all(self) -> list[Any]:
        return self.plane.ask_all(*((SCHEDULER, request) for request in self.binds))

    @property
    def state(self) -> State:
        found = self.plane.get(self.replicas[0])
        return State(found.status.state)


def lose_one_answer(plane: Plane, *fates: HoldfastError, done: bool) -> None:
    """Lose the answer of the next transaction that writes; its fate is answered so in turn."""
    lost: list[Txn] = []
    answers = list(fates)

    def spoil(effect: Txn | FateOf) -> Any:
        if isinstance(effect, FateOf):
            return answers.pop(0) if answers else None
        if lost or not effect.transaction.writes:
            return None
        lost.append(effect)
        if done:
            plane.store.txn(effect.transaction, token=effect.token)
        return OutcomeUnknown("the answer was lost")

    plane.spoil = spoil


def test_a_lost_answer_is_found_by_its_token() -> None:
    """The transaction had committed, so the caller hears a yes and nothing is done twice. [N1.1]"""
    ready = Ready()
    lose_one_answer(ready.plane, done=True)
    assert accepted(ready.ask()).status.state is State.BOUND
    assert ready.plane.ledger("node-a").used["replicas"] == 1


@pytest.mark.parametrize("done", [True, False])
def test_a_fate_that_cannot_be_asked_for_is_asked_for_again(done: bool) -> None:
    """A store that cannot tell has not said that nothing happened. [N1.1]"""
    ready = Ready()
    lose_one_answer(
        ready.plane, Unavailable("not now"), OutcomeUnknown("not now either"), done=done
    )
    assert accepted(ready.ask()).status.state is State.BOUND
    assert ready.plane.ledger("node-a").used["replicas"] == 1


def test_an_outcome_that_cannot_be_known_is_reported_as_unknown() -> None:
    """It is not reported as a failure, because it may have happened. [N1.1]"""
    ready = Ready()
    lose_one_answer(ready.plane, *[Unavailable("not now")] * FATE_TRIES_MAX, done=True)
    assert isinstance(ready.ask(), OutcomeUnknown)
    assert ready.state is State.BOUND


def test_a_group_too_large_for_the_store_is_halved() -> None:
    """A store may take less at once than the limits say; then fewer requests share a group."""
    ready = Ready()
    sizes: list[int] = []

    def spoil(effect: Txn | FateOf) -> Any:
        if isinstance(effect, Txn) and effect.transaction.writes:
            sizes.append(len(effect.transaction.writes))
            if len(effect.transaction.writes) > 4:
                return Invalid("too large", code="TransactionTooLarge")
        return None

    ready.plane.spoil = spoil
    assert all(isinstance(answer, Accepted) for answer in ready.ask_all())
    assert max(sizes) > 4
    assert ready.plane.ledger("node-a").used["replicas"] == 3


def test_a_request_too_large_for_the_store_is_refused() -> None:
    """It certainly did not happen, and asking again will not help."""
    ready = Ready()

    def spoil(effect: Txn | FateOf) -> Any:
        if isinstance(effect, Txn) and effect.transaction.writes:
            return Invalid("too large", code="TransactionTooLarge")
        return None

    ready.plane.spoil = spoil
    refused(ready.ask(), Reason.INVALID)
    assert ready.state is State.PENDING
