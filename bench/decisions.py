"""The scheduler alone: decisions on 500 to 50,000 nodes, in batches, and as a whole scheduler.

All figures are CPU time of this process, so that a busy machine does not count. The time from
submission to bound with all processes is `bench/scheduler.py`.

Figures `scheduler.decision.us.N` are one decision outside a batch: a replica whose equivalence
class is known, on a fleet that changed a little since the last decision, with the placement
assumed. The peer evaluates the rules in `model/` node by node, as explain does for one node;
it is measured on 500 nodes and multiplied, since it takes a second at 50,000.
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from typing import Any

import msgspec

from bench.harness import figure, load
from bench.played import Played
from holdfast.model.kinds.node import Node, NodeDrain, NodeSpec
from holdfast.model.kinds.placement import Affinity, Placement, Spread, Topology
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Resources, Template, TemplateMeta
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.selection.selectors import LabelSelector
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.observe.snapshot import ObjectTable
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import BindReplica
from holdfast.propose.feasibility.unschedulable import candidate_at
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import first_refusal
from holdfast.propose.fleet_snapshot import FleetSnapshot, snapshot_of
from holdfast.propose.node_choice import salt_of
from holdfast.propose.topology.topology_counts import traits_of

SIZES = (500, 5_000, 20_000, 50_000)
NOW = Instant(1_000, 1_800_000_000_000)
TENANT = Tenant(ObjectMeta(name="acme"))
ZONES = 9


def view_of(nodes: int) -> FleetSnapshot:
    """A fleet of nodes of four sizes, in nine zones of three regions."""
    fleet = Fleet()
    for index in range(nodes):
        zone = index % ZONES
        spec = NodeSpec(
            region=f"r{zone % 3}",
            zone=f"z{zone}",
            capacity={"cpu": str(16 << index % 4), "memory": f"{64 << index % 4}Gi"},
        )
        meta = ObjectMeta(name=f"node-{index}", uid=f"n{index}", labels={"rack": f"k{index % 40}"})
        fleet.notice(ObjectChange("nodes", None, Node(meta, spec=spec)))
    return FleetSnapshot(ObjectTable({"tenants": [TENANT]}), fleet=fleet)


def template_of(sort: int = 0, **placement: Any) -> Template:
    resources = Resources(cpu=f"{100 + sort}m", memory="256Mi")
    labels = TemplateMeta(labels={"app": f"web-{sort}"})
    return Template(metadata=labels, resources=resources, placement=Placement(**placement))


def replicas_of(template: Template, count: int, workload: str = "web") -> list[Replica]:
    spec = ReplicaSpec(workload=workload, workload_uid=workload, template=template)
    labels = template.metadata.labels
    return [
        Replica(
            ObjectMeta(
                name=f"{workload}-{n}-0", namespace="acme", uid=f"{workload}/{n}", labels=labels
            ),
            spec=spec,
        )
        for n in range(count)
    ]


def assume(view: FleetSnapshot, replica: Replica, proposal: BindReplica) -> None:
    key, uid = (replica.namespace, replica.name), replica.metadata.uid
    view.fleet.assume(uid, key, proposal.node, proposal.held, 0, traits_of(replica))


def decided(
    view: FleetSnapshot, replica: Replica, rng: random.Random, verdict_cache: VerdictCache
) -> None:
    (proposal,) = propose(view, [replica], NOW, salt_of(rng), verdict_cache)
    if not isinstance(proposal, BindReplica):
        raise RuntimeError(f"no node: {proposal}")
    assume(view, replica, proposal)


def one_by_one(nodes: int, waiting: list[Replica]) -> float:
    """The median seconds for one of these, decided and assumed in turn."""
    view, verdict_cache, rng = view_of(nodes), VerdictCache(), random.Random(1)
    decided(view, replicas_of(waiting[0].spec.template, 1, "first")[0], rng, verdict_cache)
    took = []
    for replica in waiting:
        began = time.process_time()
        decided(view, replica, rng, verdict_cache)
        took.append(time.process_time() - began)
    return sorted(took)[len(took) // 2]


def node_by_node(nodes: int = 500) -> float:
    """Seconds per node when the rules are evaluated one by one."""
    view = view_of(nodes)
    work = view.work(replicas_of(template_of(), 1)[0])
    began = time.process_time()
    for site in view.fleet:
        first_refusal(work, candidate_at(view, site))
    return (time.process_time() - began) / nodes


def first_look(nodes: int) -> float:
    """Seconds for a decision about an equivalence class that was never seen."""
    view, rng = view_of(nodes), random.Random(1)
    best = []
    for sort in range(30):
        replica = replicas_of(template_of(sort), 1, f"w{sort}")[0]
        began = time.process_time()
        propose(view, [replica], NOW, salt_of(rng), VerdictCache())
        best.append(time.process_time() - began)
    return sorted(best)[len(best) // 2]


def decisions() -> None:
    rule_s = node_by_node()
    took: dict[int, float] = {}
    for nodes in SIZES:
        took[nodes] = one_by_one(nodes, replicas_of(template_of(), 400))
        figure(
            f"scheduler.decision.us.{nodes}",
            1e6 * took[nodes],
            "us",
            peer="the rules evaluated node by node",
            peer_value=1e6 * rule_s * nodes,
            goal="<= 100" if nodes == 5_000 else None,
            load=load(),
        )
    cold = {nodes: first_look(nodes) for nodes in (5_000, 50_000)}
    for nodes, seconds in cold.items():
        figure(
            f"scheduler.first_look.us.{nodes}",
            1e6 * seconds,
            "us",
            peer="the rules evaluated node by node",
            peer_value=1e6 * rule_s * nodes,
        )
    for name, of in (("decision", took), ("first_look", cold)):
        growth = of[50_000] / of[5_000]
        figure(
            f"scheduler.{name}.growth_50k_5k",
            growth,
            "times",
            peer="ten times the nodes",
            peer_value=10.0,
            goal="<= 8",
            load=load(),
        )


def batches(nodes: int = 5_000, count: int = 1_000) -> None:
    """A thousand equal replicas, by the constraints between them."""
    own = LabelSelector(match_labels={"app": "web-0"})
    sorts: dict[str, tuple[dict[str, Any], int]] = {
        "basic": ({}, 5),
        "spread": ({"spread": (Spread(over=Topology.ZONE, required=True),)}, 30),
        "apart": ({"anti_affinity": (Affinity(selector=own, within=Topology.NODE),)}, 30),
        "spread_nodes": ({"spread": (Spread(over=Topology.NODE, required=True),)}, 30),
    }
    for name, (placement, goal_ms) in sorts.items():
        best_s = float("inf")
        view, verdict_cache = view_of(nodes), VerdictCache()
        waiting = replicas_of(template_of(**placement), count)
        # What a scheduler knows of a workload after the first of its replicas.
        propose(view, [waiting[0]], NOW, 1, verdict_cache)[0]
        salt = salt_of(random.Random(1))
        for _ in range(7):
            began = time.process_time()
            found = propose(view, waiting, NOW, salt, verdict_cache)
            best_s = min(best_s, time.process_time() - began)
            if len(found) != count or not isinstance(found[-1], BindReplica):
                raise RuntimeError(f"{name}: only {len(found)} of {count} were placed")
        figure(
            f"scheduler.batch.ms.{name}",
            1e3 * best_s,
            "ms",
            peer="one by one at 100 us each",
            peer_value=0.1 * count,
            goal=f"<= {goal_ms}",
        )


def mixed(nodes: int = 5_000, sorts: int = 500, rounds: int = 10) -> None:
    """Five hundred templates in turn: each decision is about another template than the last."""
    view, verdict_cache, rng = view_of(nodes), VerdictCache(), random.Random(1)
    each = [replicas_of(template_of(sort), rounds + 1, f"w{sort}") for sort in range(sorts)]
    for waiting in each:
        decided(view, waiting[rounds], rng, verdict_cache)
    began = time.process_time()
    for turn in range(rounds):
        for waiting in each:
            decided(view, waiting[turn], rng, verdict_cache)
    rate = sorts * rounds / (time.process_time() - began)
    figure(
        "scheduler.mixed.decisions_per_s",
        rate,
        "1/s",
        peer="a full evaluation of all nodes each time",
        peer_value=1.0 / first_look(nodes),
        goal=">= 5000",
    )


def memory(nodes: int = 5_000, replicas: int = 20_000) -> None:
    """The memory of the snapshot, in addition to the objects that the cache has anyway."""
    tracemalloc.start()
    view = view_of(nodes)
    with_nodes, _ = tracemalloc.get_traced_memory()
    verdict_cache, rng = VerdictCache(), random.Random(1)
    waiting = replicas_of(template_of(), replicas)
    before, _ = tracemalloc.get_traced_memory()
    for start in range(0, replicas, 1_000):
        run = waiting[start : start + 1_000]
        for replica, found in zip(
            run, propose(view, run, NOW, salt_of(rng), verdict_cache), strict=True
        ):
            if isinstance(found, BindReplica):
                assume(view, replica, found)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sys.getsizeof(object())
    figure(
        "scheduler.memory.bytes_per_node",
        with_nodes / nodes,
        "bytes",
        peer="an empty object",
        peer_value=size,
        note="with the node itself",
    )
    figure(
        "scheduler.memory.bytes_per_assumption",
        (after - before) / replicas,
        "bytes",
        peer="an empty object",
        peer_value=size,
    )


def machine(nodes: int = 5_000, count: int = 10_000) -> None:
    """A whole scheduler, from the event of a replica to the event of its binding."""
    view = view_of(nodes)
    listed = [site.node for site in view.fleet if site.node is not None]
    own = LabelSelector(match_labels={"app": "web-0"})
    shapes: dict[str, list[Template]] = {
        "basic": [template_of()],
        "mixed": [template_of(sort) for sort in range(100)],
        "spread": [template_of(spread=(Spread(over=Topology.ZONE, required=True),))],
        "apart": [template_of(anti_affinity=(Affinity(selector=own, within=Topology.NODE),))],
    }
    for name, templates in shapes.items():
        plane = Played(listed, ["acme"])
        each = count // len(templates) if name != "apart" else min(count, nodes // 2)
        waiting = [
            replica
            for number, template in enumerate(templates)
            for replica in replicas_of(template, each, f"w{number}")
        ]
        random.Random(1).shuffle(waiting)
        plane.spent_s = 0.0
        for start in range(0, len(waiting), 500):
            plane.submit(waiting[start : start + 500])
            plane.settle()
        if plane.binds != len(waiting):
            raise RuntimeError(f"{name}: {plane.binds} of {len(waiting)} were bound")
        figure(
            f"scheduler.machine.binds_per_cpu_s.{name}",
            plane.binds / plane.spent_s,
            "1/s",
            peer="what 5,000 binds a second leave it of one core",
            peer_value=5_000.0,
            goal=">= 5000" if name == "basic" else None,
        )


def hypothetical(nodes: int = 5_000, replicas: int = 20_000) -> None:
    """A copy of the snapshot with one node drained, beside the snapshot built anew."""
    view = view_of(nodes)
    waiting = replicas_of(template_of(), replicas)
    running = []
    for start in range(0, replicas, 1_000):
        run = waiting[start : start + 1_000]
        for replica, found in zip(run, propose(view, run, NOW, start, VerdictCache()), strict=True):
            if isinstance(found, BindReplica):
                assume(view, replica, found)
                binding = Binding(found.node, found.node_uid, charge=found.held.charge)
                status = ReplicaStatus(state=State.RUNNING, binding=binding)
                running.append(msgspec.structs.replace(replica, status=status))
    listed = [site.node for site in view.fleet if site.node is not None]
    objects: dict[str, list[Any]] = {"tenants": [TENANT], "nodes": listed, "replicas": running}
    drained = msgspec.structs.replace(
        listed[0], spec=msgspec.structs.replace(listed[0].spec, drain=NodeDrain(reason="what if"))
    )
    anew, copied = [], []
    for _ in range(5):
        began = time.process_time()
        origin = snapshot_of(objects)
        anew.append(time.process_time() - began)
        began = time.process_time()
        origin.with_objects(drained)
        copied.append(time.process_time() - began)
    figure(
        "scheduler.hypothesis.ms",
        1e3 * min(copied),
        "ms",
        peer=f"the snapshot of {nodes} nodes and {len(running)} replicas built anew",
        peer_value=1e3 * min(anew),
        load=load(),
    )


def main() -> None:
    decisions()
    hypothetical()
    batches()
    mixed()
    machine()
    memory()


if __name__ == "__main__":
    main()
