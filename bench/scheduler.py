"""From submission to bound: the shapes of scheduler_perf on a whole plane with all its processes.

A server (TLS, SQLite with a sync for each commit), a scheduler, controllers and the generator share
the cores of this machine. Creating the replicas is part of the time. Each shape is measured twice:
as one Workload that the controller expands (`workloads`, which the goal is for), and as batches of
replicas that the generator creates in place of the controller (`births`). Nodes are hollow: they
send nothing after their registration, so of the controllers only those of workloads and of their
status run. The peer is kube-scheduler as quoted in the file of shapes, whose pods were created as
`births` are.

HOLDFAST_BENCH_DATA names the folder with the shapes. HOLDFAST_BENCH_SHAPES, if set, says which of
them to run, such as `basic-500,idle`, or `basic-500:births` for one way only: half a minute each.

Each figure shows the load of the machine, the microseconds of processor time that each process used
for a replica, and as `allowed` how many binds per second this would permit on two cores without
other load. On a busy machine that is the figure to look at; `queued` is how many of our processes
waited for a core on average. On an idle machine, the difference between the two rates is time in
which all processes waited for events.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from bench import decisions
from bench.harness import figure, load
from bench.scheduling.measuring import WAYS, Run, idle_delays, measure
from bench.scheduling.plane import Rig
from bench.scheduling.shapes import Book, Shape, book
from bench.scheduling.spending import rss_mb
from tests.etcd_cluster import EtcdCluster

# Bound replicas per second.
GOALS = {
    "basic-500": 3_500,
    "basic-5000": 2_500,
    "node-affinity-5000": 1_800,
    "spread-5000": 900,
    "spread-soft-5000": 900,
    "anti-affinity-5000": 950,
    "unschedulable-5000": 2_100,
    "mixed-5000": 1_500,
}
# At 500 nodes the shape's own thousand replicas are over before the processes are warm. With those
# that exist before, this is as many as the nodes can hold.
BASIC_500_MEASURED = 19_500
ETCD_GOAL = 1_000
IDLE_GOAL_MS = 20
IDLE_COUNT = 300
RSS_GOAL_MB = 2_000
RSS_REPLICAS = 150_000
# The scheduler reads the nodes and takes its lease meanwhile.
SETTLE_S = 4.0
REAL = ("holdfast.host", "scheduler")
BLIND = ("bench.scheduling.parts", "blind")


async def brains(rig: Rig, way: str, scheduler: tuple[str, ...] = REAL) -> None:
    """The processes beside the server."""
    if way == "workloads":
        await rig.component("controllers", "bench.scheduling.parts", "controllers")
    await rig.component("scheduler", *scheduler)
    await asyncio.sleep(SETTLE_S)


async def run(
    folder: Path,
    shape: Shape,
    way: str,
    *options: str,
    scheduler: tuple[str, ...] = REAL,
    beside: Mapping[str, int] = MappingProxyType({}),
) -> Run:
    """One shape on a new plane. `beside` are processes whose time counts too."""
    async with Rig(folder, *options, beside=beside) as rig:
        await rig.fill(shape)
        await brains(rig, way, scheduler)
        return await measure(rig, shape, way)


def show(name: str, ran: Run, shape: Shape, book_: Book, goal: int | None, way: str) -> None:
    """The figure of one run."""
    figure(
        name,
        ran.rate,
        "bound/s",
        peer=book_.source,
        peer_value=shape.peer,
        goal=f">= {goal}" if goal is not None else None,
        durability="power",
        way=way,
        nodes=shape.nodes,
        measured=shape.measured,
        templates=len(shape.templates),
        p50_ms=ran.p50_ms,
        p99_ms=ran.p99_ms,
        **_spent(ran),
    )


def _spent(ran: Run) -> dict[str, Any]:
    """What the figure cost, and how busy the machine was."""
    return {
        "allowed": round(ran.allowed),
        "cpu_us_each": ran.cpu_us,
        "watches_dropped": ran.dropped,
        "queued": ran.queued,
        "load": ran.load,
    }


async def rates(folder: Path, book_: Book, name: str, ways: tuple[str, ...] = WAYS) -> None:
    """One shape, by both ways or one."""
    shape = _shape(book_, name)
    for way in ways:
        ran = await run(folder / f"{name}-{way}", shape, way)
        suffix = "" if way == WAYS[0] else f".{way}"
        show(f"scheduler.{name}.rate{suffix}", ran, shape, book_, GOALS[name], way)


def _shape(book_: Book, name: str) -> Shape:
    if name == "mixed-5000":
        return book_.mixed()
    return book_.shape(name, measured=BASIC_500_MEASURED if name == "basic-500" else 0)


async def undecided(folder: Path, book_: Book) -> None:
    """The same plane with a scheduler that takes nodes in turn: the bound without deciding."""
    shape = book_.shape("basic-5000")
    for way in WAYS:
        ran = await run(folder / f"blind-{way}", shape, way, scheduler=BLIND)
        show(f"scheduler.undecided.{way}", ran, shape, book_, None, way)


async def idle(folder: Path, book_: Book) -> None:
    """One replica at a time on an idle plane."""
    shape = book_.shape("basic-5000", measured=IDLE_COUNT)
    async with Rig(folder / "idle") as rig:
        await rig.fill(shape)
        await brains(rig, "births")
        ran, undisturbed_ms = await idle_delays(rig, shape)
    figure(
        "scheduler.idle.p99_ms",
        ran.p99_ms,
        "ms",
        peer="the median of the same run",
        peer_value=ran.p50_ms,
        goal=f"<= {IDLE_GOAL_MS}",
        durability="power",
        nodes=shape.nodes,
        p99_without_queueing_ms=round(undisturbed_ms, 1),
        cpu_us_each=ran.cpu_us,
        queued=ran.queued,
        load=ran.load,
    )


async def on_etcd(folder: Path, book_: Book) -> None:
    """One etcd with a sync for each commit in place of SQLite."""
    shape = book_.shape("basic-5000")
    with EtcdCluster(folder / "etcd") as cluster:
        store = "etcd://" + ",".join(cluster.endpoints)
        members = [it.process for it in cluster.members if it.process is not None]
        pids = {f"etcd-{number}": process.pid for number, process in enumerate(members)}
        ran = await run(folder / "on-etcd", shape, WAYS[0], "--store", store, beside=pids)
    show("scheduler.etcd.basic-5000.rate", ran, shape, book_, ETCD_GOAL, WAYS[0])


async def memory(folder: Path, book_: Book) -> None:
    """A full plane: server and scheduler together."""
    shape = book_.shape("basic-5000", measured=1)
    full = msgspec.structs.replace(shape, initial=RSS_REPLICAS)
    async with Rig(folder / "full") as rig:
        empty = rss_mb(rig.pids()["server"])
        await rig.fill(full)
        await brains(rig, "births")
        await measure(rig, full, "births")
        used = {name: rss_mb(pid) for name, pid in rig.pids().items()}
    figure(
        "scheduler.rss_mb",
        sum(used.values()),
        "MB",
        peer="the server at its start",
        peer_value=empty,
        goal=f"<= {RSS_GOAL_MB}",
        nodes=full.nodes,
        replicas=RSS_REPLICAS,
        each={name: round(mb) for name, mb in used.items()},
        load=load(),
    )


async def deciding(folder: Path, book_: Book) -> None:
    """The scheduler's decisions alone, in this process."""
    decisions.decisions()


EXTRAS = {
    "undecided": undecided,
    "idle": idle,
    "etcd": on_etcd,
    "decision": deciding,
    "rss": memory,
}


async def end_to_end(folder: Path, book_: Book) -> None:
    """Measure everything, or what was chosen."""
    everything = (*GOALS, *EXTRAS)
    chosen = os.environ.get("HOLDFAST_BENCH_SHAPES", ",".join(everything)).split(",")
    wanted = [name.partition(":") for name in chosen]
    for name, _, way in wanted:
        if name not in everything or way not in ("", *WAYS) or (way and name in EXTRAS):
            sys.exit(f"unknown shape {name}{way and ':'}{way}; there are: {', '.join(everything)}")
    for name, _, way in wanted:
        if name in EXTRAS:
            await EXTRAS[name](folder, book_)
        else:
            await rates(folder, book_, name, (way,) if way else WAYS)


def main() -> None:
    found = book()
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(end_to_end(Path(name), found))


if __name__ == "__main__":
    main()
