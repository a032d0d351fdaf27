"""The controllers at work: convergence, idle writes, recovery, and false suspicion of many nodes.

The server on SQLite, the scheduler and the controllers are separate processes over TLS. The nodes
are hollow (`bench/hollow`), many in one process, which shares the cores with all others and with
this generator. Times run from just before a request, or a kill, until a watch has reported
everything that follows from it.

HOLDFAST_BENCH_PARTS names what to measure (converge,idle,recover,suspects);
HOLDFAST_BENCH_SHORT=1 is a quick look: a fifth of everything, and a short fence.
HOLDFAST_BENCH_SECONDS is how long the many nodes are watched.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.control_plane import Hollow, Log, Observed, Spent
from bench.harness import figure, load
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.workload import Workload
from holdfast.model.nodes.fence import FenceTiming
from tests.live.plane_process import workload
from tests.live.whole_plane import FENCE, WholePlane

IS_SHORT = bool(os.environ.get("HOLDFAST_BENCH_SHORT"))
PARTS = ("converge", "idle", "recover", "suspects")
NODES, REPLICAS = (10, 200) if IS_SHORT else (50, 1_000)
CROWD, CROWD_SECONDS = (400, "60") if IS_SHORT else (2_000, "600")
CROWD_S = float(os.environ.get("HOLDFAST_BENCH_SECONDS", CROWD_SECONDS))
IDLE_S = 20.0 if IS_SHORT else 60.0
# After the last replica serves: by then, delayed writes of counts and ages are done.
SETTLE_S = 5.0
PATIENCE_S = 120.0
FENCE_PATIENCE_S = 240.0
# About ten milliseconds of CPU for each node in all processes, on a machine with other users.
JOIN_PATIENCE_S = 600.0
# The nodes start spread over this time, as the nodes of a real plane renew.
CROWD_START_S = 20.0
# The node that is lost runs in its own process.
DOOMED = "doomed"
LEASES = ("objects/leases", "epochs/")


def service(name: str, replicas: int) -> Workload:
    template: dict[str, Any] = {
        "command": ["sleep", "600"],
        "ports": [{"name": "http"}],
        "resources": {"cpu": "100m", "memory": "16Mi"},
        "graceSeconds": 0,
    }
    return workload(name, replicas=replicas, template=template)


async def converge(plane: WholePlane, observed: Observed, hollows: list[Hollow]) -> None:
    """From apply until all are ready, on a plane that knows its nodes."""
    spent, log, busy = Spent(plane, hollows), Log(plane), load()
    began = time.perf_counter()
    await plane.client.apply(service("web", REPLICAS), manager="bench")
    ready_at = await observed.until(lambda: len(observed.ready) == REPLICAS, PATIENCE_S)
    cpu = spent.cpu()
    serving_at = await observed.until(lambda: len(observed.serving) == REPLICAS, PATIENCE_S)
    writes = log.writes()
    figure(
        "control.converge_s",
        ready_at - began,
        "s",
        peer="the CPU seconds of all parts, on as many cores as there are",
        peer_value=sum(cpu.values()) / (os.cpu_count() or 1),
        goal="<= 30",
        durability="power",
        replicas=REPLICAS,
        nodes=NODES,
        serving_s=round(serving_at - began, 2),
        cpu_s=cpu,
        cpu_ms_each={name: round(1e3 * it / REPLICAS, 2) for name, it in cpu.items()},
        writes=dict(writes),
        transactions=log.transactions(),
        load=busy,
    )


async def idle(plane: WholePlane, hollows: list[Hollow]) -> None:
    """When nothing happens, the only writes are renewals of leases."""
    await asyncio.sleep(SETTLE_S)
    spent, log = Spent(plane, hollows), Log(plane)
    await asyncio.sleep(IDLE_S)
    writes = log.writes()
    renewals = sum(count for kind, count in writes.items() if kind.startswith(LEASES))
    others = {kind: it for kind, it in writes.items() if not kind.startswith(LEASES)}
    figure(
        "control.idle_writes_per_min",
        sum(others.values()) * 60 / IDLE_S,
        "1/min",
        peer="renewals of leases",
        peer_value=renewals * 60 / IDLE_S,
        goal="<= 0",
        durability="power",
        replicas=REPLICAS,
        nodes=NODES,
        others=others,
        cpu_per_cent=spent.cpu_per_cent(),
        load=load(),
    )


async def recover(
    plane: WholePlane, observed: Observed, hollows: list[Hollow], timing: FenceTiming
) -> None:
    """One node loses its power; its work is ready elsewhere soon after the fence permits it."""
    lost, there = hollows[-1], f"{DOOMED}0"
    moved = observed.on(there)
    spent = Spent(plane, hollows[:-1])
    began = time.perf_counter()
    lost.kill()
    fenced_at = await observed.until(
        lambda: observed.phases.get(there) is NodePhase.FENCED, FENCE_PATIENCE_S
    )
    cpu_before = spent.cpu()
    after = Spent(plane, hollows[:-1])
    ready_at = await observed.until(
        lambda: observed.on(there) == 0 and len(observed.ready) == REPLICAS, PATIENCE_S
    )
    fence_s = fenced_at - began
    figure(
        "control.recover_s",
        ready_at - began,
        "s",
        peer="until the node was fenced",
        peer_value=fence_s,
        goal=f"<= {fence_s + 5:.1f}",
        durability="power",
        after_fence_s=round(ready_at - fenced_at, 2),
        marked_s=round(observed.seen_at[there, NodePhase.UNKNOWN] - began, 2),
        fence_after_s=timing.fence_after_ms / 1_000,
        moved=moved,
        cpu_s_until_fence=cpu_before,
        cpu_s_after_fence=after.cpu(),
        load=load(),
    )


async def controlled(folder: Path, parts: list[str]) -> None:
    """The figures of a plane with fifty nodes."""
    fence = FENCE if IS_SHORT else ()
    timing = FenceTiming()
    if IS_SHORT:
        timing = FenceTiming(1_000, 6_000, 1_000, 1_000, fence_after_ms=10_004)
    async with WholePlane(folder, (), fence=fence) as plane, Observed(plane) as observed:
        hollows = [
            Hollow(plane, "hollow-many", "--count", str(NODES - 1)),
            Hollow(plane, "hollow-one", "--count", "1", "--prefix", DOOMED),
        ]
        try:
            for it in hollows:
                await it.ready(PATIENCE_S)
            await observed.until(lambda: len(observed.phases) == NODES, PATIENCE_S)
            await asyncio.sleep(SETTLE_S)
            await converge(plane, observed, hollows)
            if "idle" in parts:
                await idle(plane, hollows)
            if "recover" in parts:
                await recover(plane, observed, hollows, timing)
        finally:
            for it in hollows:
                it.kill()


async def crowded(folder: Path) -> None:
    """Many nodes renew, and none of them may ever be considered silent."""
    async with WholePlane(folder, (), fence=()) as plane, Observed(plane) as observed:
        pause_ms = str(round(1_000 * CROWD_START_S / CROWD))
        began = time.perf_counter()
        hollows = [Hollow(plane, "hollow", "--count", str(CROWD), "--pause-ms", pause_ms)]
        try:
            try:
                await hollows[0].ready(JOIN_PATIENCE_S)
            except TimeoutError:
                known, doubts = len(observed.phases), len(observed.doubts)
                raise SystemExit(
                    f"control.false_suspects: no figure, only {known} of {CROWD} nodes joined in "
                    f"{JOIN_PATIENCE_S:.0f} s, with {doubts} doubts, at a load of {load()}"
                ) from None
            joined_s = time.perf_counter() - began
            await observed.until(lambda: len(observed.phases) == CROWD, PATIENCE_S)
            early = len(observed.doubts)
            await asyncio.sleep(SETTLE_S)
            spent, log = Spent(plane, hollows), Log(plane)
            await asyncio.sleep(CROWD_S)
            seconds = FenceTiming().renew_every_ms / 1_000
            figure(
                "control.false_suspects",
                len(observed.doubts),
                f"in {CROWD_S:.0f} s",
                peer="renewals, each of which might have been missed",
                peer_value=CROWD * CROWD_S / seconds,
                goal="<= 0",
                agents=CROWD,
                while_joining=early,
                joined_s=round(joined_s, 1),
                cpu_per_cent=spent.cpu_per_cent(),
                server_rss_mb=spent.rss_mb("server-1"),
                controllers_rss_mb=spent.rss_mb("controllers"),
                writes=dict(log.writes()),
                load=load(),
            )
        finally:
            hollows[0].kill()


def main() -> None:
    """Print every figure."""
    parts = os.environ.get("HOLDFAST_BENCH_PARTS", ",".join(PARTS)).split(",")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for it in ("few", "many"):
            Path(name, it).mkdir()
        if set(parts) - {"suspects"}:
            asyncio.run(controlled(Path(name, "few"), parts))
        if "suspects" in parts:
            asyncio.run(crowded(Path(name, "many")))


if __name__ == "__main__":
    main()
