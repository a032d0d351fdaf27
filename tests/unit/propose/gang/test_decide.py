"""The decision about a gang: all members or none, in one domain, and why it waits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.kinds.template import DeviceRequest, RestartPolicy
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Gang, Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import demand_of
from holdfast.model.time import Instant, timestamp
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import BindGang, PlacementReport, StayPending, Verdict
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot, snapshot_of
from holdfast.propose.proposals import has_place
from tests.plane import template

CORE = template(cpu="1", memory="1Gi")


def node(name: str, cpu: str = "4", gpus: int = 0, **labels: str) -> Node:
    devices = tuple(Device(id=f"gpu-{n}", device_class="gpu") for n in range(gpus))
    spec = NodeSpec(
        capacity={"cpu": cpu, "memory": "1Ti"}, devices=devices, zone=labels.pop("zone", "")
    )
    return Node(ObjectMeta(name=name, uid=f"uid-{name}", labels=labels), spec=spec)


def ring(gang: Gang, replicas: int = 8, **more: Any) -> Workload:
    spec = WorkloadSpec(more.pop("template", CORE), replicas=replicas, gang=gang, **more)
    return Workload(ObjectMeta(name="ring", namespace="acme", uid="u"), spec=spec)


def member(number: int, of: Any = CORE, state: State = State.PENDING, on: str = "") -> Replica:
    spec = ReplicaSpec("ring", "u", of, ordinal=number, gang="ring")
    binding = Binding(on, f"uid-{on}", charge=demand_of(of).amounts) if on else None
    status = ReplicaStatus(state=state, binding=binding)
    meta = ObjectMeta(name=f"ring-{number}-0", namespace="acme", uid=f"uid-{number}")
    return Replica(meta, spec=spec, status=status)


def record(*claims: Claim, phase: ReservationPhase = ReservationPhase.CONSUMED) -> Reservation:
    owner = ReservationOwner("Workload", "ring", "u")
    spec = ReservationSpec(owner, Intent.GANG, timestamp(0), min_available=2)
    status = ReservationStatus(phase=phase, claims=claims)
    return Reservation(ObjectMeta(name="ring-gang", namespace="acme"), spec=spec, status=status)


def view(*nodes: Node, members: list[Replica], **objects: Any) -> FleetSnapshot:
    named = {plural: list(some) for plural, some in objects.items()}
    return snapshot_of(
        {
            "tenants": [Tenant(ObjectMeta(name="acme"))],
            "nodes": nodes,
            "replicas": members,
            **named,
        }
    )


def decide(seen: FleetSnapshot, first: Replica) -> BindGang | StayPending:
    (decided,) = propose(seen, [first], Instant(0, 0), 1, VerdictCache())
    assert isinstance(decided, BindGang | StayPending)
    return decided


def asked(workload: Workload, *nodes: Node, count: int = 8, **more: Any) -> BindGang | StayPending:
    members = [member(number, workload.spec.template) for number in range(count)]
    return decide(view(*nodes, members=members, workloads=[workload], **more), members[-1])


def placed(decided: BindGang | StayPending) -> list[str]:
    assert isinstance(decided, BindGang), decided
    return [place.node for _, place in decided.places]


def waits(decided: BindGang | StayPending) -> PlacementReport:
    assert isinstance(decided, StayPending), decided
    return decided.report


def test_all_members_are_placed_or_none() -> None:
    """[G5, E3]"""
    rigid = ring(Gang(min_available=8))
    assert len(placed(asked(rigid, node("a"), node("b")))) == 8
    report = waits(asked(rigid, node("a"), node("b", cpu="3")))
    assert "needs 8 members at once; with nothing else running 7 would fit" in report.message
    assert report.verdict is Verdict.NOT_WITH_THIS_FLEET
    assert report.smallest_change.startswith("spec.gang.minAvailable at most 7, or nodes for 1")


def test_the_first_are_enough_and_the_rest_waits_for_room() -> None:
    """[G5]"""
    assert len(placed(asked(ring(Gang(min_available=3)), node("a"), node("b", cpu="1")))) == 5


def test_a_gang_that_could_fit_later_says_how_many_fit_now() -> None:
    """[E3]"""
    other = member(0, state=State.RUNNING, on="a")
    other = msgspec.structs.replace(
        other,
        metadata=ObjectMeta(name="web-0-0", namespace="acme", uid="o"),
        spec=ReplicaSpec("web", "w", CORE),
    )
    gang = ring(Gang(min_available=4))
    members = [other, *(member(number) for number in range(8))]
    report = waits(decide(view(node("a"), members=members, workloads=[gang]), members[1]))
    assert report.message == "gang ring needs 4 members at once; 3 fit now"
    assert report.verdict is Verdict.WAITING


@pytest.mark.parametrize("within", ["rack", "zone"])
def test_all_members_run_in_one_domain_the_one_that_is_filled_best(within: str) -> None:
    """[G5]"""
    nodes = (
        node("a", cpu="3", **{within: "r1"}),
        node("b", cpu="3", **{within: "r2"}),
        node("c", cpu="3", **{within: "r2"}),
        node("d", cpu="64", **{within: "r3"}),
        node("e", cpu="64"),
    )
    gang = ring(Gang(min_available=5, within=within), replicas=6)
    assert set(placed(asked(gang, *nodes, count=6))) == {"b", "c"}
    large = ring(Gang(min_available=7, within=within))
    assert set(placed(asked(large, *nodes))) == {"d"}


def test_no_domain_is_enough_unless_it_is_only_preferred() -> None:
    """[G5, E3]"""
    nodes = (node("a", rack="r1"), node("b", rack="r2"))
    report = waits(asked(ring(Gang(min_available=6, within="rack")), *nodes))
    assert report.verdict is Verdict.NOT_WITH_THIS_FLEET
    assert "on nodes with one rack; with nothing else running 4 would fit" in report.message
    loose = ring(Gang(min_available=6, within="rack", within_required=False))
    assert set(placed(asked(loose, *nodes))) == {"a", "b"}
    small = ring(Gang(min_available=2, within="rack", within_required=False), replicas=3)
    assert len(set(placed(asked(small, *nodes, count=3)))) == 1


def test_a_label_that_no_node_has_is_named_at_once() -> None:
    """[E3]"""
    report = waits(asked(ring(Gang(min_available=2, within="rack")), node("a"), node("b")))
    assert report.message.startswith("spec.gang.within: rack: no node has this label")
    assert report.verdict is Verdict.NOT_WITH_THIS_FLEET


def test_members_with_devices_are_placed_one_after_the_other() -> None:
    """Each takes other devices; nothing of the search stays in the fleet. [G5]"""
    gpu = template(cpu="1", devices=(DeviceRequest(device_class="gpu"),))
    gang = ring(Gang(min_available=4), replicas=4, template=gpu)
    members = [member(number, gpu) for number in range(4)]
    seen = view(node("a", gpus=2), node("b", gpus=2), members=members, workloads=[gang])
    decided = decide(seen, members[0])
    assert sorted(placed(decided)) == ["a", "a", "b", "b"]
    assert isinstance(decided, BindGang)
    held = [(place.node, place.held.devices[0].device) for _, place in decided.places]
    assert len(set(held)) == 4
    assert seen.fleet.assumptions == 0
    short = view(node("a", gpus=2), node("b", gpus=1), members=members, workloads=[gang])
    assert isinstance(decide(short, members[0]), StayPending)


def test_a_gang_is_beyond_the_quota_as_a_whole() -> None:
    """No half of it is placed for want of quota. [G5, D3]"""
    quota = Quota(ObjectMeta(name="default", namespace="acme"), spec=QuotaSpec(hard={"cpu": "5"}))
    report = waits(asked(ring(Gang(min_available=6)), node("a", cpu="64"), quotas=[quota]))
    assert report.verdict is Verdict.NEVER
    assert "the quota of tenant acme allows 5" in report.message
    assert report.smallest_change.startswith("spec.gang.minAvailable at most 5, or 1 more cpu")
    assert len(placed(asked(ring(Gang(min_available=5)), node("a", cpu="64"), quotas=[quota]))) == 5


def test_the_successor_of_a_lost_member_starts_with_the_others() -> None:
    """It is weighed by another intent, and needs the same. [G5]"""
    members = [
        member(number, template(cpu="1", restart=RestartPolicy.ALWAYS)) for number in range(4)
    ]
    again = msgspec.structs.replace(members[3].spec, incarnation=1)
    members[3] = msgspec.structs.replace(members[3], spec=again)
    workload = ring(Gang(min_available=4), 4, template=members[0].spec.template)
    seen = view(node("a"), members=members, workloads=[workload])
    for first in members:
        assert len(placed(decide(seen, first))) == 4


def test_members_that_are_not_created_yet_are_counted() -> None:
    """[E3]"""
    report = waits(asked(ring(Gang(min_available=8)), node("a", cpu="64"), count=5))
    assert report.message == "gang ring waits for 3 of 8 members to be created"


def test_a_gang_waits_until_its_last_run_has_stopped() -> None:
    """[G5]"""
    gang = ring(Gang(min_available=2))
    left = member(9, state=State.STOPPING, on="a")
    members = [member(0), member(1), left]
    report = waits(decide(view(node("a"), members=members, workloads=[gang]), members[0]))
    assert report.message == "gang ring waits for 1 members of its last run to stop"


def test_a_gang_that_runs_grows_in_its_domain() -> None:
    """[G5]"""
    nodes = (node("a", rack="r1"), node("b", cpu="64", rack="r2"))
    gang = ring(Gang(min_available=2, within="rack"))
    there = [member(n, state=State.RUNNING, on="a") for n in (0, 1)]
    waiting = [member(number) for number in range(2, 8)]
    held = record(*(Claim(node="a", replica=it.name, consumed=True) for it in there))
    objects = {"workloads": [gang], "reservations": [held]}
    decided = decide(view(*nodes, members=[*there, *waiting], **objects), waiting[0])
    assert placed(decided) == ["a", "a"]
    assert isinstance(decided, BindGang)
    assert decided.rest is not None
    assert "no room for more on nodes with the rack of its members" in decided.rest.message


def test_nothing_is_decided_while_its_places_are_being_reserved() -> None:
    """[G5]"""
    gang, members = ring(Gang(min_available=2)), [member(0), member(1)]
    for phase, is_busy in ((ReservationPhase.HELD, True), (ReservationPhase.RELEASED, False)):
        objects = {"workloads": [gang], "reservations": [record(phase=phase)]}
        decided = decide(view(node("a"), members=members, **objects), members[0])
        assert (isinstance(decided, StayPending) and decided.is_underway) is is_busy


def test_a_snapshot_of_one_node_leaves_no_row_to_a_job() -> None:
    """Rows that are closed are those of the whole fleet. [E3, G4]"""
    nodes = [node(name) for name in "abc"]
    seen = msgspec.structs.replace(view(*nodes, members=[member(0)]), closed=(2,))
    waiting = seen.get("replicas", "acme", "ring-0-0")
    assert has_place(seen.only("a"), waiting)
    assert has_place(seen.only_without("c", ()), waiting)
