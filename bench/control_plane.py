"""The plane that `bench/control` measures: real processes, and hollow nodes by the dozen.

The server on SQLite, the scheduler and the controllers are those of the live tests, each a separate
process; the nodes are processes of `bench/hollow`. Writes are counted in the log of the store by
the kind of record, so that no component has to report them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress

from bench.run import cpu_s, memory_kb
from holdfast.agent.work import is_ready
from holdfast.host.client.list_watch import Listed, follow
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Stage, State
from holdfast.observe.watch_events import Departed, Present
from tests.live.part import Part, module
from tests.live.whole_plane import WholePlane

# Rows of the log are numbered by revision and by position among the writes of one revision.
_REVISION_SHIFT = 16


class Hollow(Part):
    """One process of hollow nodes, which runs from the beginning and is never started again."""

    def __init__(self, plane: WholePlane, name: str, *options: str) -> None:
        arguments = (*plane.reach, "--pki", str(plane.pki), *options)
        super().__init__(plane.folder, name, *arguments, program=module("bench.hollow"))
        self.spawn()


class Observed:
    """The replicas and nodes that a watch reports, counted as the events arrive."""

    def __init__(self, plane: WholePlane) -> None:
        self._plane = plane
        self._replicas: dict[str, Replica] = {}
        self.ready: set[str] = set()
        self.serving: set[str] = set()
        self.released: set[str] = set()
        self.phases: dict[str, NodePhase] = {}
        # Every time that a node stopped being Ready, and when each phase was seen.
        self.doubts: list[tuple[str, NodePhase]] = []
        self.seen_at: dict[tuple[str, NodePhase], float] = {}
        self.events = 0
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Observed:
        self._tasks = [
            asyncio.create_task(self._follow_replicas()),
            asyncio.create_task(self._follow_nodes()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _follow_replicas(self) -> None:
        async for event in follow(self._plane.client, Replica, "default"):
            match event:
                case Listed(objects=objects):
                    for it in objects:
                        self._take(it)
                case Present(object=replica):
                    self._take(replica)
                case Departed(object=replica):
                    self._replicas.pop(replica.name, None)
                    for among in (self.ready, self.serving, self.released):
                        among.discard(replica.name)
            self._news.set()

    def _take(self, replica: Replica) -> None:
        self.events += 1
        self._replicas[replica.name] = replica
        runs = replica.status.state is State.RUNNING
        for among, belongs in (
            (self.ready, runs and is_ready(replica)),
            (self.serving, runs and replica.status.stage is Stage.SERVING),
            (self.released, replica.status.state is State.RELEASED),
        ):
            (among.add if belongs else among.discard)(replica.name)

    async def _follow_nodes(self) -> None:
        async for event in follow(self._plane.client, Node, ""):
            match event:
                case Listed(objects=objects):
                    for it in objects:
                        self._take_node(it)
                case Present(object=node):
                    self._take_node(node)
                case Departed(object=node):
                    self.phases.pop(node.name, None)
            self._news.set()

    def _take_node(self, node: Node) -> None:
        phase = node.status.phase
        if self.phases.get(node.name) is phase:
            return
        self.phases[node.name] = phase
        self.seen_at[node.name, phase] = time.perf_counter()
        if phase is not NodePhase.READY:
            self.doubts.append((node.name, phase))

    async def until(self, holds: Callable[[], object], within_s: float) -> float:
        """When this was first true."""
        async with asyncio.timeout(within_s):
            while not holds():
                self._news.clear()
                await self._news.wait()
        return time.perf_counter()

    def on(self, node: str) -> int:
        """How many replicas are bound to a node and not released."""
        alive = (it for name, it in self._replicas.items() if name not in self.released)
        return sum(it.status.binding is not None and it.status.binding.node == node for it in alive)


class Spent:
    """CPU seconds of each part since this was created, and their memory."""

    def __init__(self, plane: WholePlane, hollows: list[Hollow]) -> None:
        self._pids = {name: part.pid for name, part in plane.parts.items()}
        self._pids |= {it.name: it.pid for it in hollows}
        self._pids["generator"] = os.getpid()
        self._before = self._now()
        self._began = time.perf_counter()

    def _now(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, pid in self._pids.items():
            with suppress(FileNotFoundError):
                found[name] = cpu_s(pid)
        return found

    def cpu(self) -> dict[str, float]:
        """Seconds by the kind of the part."""
        found: dict[str, float] = {}
        for name, now in self._now().items():
            kind = name.partition("-")[0]
            found[kind] = found.get(kind, 0.0) + now - self._before[name]
        return {name: round(value, 2) for name, value in found.items()}

    def cpu_per_cent(self) -> dict[str, float]:
        """Shares of one core by the kind of the part."""
        elapsed = time.perf_counter() - self._began
        return {name: round(100 * it / elapsed, 1) for name, it in self.cpu().items()}

    def rss_mb(self, name: str) -> int:
        return memory_kb(self._pids[name])[0] // 1024


class Log:
    """The writes of the store since this was created, by the kind of the record."""

    def __init__(self, plane: WholePlane) -> None:
        self._path = plane.folder / plane.servers[0] / "store.db"
        self._from = self._last()

    def _last(self) -> int:
        with closing(self._open()) as store:
            (last,) = store.execute("SELECT max(id) FROM log").fetchone()
        return int(last)

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)

    def writes(self) -> Counter[str]:
        """How many of each kind, such as `objects/leases`."""
        with closing(self._open()) as store:
            keys = store.execute("SELECT key FROM log WHERE id > ?", (self._from,)).fetchall()
        return Counter("/".join(key.split("/")[:2]) for (key,) in keys)

    def transactions(self) -> int:
        with closing(self._open()) as store:
            (count,) = store.execute(
                "SELECT count(DISTINCT id >> ?) FROM log WHERE id > ?",
                (_REVISION_SHIFT, self._from),
            ).fetchone()
        return int(count)
