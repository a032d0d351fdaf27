"""The steps of a gang whose members have places already, against the real commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.commit.record_encoding import with_version
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import last_written
from holdfast.model.kinds.reservation import Intent, ReservationPhase
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_plural
from holdfast.model.transaction import Transaction
from holdfast.observe.operation_plan import PlanStep
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
        key = keys.object_key(kind_of_plural(plural), namespace, name)
        record = self.it.plane.store.get(key)
        return with_version(self.it.plane.read(key), record.modified) if record else None

    # Of the snapshot; the steps state them and decide nothing by them.
    revision, age_ms = 7, 12

    @property
    def steps(self) -> GangSteps:
        return GangSteps(SCHEDULER.name, self.workload, self.it.term(SCHEDULER))

    def requests(self, steps: tuple[PlanStep, ...]) -> list[Any]:
        """What a plan of these steps sends next."""
        return next(found for step in steps if (found := list(step.requests(self))))

    def give_back(self) -> Iterator[Transaction]:
        """Do all steps, and yield what each request cost."""
        for step in self.steps.give_back("GangIncomplete"):
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


def test_the_bind_of_a_claim_names_the_node_as_it_was_seen() -> None:
    """A refusal then tells what the proposal knew of the node, and what holds now. [C8]"""
    held = Held()
    held.it.yes(SCHEDULER, held.requests(held.steps.commit())[0])
    binds = held.requests(held.steps.bind_claims())
    first = binds[0]
    seen = {
        it.node: last_written(held.get("nodes", "", it.node).metadata.resource_version)
        for it in binds
    }
    assert {it.node: it.node_revision for it in binds} == seen
    assert len(seen) == MEMBERS
    held.it.draining(held.get("nodes", "", first.node))
    now = last_written(held.get("nodes", "", first.node).metadata.resource_version)
    refusal = held.it.ask(SCHEDULER, first)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.NODE_DRAINING
    assert refusal.details["observedNodeRevision"] == str(first.node_revision)
    assert refusal.details["nodeRevision"] == str(now)
    assert 0 < first.node_revision < now
