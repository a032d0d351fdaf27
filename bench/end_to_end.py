"""One replica, end to end: from apply to an answer over http, and from kill -9 to running again.

The plane is real: a server on SQLite, a scheduler, controllers and two agents as separate processes
over TLS. Times include the generator, which is a client of the API in this process: they run from
just before the apply, or the kill, until the work answers an http request and a watch has reported
its replica as Running and Ready. The peer is a bare start of the same program by this process, to
its first answer: the lower bound for any plane.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from bench import end_to_end_sim
from bench.harness import figure, percentile
from holdfast.agent.work import is_ready
from holdfast.host.client.list_watch import Listed, follow
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.observe.watch_events import Departed, Present
from tests.free_ports import free_ports
from tests.live.plane_process import workload
from tests.live.whole_plane import WholePlane
from tests.live.witness import template

T = TypeVar("T")
SAMPLES = 30
BARE_STARTS = 20
# How long the plane is idle before each sample.
IDLE_S = 0.3
LOOK_S = 0.002
PATIENCE_S = 30.0


class Watched:
    """The replicas as a watch reports them, so that reading them costs the plane nothing."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane = plane
        self.seen: dict[str, Replica] = {}
        self._news = asyncio.Event()

    async def follow(self) -> None:
        async for event in follow(self._plane.client, Replica, "default"):
            match event:
                case Listed(objects=objects):
                    self.seen = {it.name: it for it in objects}
                case Present(object=replica):
                    self.seen[replica.name] = replica
                case Departed(object=replica):
                    self.seen.pop(replica.name, None)
            self._news.set()

    async def until(self, holds: Callable[[], T | None]) -> T:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := holds()):
                self._news.clear()
                await self._news.wait()
        return found

    async def runs(self, other_than: str = "") -> Replica:
        """Wait until the replica is reported running and ready, in another process."""

        def look() -> Replica | None:
            for it in self.seen.values():
                runs = it.status.state is State.RUNNING and is_ready(it)
                if runs and it.status.process.id != other_than:
                    return it
            return None

        return await self.until(look)


async def answer(port: int) -> None:
    """Wait until the listener at this address has answered an http request."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"GET / HTTP/1.0\r\n\r\n")
                    await reader.readuntil(b"200 OK")
                    return
                finally:
                    writer.close()
            await asyncio.sleep(LOOK_S)


class Rounds:
    """One service after the other: applied, killed once, deleted. All times in milliseconds."""

    def __init__(self, plane: WholePlane, watched: Watched) -> None:
        self._plane, self._watched = plane, watched
        self.applied_ms: list[float] = []
        self.killed_ms: list[float] = []

    async def play(self, number: int) -> None:
        await asyncio.sleep(IDLE_S)
        name = f"web-{number}"
        wanted = workload(name, template=template(self._plane.witness))
        began = time.perf_counter()
        await self._plane.client.apply(wanted, manager="bench")
        replica = await self._watched.runs()
        await answer(_port(replica))
        self.applied_ms.append(1e3 * (time.perf_counter() - began))

        await asyncio.sleep(IDLE_S)
        began = time.perf_counter()
        os.kill(self._plane.pid_of("work", replica), signal.SIGKILL)
        replica = await self._watched.runs(replica.status.process.id)
        await answer(_port(replica))
        self.killed_ms.append(1e3 * (time.perf_counter() - began))

        await self._plane.client.delete(Workload, name, "default")
        await self._watched.until(lambda: not self._watched.seen or None)


def _port(replica: Replica) -> int:
    return int(replica.status.process.addresses["http"].rpartition(":")[2])


def bare_start(folder: Path) -> float:
    """The same program without a plane, in milliseconds to its first answer."""
    (port,) = free_ports(1)
    surroundings = {"TOKEN": "1", "NODE": "bare", "REPLICA": "bare-0-0"}
    began = time.perf_counter()
    process = subprocess.Popen(
        template(folder / "bare")["command"],
        env={"PORT_HTTP": str(port), **{f"HOLDFAST_{it}": of for it, of in surroundings.items()}},
    )
    try:
        asyncio.run(answer(port))
        return 1e3 * (time.perf_counter() - began)
    finally:
        process.kill()
        process.wait()


async def played(folder: Path) -> Rounds:
    """All rounds on one plane. The first round opens connections and loads code."""
    async with WholePlane(folder, ("n1", "n2"), fence=()) as plane:
        watched = Watched(plane)
        following = asyncio.create_task(watched.follow())
        rounds = Rounds(plane, watched)
        for number in range(1 + SAMPLES):
            await rounds.play(number)
        following.cancel()
        await asyncio.wait([following])
    return rounds


def live() -> None:
    """The figures of the real plane."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        bare_ms = percentile([bare_start(Path(name)) for _ in range(BARE_STARTS)], 0.5)
        rounds = asyncio.run(played(Path(name)))
    for what, samples, goal in (
        ("apply", rounds.applied_ms, "<= 300"),
        ("kill", rounds.killed_ms, "<= 1_000"),
    ):
        figure(
            f"slice.{what}_to_running.p50_ms",
            percentile(samples[1:], 0.5),
            "ms",
            peer="a bare start of the same program, to its first answer",
            peer_value=bare_ms,
            goal=goal,
            durability="power",
            p99_ms=round(percentile(samples[1:], 0.99), 1),
            samples=SAMPLES,
        )


def main() -> None:
    end_to_end_sim.main()
    live()


if __name__ == "__main__":
    main()
