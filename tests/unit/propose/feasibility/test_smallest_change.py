"""The smallest change that would let work fit, for each kind of miss."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Placement, Taint
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.template import DeviceRequest
from tests.plane import template
from tests.unit.propose.rig import Rig

ANYWHERE = Placement()


def waiting(rig: Rig, placement: Placement = ANYWHERE, **more: Any) -> Any:
    """Why a replica waits that asks for this."""
    wanted = template(cpu=more.pop("cpu", "1"))
    wanted = msgspec.structs.replace(wanted, placement=placement, **more)
    rig.start()
    rig.replica(template=wanted)
    return rig.get("web-0-0").status.pending


def test_without_a_node_the_node_that_would_have_to_come_is_named() -> None:
    """[E3]"""
    pending = waiting(Rig())
    assert pending.verdict == "NotWithThisFleet"
    assert pending.smallest_change == "a node with 1 cpu and 1Gi memory free"


def test_what_is_missing_on_the_nearest_node_is_named_with_its_amount() -> None:
    """[E3, F2]"""
    rig = Rig()
    rig.node("node-a", cpu="2")
    rig.start()
    rig.replica("web-9-0", cpu="1500m")
    pending = waiting(rig)
    assert (pending.verdict, pending.owner) == ("Waiting", "scheduler")
    assert pending.nearest_miss == "node node-a: needs 1 cpu, 500m is free"
    assert pending.smallest_change == "500m cpu more free on node node-a"


def test_what_no_node_could_ever_hold_asks_for_another_node() -> None:
    """[E3]"""
    rig = Rig()
    rig.node("node-a", cpu="2")
    pending = waiting(rig, cpu="64")
    assert pending.verdict == "NotWithThisFleet"
    assert pending.smallest_change == "a node with 64 cpu and 1Gi memory free"


@pytest.mark.parametrize(
    "node, placement, change",
    [
        ({}, Placement(node_selector={"disk": "ssd"}), "one node with label disk=ssd"),
        ({"taints": (Taint(key="gpu", value="a"),)}, Placement(), "a toleration of the taint gpu="),
        ({"cordoned": True}, Placement(), "node node-a uncordoned"),
        ({"zone": "b"}, Placement(zones=("a",)), "a node in zone a"),
        ({}, Placement(residency="eu"), "a Region that states the jurisdiction of node node-a"),
    ],
)
def test_each_kind_of_miss_has_its_change(
    node: dict[str, Any], placement: Placement, change: str
) -> None:
    """[E3, F2]"""
    rig = Rig()
    rig.node("node-a", **node)
    assert waiting(rig, placement).smallest_change.startswith(change)


def test_all_that_keeps_work_from_the_nearest_node_is_named() -> None:
    """A toleration alone would not help if the node were cordoned and full as well. [E3]"""
    rig = Rig()
    rig.node("node-a", cpu="2")
    rig.start()
    rig.replica("web-9-0", cpu="1500m")
    old = rig.scheduler.cache.get("nodes", "", "node-a")
    closed = msgspec.structs.replace(old.spec, cordoned=True, taints=(Taint(key="gpu"),))
    rig.put(msgspec.structs.replace(old, spec=closed))
    assert waiting(rig).smallest_change == (
        "a toleration of the taint gpu=:NoSchedule, and 500m cpu more free on node node-a, "
        "and node node-a uncordoned"
    )


def test_a_node_that_would_still_be_too_small_is_not_the_one_to_change() -> None:
    """[E3]"""
    rig = Rig()
    rig.node("node-a", cpu="2", taints=(Taint(key="gpu"),))
    assert waiting(rig, cpu="64").smallest_change == "a node with 64 cpu and 1Gi memory free"


def test_a_device_is_missing_or_taken() -> None:
    """[E3, F2]"""
    gpu = (DeviceRequest(device_class="gpu", count=1),)
    assert waiting(bare(), devices=gpu).smallest_change == "a node with 1 gpu"
    rig = bare(Device(id="g0", device_class="gpu"))
    rig.start()
    rig.replica("web-9-0", template=msgspec.structs.replace(template(cpu="1"), devices=gpu))
    bound = rig.get("web-9-0")
    share = DeviceShare(device="g0", device_class="gpu", milli=1_000)
    rig.status(bound, binding=msgspec.structs.replace(bound.status.binding, devices=(share,)))
    pending = waiting(rig, devices=gpu)
    assert pending.smallest_change == "1 gpu free on node node-a"


def bare(*devices: Device) -> Rig:
    rig = Rig()
    rig.node("node-a", devices=devices)
    return rig


def test_two_schedulers_that_learned_of_nodes_in_another_order_say_the_same() -> None:
    """Otherwise each would overwrite the other's message without end."""
    said = []
    for order in (("a", "b", "c", "d"), ("d", "b", "a", "c")):
        rig = Rig()
        for name in order:
            rig.node(f"node-{name}", cpu="2")
        pending = waiting(rig, cpu="3")
        said.append((pending.message, pending.nearest_miss, pending.smallest_change, pending.owner))
    assert said[0] == said[1]
