"""Quotas, borrowing and priority in real time: the load that Kueue's own scheduler test publishes.

Cohorts of queues submit jobs of one replica each, of three classes, at stated intervals. Only the
limits of the quotas hold work back: a few large nodes have room for everything. A queue is a tenant
with a quota of its cohort, a class of work is a priority class. The plane is whole: a server on
SQLite, which syncs each commit, a scheduler and the controllers of workloads and status as
processes. The agents of the nodes are one process that starts nothing: it reports each replica as
running, after the stated time as succeeded, and then as released.

`kueue.wall_s` counts from the first submission to the last success; its peer is Kueue's published
run. `kueue.admission_s` is the mean time from the submission of a job to its bind, which a watch
shows. In Kueue a job of a higher class may stop lower ones of its own queue. Here classes only
order what waits, since committed work inside its own quota is never stopped.

HOLDFAST_BENCH_DATA names a directory with a folder `kueue` that holds the load.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import aiohttp
import msgspec

from bench.api_rig import GROUP, document
from bench.contention.preemption import loop_s
from bench.harness import figure
from bench.http_load import Connection, request
from bench.scheduling.plane import Rig
from bench.scheduling.shapes import Shape
from holdfast.host.client.list_watch import Listed, follow
from holdfast.host.server import forwarding
from holdfast.model.access import identity as who
from holdfast.model.errors import invariant
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.requests import Accepted, Forward, Move, target
from holdfast.observe.watch_events import Present

GOAL_S = 90
NODES = 4
# Room for everything that the quotas allow at once, on each node.
NODE = {"cpu": "2000", "memory": "4Ti", "replicas": "10000"}
USERS = 16
TOGETHER_MAX = 256
PATIENCE_S = 600.0
TOO_MANY, RETRY_S = 429, 1.0


class Class(msgspec.Struct, frozen=True):
    """One class of jobs, as the file states it."""

    name: str
    per_queue: int
    interval_ms: int
    runtime_ms: int
    priority: int
    request: int


class Load(msgspec.Struct, frozen=True):
    """The load of the file."""

    source: str
    cohorts: int
    queues_per_cohort: int
    nominal_quota: int
    borrowing_limit: int
    classes: tuple[Class, ...]
    total_workloads: int
    published_average_of_5_runs: dict[str, float | dict[str, float]]

    def queues(self) -> Iterator[tuple[str, str]]:
        """Each queue with its cohort."""
        for cohort in range(self.cohorts):
            for number in range(self.queues_per_cohort):
                yield f"queue-{cohort}-{number}", f"cohort-{cohort}"

    @property
    def alone_s(self) -> float:
        """How long the work of a cohort takes if its whole quota is always in use."""
        unit_ms = sum(it.per_queue * it.request * it.runtime_ms for it in self.classes)
        return unit_ms / self.nominal_quota / 1_000


class Agents:
    """The agents of all nodes, as one process that starts nothing."""

    def __init__(self, rig: Rig, runtime_s: dict[str, float], total: int) -> None:
        self._rig, self._runtime_s, self._total = rig, runtime_s, total
        self._moves: asyncio.Queue[Forward] = asyncio.Queue()
        self._epoch = 0
        self._bound: set[str] = set()
        # When the replica of each job was seen to be bound.
        self.admitted: dict[str, float] = {}
        self._running: set[str] = set()
        self._ended: set[str] = set()
        self.last_end = 0.0
        self.complete = asyncio.Event()

    async def run(self) -> None:
        self._epoch = await self._rig.epoch()
        await asyncio.gather(self._follow(), self._send(), self._send())

    async def _follow(self) -> None:
        async with self._rig.server.client() as client:
            async for event in follow(client, Replica, ""):
                match event:
                    case Listed(objects=objects):
                        for it in objects:
                            self._take(it)
                    case Present(object=replica):
                        self._take(replica)

    def _take(self, replica: Replica) -> None:
        now, uid = time.perf_counter(), replica.metadata.uid
        match replica.status.state:
            case State.BOUND if uid not in self._bound:
                self._bound.add(uid)
                self.admitted[f"{replica.namespace}/{replica.spec.workload}"] = now
                self._move(replica, State.RUNNING, "Started")
            case State.RUNNING if uid not in self._running:
                self._running.add(uid)
                runs_s = self._runtime_s[replica.spec.template.priority_class]
                asyncio.get_running_loop().call_later(runs_s, self._end, replica)
            case State.SUCCEEDED if uid not in self._ended:
                self._ended.add(uid)
                self.last_end = now
                self._move(replica, State.RELEASED, "Stopped")
                if len(self._ended) == self._total:
                    self.complete.set()

    def _end(self, replica: Replica) -> None:
        self._move(replica, State.SUCCEEDED, "Exited")

    def _move(self, replica: Replica, to: State, reason: str) -> None:
        binding = replica.status.binding
        invariant(binding is not None, f"{replica.name} is bound")
        node = binding.node if binding is not None else ""
        move = Move(target(replica), to, reason, incarnation=1)
        self._moves.put_nowait(Forward(who.agent(node), move, self._epoch))

    async def _send(self) -> None:
        """Forward reports, as many at once as wait."""
        address = f"{self._rig.server.url}{forwarding.PATH}"
        connector = aiohttp.TCPConnector(ssl=self._rig.tls(who.server("bench").name))
        async with aiohttp.ClientSession(connector=connector) as session:
            while True:
                some = [await self._moves.get()]
                while not self._moves.empty() and len(some) < TOGETHER_MAX:
                    some.append(self._moves.get_nowait())
                body = b"".join(map(forwarding.encode_forward, some))
                async with session.post(address, data=body) as answer:
                    invariant(answer.status == 200, f"{answer.status}: {await answer.text()}")
                    verdicts = (await answer.read()).splitlines()
                for verdict in map(forwarding.decode_verdict, verdicts):
                    invariant(isinstance(verdict, Accepted), f"a report was refused: {verdict}")


async def furnish(rig: Rig, load: Load) -> None:
    """Tenants with their quotas, the classes, and the nodes."""
    admin = await rig.line()
    for it in load.classes:
        body = document("PriorityClass", it.name, spec={"value": it.priority})
        await rig.ask(admin, f"{GROUP}/priorityclasses", body)
    spec = {
        "hard": {"cpu": str(load.nominal_quota)},
        "borrowing": {"cpu": str(load.borrowing_limit)},
    }
    for queue, cohort in load.queues():
        await rig.ask(admin, f"{GROUP}/tenants", document("Tenant", queue))
        quota = document("Quota", "default", spec={**spec, "cohort": cohort})
        await rig.ask(admin, f"{GROUP}/namespaces/{queue}/quotas", quota)
    await rig.fill(Shape("kueue", NODES, NODE, ("zone1",), 0, {}, 0, ()))


def submissions(load: Load) -> list[tuple[float, str, bytes]]:
    """When each job is submitted, its name with its class, and the request."""
    found: list[tuple[float, str, bytes]] = []
    for it in load.classes:
        template = {
            "command": ["true"],
            "resources": {"cpu": str(it.request)},
            "priorityClass": it.name,
            "restart": "Never",
        }
        for number in range(it.per_queue):
            name = f"{it.name}-{number}"
            spec = {"type": "Job", "replicas": 1, "template": template}
            body = msgspec.json.encode(document("Workload", name, spec=spec))
            for queue, _ in load.queues():
                path = f"{GROUP}/namespaces/{queue}/workloads"
                at_s = number * it.interval_ms / 1_000
                found.append((at_s, f"{queue}/{name}", request("POST", path, body)))
    return sorted(found)


async def submit(rig: Rig, wanted: list[tuple[float, str, bytes]]) -> dict[str, float]:
    """Submit each job at its time, over some connections; when each was submitted."""
    sent: dict[str, float] = {}
    began = time.perf_counter()
    left = iter(wanted)

    async def user(line: Connection) -> None:
        for at_s, name, body in left:
            await asyncio.sleep(max(0.0, began + at_s - time.perf_counter()))
            sent[name] = time.perf_counter()
            code, answer = await line.ask(body)
            while code == TOO_MANY:
                # As a client does when the server asks it to come back.
                await asyncio.sleep(RETRY_S * (0.5 + random.random()))
                code, answer = await line.ask(body)
            invariant(code == 201, f"{name}: {code} {answer[:300]!r}")

    await asyncio.gather(*[user(await rig.line()) for _ in range(USERS)])
    return sent


async def play(folder: Path, load: Load) -> tuple[float, dict[str, float]]:
    """The seconds of the whole run, and the mean time to admission of each class."""
    async with Rig(folder) as rig:
        await furnish(rig, load)
        await rig.component("scheduler", "holdfast.host", "scheduler")
        await rig.component("controllers", "bench.scheduling.parts", "controllers")
        wanted = submissions(load)
        agents = Agents(rig, {it.name: it.runtime_ms / 1_000 for it in load.classes}, len(wanted))
        task = asyncio.create_task(agents.run())
        try:
            sent = await submit(rig, wanted)
            async with asyncio.timeout(PATIENCE_S):
                await agents.complete.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    waits: dict[str, list[float]] = {it.name: [] for it in load.classes}
    for name, at in agents.admitted.items():
        waits[name.partition("/")[2].partition("-")[0]].append(at - sent[name])
    return agents.last_end - min(sent.values()), {it: mean(found) for it, found in waits.items()}


def main() -> None:
    where = os.environ.get("HOLDFAST_BENCH_DATA", "")
    path = Path(where) / "kueue" / "baseline.json"
    if not where or not path.is_file():
        sys.exit(
            "HOLDFAST_BENCH_DATA names no directory with kueue/baseline.json. The load was "
            "published with Kueue: kubernetes-sigs/kueue, "
            "test/performance/scheduler/configs/baseline."
        )
    load = msgspec.json.decode(path.read_bytes(), type=Load)
    took_s = loop_s()
    with tempfile.TemporaryDirectory() as folder:
        wall_s, waits = asyncio.run(play(Path(folder), load))
    published = load.published_average_of_5_runs
    figure(
        "kueue.wall_s",
        wall_s,
        "s",
        peer="Kueue, as published",
        peer_value=float(published["wall_ms"]) / 1_000,  # type: ignore[arg-type]
        goal=f"<= {GOAL_S}",
        durability="power",
        jobs=load.total_workloads,
        alone_s=load.alone_s,
        loop_s=round(took_s, 3),
    )
    admission: dict[str, float] = published["avg_time_to_admission_ms"]  # type: ignore[assignment]
    for it in load.classes:
        figure(
            f"kueue.admission_s.{it.name}",
            waits[it.name],
            "s",
            peer="Kueue, as published",
            peer_value=admission[it.name] / 1_000,
        )


if __name__ == "__main__":
    main()
