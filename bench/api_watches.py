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
from holdfast.model.requests import Bind

NODES = 980
EVERYTHING_WATCHERS = 20
EVENTS_PER_S = 500
WATCH_S = 8.0
_encode = msgspec.json.encode


class Audience:
    """Many watchers, and how long each event took to reach each."""

    MARK = b'"message":"bench '

    def __init__(self) -> None:
        self.delays_ms: list[float] = []

    def hear(self, data: bytes) -> None:
        now, at = time.perf_counter_ns(), data.find(self.MARK)
        while at >= 0:
            sent = int(data[at + len(self.MARK) :].partition(b'"')[0] or 0)
            self.delays_ms.append((now - sent) / 1e6)
            at = data.find(self.MARK, at + 1)

    async def gather(self, rig: Rig, everything: int, nodes: int) -> list[Connection]:
        """So many watchers of everything, and one for each of so many nodes."""
        lines = await rig.lines(everything + nodes)
        # From now on: what is there already would be told first.
        now = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        path = f"{GROUP}/replicas?{now}"
        for n, line in enumerate(lines):
            place = n - everything
            chosen = "" if place < 0 else f"&fieldSelector=status.binding.node%3Dnode-{place}"
            line.follow(request("GET", path + chosen), self.hear)
        await asyncio.sleep(2.0)
        return lines


async def heard(
    rig: Rig, binds: list[Bind], everything: int, nodes: int
) -> tuple[list[float], float]:
    """How long events took to reach their watchers, and how many a second there were."""
    audience = Audience()
    watchers = await audience.gather(rig, everything, nodes)
    lines = await rig.lines(CONNECTIONS, "system:controller:endpoints")
    waiting = itertools.cycle(binds)
    began, sent = time.perf_counter(), itertools.count()

    async def work(line: Connection) -> None:
        while (due := began + next(sent) / EVENTS_PER_S) < began + WATCH_S:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            target = next(waiting).target
            said = {"message": f"bench {time.perf_counter_ns()}", "status": "True"}
            serving = {"type": "Serving", "reason": "Published", **said}
            body = _encode({"status": {"conditions": [serving]}})
            path = f"{GROUP}/namespaces/{target.namespace}/replicas/{target.name}/status"
            kind = "application/merge-patch+json"
            code, answer = await line.ask(request("PATCH", path, body, kind))
            invariant(code == 200, f"{code}: {answer[:300]!r}")

    await asyncio.gather(*(work(line) for line in lines))
    events = EVENTS_PER_S * WATCH_S
    speed = events / (time.perf_counter() - began)
    await asyncio.sleep(1.0)
    wanted = events * (everything + (1 if nodes else 0))
    count = len(audience.delays_ms)
    invariant(count >= 0.98 * wanted, f"{count} of {wanted} deliveries were seen")
    if not nodes:
        for watcher in watchers:
            watcher.close()
    return audience.delays_ms, speed


async def watches(rig: Rig, binds: list[Bind]) -> None:
    """`binds` are of one replica on each node. The watchers stay, for they cost memory."""
    alone, _ = await heard(rig, binds, 1, 0)
    delays, speed = await heard(rig, binds, EVERYTHING_WATCHERS, NODES)
    figure(
        "api.watch.p99_ms",
        percentile(delays, 0.99),
        "ms",
        peer="the same with one watcher",
        peer_value=percentile(alone, 0.99),
        goal="<= 100",
        durability="power",
        # A server that cannot keep up is asked for less, so the rate belongs to the figure.
        events_per_s=round(speed),
        events_per_s_wanted=EVENTS_PER_S,
        median=round(percentile(delays, 0.5), 1),
        watchers=EVERYTHING_WATCHERS + NODES,
    )
