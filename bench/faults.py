"""Faults of real processes: how long until new work runs and the first write is accepted.

Servers, scheduler, controllers and agents are separate processes over TLS, on SQLite or on a real
etcd. Each figure is the worst of its samples, in seconds since the signal; its bound follows from
the timing of the plane. New work runs when its process has written to its witness file, not when a
status says so. The planes in which duplicates are counted run in parallel, so that a run ends
within half an hour on two cores.

HOLDFAST_BENCH_PARTS names what to measure (servers,controllers,sqlite,etcd,duplicates);
HOLDFAST_BENCH_SHORT=1 is a quick look of about three minutes: few samples of everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec

from bench.harness import figure, load
from holdfast.commit.server import SCOPE
from holdfast.correct.controller_worker import TAKEOVER_WAIT_MS
from holdfast.host.audit.segments import FOLDER, records
from holdfast.host.client import AsyncClient
from holdfast.model.audit.audit_records import mutation_of
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lease_takeover import LEASE_MS, RENEWALS_PER_LEASE
from holdfast.observe.leader_election import LOOKS_PER_LEASE
from holdfast.observe.retry import RetryPolicy
from tests.etcd_cluster import EtcdCluster
from tests.live.part import Part
from tests.live.plane_process import PATIENT, workload
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import WholePlane
from tests.live.witness import beats, overlaps, template

IS_SHORT = bool(os.environ.get("HOLDFAST_BENCH_SHORT"))
PARTS = ("servers", "controllers", "sqlite", "etcd", "duplicates")
SAMPLES = 2 if IS_SHORT else 6
# How many planes share the cycles in which a server is stopped while replicas are deleted.
CYCLE_PLANES, CYCLES = (1, 3) if IS_SHORT else (4, 13)
STOPPED_S = (15.0, 24.0)
COPIES = 3
CAPACITY = ("--capacity", "cpu=64", "--capacity", "memory=64Gi", "--gpus", "none")
# The longest election of etcd with its default of 1,000 ms, to which it adds up to as much again.
ELECTION_S = 2.0
GOAL_FIRST_WRITE_S = 5.0
TRY_EVERY_S = 0.1
LOOK_S = 0.02
# By then leases are renewed and streams are open again.
SETTLE_S = 3.0 if IS_SHORT else 8.0
PATIENCE_S = 180.0
# One attempt at one write: others follow meanwhile, so that the plane is measured, not a client.
ONCE = RetryPolicy(tries_max=1, looks_max=1, deadline_ms=15_000, try_ms=15_000)


# What is measured --------------------------------------------------------------------------------


async def new_work(plane: WholePlane, name: str, began: float) -> float:
    """Seconds since `began` until a service that is created now has written to its witness."""
    witness = plane.folder / f"witness-{name}"
    async with AsyncClient(plane.access, policy=PATIENT) as client:
        await client.create(workload(name, replicas=1, template=template(witness)))

        async def runs() -> bool:
            return witness.exists()

        await plane.until(runs, PATIENCE_S)
        taken_s = time.monotonic() - began
        await client.delete(Workload, name, "default")
    return taken_s


async def first_write(plane: WholePlane, name: str, began: float) -> float:
    """Seconds since `began` until one of many writes, sent one after another, is accepted."""
    accepted: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def write(client: AsyncClient, number: int) -> None:
        with contextlib.suppress(HoldfastError):
            await client.create(workload(f"{name}-{number}", replicas=0))
            if not accepted.done():
                accepted.set_result(time.monotonic() - began)

    async with AsyncClient(plane.access, policy=ONCE) as client:
        tries: list[asyncio.Task[None]] = []
        while not accepted.done():
            if time.monotonic() - began > PATIENCE_S:
                raise SystemExit(f"{name}: no write was accepted within {PATIENCE_S:.0f} s")
            tries.append(asyncio.create_task(write(client, len(tries))))
            await asyncio.wait([accepted], timeout=TRY_EVERY_S)
        for task in tries:
            task.cancel()
        await asyncio.gather(*tries, return_exceptions=True)
    return accepted.result()


async def lease_of(plane: WholePlane, scope: str) -> Lease:
    """Return the lease once it has a holder."""

    async def held() -> Lease | None:
        found = await plane.client.find(Lease, lease_name(scope))
        return found if found is not None and found.spec.holder else None

    found: Lease = await plane.until(held)
    return found


async def authority(plane: WholePlane) -> Part:
    """The server that decides, which holds the authority's lease."""
    return plane.parts[(await lease_of(plane, SCOPE)).spec.holder.rpartition(":")[2]]


async def all_work(plane: WholePlane) -> None:
    """Wait until every part is up and has started its regular work."""

    async def works() -> bool:
        return all(part.works for part in plane.parts.values())

    await plane.until(works, PATIENCE_S)
    await asyncio.sleep(SETTLE_S)


@contextlib.contextmanager
def stopped(part: Part) -> Iterator[None]:
    """Stop it as if its machine hung: connections stay open, and nothing is answered."""
    part.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        part.signal(signal.SIGCONT)


def print_worst(name: str, samples: list[float], bound_s: float, bound: str, goal_s: float) -> None:
    figure(
        f"faults.{name}",
        max(samples),
        "s",
        peer=bound,
        peer_value=bound_s,
        goal=f"<= {goal_s:g}",
        samples=[round(it, 2) for it in samples],
        load=load(),
    )


# Planes ------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def on_etcd(
    folder: Path, *, members: int, nodes: tuple[str, ...] = ("n1", "n2"), standby: bool = False
) -> AsyncIterator[tuple[WholePlane, EtcdCluster]]:
    """Two servers over an etcd of their own."""
    (folder / "etcd").mkdir(parents=True)
    cluster = EtcdCluster(folder / "etcd", size=members)
    await asyncio.to_thread(cluster.start)
    try:
        about = plane_on_etcd(cluster)
        plane = WholePlane(folder, nodes, plane=about, fence=(), agent=CAPACITY)
        async with plane:
            if standby:
                arguments = plane.parts["controllers"].arguments
                other = Part(folder, "controllers-2", *arguments, "--name", "standby")
                plane.parts["controllers-2"] = other
                other.spawn()
            await all_work(plane)
            yield plane, cluster
    finally:
        await asyncio.to_thread(cluster.stop)


# The parts ---------------------------------------------------------------------------------------


async def servers(folder: Path) -> None:
    """The server that decides is killed and stays away, or is stopped."""
    killed: list[float] = []
    hung: list[float] = []
    async with on_etcd(folder, members=1) as (plane, _):
        for number in range(SAMPLES):
            part, began = await authority(plane), time.monotonic()
            part.kill()
            killed.append(await new_work(plane, f"killed-{number}", began))
            part.spawn()
            await all_work(plane)
        for number in range(SAMPLES):
            part, began = await authority(plane), time.monotonic()
            with stopped(part):
                hung.append(await new_work(plane, f"stopped-{number}", began))
            await all_work(plane)
    lease_s = LEASE_MS * (1 + 1 / RENEWALS_PER_LEASE) / 1_000
    bound = "the lease of the server that decides, and a look"
    print_worst("server_killed.new_work_s", killed, lease_s, bound, 10)
    print_worst("server_stopped.new_work_s", hung, lease_s, bound, 10)


async def controllers(folder: Path) -> None:
    """The controllers are killed and stay away; standby controllers take over."""
    taken: list[float] = []
    async with on_etcd(folder, members=1, standby=True) as (plane, _):
        for number in range(SAMPLES):
            holds = (await lease_of(plane, "controller:workload")).spec.instance
            part = plane.parts["controllers-2" if holds == "standby" else "controllers"]
            began = time.monotonic()
            part.kill()
            taken.append(await new_work(plane, f"controllers-{number}", began))
            part.spawn()
            await all_work(plane)
    bound_s = (LEASE_MS * (1 + 1 / LOOKS_PER_LEASE) + TAKEOVER_WAIT_MS) / 1_000
    bound = "their lease, a look, and looking on at first"
    print_worst("controllers_killed.new_work_s", taken, bound_s, bound, bound_s)


async def sqlite(folder: Path) -> None:
    """The only server is killed and started again by its supervisor."""
    taken: list[float] = []
    async with WholePlane(folder, (), fence=()) as plane:
        await all_work(plane)
        for number in range(SAMPLES):
            began = time.monotonic()
            plane.parts["server-1"].signal(signal.SIGKILL)
            taken.append(await first_write(plane, f"first-{number}", began))
            await all_work(plane)
    print_worst(
        "first_write_s.sqlite_restart", taken, GOAL_FIRST_WRITE_S, "the goal", GOAL_FIRST_WRITE_S
    )


async def etcd(folder: Path) -> None:
    """The leader of three etcd members is killed, or stopped."""
    taken: dict[str, list[float]] = {"etcd_killed": [], "etcd_stopped": []}
    async with on_etcd(folder, members=3, nodes=()) as (plane, cluster):
        acts: dict[str, tuple[Callable[[int], None], Callable[[int], None]]] = {
            "etcd_killed": (cluster.kill, cluster.restart),
            "etcd_stopped": (cluster.pause, cluster.resume),
        }
        for what, (strike, mend) in acts.items():
            for number in range(SAMPLES):
                leader = await asyncio.to_thread(cluster.wait_leader)
                began = time.monotonic()
                await asyncio.to_thread(strike, leader)
                name = f"{what.replace('_', '-')}-{number}"
                taken[what].append(await first_write(plane, name, began))
                await asyncio.to_thread(mend, leader)
                await asyncio.to_thread(cluster.wait_healthy, leader)
                await all_work(plane)
    for what, samples in taken.items():
        bound = "the longest election of etcd's default timing"
        print_worst(f"first_write_s.{what}", samples, ELECTION_S, bound, GOAL_FIRST_WRITE_S)


# Nothing twice -----------------------------------------------------------------------------------


async def delete_all(client: AsyncClient, until: float) -> None:
    """Delete every replica that exists, repeatedly."""
    while time.monotonic() < until:
        with contextlib.suppress(HoldfastError):
            for it in (await client.list(Replica, "default")).objects:
                with contextlib.suppress(HoldfastError):
                    await client.delete(Replica, it.name, "default")
        await asyncio.sleep(1.0)


async def cycle(plane: WholePlane, rng: random.Random) -> None:
    """Stop the server that decides while replicas are deleted through the other one."""
    part = await authority(plane)
    others = [
        url for name, url in zip(plane.servers, plane.access_urls, strict=True) if name != part.name
    ]
    access = msgspec.structs.replace(plane.access, servers=tuple(others))
    stop_s = rng.uniform(*STOPPED_S)
    async with AsyncClient(access, policy=ONCE) as client:
        with stopped(part):
            await delete_all(client, time.monotonic() + stop_s)
    await plane.ready(COPIES, PATIENCE_S)


async def cycles(folder: Path, seed: int) -> tuple[int, int, int]:
    """Cycles, names created twice, and processes that ran beside another one of their ordinal."""
    rng = random.Random(seed)
    done = 0
    async with on_etcd(folder, members=1) as (plane, _):
        await plane.apply(COPIES)
        await plane.ready(COPIES, PATIENCE_S)
        for _ in range(CYCLES):
            await cycle(plane, rng)
            done += 1
        # The audit writes its last records a second later.
        await asyncio.sleep(SETTLE_S)
    return done, born_twice(plane), beside_another(plane)


def born_twice(plane: WholePlane) -> int:
    """Creations of a replica whose name was created before, by the audit of both servers."""
    journals = [plane.folder / name / FOLDER for name in plane.servers]
    said = (mutation_of(record) for record in records(journals) if not record.is_gap)
    births = Counter(it.name for it in said if (it.kind, it.change) == ("replicas", "created"))
    return sum(count - 1 for count in births.values())


def beside_another(plane: WholePlane) -> int:
    """Processes that were still alive when another one of their ordinal had started."""
    return len({line.partition(", at_ms")[0] for line in overlaps(beats(plane.witness))})


async def duplicates(folder: Path) -> None:
    """Names created twice and parallel copies, over many pauses of the server that decides."""
    found = await asyncio.gather(
        *(cycles(folder / str(number), number) for number in range(CYCLE_PLANES))
    )
    names, copies = sum(it[1] for it in found), sum(it[2] for it in found)
    figure(
        "faults.duplicates",
        names + copies,
        "births and processes",
        peer="cycles",
        peer_value=sum(it[0] for it in found),
        goal="<= 0",
        names_born_twice=names,
        copies_side_by_side=copies,
        load=load(),
    )


async def measured(folder: Path, parts: list[str]) -> None:
    """Run one part after the other, so that no part measures the load of another.

    Only cycles that count duplicates run on several planes side by side.
    """
    known = {it.__name__: it for it in (servers, controllers, sqlite, etcd, duplicates)}
    for part in parts:
        await known[part](folder / part)


def main() -> None:
    """Print every figure."""
    parts = os.environ.get("HOLDFAST_BENCH_PARTS", ",".join(PARTS)).split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise SystemExit(f"HOLDFAST_BENCH_PARTS: no {', '.join(unknown)}; {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for part in parts:
            (Path(name) / part).mkdir()
        asyncio.run(measured(Path(name), parts))


if __name__ == "__main__":
    main()
