"""Every unit of capacity has a name, and idle ones say what they are idle for."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.explain.capacity import (
    SHAPES_MAX,
    CapacityAmounts,
    CapacityShare,
    capacity_amounts,
    capacity_shares,
    shapes_of,
)
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Reservation
from holdfast.model.kinds.template import DeviceRequest
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.requests import Update
from tests.furnished import Furnished, every
from tests.plane import ADMIN, SCHEDULER, template
from tests.unit.commit.capacity_requests import hold

GI = 1 << 30
IDLE = ("starting", "reserve", "closed", "fragments", "usable")


def look(it: Furnished) -> dict[tuple[str, str], CapacityShare]:
    """By zone and resource."""
    found = capacity_shares(
        every(it.plane, Node),
        every(it.plane, Replica),
        every(it.plane, Reservation),
        shapes_of(every(it.plane, Workload)),
    )
    assert all(share.total == share.busy + sum(getattr(share, c) for c in IDLE) for share in found)
    return {(share.zone, share.resource): share for share in found}


def cpu(it: Furnished) -> CapacityShare:
    return look(it)["eu-west-a", "cpu"]


def test_an_empty_node_is_all_usable_devices_too() -> None:
    """[D7, D4]"""
    it = Furnished()
    found = look(it)
    place = "eu-west", "eu-west-a", it.node.spec.pool
    assert found["eu-west-a", "cpu"] == CapacityShare(*place, "cpu", 8_000, usable=8_000)
    assert found["eu-west-a", "gpu"].usable == found["eu-west-a", "gpu"].total == 2_000
    assert found["eu-west-a", "memory"].usable == 32 * GI


def test_work_that_is_not_ready_yet_is_startup_headroom() -> None:
    """[D7]"""
    it = Furnished()
    it.bound()
    it.running()
    it.ready()
    assert (cpu(it).busy, cpu(it).starting, cpu(it).usable) == (1_000, 2_000, 5_000)


def test_what_is_held_for_a_tenant_is_reserve() -> None:
    """[D7, D5]"""
    it = Furnished()
    it.reserved()
    assert (cpu(it).reserve, cpu(it).busy, cpu(it).usable) == (1_000, 0, 7_000)


def test_what_is_promised_to_a_preemption_is_reserve_once_its_victim_is_gone() -> None:
    """[D7, G4]"""
    it = Furnished(cpus=2)
    victim = it.ready(it.of_class("low", cpu="2"))
    urgent = it.pending(it.of_class("high", cpu="2"))
    it.yes(SCHEDULER, it.preempt(urgent, victim))
    assert (cpu(it).busy, cpu(it).reserve) == (2_000, 0)
    it.moved(it.get(victim), State.RELEASED)
    assert (cpu(it).busy, cpu(it).reserve, cpu(it).usable) == (0, 2_000, 0)


def test_nodes_that_take_no_work_are_closed() -> None:
    """[D7]"""
    it = Furnished()
    it.ready()
    it.updated(it.node, cordoned=True)
    assert (cpu(it).closed, cpu(it).usable, cpu(it).busy) == (7_000, 0, 1_000)


def test_pieces_into_which_nothing_fits_are_fragments() -> None:
    """Free processors without free memory fit no work here. [D7, D4]"""
    it = Furnished()
    hungry = it.plane.workload("hungry", template=template("1", "31Gi"))
    it.ready(hungry)
    small = look(it)
    assert small["eu-west-a", "cpu"].usable == 7_000
    it.ready()
    none = look(it)
    assert none["eu-west-a", "cpu"].fragments == 6_000
    assert none["eu-west-a", "gpu"].fragments == 2_000


def test_room_in_another_zone_is_counted_there() -> None:
    """[D4, D7]"""
    it = Furnished()
    it.plane.node("node-b", zone="eu-west-b")
    it.ready()
    found = look(it)
    assert found["eu-west-a", "cpu"].usable == 7_000
    assert found["eu-west-b", "cpu"].usable == 8_000


def test_without_work_nothing_can_be_called_a_fragment() -> None:
    """[D7]"""
    it = Furnished()
    found = capacity_shares(every(it.plane, Node), (), (), ())
    assert all(share.usable == share.total for share in found)


def test_shapes_are_counted_once_and_bounded() -> None:
    """[D7]"""
    web = Furnished().web

    def asking(cpus: int) -> Any:
        spec = msgspec.structs.replace(web.spec, template=template(f"{cpus}m"))
        return msgspec.structs.replace(web, spec=spec)

    assert len(shapes_of([asking(n % 7 + 1) for n in range(50)])) == 7
    assert len(shapes_of([asking(n + 1) for n in range(SHAPES_MAX + 50)])) == SHAPES_MAX


def test_the_seven_amounts_are_kept_apart_by_class() -> None:
    """Reclaimable work, recovery lanes and overcommit appear beside each other. [D3, D4, D6]"""
    it = Furnished()
    spec = msgspec.structs.replace(it.node.spec, overcommit={"cpu": 200}, reserved={"cpu": "1"})
    node = msgspec.structs.replace(it.get(it.node), spec=spec)
    it.yes(ADMIN, Update(node))
    it.ready()
    it.ready(it.of_class("spot", cpu="2"))
    it.yes(SCHEDULER, hold(it, Claim(node="node-a", charge={"cpu": 500})))

    def amounts(used: dict[str, str]) -> CapacityAmounts:
        seen = it.get(it.node)
        status = msgspec.structs.replace(seen.status, used=used)
        nodes = [msgspec.structs.replace(seen, status=status)]
        found = capacity_amounts(nodes, every(it.plane, Replica), every(it.plane, Reservation))
        return next(each for each in found if each.resource == "cpu")

    place = "eu-west", "eu-west-a", it.node.spec.pool, "cpu"
    assert amounts({"cpu": "250m"}) == CapacityAmounts(
        *place, 8_000, 14_000, 3_000, 0, 250, 1_500, 2_000, 500
    )
    # Nothing known is not the same as nothing used.
    assert (amounts({}).observed, amounts({"cpu": "0"}).observed) == (None, 0)


ACTS = ("bound", "running", "ready", "reserved", "stopping", "gpu", "cordon")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ACTS), max_size=8))
def test_whatever_happens_the_columns_add_up(acts: list[str]) -> None:
    """`look` compares the sums. [D7, D6]"""
    it = Furnished()
    half = DeviceRequest(device_class="gpu", share="500m", memory="1Gi")
    gpus = it.plane.workload("gpus", template=template(devices=(half,)))
    for act in acts:
        if act == "gpu":
            if look(it)["eu-west-a", "gpu"].usable:
                it.ready(gpus)
        elif act == "cordon":
            it.updated(it.node, cordoned=True)
            look(it)
            it.updated(it.node, cordoned=False)
        else:
            getattr(it, act)()
        look(it)
