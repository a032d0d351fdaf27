"""The first half of a preemption: victims are stopped, and their place is promised."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import ReservationPhase
from holdfast.model.kinds.template import DeviceRequest, Port
from holdfast.model.kinds.tenant import ReclaimNotice
from holdfast.model.lifecycle import Cause, State
from holdfast.model.preemption import VICTIMS_MAX
from holdfast.model.refusal import Reason
from holdfast.model.requests import DropReservation, Evict, Move, Remove, Update
from tests.furnished import Furnished, counted
from tests.plane import REPAIR, SCHEDULER, WORKLOADS, accepted, refused, target, template

QUOTAS = who.controller("quota")


class Preemption:
    """A full node, two victims of low priority, and one of high priority that needs their place."""

    def __init__(self, tenant: str = "acme", cpu: str = "2") -> None:
        self.it = it = Furnished(cpus=2)
        self.low = it.of_class("low", tenant)
        self.high = it.of_class("high", cpu=cpu)
        self.victims = [it.running(self.low), it.running(self.low)]
        self.replica = it.pending(self.high)

    def request(self, **more: Any) -> Any:
        return self.it.preempt(self.replica, *self.victims, **more)

    def stop(self, **more: Any) -> Any:
        return self.it.yes(SCHEDULER, self.request(**more))

    def bind(self) -> Any:
        name = f"{self.replica.name}-preemption"
        return self.it.bind(self.it.get(self.replica), reservation=name)

    def released(self, victim: Any) -> None:
        self.it.moved(self.it.get(victim), State.RELEASED)


def test_victims_are_stopped_with_their_cause_and_their_place_is_promised() -> None:
    """[G4]"""
    case = Preemption()
    it, held = case.it, case.stop()
    for victim in case.victims:
        after = it.get(victim)
        assert (after.status.state, after.status.cause) == (State.STOPPING, Cause.PREEMPTION)
        assert case.replica.name in after.status.transitions[-1].evidence
    assert held.status.claims[0].charge["cpu"] == 2000
    assert it.plane.ledger("node-a").promised == {
        held.metadata.uid: {"cpu": 2000, "memory": 2**30, "replicas": 1}
    }
    # Nothing is charged twice: the victims still hold what they have.
    assert counted(it.plane)["node node-a"]["cpu"] == 2000


def test_no_other_work_gets_the_place_before_or_after_the_victims_are_gone() -> None:
    """[G4, C6.8]"""
    case = Preemption()
    it = case.it
    case.stop()
    other, rival = it.pending(), it.pending(case.high)

    def others_are_refused() -> None:
        for replica in (other, rival):
            refused(it.ask(SCHEDULER, it.bind(replica)), Reason.NODE_FULL)
            refused(it.ask(SCHEDULER, it.reserve(replica)), Reason.NODE_FULL)
        name = f"{case.replica.name}-preemption"
        refused(it.ask(SCHEDULER, it.bind(rival, reservation=name)), Reason.PROTECTED_CAPACITY)

    others_are_refused()
    case.released(case.victims[0])
    others_are_refused()
    refused(it.ask(SCHEDULER, case.bind()), Reason.NODE_FULL)
    case.released(case.victims[1])
    others_are_refused()
    it.yes(SCHEDULER, case.bind())
    after = it.plane.ledger("node-a")
    assert (after.promised, after.leaving, after.used["cpu"]) == ({}, {}, 2000)
    assert it.reservation(f"{case.replica.name}-preemption").status.phase is (
        ReservationPhase.CONSUMED
    )


def test_a_promise_that_is_not_kept_in_time_is_taken_back() -> None:
    """[INV12, G4]"""
    case = Preemption()
    it, held = case.it, case.stop(after_s=60)
    for victim in case.victims:
        case.released(victim)
    it.plane.elapsed_ms += 60_000 - it.plane.settings.skew_ms
    refused(it.ask(SCHEDULER, case.bind()), Reason.RESERVATION_EXPIRED)
    it.plane.elapsed_ms += 2 * it.plane.settings.skew_ms
    drop = DropReservation("acme", held.name, held.metadata.uid, "late", it.term(REPAIR))
    it.yes(REPAIR, drop)
    assert it.plane.ledger("node-a").promised == {}
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_work_that_is_not_wanted_any_more_leaves_no_promise_behind() -> None:
    """[F7, I5]"""
    case = Preemption()
    it = case.it
    case.stop()
    it.yes(
        WORKLOADS,
        Move(target(it.get(case.replica)), State.RELEASED, "ScaleDown", term=it.term(WORKLOADS)),
    )
    assert it.plane.ledger("node-a").promised == {}


@pytest.mark.parametrize("name", ["high", "peer"])
def test_only_less_important_work_gives_way(name: str) -> None:
    """[G4, G1]"""
    it = Furnished(cpus=1)
    high = it.of_class("high")
    victim = it.running(high if name == "high" else it.of_class("low"))
    preemptor = it.pending(high)
    answer = it.ask(SCHEDULER, it.preempt(preemptor, victim))
    if name == "high":
        refused(answer, Reason.VICTIM_PROTECTED)
        assert it.get(victim).status.state is State.RUNNING
    else:
        accepted(answer)


def test_a_class_that_does_not_preempt_stops_no_victim() -> None:
    """[G4]"""
    it = Furnished(cpus=1)
    victim = it.running(it.of_class("spot"))
    for name in ("low", ""):
        workload = it.of_class("low") if name else it.web
        refused(it.ask(SCHEDULER, it.preempt(it.pending(workload), victim)), Reason.MAY_NOT_PREEMPT)
    assert it.get(victim).status.state is State.RUNNING


def test_no_victim_is_stopped_in_vain() -> None:
    """Not for work that does not fit even then, is not allowed there, or is going away. [G4]"""
    case = Preemption(cpu="3")
    it = case.it
    refused(it.ask(SCHEDULER, case.request()), Reason.NODE_FULL)
    case = Preemption()
    it = case.it
    it.updated(it.node, cordoned=True)
    refused(it.ask(SCHEDULER, case.request()), Reason.NODE_CORDONED)
    it.updated(it.node, cordoned=False)
    refused(it.ask(SCHEDULER, case.request(after_s=1)), Reason.RESERVATION_EXPIRED)
    it.yes(WORKLOADS, Remove("replicas", "acme", case.replica.name))
    refused(it.ask(SCHEDULER, case.request()), Reason.TERMINATING)
    assert [it.get(v).status.state for v in case.victims] == [State.RUNNING] * 2


def test_no_victim_is_stopped_when_the_quota_would_refuse_the_bind() -> None:
    """[G4, D1]"""
    case = Preemption(tenant="globex")
    it = case.it
    it.plane.quota(hard={"cpu": "1"})
    refused(it.ask(SCHEDULER, case.request()), Reason.QUOTA_EXCEEDED)
    assert [it.get(v).status.state for v in case.victims] == [State.RUNNING] * 2


def test_what_the_victims_give_back_to_the_quota_counts() -> None:
    """A tenant at its quota may still prefer its own important work. [G4, D1]"""
    case = Preemption()
    it = case.it
    it.plane.quota(hard={"cpu": "2"})
    case.stop()
    for victim in case.victims:
        case.released(victim)
    it.yes(SCHEDULER, case.bind())
    assert counted(it.plane)["hard acme"]["cpu"] == 2000


def test_a_repeated_preemption_stops_no_other_victim() -> None:
    """[C2, F7, C6.9]"""
    case = Preemption()
    it = case.it
    request = case.request(operation="one/preempt")
    it.yes(SCHEDULER, request)
    it.plane.authority = it.plane.new_authority()
    assert it.ask(SCHEDULER, request).replayed
    without_operation = msgspec.structs.replace(request, operation="")
    refused(it.ask(SCHEDULER, without_operation), Reason.STALE_REPLICA)
    more = it.pending(case.low)
    fresh = it.preempt(it.get(case.replica), *(it.get(v) for v in case.victims))
    refused(it.ask(SCHEDULER, fresh), Reason.WRONG_STATE)
    assert more.status.state is State.PENDING


def test_a_victim_is_named_once_is_there_and_is_as_it_was_seen() -> None:
    """[C2]"""
    case = Preemption()
    it = case.it
    one, two = case.victims
    twice = it.preempt(case.replica, one, one)
    refused(it.ask(SCHEDULER, twice), Reason.STALE_REPLICA)
    none = it.preempt(case.replica)
    refused(it.ask(SCHEDULER, none), Reason.NOT_ALLOWED)
    away = it.running(case.low, it.plane.node("node-b"))
    refused(it.ask(SCHEDULER, it.preempt(case.replica, one, away)), Reason.WRONG_STATE)
    gone = msgspec.structs.replace(case.request(), victims=(target(one),) * (VICTIMS_MAX + 1))
    refused(it.ask(SCHEDULER, gone), Reason.NOT_ALLOWED)
    it.moved(two, State.FAILED)
    refused(it.ask(SCHEDULER, case.request()), Reason.STALE_REPLICA)
    assert it.get(one).status.state is State.RUNNING


def test_many_victims_of_many_workloads_are_one_decision() -> None:
    it = Furnished(cpus=40)
    victims = []
    for number in range(40):
        workload = it.plane.workload(
            f"small-{number}", template=template(memory="1Mi", priority_class="low")
        )
        victims.append(it.running(workload))
    preemptor = it.pending(it.of_class("high", cpu="40"))
    it.plane.authority = it.plane.new_authority()
    it.yes(SCHEDULER, it.preempt(preemptor, *victims))
    assert {it.get(victim).status.state for victim in victims} == {State.STOPPING}


def test_devices_and_ports_are_promised_with_the_rest() -> None:
    """[C6.1, G4]"""
    it = Furnished()
    gpu = (DeviceRequest(device_class="gpu", memory="16Gi"),)
    port = (Port(name="http", port=8080),)

    def work(name: str) -> Any:
        return it.plane.workload(
            f"gpu-{name}",
            template=template(priority_class=name, devices=gpu, ports=port),
            replicas=4,
        )

    victim = it.running(work("low"))
    held = victim.status.binding.devices[0].device
    high = work("high")
    preemptor, rival = it.pending(high), it.pending(high)
    shares = (DeviceShare(device=held, device_class="gpu", milli=1000),)
    made = it.yes(SCHEDULER, it.preempt(preemptor, victim, devices=shares))
    name = made.name
    it.moved(it.get(victim), State.RELEASED)
    refused(it.ask(SCHEDULER, it.bind(rival)), Reason.PORT_TAKEN)
    slot = it.plane.ledger("node-a").devices[held]
    assert (slot.owners, slot.promised) == ({}, made.metadata.uid)
    bound = it.yes(SCHEDULER, it.bind(it.get(preemptor), reservation=name))
    assert bound.status.binding.devices == shares
    slot = it.plane.ledger("node-a").devices[held]
    assert (slot.owners, slot.promised) == ({preemptor.metadata.uid: 1000}, "")


def test_two_preemptions_on_one_node_do_not_promise_the_same_place_twice() -> None:
    """[C6.8, INV4]"""
    case = Preemption(cpu="1")
    it = case.it
    rival = it.pending(case.high)
    it.yes(SCHEDULER, it.preempt(case.replica, case.victims[0]))
    it.yes(SCHEDULER, it.preempt(rival, case.victims[1]))
    third = it.pending(case.high)
    stopped_victim = it.preempt(third, it.get(case.victims[1]))
    refused(it.ask(SCHEDULER, stopped_victim), Reason.WRONG_STATE)
    case.released(case.victims[1])
    # What is free is as good as what was promised: sums have no names.
    it.yes(SCHEDULER, case.bind())
    refused(
        it.ask(SCHEDULER, it.bind(it.get(rival), reservation=f"{rival.name}-preemption")),
        Reason.NODE_FULL,
    )
    case.released(case.victims[0])
    it.yes(SCHEDULER, it.bind(it.get(rival), reservation=f"{rival.name}-preemption"))
    assert it.plane.ledger("node-a").used["cpu"] == 2000


def test_what_is_taken_back_already_is_not_taken_again_by_another_controller() -> None:
    """A reclaim and a preemption at the same moment leave a borrower its nominal share. [G4, G1]"""
    it = Furnished(cpus=6)
    for tenant in ("acme", "globex"):
        it.plane.quota(tenant, cohort="pool", hard={"cpu": "3"}, borrowing={"cpu": "3"})
    lent = it.plane.workload("lent", "globex", template=template(cpu="2"), replicas=8)
    first, second, third = (it.running(lent) for _ in range(3))
    quota = it.plane.read("objects/quotas/globex/default")
    notice = ReclaimNotice(it.plane.at(-120), it.plane.at(-60), {"cpu": "3"}, 1)
    status = msgspec.structs.replace(quota.status, reclaim=notice)
    it.yes(QUOTAS, Update(msgspec.structs.replace(quota, status=status), "status"))

    def reclaimed(victim: Any) -> Any:
        return it.ask(QUOTAS, Evict(target(victim), Cause.RECLAIM, "lent", it.term(QUOTAS)))

    accepted(reclaimed(first))
    needy = it.pending(it.of_class("high", cpu="2"))
    accepted(it.ask(SCHEDULER, it.preempt(needy, second)))
    # Four of its six are on their way: it is inside its three from here on.
    refused(reclaimed(third), Reason.VICTIM_PROTECTED)
    rival = it.pending(it.plane.workload("rival", template=template("1", priority_class="high")))
    refused(it.ask(SCHEDULER, it.preempt(rival, third)), Reason.VICTIM_PROTECTED)
    it.moved(it.get(first), State.RELEASED)
    it.moved(it.get(second), State.RELEASED)
    assert it.plane.read("ledgers/quota/pool").used["globex"].leaving == {}
