"""Running work on real agents: submit to running, starts per second, and the cost of an idle node.

The plane is real: a server on SQLite, a scheduler, controllers and four agents as separate
processes over TLS, all on the cores of this machine together with this generator. A start counts
when a watch has reported the replica as Running. Memory is RSS from the kernel's smaps_rollup, in
which shared pages count for each process; the figure also has PSS, which divides them. CPU is the
time of the process itself, so that other users of the machine do not count.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.end_to_end import Watched
from bench.harness import figure, percentile
from bench.shim import BARE, together
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from tests.live.plane_process import workload
from tests.live.whole_plane import WholePlane

NODES = ("n1", "n2", "n3", "n4")
# Declared capacity, not that of the machine: idle work needs neither.
CAPACITY = ("--capacity", "cpu=64", "--capacity", "memory=64Gi", "--gpus", "none")
SAMPLES = 100
STARTS = 400
IDLE_S = 15.0
PAUSE_S = 0.1
WORK = ["sleep", "600"]


def service(name: str, replicas: int) -> Workload:
    template: dict[str, Any] = {
        "command": WORK,
        "resources": {"cpu": "100m", "memory": "16Mi"},
        "graceSeconds": 0,
    }
    return workload(name, replicas=replicas, template=template)


def running(watched: Watched) -> list[Replica]:
    return [it for it in watched.seen.values() if it.status.state is State.RUNNING]


async def all_run(watched: Watched, count: int) -> None:
    await watched.until(lambda: True if len(running(watched)) == count else None)


async def submit_to_running(plane: WholePlane, watched: Watched) -> list[float]:
    """Milliseconds of one service after the other on an idle plane."""
    taken = []
    for number in range(SAMPLES + 1):
        name = f"one-{number}"
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter()
        await plane.client.create(service(name, 1))
        await all_run(watched, 1)
        taken.append(1e3 * (time.perf_counter() - began))
        await plane.client.delete(Workload, name, "default")
        await watched.until(lambda: not watched.seen or None)
    # The first one opens connections and loads code.
    return taken[1:]


async def starts(plane: WholePlane, watched: Watched) -> tuple[float, dict[str, float]]:
    """Starts per second from submission to the last start, and CPU ms of each part for one."""
    before = {name: cpu_s(part.pid) for name, part in plane.parts.items()}
    began = time.perf_counter()
    await plane.client.create(service("many", STARTS))
    await all_run(watched, STARTS)
    taken_s = time.perf_counter() - began
    spent: dict[str, float] = {}
    for name, part in plane.parts.items():
        kind = "agents" if name in NODES else name
        spent[kind] = spent.get(kind, 0.0) + cpu_s(part.pid) - before[name]
    each = {name: round(1e3 * it / STARTS, 2) for name, it in spent.items()}
    return STARTS / taken_s, each


def cpu_s(pid: int) -> float:
    """The CPU time of a process and its ended children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(it) for it in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int) -> tuple[int, int]:
    """RSS and PSS."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        found[name] = int(amount)
    return found["Rss:"], found["Pss:"]


async def idle(plane: WholePlane, node: str) -> float:
    """Percent of one core that an agent uses while nothing happens."""
    pid = plane.parts[node].pid
    # By then the work that the starts left behind is done.
    await asyncio.sleep(2.0)
    before, began = cpu_s(pid), time.perf_counter()
    await asyncio.sleep(IDLE_S)
    return 100 * (cpu_s(pid) - before) / (time.perf_counter() - began)


def bare_ms() -> float:
    """The start of the same program by this process."""
    began = time.perf_counter()
    with subprocess.Popen(WORK) as process:
        taken = time.perf_counter() - began
        process.kill()
    return 1e3 * taken


async def played(folder: Path) -> None:
    async with WholePlane(folder, NODES, fence=(), agent=CAPACITY) as plane:
        watched = Watched(plane)
        following = asyncio.create_task(watched.follow())
        load = os.getloadavg()[0]
        taken = await submit_to_running(plane, watched)
        bare = percentile([bare_ms() for _ in range(20)], 0.5)
        for name, goal in ((0.5, "<= 100"), (0.99, "<= 1_000")):
            figure(
                f"run.submit_to_running.p{100 * name:.0f}_ms",
                percentile(taken, name),
                "ms",
                peer="a bare start of the same program",
                peer_value=bare,
                goal=goal,
                durability="power",
                samples=SAMPLES,
                load=round(load, 1),
            )
        load = os.getloadavg()[0]
        rate, each = await starts(plane, watched)
        await asyncio.to_thread(tell_starts, rate, each, load)
        await tell_idle(plane)
        following.cancel()
        await asyncio.wait([following])


def tell_starts(rate: float, each: dict[str, float], load: float) -> None:
    figure(
        "run.starts_per_s",
        rate,
        "1/s",
        peer="bare Popen of the same program in 4 processes",
        peer_value=together([sys.executable, "-c", BARE]),
        goal=">= 100",
        durability="power",
        agents=len(NODES),
        starts=STARTS,
        cpu_ms_each=each,
        load=round(load, 1),
    )


async def tell_idle(plane: WholePlane) -> None:
    shims = [memory_kb(pid) for pid in plane.shims(NODES[0])]
    figure(
        "run.shim.rss_kb",
        statistics.median(rss for rss, _ in shims),
        "KB",
        peer="the work itself, sleep",
        peer_value=float(sleep_kb()),
        goal="<= 3_072",
        pss_kb=statistics.median(pss for _, pss in shims),
        shims=len(shims),
    )
    per_cent = await idle(plane, NODES[0])
    rss, pss = memory_kb(plane.parts[NODES[0]].pid)
    python = interpreter_kb()
    figure(
        "run.agent.rss_mb",
        rss / 1024,
        "MB",
        peer="an interpreter that has imported asyncio and ssl",
        peer_value=python / 1024,
        goal="<= 80",
        pss_mb=round(pss / 1024, 1),
        replicas=len(shims),
    )
    figure(
        "run.agent.cpu_pct",
        per_cent,
        "%",
        peer="the goal",
        peer_value=1.0,
        goal="<= 1",
        replicas=len(shims),
        load=round(os.getloadavg()[0], 1),
    )


def sleep_kb() -> int:
    with subprocess.Popen(WORK) as process:
        time.sleep(0.05)
        rss, _ = memory_kb(process.pid)
        process.kill()
    return rss


def interpreter_kb() -> int:
    script = "import asyncio, ssl, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdout is not None:
            process.stdout.readline()
        rss, _ = memory_kb(process.pid)
        process.kill()
    return rss


def main() -> None:
    """Print every figure."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(played(Path(name)))


if __name__ == "__main__":
    main()
