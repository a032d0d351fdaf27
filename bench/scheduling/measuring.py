"""Submits the replicas of a shape and records when each is bound.

There are two ways. `workloads` is the user's: a Workload that the controller expands. `births`: the
generator takes the place of the controller and creates the replicas itself in batches, under its
identity, while no controllers run. In both cases the clock starts with the first request, and stops
when a watcher has received the last bind, which is then on disk.
"""

from __future__ import annotations

import asyncio
import re
import time

import msgspec

from bench.api_rig import GROUP, chunks, document
from bench.harness import load, percentile
from bench.http_load import Connection, request
from bench.scheduling.plane import BATCH, SPACE, WORKLOAD_CONTROLLER, Rig, forms
from bench.scheduling.shapes import Shape
from bench.scheduling.spending import Spending, allowed_per_s
from holdfast.model.errors import invariant
from holdfast.model.kinds.replica import Replica

PATIENCE_S = 120.0
NOISE_EVERY_S = 0.2
NOISE_MAX = 3_000
IDLE_PAUSE_S = 0.05
CREATES = f"{GROUP}/requests?results=terse"
WAYS = ("workloads", "births")
# How many users submit workloads at the same time, where there are many workloads.
USERS = 8
_BOUND = re.compile(rb'"type":"ADDED","object":\{[^{]{0,120}"metadata":\{"name":"([^"]+)"')
_TAIL_BYTES = 400


class Sightings:
    """When each replica was bound, from a watch that selects only bound replicas."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}
        self.wanted = 0
        self.complete = asyncio.Event()
        self._tail = b""

    async def follow(self, rig: Rig) -> None:
        line = await rig.line()
        since = "watch=true&sendInitialEvents=false&resourceVersionMatch=NotOlderThan"
        path = f"{SPACE}/replicas?{since}&fieldSelector=status.state%3DBound"
        line.follow(request("GET", path), self.receive)
        # The server does not confirm a watch that has no events yet.
        await asyncio.sleep(1.0)

    def receive(self, data: bytes) -> None:
        now, text, end = time.perf_counter(), self._tail + data, 0
        for found in _BOUND.finditer(text):
            self.at.setdefault(found[1].decode(), now)
            end = found.end()
        self._tail = text[max(end, len(text) - _TAIL_BYTES) :]
        if len(self.at) >= self.wanted:
            self.complete.set()


class Run(msgspec.Struct, frozen=True):
    """The result of one run; processor times are per measured replica.

    `dropped` are watches that the server ended because they were not read fast enough, `queued` is
    how many processes waited for a core on average.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, int]
    dropped: int
    queued: float
    load: float

    @property
    def allowed(self) -> float:
        """The rate that the processor time permits on cores without other load."""
        return allowed_per_s(self.cpu_us)


async def measure(rig: Rig, shape: Shape, way: str) -> Run:
    """Submit everything and wait until it is bound."""
    seen = Sightings()
    seen.wanted = shape.measured
    await seen.follow(rig)
    prepared = await _prepared(rig, shape, way)
    noise = asyncio.create_task(_make_noise(rig)) if shape.noise else None
    dropped, spending = await rig.dropped(), Spending(rig.pids())
    try:
        sent = await prepared.send()
        async with asyncio.timeout(PATIENCE_S):
            await seen.complete.wait()
    except TimeoutError:
        bound = len(seen.at)
        invariant(False, f"{shape.name}: {bound} of {shape.measured} were bound in time")
    finally:
        if noise is not None:
            noise.cancel()
    cpu_us, queued = spending.us_each(shape.measured), spending.queued_share()
    delays = [1e3 * (at - sent[name]) for name, at in seen.at.items()]
    return Run(
        rate=shape.measured / (max(seen.at.values()) - min(sent.values())),
        p50_ms=round(percentile(delays, 0.5), 1),
        p99_ms=round(percentile(delays, 0.99), 1),
        cpu_us=cpu_us,
        dropped=await rig.dropped() - dropped,
        queued=round(queued, 2),
        load=load(),
    )


class _Submission:
    """Requests that are prepared before the clock starts, and the replicas that each creates."""

    def __init__(self, lines: list[Connection], requests: list[tuple[list[str], bytes]]) -> None:
        self._lines, self._requests = lines, requests

    async def send(self) -> dict[str, float]:
        """When each replica was requested."""
        sent: dict[str, float] = {}
        left = iter(self._requests)

        async def work(line: Connection) -> None:
            for names, body in left:
                sent.update(dict.fromkeys(names, time.perf_counter()))
                code, answer = await line.ask(body)
                invariant(code in (200, 201), f"{code}: {answer[:300]!r}")
                invariant(b'"code":4' not in answer, f"a replica was refused: {answer[:600]!r}")

        await asyncio.gather(*(work(line) for line in self._lines))
        return sent


async def _prepared(rig: Rig, shape: Shape, way: str) -> _Submission:
    count = len(shape.templates)
    shares = [shape.measured // count + (n < shape.measured % count) for n in range(count)]
    wanted = {f"m{n}": (shape.templates[n], share) for n, share in enumerate(shares)}
    requests: list[tuple[list[str], bytes]] = []
    if way == "workloads":
        for name, (template, share) in wanted.items():
            spec = {"replicas": share, "template": template}
            body = msgspec.json.encode(document("Workload", name, spec=spec))
            names = [f"{name}-{n}-0" for n in range(share)]
            requests.append((names, request("POST", f"{SPACE}/workloads", body)))
        return _Submission([await rig.line() for _ in range(USERS)], requests)
    births: list[Replica] = []
    term = await rig.creation_term()
    for name, (template, share) in wanted.items():
        births += await rig.births(name, template, share)
    for at in range(0, len(births), BATCH):
        some = births[at : at + BATCH]
        (body,) = chunks(forms(some, term), CREATES, BATCH)
        requests.append(([it.name for it in some], body))
    return _Submission([await rig.line(WORKLOAD_CONTROLLER)], requests)


async def _make_noise(rig: Rig) -> None:
    """Replicas of high priority that fit nowhere, five a second."""
    template = {
        "command": ["sleep", "60"],
        "resources": {"cpu": "9"},
        "priorityClass": "urgent",
    }
    births = await rig.births("noise", template, NOISE_MAX)
    line = await rig.line(WORKLOAD_CONTROLLER)
    for body in chunks(forms(births, await rig.creation_term()), CREATES, 1):
        await line.ask(body)
        await asyncio.sleep(NOISE_EVERY_S)


async def idle_delays(rig: Rig, shape: Shape) -> tuple[Run, float]:
    """One replica after another, each submitted when the last one has been bound for a while.

    Also the 99th percentile without the time for which our processes waited for a core. They work
    one after the other then, so that most of it would not have been lost on idle cores.
    """
    seen = Sightings()
    await seen.follow(rig)
    births = await rig.births("single", shape.templates[0], shape.measured)
    line = await rig.line(WORKLOAD_CONTROLLER)
    delays: list[float] = []
    undisturbed: list[float] = []
    dropped, spending, start = await rig.dropped(), Spending(rig.pids()), time.perf_counter()
    for number, body in enumerate(chunks(forms(births, await rig.creation_term()), CREATES, 1)):
        seen.wanted = number + 1
        seen.complete.clear()
        queued_s = spending.queued_s()
        began = time.perf_counter()
        await line.ask(body)
        async with asyncio.timeout(PATIENCE_S):
            await seen.complete.wait()
        delays.append(1e3 * (seen.at[births[number].name] - began))
        undisturbed.append(max(0.0, delays[-1] - 1e3 * (spending.queued_s() - queued_s)))
        await asyncio.sleep(IDLE_PAUSE_S)
    ran = Run(
        rate=shape.measured / (time.perf_counter() - start),
        p50_ms=percentile(delays, 0.5),
        p99_ms=percentile(delays, 0.99),
        cpu_us=spending.us_each(shape.measured),
        dropped=await rig.dropped() - dropped,
        queued=round(spending.queued_share(), 2),
        load=load(),
    )
    return ran, percentile(undisturbed, 0.99)
