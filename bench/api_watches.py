"""Watches of `bench/api`: how long events take to reach many watchers."""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec

from bench.api_rig import CONNECTIONS, GROUP, Rig
from bench.harness import figure, percentile
from bench.http_load import Connection, request
from holdfast.model.errors import invariant
from holdfast.model.requests import Bind, Term

NODES = 980
EVERYTHING_WATCHERS = 20
EVENTS_PER_S = 500
WATCH_S = 8.0
ENDPOINTS = "system:controller:endpoints"
_encode = msgspec.json.encode


class Version(msgspec.Struct, rename="camel"):
    """The part of an object's metadata that its next patch has to state."""

    resource_version: str


class Answer(msgspec.Struct):
    """The part of an object that is read back."""

    metadata: Version


_decode = msgspec.json.Decoder(Answer).decode


class Watchers:
    """Many watchers, and how long each event took to reach each of them."""

    MARK = b'"message":"bench '

    def __init__(self) -> None:
        self.delays_ms: list[float] = []

    def receive(self, data: bytes) -> None:
        now, at = time.perf_counter_ns(), data.find(self.MARK)
        while at >= 0:
            sent = int(data[at + len(self.MARK) :].partition(b'"')[0] or 0)
            self.delays_ms.append((now - sent) / 1e6)
            at = data.find(self.MARK, at + 1)

    async def open(self, rig: Rig, everything: int, nodes: int) -> list[Connection]:
        """Open `everything` watches of all replicas, and one of the replicas of each node."""
        lines = await rig.lines(everything + nodes)
        # Without the initial events: existing objects are not part of the figure.
        now = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        path = f"{GROUP}/replicas?{now}"
        for n, line in enumerate(lines):
            place = n - everything
            chosen = "" if place < 0 else f"&fieldSelector=status.binding.node%3Dnode-{place}"
            line.follow(request("GET", path + chosen), self.receive)
        await asyncio.sleep(2.0)
        return lines


class Replicas:
    """The replicas that change, each with the version that its next patch states.

    The requests are those of controller:endpoints: under the term of its lease, and with the
    version of the replica that it saw last, since the authority refuses a component that names
    neither.
    """

    def __init__(self, binds: list[Bind], term: Term) -> None:
        self._term = f"{term.epoch} {term.scope}"
        self._versions = {
            f"{GROUP}/namespaces/{it.target.namespace}/replicas/{it.target.name}": ""
            for it in binds
        }
        self._paths = itertools.cycle(self._versions)

    async def read(self, line: Connection) -> None:
        """Read the version of each replica."""
        for path in self._versions:
            self._keep(path, *await line.ask(request("GET", path)))

    async def change(self, line: Connection) -> None:
        """Patch the status of the next replica; its message has the time when it was sent."""
        path = next(self._paths)
        said = {"message": f"bench {time.perf_counter_ns()}", "status": "True"}
        serving = {"type": "Serving", "reason": "Published", **said}
        metadata = {"resourceVersion": self._versions[path]}
        body = _encode({"metadata": metadata, "status": {"conditions": [serving]}})
        kind = "application/merge-patch+json"
        asked = request("PATCH", f"{path}/status", body, kind, self._term)
        self._keep(path, *await line.ask(asked))

    def _keep(self, path: str, code: int, answer: bytes) -> None:
        invariant(code == 200, f"{path}: {code} {answer[:300]!r}")
        self._versions[path] = _decode(answer).metadata.resource_version


async def delivery(
    rig: Rig, replicas: Replicas, everything: int, nodes: int
) -> tuple[list[float], float]:
    """Return how long events took to reach their watchers, and how many events per second."""
    audience = Watchers()
    watchers = await audience.open(rig, everything, nodes)
    lines = await rig.lines(CONNECTIONS, ENDPOINTS)
    await replicas.read(lines[0])
    began, sent = time.perf_counter(), itertools.count()

    async def work(line: Connection) -> None:
        while (due := began + next(sent) / EVENTS_PER_S) < began + WATCH_S:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await replicas.change(line)

    await asyncio.gather(*(work(line) for line in lines))
    events = EVENTS_PER_S * WATCH_S
    speed = events / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    wanted = events * (everything + (1 if nodes else 0))
    count = len(audience.delays_ms)
    invariant(count >= 0.98 * wanted, f"{count} of {wanted} deliveries arrived")
    if not nodes:
        for watcher in watchers:
            watcher.close()
    return audience.delays_ms, speed


async def watches(rig: Rig, binds: list[Bind]) -> None:
    """Measure deliveries; `binds` has one replica on each node.

    The watchers stay open afterwards: what they cost belongs to the memory figure.
    """
    (line,) = await rig.lines(1, ENDPOINTS)
    replicas = Replicas(binds, await rig.term(line, "controller:endpoints"))
    alone, _ = await delivery(rig, replicas, 1, 0)
    delays, speed = await delivery(rig, replicas, EVERYTHING_WATCHERS, NODES)
    figure(
        "api.watch.p99_ms",
        percentile(delays, 0.99),
        "ms",
        peer="the same with one watcher",
        peer_value=percentile(alone, 0.99),
        goal="<= 100",
        durability="power",
        # A server that cannot keep up gets fewer requests, so the rate belongs to the figure.
        events_per_s=round(speed),
        events_per_s_wanted=EVENTS_PER_S,
        median=round(percentile(delays, 0.5), 1),
        watchers=EVERYTHING_WATCHERS + NODES,
    )
