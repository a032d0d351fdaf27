"""The steps of a gang whose members have places already, against the real commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.model.kinds.reservation import Intent, ReservationPhase
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Refusal
from holdfast.model.transaction import Transaction
from holdfast.propose.gang.steps import GangSteps
from tests.furnished import Furnished
from tests.plane import SCHEDULER
from tests.unit.commit.capacity_requests import hold

MEMBERS = 12


class Held:
    """A gang of which each member has a place on a node of its own, and that is not committed."""

    def __init__(self) -> None:
        self.it = it = Furnished()
        gang = Gang(min_available=MEMBERS)
        self.workload = it.plane.workload("ring", replicas=MEMBERS, gang=gang)
        it.yes(SCHEDULER, hold(it, intent=Intent.GANG, of=self.workload, least=MEMBERS))
        for number in range(MEMBERS):
            node, member = it.plane.node(f"node-{number}"), it.pending(self.workload)
            it.yes(SCHEDULER, it.reserve(member, node, gang="ring-gang"))

    def get(self, plural: str, namespace: str, name: str) -> Any:
        """As a snapshot."""
        return self.it.plane.read(f"objects/{plural}/{namespace}/{name}")

    def give_back(self) -> Iterator[Transaction]:
        """Do all steps, and yield what each request cost."""
        term = self.it.term(SCHEDULER)
        for step in GangSteps(SCHEDULER.name, self.workload, term).give_back("GangIncomplete"):
            for request in step.requests(self):
                answer = self.it.ask(SCHEDULER, request)
                assert not isinstance(answer, Refusal), answer
                yield self.it.plane.transactions[-1]


def test_a_gang_is_given_back_by_transactions_that_do_not_grow_with_it() -> None:
    """A store takes 128 compares at once, and a gang may have a thousand members. [G5, F7]"""
    held = Held()
    largest = max(len(it.compares) for it in held.give_back())
    assert largest < 2 * MEMBERS
    record = held.it.reservation("ring-gang")
    assert (record.status.phase, record.status.claims) == (ReservationPhase.RELEASED, ())
    members = [held.get("replicas", "acme", f"ring-{n}-0") for n in range(1, MEMBERS + 1)]
    assert {it.status.state for it in members} == {State.PENDING}


def test_a_record_that_nothing_was_reserved_under_is_given_back() -> None:
    """[G5, F7]"""
    held = Held()
    list(held.give_back())
    held.it.yes(SCHEDULER, hold(held.it, intent=Intent.GANG, of=held.workload, least=MEMBERS))
    assert len(list(held.give_back())) == 1
    assert held.it.reservation("ring-gang").status.phase is ReservationPhase.RELEASED
