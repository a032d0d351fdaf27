"""What if: whether work could be placed, how much of it, and what would have to stop first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.placement import Affinity, Placement, Spread, Topology
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.kinds.workload import Gang
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.selection.selectors import LabelSelector
from holdfast.model.time import Instant
from holdfast.propose.decide import Feasibility, could_place
from holdfast.propose.feasibility.outcome import BindGang, BindReplica, Preempt
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from tests.plane import template
from tests.unit.propose.gang.test_decide import member, node, record, ring, view

NOW = Instant(1_000, 1_800_000_000_000)
CLASSES = [
    PriorityClass(ObjectMeta(name="urgent"), spec=PriorityClassSpec(value=100, preempts=True)),
    PriorityClass(ObjectMeta(name="usual"), spec=PriorityClassSpec(value=50)),
    PriorityClass(
        ObjectMeta(name="spot"),
        spec=PriorityClassSpec(value=-10, capacity_class=CapacityClass.RECLAIMABLE),
    ),
]


def possible(seen: FleetSnapshot, replica: Replica) -> Feasibility:
    return could_place(seen, replica, NOW, VerdictCache())


def alone(name: str, priority_class: str, priority: int, on: str = "") -> Replica:
    """A replica of no gang that takes a whole node of the helper's."""
    state = State.RUNNING if on else State.PENDING
    made = member(0, template(cpu="4", memory="1Gi", priority_class=priority_class), state, on)
    binding = made.status.binding
    if binding is not None:
        binding = msgspec.structs.replace(
            binding, capacity_class=CapacityClass.RECLAIMABLE.value, priority_class=priority_class
        )
    meta = ObjectMeta(name=name, namespace="acme", uid=f"uid-{name}")
    spec = msgspec.structs.replace(made.spec, workload=name, workload_uid=name, gang="")
    spec = msgspec.structs.replace(spec, priority=priority)
    status = msgspec.structs.replace(made.status, binding=binding)
    return Replica(meta, spec=spec, status=status)


def test_a_replica_has_one_place_or_none() -> None:
    work = alone("web-0-0", "usual", 50)
    found = possible(view(node("a"), members=[work]), work)
    assert isinstance(found.decision, BindReplica)
    assert (found.members, found.needed, found.report) == (1, 1, None)
    assert found.is_feasible
    small = view(node("a", cpu="1"), members=[work])
    found = possible(small, work)
    assert (found.members, found.needed) == (0, 1)
    assert not found.is_feasible
    assert found.report is not None
    # The change that the report names is one that helps.
    assert found.report.smallest_change == "a node with 4 cpu and 1Gi memory free"
    assert possible(small.with_objects(node("b", cpu="4")), work).is_feasible


@pytest.mark.parametrize(
    "placement",
    [
        {"max_per_node": 1},
        {"regions": ("eu",)},
        {"zones": ("a",), "pool": "general"},
        {"residency": "eu-law"},
        {"node_selector": {"disk": "ssd"}},
        {"spread": (Spread(over=Topology.ZONE, required=True),)},
        {"anti_affinity": (Affinity(LabelSelector(), within=Topology.NODE),)},
    ],
)
def test_a_plane_without_nodes_has_no_place(placement: dict[str, Any]) -> None:
    """Nor one that shows only what once ran on a node that is gone. [E3]"""
    work = alone("web-0-0", "usual", 50)
    template = msgspec.structs.replace(work.spec.template, placement=Placement(**placement))
    spec = msgspec.structs.replace(work.spec, template=template)
    work = msgspec.structs.replace(work, spec=spec)
    for others in ((), (alone("old-0-0", "usual", 50, on="gone"),)):
        found = possible(view(members=[work, *others]), work)
        assert found.report is not None
        assert found.report.reasons == {"NoNodes": 1}


def test_other_work_would_have_to_stop_only_where_that_is_legal() -> None:
    """[G1]"""
    running, urgent = alone("spot-0-0", "spot", -10, on="a"), alone("hot-0-0", "urgent", 100)
    usual = alone("web-0-0", "usual", 50)
    work: dict[str, Any] = {"members": [running, urgent, usual], "priorityclasses": CLASSES}
    seen = view(node("a"), **work)
    found = possible(seen, urgent)
    assert isinstance(found.decision, Preempt)
    assert found.is_feasible
    assert found.needs_preemption
    assert found.victims == (("acme", "spot-0-0"),)
    assert found.report is not None
    assert found.report.reasons == {"NodeFull": 1}
    refused = possible(seen, usual)
    assert not refused.is_feasible
    assert not refused.needs_preemption
    # Once the other work is gone, or there is another node, nothing has to stop.
    assert not possible(seen.without(running), urgent).needs_preemption
    elsewhere = possible(seen.with_objects(node("b")), urgent)
    assert elsewhere.is_feasible
    assert not elsewhere.needs_preemption


def test_of_a_gang_the_members_are_counted_that_fit_at_once() -> None:
    """[G5, E3]"""
    gang, members = ring(Gang(min_available=8)), [member(number) for number in range(8)]
    seen = view(node("a"), node("b", cpu="3"), members=members, workloads=[gang])
    found = possible(seen, members[3])
    assert (found.members, found.needed) == (7, 8)
    assert not found.is_feasible
    assert found.report is not None
    grown = possible(seen.with_objects(node("b", cpu="4")), members[3])
    assert isinstance(grown.decision, BindGang)
    assert (grown.members, grown.needed) == (8, 8)
    assert grown.is_feasible
    # The members count that would be in one domain.
    racks = node("a", rack="r1"), node("b", cpu="6", rack="r2")
    within = ring(Gang(min_available=8, within="rack"))
    apart = possible(view(*racks, members=members, workloads=[within]), members[0])
    assert (apart.members, apart.needed) == (6, 8)


def test_room_is_made_for_all_members_that_a_gang_needs() -> None:
    """[G1, G5]"""
    work = template(cpu="4", memory="1Gi", priority_class="urgent")
    members = [member(number, work) for number in (0, 1, 2)]
    members = [
        msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, priority=100))
        for it in members
    ]
    running = [alone(f"spot-{on}-0", "spot", -10, on=on) for on in ("a", "b")]
    seen = view(
        node("a"),
        node("b"),
        members=[*members, *running],
        workloads=[ring(Gang(min_available=2), replicas=3, template=work)],
        priorityclasses=CLASSES,
    )
    found = possible(seen, members[0])
    assert found.needs_preemption
    assert found.is_feasible
    assert (found.members, found.needed, len(found.victims)) == (2, 2, 2)


def test_members_join_a_gang_that_runs_one_by_one() -> None:
    """[G5]"""
    gang, running = ring(Gang(min_available=2)), member(0, state=State.RUNNING, on="a")
    waiting = member(1)
    objects: dict[str, Any] = {
        "members": [running, waiting],
        "workloads": [gang],
        "reservations": [record()],
    }
    found = possible(view(node("a"), **objects), waiting)
    assert (found.members, found.needed) == (1, 1)
    full = possible(view(node("a", cpu="1"), **objects), waiting)
    assert (full.members, full.needed) == (0, 1)
    assert not full.is_feasible
