"""Holding capacity for an owner, such as a lane that its replicas recover into."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.access import identity as who
from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.placement import Taint
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner, ReservationPhase
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.refusal import Reason
from holdfast.model.requests import Update
from tests.furnished import Furnished, counted
from tests.plane import ADMIN, NODES, SCHEDULER, refused, template
from tests.unit.commit.capacity_requests import ONE, drop, hold, used

RESERVES = who.controller("reserves")
GPU = (DeviceRequest(device_class="gpu", memory="16Gi"),)


def test_a_recovery_lane_is_consumed_by_its_workloads_replicas() -> None:
    """[D5, C6.8]"""
    it = Furnished(cpus=2)
    lane = it.yes(SCHEDULER, hold(it, *(Claim(node="node-a", charge=ONE) for _ in range(2))))
    others = it.pending(it.plane.workload("other"))
    refused(it.ask(SCHEDULER, it.bind(others)), Reason.NODE_FULL)
    refused(it.ask(SCHEDULER, it.bind(others, reservation=lane.name)), Reason.PROTECTED_CAPACITY)
    for left in (ReservationPhase.HELD, ReservationPhase.CONSUMED):
        it.yes(SCHEDULER, it.bind(it.pending(), reservation=lane.name))
        assert it.get(lane).status.phase is left
    assert used(it)["replicas"] == 2


def _overcommit(it: Furnished, percent: int) -> None:
    node = it.get(it.node)
    spec = msgspec.structs.replace(node.spec, overcommit={"cpu": percent})
    it.yes(ADMIN, Update(msgspec.structs.replace(node, spec=spec)))


def test_a_recovery_lane_never_counts_overcommitted_room() -> None:
    """It needs its share of what is there, and other work cannot dilute it later. [D6, INV4]"""
    it = Furnished(cpus=4)
    _overcommit(it, 200)
    for number in range(4):
        it.yes(SCHEDULER, it.bind(it.pending(it.plane.workload(f"w{number}"))))
    two = [Claim(node="node-a", charge=ONE) for _ in range(2)]
    # Four of eight are taken, which two of the four processors carry: two are left for recovery.
    for claims in ((*two, *two), (*two, Claim(node="node-a", charge=ONE))):
        refused(it.ask(SCHEDULER, hold(it, *claims)), Reason.NODE_FULL)
    lane = it.yes(SCHEDULER, hold(it, *two))
    refused(it.ask(SCHEDULER, it.bind(it.pending(it.plane.workload("late")))), Reason.NODE_FULL)
    # Work that recovers is ordinary work: it takes its place, and its room is overcommitted again.
    it.yes(SCHEDULER, it.bind(it.pending(), reservation=lane.name))
    it.yes(SCHEDULER, it.bind(it.pending(it.plane.workload("later"))))
    assert it.plane.ledger("node-a").recovery == ONE


def test_a_lowered_overcommit_evicts_nothing_and_admits_nothing() -> None:
    """[D6, INV4]"""
    it = Furnished(cpus=1)
    _overcommit(it, 300)
    for number in range(2):
        it.yes(SCHEDULER, it.bind(it.pending(it.plane.workload(f"w{number}"))))
    _overcommit(it, 150)
    assert it.plane.ledger("node-a").free("cpu") == -500
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.NODE_FULL)
    assert used(it)["cpu"] == 2000
    _overcommit(it, 300)
    it.yes(SCHEDULER, it.bind(it.pending()))


def test_a_lane_may_hold_quota_alone_or_devices() -> None:
    it = Furnished()
    it.plane.quota(hard={"cpu": "2"})
    share = DeviceShare(device="gpu-0", device_class="gpu", milli=1000)
    it.yes(
        SCHEDULER,
        hold(
            it,
            Claim(charge={"cpu": 1500}),
            Claim(node="node-a", charge={"gpu": 1000}, devices=(share,)),
        ),
    )
    assert used(it) == {}
    refused(it.ask(SCHEDULER, it.bind(it.pending())), Reason.QUOTA_EXCEEDED)
    training = it.pending(it.plane.workload("train", template=template(devices=GPU, cpu="100m")))
    shares = (DeviceShare(device="gpu-0", device_class="gpu", milli=1000),)
    refused(it.ask(SCHEDULER, it.bind(training, devices=shares)), Reason.DEVICE_TAKEN)


@pytest.mark.parametrize(
    "owner",
    [
        ReservationOwner("Workload", "nobody", "u"),
        ReservationOwner("Workload", "web", "another uid"),
        ReservationOwner("Replica", "web-0-0", "u"),
    ],
)
def test_nothing_is_held_for_an_owner_that_is_not_there(owner: ReservationOwner) -> None:
    """It would be a leak from its first moment. [I5]"""
    it = Furnished()
    request = msgspec.structs.replace(hold(it), owner=owner)
    refused(it.ask(SCHEDULER, request), Reason.MISSING)


def test_an_owner_is_work() -> None:
    it = Furnished()
    for kind in ("Tenant", "Secret", "Nonsense"):
        request = msgspec.structs.replace(hold(it), owner=ReservationOwner(kind, "acme", "u"))
        refused(it.ask(SCHEDULER, request), Reason.INVALID)


def test_a_hold_is_judged_by_the_rules_of_a_bind() -> None:
    """Or protected capacity would be used up by waiting for it. [C6.8, C6.2]"""
    it = Furnished()
    claim = Claim(node="node-a", charge={"cpu": 500})
    it.updated(it.node, protected_for=Protection(tenants=("globex",)))
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.TENANCY_FORBIDDEN)
    it.updated(it.node, protected_for=None, taints=(Taint(key="gpu-only"),))
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.TAINTED)
    it.updated(it.node, taints=(), cordoned=True)
    refused(it.ask(SCHEDULER, hold(it, claim)), Reason.NODE_CORDONED)
    it.updated(it.node, cordoned=False)
    refused(it.ask(SCHEDULER, hold(it, Claim(node="none"))), Reason.NODE_MISSING)
    refused(
        it.ask(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 9000}))), Reason.NODE_FULL
    )
    it.yes(SCHEDULER, hold(it, claim))


def test_a_lane_is_charged_in_the_class_of_its_owners_work() -> None:
    """[D3]"""
    it = Furnished()
    spot = it.of_class("spot")
    it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500}), of=spot))
    assert counted(it.plane)["reclaimable acme"] == {"cpu": 500}


def test_a_hold_of_many_nodes_is_one_decision() -> None:
    it = Furnished()
    claims = [Claim(node=it.plane.node(f"n{i}").name, charge={"cpu": 100}) for i in range(40)]
    it.plane.authority = it.plane.new_authority()
    held = it.yes(SCHEDULER, hold(it, *claims))
    it.plane.authority = it.plane.new_authority()
    it.yes(SCHEDULER, drop(it, held))
    assert counted(it.plane) == {}


@pytest.mark.parametrize("least", [0, 3])
def test_only_a_gang_states_how_many_it_needs(least: int) -> None:
    it = Furnished()
    intent = Intent.GANG if not least else Intent.RECOVERY
    refused(it.ask(SCHEDULER, hold(it, intent=intent, least=least)), Reason.INVALID)


def test_a_recovery_lane_is_renewed_moved_and_refilled_in_one_step() -> None:
    """By its own controller alone; a place that stays is not given back meanwhile. [D5, C6.9]"""
    it = Furnished()
    it.plane.node("node-b")
    one, other = (Claim(node=name, charge=ONE) for name in ("node-a", "node-b"))
    first = it.yes(RESERVES, hold(it, one, one, identity=RESERVES))
    again = hold(it, one, other, identity=RESERVES, after_s=120)
    second = it.yes(RESERVES, again)
    assert second.metadata.uid == first.metadata.uid
    assert second.status.claims == (one, other)
    assert second.spec.deadline == it.plane.at(120)
    assert used(it) == ONE
    # One that comes late shortens nothing.
    third = it.yes(RESERVES, hold(it, one, other, identity=RESERVES, after_s=30))
    assert third.spec.deadline == it.plane.at(120)
    refused(it.ask(SCHEDULER, hold(it, one)), Reason.RESERVATION_EXISTS)
    # A replica of the owner binds into it, and what it used is held again.
    it.yes(SCHEDULER, it.bind(it.pending(), reservation=first.name))
    assert used(it) == ONE
    filled = it.yes(RESERVES, hold(it, one, other, identity=RESERVES))
    assert filled.status.claims == (other, one)
    assert used(it)["cpu"] == 2000
    it.yes(RESERVES, drop(it, filled, RESERVES))
    assert used(it) == ONE


def test_a_recovery_lane_that_finds_no_room_stays_as_it_was() -> None:
    """[C6.8]"""
    it = Furnished(cpus=1)
    one = Claim(node="node-a", charge=ONE)
    held = it.yes(RESERVES, hold(it, one, identity=RESERVES))
    refused(it.ask(RESERVES, hold(it, one, one, identity=RESERVES)), Reason.NODE_FULL)
    assert it.reservation(held.name).status.claims == (one,)
    # No other work gets in, and only the owner's may use it.
    other = it.pending(it.plane.workload("other"))
    refused(it.ask(SCHEDULER, it.bind(other)), Reason.NODE_FULL)
    refused(it.ask(SCHEDULER, it.bind(other, reservation=held.name)), Reason.PROTECTED_CAPACITY)
    it.yes(SCHEDULER, it.bind(it.pending(), reservation=held.name))


def test_a_caller_that_places_nothing_holds_nothing() -> None:
    """[C6.7]"""
    it = Furnished()
    refused(it.ask(NODES, hold(it, identity=NODES)), Reason.NOT_OWNER)
