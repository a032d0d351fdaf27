"""Preemption at the shape of scheduler_perf: nodes full of cheap work, then work that must preempt.

`scheduler.preemption-1000.rate` is a whole plane: a server on SQLite, a scheduler as a process, and
nodes whose agents confirm each stop as soon as they see it. The rate counts from the first request
to the last bind that a watch has shown. `scheduler.preemption-1000.decisions` is the search for
victims alone, in this process: what is proposed is assumed, and nothing is sent.

The peer is kube-scheduler as quoted in the file of shapes. The time of a loop of ten million steps
stands beside it, since no two machines are alike, nor one machine on two days.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.api_rig import GROUP, document
from bench.harness import figure
from bench.scheduling.measuring import Run, measure
from bench.scheduling.plane import TENANT, Rig
from bench.scheduling.shapes import Book, Shape, book
from holdfast.host.client.list_watch import Listed, follow
from holdfast.host.server import forwarding
from holdfast.model.access import identity as who
from holdfast.model.errors import invariant
from holdfast.model.kinds.node import Node, NodePhase, NodeSpec, NodeStatus
from holdfast.model.kinds.replica import Binding, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec, Tenant
from holdfast.model.lifecycle import State
from holdfast.model.meta import ObjectMeta
from holdfast.model.placement.fit import demand_of
from holdfast.model.requests import Forward, Move, Target
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Present
from holdfast.propose.decide import propose
from holdfast.propose.feasibility.outcome import Preempt
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.fleet_snapshot import snapshot_of

NAME = "preemption-1000"
GOAL = 230
LOOP_STEPS = 10_000_000
SETTLE_S = 4.0
# Confirmations that are forwarded together; more follow in the next request.
TOGETHER_MAX = 256
CHEAP, DEAR = "cheap", "dear"
CLASSES = {
    CHEAP: PriorityClassSpec(value=-10, capacity_class=CapacityClass.RECLAIMABLE),
    DEAR: PriorityClassSpec(value=100, preempts=True),
}


def loop_s() -> float:
    """The seconds of a loop of ten million steps."""
    began, count = time.perf_counter(), 0
    while count < LOOP_STEPS:
        count += 1
    return time.perf_counter() - began


def contended(found: Shape) -> Shape:
    """The shape with its classes."""
    initial = {**found.initial_template, "priorityClass": CHEAP, "graceSeconds": 0}
    (template,) = found.templates
    return msgspec.structs.replace(
        found,
        initial_template=initial,
        templates=({**template, "priorityClass": DEAR},),
    )


# The whole plane ----------------------------------------------------------------------------------


class Confirming:
    """The agents of all nodes: each confirms the stops of its own work, through one server."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._waiting: asyncio.Queue[Replica] = asyncio.Queue()
        self.confirmed = 0

    async def run(self) -> None:
        await asyncio.gather(self._follow(), self._confirm())

    async def _follow(self) -> None:
        async with self._rig.server.client() as client:
            async for event in follow(client, Replica, TENANT):
                match event:
                    case Listed(objects=objects):
                        for it in objects:
                            self._take(it)
                    case Present(object=replica):
                        self._take(replica)

    def _take(self, replica: Replica) -> None:
        if replica.status.state is State.STOPPING:
            self._waiting.put_nowait(replica)

    async def _confirm(self) -> None:
        address = f"{self._rig.server.url}{forwarding.PATH}"
        connector = aiohttp.TCPConnector(ssl=self._rig.tls(who.server("bench").name))
        async with aiohttp.ClientSession(connector=connector) as session:
            epoch = await self._rig.epoch()
            while True:
                some = [await self._waiting.get()]
                while not self._waiting.empty() and len(some) < TOGETHER_MAX:
                    some.append(self._waiting.get_nowait())
                body = b"".join(forwarding.encode_forward(_confirmation(it, epoch)) for it in some)
                async with session.post(address, data=body) as answer:
                    invariant(answer.status == 200, f"{answer.status}: {await answer.text()}")
                    await answer.read()
                self.confirmed += len(some)


def _confirmation(replica: Replica, epoch: int) -> Forward:
    status, binding = replica.status, replica.status.binding
    invariant(binding is not None, f"{replica.name} is bound")
    node = binding.node if binding is not None else ""
    number = status.transition_number
    target = Target(replica.namespace, replica.name, replica.metadata.uid, number)
    released = Move(target, State.RELEASED, "Stopped", incarnation=1)
    return Forward(who.agent(node), released, epoch)


async def plane_rate(folder: Path, shape: Shape) -> tuple[Run, int]:
    """The run, and how many stops were confirmed."""
    async with Rig(folder) as rig:
        admin = await rig.line()
        for name, spec in CLASSES.items():
            body = document("PriorityClass", name, spec=_spec(spec))
            await rig.ask(admin, f"{GROUP}/priorityclasses", body)
        await rig.fill(shape)
        await rig.component("scheduler", "holdfast.host", "scheduler")
        confirming = Confirming(rig)
        task = asyncio.create_task(confirming.run())
        await asyncio.sleep(SETTLE_S)
        try:
            return await measure(rig, shape, "births"), confirming.confirmed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _spec(spec: PriorityClassSpec) -> dict[str, Any]:
    return {
        "value": spec.value,
        "preempts": spec.preempts,
        "capacityClass": spec.capacity_class.value,
    }


# The decisions alone ------------------------------------------------------------------------------


def decision_rate(shape: Shape) -> float:
    """Decisions to preempt per second of processor time, each assumed before the next."""
    node = NodeSpec(region="eu", zone="eu-1", capacity={**shape.node})
    ready = NodeStatus(phase=NodePhase.READY)
    nodes = [
        Node(ObjectMeta(name=f"node-{n}", uid=f"node-{n}"), spec=node, status=ready)
        for n in range(shape.nodes)
    ]
    cheap = msgspec.convert(shape.initial_template, Template)
    dear = msgspec.convert(shape.templates[0], Template)
    running = [
        _replica("initial", n, cheap, f"node-{n % shape.nodes}") for n in range(shape.initial)
    ]
    waiting = [_replica("measured", n, dear) for n in range(shape.measured)]
    view = snapshot_of(
        {
            "tenants": [Tenant(ObjectMeta(name=TENANT))],
            "priorityclasses": [
                PriorityClass(ObjectMeta(name=name), spec=spec) for name, spec in CLASSES.items()
            ],
            "nodes": nodes,
            "replicas": [*running, *waiting],
        }
    )
    cache, rng = VerdictCache(), random.Random(1)
    began = time.process_time()
    for replica in waiting:
        (found,) = propose(view, [replica], Instant(0, 0), rng.getrandbits(32), cache)
        if not isinstance(found, Preempt):
            raise RuntimeError(f"no victims: {found}")
        view.fleet.promise(replica.metadata.uid, found.node, found.held, found.victims)
    return len(waiting) / (time.process_time() - began)


def _replica(workload: str, number: int, template: Template, node: str = "") -> Replica:
    uid = f"{workload}/{number}"
    spec = ReplicaSpec(
        workload=workload,
        workload_uid=workload,
        ordinal=number,
        template=template,
        priority=CLASSES[template.priority_class].value,
    )
    status = ReplicaStatus()
    if node:
        binding = Binding(
            node=node,
            node_uid=node,
            charge=demand_of(template).amounts,
            capacity_class=CapacityClass.RECLAIMABLE.value,
        )
        status = ReplicaStatus(state=State.RUNNING, binding=binding, transition_number=2)
    metadata = ObjectMeta(name=f"{workload}-{number}-0", namespace=TENANT, uid=uid)
    return Replica(metadata, spec=spec, status=status)


def main() -> None:
    shapes = book()
    if isinstance(shapes, str):
        sys.exit(shapes)
    _run(shapes)


def _run(shapes: Book) -> None:
    shape = contended(shapes.shape(NAME))
    took_s = loop_s()
    figure(
        f"scheduler.{NAME}.decisions",
        decision_rate(shape),
        "decisions/s",
        peer="the goal of the whole plane",
        peer_value=GOAL,
        nodes=shape.nodes,
        loop_s=round(took_s, 3),
    )
    with tempfile.TemporaryDirectory() as folder:
        ran, confirmed = asyncio.run(plane_rate(Path(folder), shape))
    figure(
        f"scheduler.{NAME}.rate",
        ran.rate,
        "bound/s",
        peer=shapes.source,
        peer_value=shape.peer,
        goal=f">= {GOAL}",
        durability="power",
        nodes=shape.nodes,
        measured=shape.measured,
        victims=confirmed,
        p50_ms=ran.p50_ms,
        p99_ms=ran.p99_ms,
        allowed=round(ran.allowed),
        cpu_us_each=ran.cpu_us,
        queued=ran.queued,
        load=ran.load,
        loop_s=round(took_s, 3),
    )


if __name__ == "__main__":
    main()
