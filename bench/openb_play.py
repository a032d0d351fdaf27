"""One list of pods through the scheduler's own decisions, for `openb`.

Each pod becomes a replica that is added to the fleet; `propose` decides with the columns, filters
and scorers of a real scheduler, its placement is assumed, and then the binding is observed.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import msgspec
import numpy as np

from bench.openb_lists import PodList, TraceNode
from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.schedulerpolicy import (
    ExpectedDemand,
    SchedulerPolicy,
    SchedulerPolicySpec,
)
from holdfast.model.kinds.template import DeviceRequest, Resources, Template
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.observe.node_columns import Floats, Ints, Rows
from holdfast.observe.snapshot import ObjectTable
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import BindReplica
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.gpu import GpuDemand, Mix
from holdfast.propose.gpu.pools import Make
from holdfast.propose.node_choice import salt_of
from holdfast.propose.scores import Scorer
from holdfast.propose.scores.fragmentation import Packing

GPU = "gpu"
NOW = Instant(1_000, 1_800_000_000_000)
TENANT = Tenant(ObjectMeta(name="acme"))


@dataclass(frozen=True)
class Way:
    """How to pack: the scheduler's own way, or that of a scorer, and the mix that it gets."""

    scorer: Make | None = None
    mix: Mix | None = None


@dataclass
class Run:
    """The result of one list with one way to pack."""

    alloc: dict[int, float] = field(default_factory=dict)
    decisions_per_s: float = 0.0


def play(pods: PodList, way: Way) -> Run:
    """Let all pods arrive; buckets and rounding are those of the published curves."""
    view, verdict_cache = _plane(pods, way)
    rng = random.Random(1)
    gpus = sum(node.devices for node in pods.nodes)
    templates: dict[GpuDemand, ReplicaSpec] = {}
    buckets: dict[int, list[float]] = {}
    arrived = used = 0
    spent_s = 0.0
    for number, index in enumerate(pods.order):
        demand = pods.pods[index]
        spec = templates.get(demand)
        if spec is None:
            spec = templates[demand] = _spec(demand, f"w{len(templates)}")
        name = f"{spec.workload}-{number}-0"
        replica = Replica(ObjectMeta(name=name, namespace="acme", uid=name), spec=spec)
        # CPU time: the load of other users is not a cost of a decision.
        began = time.process_time()
        view.fleet.notice(ObjectChange("replicas", None, replica))
        (found,) = propose(view, [replica], NOW, salt_of(rng), verdict_cache)
        if isinstance(found, BindReplica):
            view.fleet.assume(name, ("acme", name), found.node, found.held, 0)
        spent_s += time.process_time() - began
        if isinstance(found, BindReplica):
            # The event of the binding, which ends the assumption.
            view.fleet.notice(ObjectChange("replicas", replica, _bound(replica, found)))
        arrived += demand.gpu_milli
        used += demand.gpu_milli if isinstance(found, BindReplica) else 0
        buckets.setdefault(round(arrived / gpus / 10), []).append(round(used / gpus / 10, 2))
    alloc = {bucket: mean(values) for bucket, values in buckets.items()}
    return Run(alloc, len(pods.order) / spent_s)


def _plane(pods: PodList, way: Way) -> tuple[FleetSnapshot, VerdictCache]:
    fleet = Fleet()
    for index, node in enumerate(pods.nodes):
        fleet.notice(ObjectChange("nodes", None, _node(index, node)))
    objects = ObjectTable({"tenants": [TENANT]})
    if way.scorer is None:
        policy = _expecting(way.mix) if way.mix is not None else None
        return FleetSnapshot(objects, fleet=fleet, policy=policy), VerdictCache()
    packing = Packing(way.scorer, {GPU: way.mix or ()})
    scorers = Scorer("peer", packing.score, packs=packing), Scorer("order", _order(pods))
    # Whole points of the first outweigh all of the second.
    weights = SchedulerPolicySpec(weights={"peer": 100, "order": 1})
    policy = SchedulerPolicy(ObjectMeta(name="peer"), spec=weights)
    return FleetSnapshot(objects, fleet=fleet, policy=policy), VerdictCache(scorers=scorers)


def _order(pods: PodList) -> Any:
    """Of equal nodes the one with the smallest rank, as a score from 0 to 99."""
    ranks = np.array(pods.node_rank, np.float64)
    scores = 99.0 * (1.0 - ranks / (ranks.max() + 1.0))

    def order(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
        # Nodes were added in the order of their rows.
        found: Floats = scores[rows]
        return found

    return order


def _expecting(mix: Mix) -> SchedulerPolicy:
    demands = tuple(
        ExpectedDemand(
            weight=max(1, round(1_000_000 * typical.share)),
            resources=_resources(typical.demand),
            devices=_devices(typical.demand),
        )
        for typical in mix
    )
    return SchedulerPolicy(ObjectMeta(name="given"), spec=SchedulerPolicySpec(demands=demands))


def _node(index: int, node: TraceNode) -> Node:
    devices = tuple(
        Device(id=f"g{number:02}", device_class=GPU, model=node.model)
        for number in range(node.devices)
    )
    capacity: dict[str, Any] = {
        "cpu": f"{node.cpu_milli}m",
        "memory": f"{node.memory}Mi",
        "replicas": "100000",
    }
    meta = ObjectMeta(name=f"node-{index}", uid=f"n{index}")
    return Node(meta, spec=NodeSpec(capacity=capacity, devices=devices))


def _spec(demand: GpuDemand, workload: str) -> ReplicaSpec:
    template = Template(resources=_resources(demand), devices=_devices(demand))
    return ReplicaSpec(workload=workload, workload_uid=workload, template=template)


def _bound(replica: Replica, found: BindReplica) -> Replica:
    held = found.held
    binding = Binding(
        node=found.node, node_uid=found.node_uid, charge=held.charge, devices=held.devices
    )
    status = ReplicaStatus(state=State.BOUND, binding=binding, transition_number=1)
    return msgspec.structs.replace(replica, status=status)


def _resources(demand: GpuDemand) -> Resources:
    return Resources(cpu=f"{demand.cpu_milli}m", memory=f"{demand.memory}Mi")


def _devices(demand: GpuDemand) -> tuple[DeviceRequest, ...]:
    if not demand.devices:
        return ()
    share = f"{demand.device_milli}m" if demand.is_fraction else None
    wanted = DeviceRequest(
        device_class=GPU, count=demand.devices, share=share, models=demand.models
    )
    return (wanted,)
