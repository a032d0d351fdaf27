"""Which node and which devices work with devices gets, and that the bind says so."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.node import Device
from holdfast.model.kinds.schedulerpolicy import (
    ExpectedDemand,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.template import DeviceRequest, Template
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import Bind
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import BindReplica
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot
from tests.plane import template
from tests.unit.propose.recorded import Recorded
from tests.unit.propose.test_proposals import NOW, node, placed, replica, view
from tests.unit.propose.test_scheduler_on_a_plane import OnPlane

HALF = DeviceRequest(device_class="gpu", share="500m")
ONE = DeviceRequest(device_class="gpu")
ALL = DeviceRequest(device_class="gpu", count=4)


def gpus(count: int, **more: Any) -> tuple[Device, ...]:
    return tuple(Device(id=f"g{n}", device_class="gpu", **more) for n in range(count))


def asking(*requests: DeviceRequest, cpu: str = "100m") -> Template:
    return template(cpu, devices=requests)


def expecting(*requests: DeviceRequest) -> SchedulerPolicy:
    demands = tuple(ExpectedDemand(devices=(request,)) for request in requests)
    return SchedulerPolicy(ObjectMeta(name="p"), spec=SchedulerPolicySpec(demands=demands))


def settle(seen: FleetSnapshot, proposal: BindReplica, uid: str) -> None:
    seen.fleet.assume(uid, ("acme", uid), proposal.node, proposal.held, 0)


def test_a_share_goes_beside_another_rather_than_onto_an_idle_device() -> None:
    """So that whole devices are left for those who need them. [F3]"""
    seen = view(node(devices=gpus(3)), policy=expecting(HALF, ONE))
    given = []
    for number in range(4):
        found = placed(seen, replica(asking(HALF)))
        settle(seen, found, f"r{number}")
        given += [share.device for share in found.held.devices]
    assert given == ["g0", "g0", "g1", "g1"]


def test_a_single_device_is_taken_from_a_node_that_is_broken_into_already() -> None:
    """An idle node stays whole for work that needs all of it, known or expected. [F3]"""
    nodes = [node(name, devices=gpus(4)) for name in "abc"]
    seen = view(*nodes, policy=expecting(ONE, ALL))
    first = placed(seen, replica(asking(ONE)))
    settle(seen, first, "r0")
    for number in range(1, 4):
        found = placed(seen, replica(asking(ONE)))
        assert found.node == first.node
        settle(seen, found, f"r{number}")
    assert placed(seen, replica(asking(ALL))).node != first.node


def test_work_without_devices_does_not_strand_them_where_it_has_to_share_a_node() -> None:
    """Of nodes that all have devices it takes the one whose devices lose least. [F3]"""
    rich = node("rich", devices=gpus(1), capacity={"cpu": "8", "memory": "8Gi"})
    poor = node("poor", devices=gpus(4), capacity={"cpu": "4", "memory": "8Gi"})
    beside = ExpectedDemand(resources=template("1").resources, devices=(ONE,))
    spec = SchedulerPolicySpec(demands=(beside,))
    seen = view(poor, rich, policy=SchedulerPolicy(ObjectMeta(name="p"), spec=spec))
    found = placed(seen, replica(template("2")))
    assert found.node == "rich"
    assert found.scores["fragmentation"] > 99.0


def test_many_without_devices_are_placed_at_once_until_one_goes_beside_devices() -> None:
    """Then all nodes are ranked again, for the scores of others depend on it."""
    seen = view(
        node("rich", devices=gpus(2)),
        node("plain", capacity={"cpu": "2", "memory": "8Gi"}),
        policy=expecting(ONE),
    )
    waiting = [replica(template("1")) for _ in range(6)]
    found = propose(seen, waiting, NOW, 1, VerdictCache())
    assert [it.node for it in found if isinstance(it, BindReplica)] == ["plain", "plain", "rich"]
    for number, it in enumerate(found):
        assert isinstance(it, BindReplica)
        settle(seen, it, f"r{number}")
    assert len(propose(seen, waiting, NOW, 1, VerdictCache())) == 1


def test_what_needs_a_search_is_left_to_the_model() -> None:
    """Several requests for one class, or devices that hang together. [F3]"""
    near = tuple(Device(id=f"n{n}", device_class="gpu", numa=n % 2) for n in range(4))
    seen = view(node(devices=near), policy=expecting(ONE))
    together = DeviceRequest(device_class="gpu", count=2, same_numa=True)
    held = placed(seen, replica(asking(together))).held
    assert [share.device for share in held.devices] == ["n0", "n2"]
    held = placed(seen, replica(asking(HALF, ONE))).held
    assert sorted(share.milli for share in held.devices) == [500, 1000]


def test_a_bind_names_the_devices_and_the_authority_gives_these() -> None:
    """[F3, D4, C3]"""
    fine = DeviceRequest(device_class="gpu", share="500m", models=("A100",))
    rig = OnPlane()
    rig.start()
    rig.do(lambda: rig.plane.node("n", gpus=3))
    workload = rig.do(lambda: rig.plane.workload(template=asking(fine)))
    for ordinal in range(3):
        rig.do(lambda ordinal=ordinal: rig.plane.replica(workload, ordinal))
    rig.pass_time(2_000)
    binds = [request for request, _ in rig.answers if isinstance(request, Bind)]
    named = [share.device for each in binds for share in each.devices or ()]
    assert named == ["gpu-0", "gpu-0", "gpu-1"]
    there = [it for it in rig.objects["replicas"].values() if it.status.state is State.BOUND]
    given = [share.device for it in there for share in it.status.binding.devices]
    assert given == named


def test_rounds_about_devices_are_decided_again_as_they_were() -> None:
    """Whatever was learnt from work that is gone since. [F3, M4]"""
    rig = Recorded()
    for name in "abc":
        rig.node(name, devices=gpus(4))
    rig.start()
    for number in range(30):
        request = (HALF, ONE, ALL, HALF, ONE)[number % 5]
        one = rig.replica(f"w{number}-0-0", template=asking(request))
        rig.pass_time(1_000)
        if number % 2:
            rig.remove(rig.get(one.name))
    assert any(decided.mixes for decided in rig.rounds.values())
    assert [rig.again(decided) for decided in rig.rounds.values()] == [[]] * len(rig.rounds)
    assert len(rig.rounds) >= 15
