from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.kinds.node import Device
from holdfast.model.kinds.schedulerpolicy import (
    ExpectedDemand,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.template import DeviceRequest, Resources, Template
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import demand_of
from holdfast.observe.cache import ObjectChange
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gpu import GpuDemand, GpuPool, Sparing
from holdfast.propose.gpu.class_columns import DEVICES_MAX
from holdfast.propose.gpu.pools import CLASSES_MAX, demand_for
from tests.unit.propose.test_proposals import ACME, WEST, Things, fleet, node, placed, replica


def devices(count: int, of: str = "gpu") -> tuple[Device, ...]:
    return tuple(Device(id=f"{of}{number}", device_class=of) for number in range(count))


def asking(**wanted: Any) -> Template:
    request = DeviceRequest(device_class="gpu", **wanted)
    return Template(resources=Resources(cpu="2"), devices=(request,))


def pool_of(seen: Fleet) -> GpuPool:
    (pool,) = seen.pools.refresh_all()
    return pool


def test_new_nodes_of_a_known_build_need_no_new_columns() -> None:
    """One that goes makes room for the next; a wider one changes everything. [F3]"""
    there = {f"n{index}": node(f"n{index}", devices=devices(2)) for index in range(4)}
    seen = fleet(*there.values())
    pool = pool_of(seen)
    version = pool.version
    for index in range(4, 20):
        there[f"n{index}"] = new = node(f"n{index}", devices=devices(2))
        seen.notice(ObjectChange("nodes", None, new))
        seen.notice(ObjectChange("nodes", there.pop(f"n{index - 4}"), None))
        pool.refresh()
    assert (pool.version, len(pool.there)) == (version, 4)
    seen.notice(ObjectChange("nodes", None, node("wide", devices=devices(3))))
    pool.refresh()
    assert (pool.version, len(pool.there)) == (version + 1, 5)
    ranking = pool.rank(Sparing, (), GpuDemand(1_000, 1_000, 3))
    fitting = [own for own in pool.there if ranking.scores[own] >= 0]
    assert [seen.at(int(pool.rows[own])).name for own in fitting] == ["wide"]


def test_a_node_that_takes_no_work_has_nothing_to_spare() -> None:
    """[F3]"""
    seen = fleet(node("open", devices=devices(2)), node("shut", devices=devices(2), cordoned=True))
    pool = pool_of(seen)
    free = {seen.at(int(pool.rows[own])).name: pool.columns.devices[own] for own in pool.there}
    assert {name: each.tolist() for name, each in free.items()} == {
        "open": [1_000, 1_000],
        "shut": [0, 0],
    }


def test_more_devices_or_classes_than_are_packed_are_still_placed() -> None:
    """Of a node with more devices only the first count, and of classes the first. [F3]"""
    many = node("many", devices=devices(DEVICES_MAX + 6))
    seen = fleet(many, *(node(f"c{n}", devices=devices(1, f"class{n}")) for n in range(9)))
    pools = list(seen.pools.refresh_all())
    assert len(pools) == CLASSES_MAX
    assert pools[0].columns.devices.shape[1] == DEVICES_MAX
    wanted = Template(devices=(DeviceRequest(device_class="gpu", count=DEVICES_MAX + 6),))
    assert demand_for(demand_of(wanted), "gpu").devices == DEVICES_MAX
    found = placed(FleetSnapshot(Things(ACME, WEST), fleet=seen), replica(wanted))
    assert (found.node, len(found.held.devices)) == ("many", DEVICES_MAX + 6)


def test_what_is_asked_for_is_learnt_from_each_new_replica_once() -> None:
    """A change of one that is known teaches nothing. [F3]"""
    seen = fleet(node(devices=devices(2)))
    one = replica(asking(share="500m"))
    seen.notice(ObjectChange("replicas", None, one))
    (typical,) = seen.pools.mix("gpu", None)
    assert typical.demand == GpuDemand(2_000, 500, 1)
    mix = seen.pools.mix("gpu", None)
    changed = msgspec.structs.replace(one, spec=replica(asking(count=2)).spec)
    seen.notice(ObjectChange("replicas", one, changed))
    assert seen.pools.mix("gpu", None) is mix
    seen.notice(ObjectChange("replicas", None, replica()))
    assert seen.pools.mix("gpu", None) is mix, "work without devices asks for none"


def test_what_a_policy_expects_counts_instead_of_what_was_seen() -> None:
    """For the classes that it names. [F3]"""
    seen = fleet(node(devices=devices(2)))
    seen.notice(ObjectChange("replicas", None, replica(asking())))
    expected = ExpectedDemand(weight=3, devices=asking(count=2).devices)
    spec = SchedulerPolicySpec(demands=(expected,))
    policy = SchedulerPolicy(ObjectMeta(name="p"), spec=spec)
    (typical,) = seen.pools.mix("gpu", policy)
    assert (typical.demand, typical.share) == (GpuDemand(0, 1_000, 2), 1.0)
    other = SchedulerPolicy(ObjectMeta(name="q"), spec=SchedulerPolicySpec())
    (typical,) = seen.pools.mix("gpu", other)
    assert typical.demand == GpuDemand(2_000, 1_000, 1)


def test_several_requests_for_one_class_are_whole_devices_of_any_model() -> None:
    """[F3]"""
    both = Template(
        devices=(
            DeviceRequest(device_class="gpu", models=("A",)),
            DeviceRequest(device_class="gpu", share="500m"),
            DeviceRequest(device_class="fpga", memory="1Gi"),
        )
    )
    demand = demand_of(both)
    assert demand_for(demand, "gpu") == GpuDemand(0, 1_000, 2)
    assert demand_for(demand, "fpga") == GpuDemand(0, 1_000, 1, device_memory=2**30)
    assert demand_for(demand, "other") == GpuDemand(0)
