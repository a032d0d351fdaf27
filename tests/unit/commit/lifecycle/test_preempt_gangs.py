"""Preemption over several nodes in the commit: for the members of a gang, and of the members of
one: all or none, and each victim by the same rule.
"""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model import lifecycle
from holdfast.model.kinds.reservation import ReservationPhase
from holdfast.model.kinds.workload import Disruption, Gang
from holdfast.model.lifecycle import State
from holdfast.model.preemption import RECORDS_MAX
from holdfast.model.refusal import Reason
from holdfast.model.requests import BindTogether, PromisedPlace, StopAndReserve
from holdfast.store.etcd.config import MAX_TXN_OPS_DEFAULT
from tests.furnished import Furnished, counted
from tests.plane import SCHEDULER, accepted, refused, target, template


class Stage:
    """Two nodes of two cores, filled by work of low priority, and a gang that needs both."""

    def __init__(
        self,
        least: int = 2,
        cpu: str = "2",
        low: Gang | None = None,
        *,
        it: Furnished | None = None,
        tenant: str = "acme",
        nodes: int = 2,
    ) -> None:
        self.it = it = it or Furnished(cpus=2)
        capacity = {"cpu": it.node.spec.capacity["cpu"], "memory": "32Gi"}
        more = (it.plane.node(f"node-{n:02}", capacity=capacity) for n in range(1, nodes))
        self.nodes = [it.node, *more]
        cheap = template(priority_class="low")
        self.low = it.plane.workload("low", tenant, template=cheap, replicas=40, gang=low)
        self.ring = it.plane.workload(
            "ring",
            template=template(cpu=cpu, priority_class="high"),
            replicas=40,
            gang=Gang(min_available=least),
        )
        self.members = [it.pending(self.ring) for _ in range(2)]

    def run_low(self, *nodes: int) -> list[Any]:
        """Victims on these nodes, by number; a gang starts together."""
        pending = [self.it.pending(self.low) for _ in nodes]
        binds = [
            self.it.bind(it, self.nodes[number]) for it, number in zip(pending, nodes, strict=True)
        ]
        accepted(self.it.ask(SCHEDULER, BindTogether(tuple(binds))))
        return [self.it.moved(self.it.get(it), State.RUNNING) for it in pending]

    def request(self, victims: list[Any], members: list[Any] | None = None, **more: Any) -> Any:
        """Each member on a node of its own, in their order."""
        first, *rest = self.members if members is None else members
        others = tuple(
            PromisedPlace(target(self.it.get(it)), node.name, node.metadata.uid)
            for it, node in zip(rest, self.nodes[1:], strict=False)
        )
        return StopAndReserve(
            target(self.it.get(first)),
            self.nodes[0].name,
            self.nodes[0].metadata.uid,
            tuple(target(it) for it in victims),
            self.it.term(SCHEDULER),
            self.it.plane.at(60),
            members=others,
            **more,
        )

    def ask(self, victims: list[Any], members: list[Any] | None = None, **more: Any) -> Any:
        return self.it.ask(SCHEDULER, self.request(victims, members, **more))

    def states(self, victims: list[Any]) -> list[State]:
        return [self.it.get(it).status.state for it in victims]

    def bind_all(self) -> Any:
        binds = tuple(
            self.it.bind(self.it.get(it), node, reservation=f"{it.name}-preemption")
            for it, node in zip(self.members, self.nodes, strict=True)
        )
        return self.it.ask(SCHEDULER, BindTogether(binds))


def test_one_request_stops_victims_on_several_nodes_and_promises_their_places() -> None:
    """[G4, G5, C6.8]"""
    case = Stage()
    it = case.it
    victims = case.run_low(0, 0, 1, 1)
    accepted(case.ask(victims))
    assert case.states(victims) == [State.STOPPING] * 4
    for member, node in zip(case.members, case.nodes, strict=True):
        held = it.reservation(f"{member.name}-preemption")
        assert held.spec.owner.uid == member.metadata.uid
        assert it.plane.ledger(node.name).promised[held.metadata.uid]["cpu"] == 2000
    for victim in victims[:3]:
        it.moved(it.get(victim), State.RELEASED)
    # No other work gets what is free already, and no member starts before all can.
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_FULL)
    refused(case.bind_all(), Reason.NODE_FULL)
    assert case.states(case.members) == [State.PENDING] * 2
    it.moved(it.get(victims[3]), State.RELEASED)
    case.bind_all()
    assert case.states(case.members) == [State.BOUND] * 2
    assert it.reservation("ring-gang").status.phase is ReservationPhase.CONSUMED
    for node in case.nodes:
        after = it.plane.ledger(node.name)
        assert (after.promised, after.leaving) == ({}, {})


def test_no_victim_is_stopped_for_a_part_of_a_gang() -> None:
    """Not for fewer members than start together, for one twice, nor without room for each.
    [G4, G5]"""
    case = Stage()
    victims = case.run_low(0, 0, 1, 1)
    one, two = case.members
    answer = case.ask(victims[:2], [one])
    assert (
        "needs 2 members, places are asked for 1" in refused(answer, Reason.GANG_INCOMPLETE).message
    )
    refused(case.ask(victims, [one, one]), Reason.INVALID)
    refused(case.ask(victims[:3], [one, two]), Reason.NODE_FULL)
    assert case.states(victims) == [State.RUNNING] * 4
    assert case.it.plane.ledger("node-a").promised == {}


def test_others_get_no_place_by_the_preemption_of_a_gang() -> None:
    """[G4]"""
    case = Stage()
    it = case.it
    victims = case.run_low(0, 0, 1, 1)
    alone = it.pending(it.of_class("high", cpu="2"))
    refused(case.ask(victims, [alone, case.members[0]]), Reason.INVALID)
    refused(case.ask(victims, [*case.members[:1], alone]), Reason.INVALID)
    assert case.states(victims) == [State.RUNNING] * 4


def test_a_victim_that_is_not_needed_for_any_member_is_kept() -> None:
    """[G4]"""
    case = Stage(cpu="1")
    victims = case.run_low(0, 0, 1)
    refused(case.ask([victims[0], victims[2]]), Reason.VICTIM_NOT_NEEDED)
    accepted(case.ask(victims[:1]))
    assert case.states(victims) == [State.STOPPING, State.RUNNING, State.RUNNING]


def test_the_quota_has_to_allow_all_members_together() -> None:
    """[G4, D1]"""
    case = Stage()
    victims = case.run_low(0, 0, 1, 1)
    case.it.plane.quota(hard={"cpu": "3"}, reclaimable={"cpu": "9"})
    refused(case.ask(victims), Reason.QUOTA_EXCEEDED)
    case.it.updated(case.it.plane.read("objects/quotas/acme/default"), hard={"cpu": "4"})
    accepted(case.ask(victims))
    assert counted(case.it.plane)["hard acme"]["cpu"] == 4000


def test_a_lender_takes_back_for_a_gang_only_what_all_of_it_may_have() -> None:
    """[G4, G1]"""
    case = Stage()
    it = case.it
    for tenant, hard in (("acme", "3"), ("globex", "1")):
        it.plane.quota(tenant, cohort="pool", hard={"cpu": hard}, borrowing={"cpu": "4"})
    case.low = it.plane.workload("lent", "globex", replicas=8)
    victims = case.run_low(0, 0, 1, 1)
    answer = case.ask(victims)
    assert refused(answer, Reason.VICTIM_PROTECTED).details["rule"] == "NoReclaim"


def test_budgets_count_over_all_nodes() -> None:
    """[G4, E3]"""
    case = Stage(cpu="1")
    it = case.it
    it.updated(case.low, disruption=Disruption(max_unavailable=1))
    victims = case.run_low(0, 0, 1, 1)
    victims = [it.at_stage(victim, lifecycle.Stage.READY) for victim in victims]
    refused(case.ask([victims[0], victims[2]]), Reason.DISRUPTION_BUDGET)
    assert case.states(victims) == [State.RUNNING] * 4


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_rigid_gang_is_taken_whole_or_not_at_all(taken: int) -> None:
    """Its members elsewhere stop with those that make room. [G4, G5]"""
    case = Stage(low=Gang(min_available=3))
    it = case.it
    victims = case.run_low(0, 0, 1)
    high = it.pending(it.of_class("high", cpu="2"))
    answer = case.ask(victims[:taken], [high])
    if taken < 3:
        refusal = refused(answer, Reason.VICTIM_PROTECTED)
        assert refusal.details["rule"] == "Gang"
        assert case.states(victims) == [State.RUNNING] * 3
        return
    accepted(answer)
    assert case.states(victims) == [State.STOPPING] * 3
    assert it.reservation("low-gang").status.phase is ReservationPhase.RELEASED


def test_an_elastic_gang_is_shrunk_to_its_minimum_and_no_further() -> None:
    """[G4, G5]"""
    case = Stage(low=Gang(min_available=2))
    it = case.it
    victims = case.run_low(0, 0, 1, 1)
    high = it.pending(it.of_class("high", cpu="1"))
    elsewhere = case.ask([victims[0], victims[2]], [high])
    refused(elsewhere, Reason.WRONG_STATE)
    accepted(case.ask(victims[:1], [high]))
    record = it.reservation("low-gang")
    assert record.status.phase is ReservationPhase.CONSUMED
    assert len(record.status.claims) == 3
    more = it.plane.workload("more", template=template(cpu="1", priority_class="high"))
    accepted(case.ask([victims[1]], [it.pending(more)]))
    again = it.plane.workload("again", template=template(cpu="1", priority_class="high"))
    case.nodes.reverse()
    answer = case.ask([victims[2]], [it.pending(again)])
    assert refused(answer, Reason.VICTIM_PROTECTED).details["rule"] == "Gang"
    accepted(case.ask(victims[2:], [it.pending(again)]))
    assert case.states(victims) == [State.STOPPING] * 4


def test_a_gang_that_stops_anyway_is_not_kept_whole() -> None:
    """What is left of a broken gang is stopped, so each of it may be a victim. [G4, G5]"""
    case = Stage(low=Gang(min_available=3))
    it = case.it
    victims = case.run_low(0, 0, 1)
    it.stopping(victims[2])
    high = it.pending(it.of_class("high", cpu="1"))
    accepted(case.ask(victims[:1], [high]))


@pytest.mark.parametrize("gang", [None, Gang(min_available=1)])
def test_a_large_preemption_is_one_transaction_within_the_limit_of_etcd(gang: Any) -> None:
    """Members on many nodes, with a victim of another tenant on each; and not one more. [C1, G5]"""
    count = 27
    it = Furnished(cpus=1)
    case = Stage(it=it, least=count, cpu="1", low=gang, tenant="globex", nodes=count + 1)
    victims = case.run_low(*range(count + 1))
    many = [it.pending(case.ring) for _ in victims]
    refusal = refused(case.ask(victims, many), Reason.NOT_ALLOWED)
    assert f"at most {RECORDS_MAX} records" in refusal.message
    it.plane.authority = it.plane.new_authority()
    it.plane.transactions.clear()
    accepted(case.ask(victims[:count], many[:count]))
    compared = max(len(each.compares) for each in it.plane.transactions)
    assert RECORDS_MAX - 8 < compared <= MAX_TXN_OPS_DEFAULT
    assert max(len(each.writes) for each in it.plane.transactions) <= MAX_TXN_OPS_DEFAULT


def test_a_preemption_of_one_place_with_many_gangs_is_one_decision() -> None:
    """A server that has just started loads all it needs in a few reads. [C1]"""
    it = Furnished(cpus=20)
    low, gang = template(memory="1Mi", priority_class="low"), Gang(min_available=1)
    victims = [
        it.plane.workload(f"low-{n}", template=low, gang=gang, replicas=2) for n in range(20)
    ]
    running = []
    for workload in victims:
        member = it.pending(workload)
        accepted(it.ask(SCHEDULER, BindTogether((it.bind(member),))))
        running.append(it.moved(it.get(member), State.RUNNING))
    high = it.pending(it.of_class("high", cpu="20"))
    it.plane.authority = it.plane.new_authority()
    it.yes(SCHEDULER, it.preempt(high, *running))
    assert {it.get(victim).status.state for victim in running} == {State.STOPPING}
