"""The virtual time that the simulator's core passes per minute of CPU, with 20 busy machines.

The machines do next to nothing, so that the figure is the cost of the core: 20 nodes heartbeat
every 3 s through two servers, each writes its status once a minute, a controller watches the store
and lists it every 30 s, faults happen all the time, and checkers run after every event and every
commit. The bound is the same number of events through a bare heap that calls an empty function.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.harness import figure
from holdfast.model.access.identity import Identity
from holdfast.model.errors import invariant
from holdfast.model.machine import (
    Answer,
    Answered,
    Ask,
    Asked,
    Changed,
    Range,
    Started,
    Txn,
    Wake,
    Watch,
    Woken,
)
from holdfast.model.time import Instant
from holdfast.model.transaction import Batch, Page, Put, Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Hazard
from holdfast.sim.run import Scenario, run
from holdfast.sim.world import World

NODES = 20
BEAT_MS = 3_000
BEATS_PER_STATUS = 20
RESYNC_MS = 30_000
HOURS = 1
REPEAT = 5
# The bodies of a protocol of its own, which the simulator only passes on.
BEAT: Any = "beat"
STATUS: Any = "status"
SEEN: Any = "seen"


class Node:
    """Sends heartbeats through a server; some of them carry its status."""

    def __init__(self, seat: Seat) -> None:
        self._rng = seat.rng
        self._calls = 0
        self._acknowledged = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Answered):
            if stimulus.body == SEEN:
                self._acknowledged += 1
            return ()
        if isinstance(stimulus, (Started, Woken)):
            self._calls += 1
            body = STATUS if self._calls % BEATS_PER_STATUS == 0 else BEAT
            at_ms = now.monotonic_ms + BEAT_MS + int(self._rng.random() * 300)
            return (Ask(self._calls, "api", body, 2_000), Wake("beat", at_ms))
        return ()


class Front:
    """Keeps beats in memory and writes statuses to the store."""

    def __init__(self, seat: Seat) -> None:
        self._seen: dict[str | Identity, int] = {}
        self._calls = 0
        self._waiting: dict[int, int] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Asked):
            self._seen[stimulus.sender] = now.monotonic_ms
            if stimulus.body == BEAT:
                return (Answer(stimulus.call, SEEN),)
            self._calls += 1
            self._waiting[self._calls] = stimulus.call
            put = Put(f"nodes/{stimulus.sender}", b"%d" % now.wall_ms)
            return (Txn(self._calls, Transaction((), (put,))),)
        if isinstance(stimulus, Answered):
            return (Answer(self._waiting.pop(stimulus.call), SEEN),)
        return ()


class Controller:
    """Watches all nodes, and lists them periodically."""

    def __init__(self, seat: Seat) -> None:
        self.revision = 0
        self._calls = 0
        self._watches = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Changed):
            if isinstance(stimulus.body, Batch):
                self.revision = max(self.revision, stimulus.body.revision)
                return ()
            return self._watch()
        if isinstance(stimulus, Answered):
            if isinstance(stimulus.body, Page):
                self.revision = max(self.revision, stimulus.body.revision)
            return ()
        self._calls += 1
        effects = (
            Range(self._calls, "nodes/", "nodes0"),
            Wake("resync", now.monotonic_ms + RESYNC_MS),
        )
        return (*self._watch(), *effects) if isinstance(stimulus, Started) else effects

    def _watch(self) -> Sequence[Any]:
        self._watches += 1
        return (Watch(self._watches, "nodes/", self.revision),)


class Onlooker(Checker):
    """Does as much after every event and commit as a cheap invariant does."""

    def __init__(self) -> None:
        self._revision = 0
        self._now_us = 0

    def after_event(self, world: World) -> None:
        if world.now_us < self._now_us:
            self.violated("TIME", "time went back")
        self._now_us = world.now_us

    def on_commit(self, world: World, commit: Commit) -> None:
        if commit.revision != self._revision + 1:
            self.violated("INV10", f"from revision {self._revision} to {commit.revision}")
        self._revision = commit.revision


def build(world: World) -> None:
    world.add_store()
    for name in ("front-1", "front-2"):
        world.add(name, Front, store="store")
    world.balance("api", ("front-1", "front-2"))
    world.add("controller", Controller, store="store")
    for number in range(NODES):
        world.add(f"node-{number}", Node)
    world.check(Onlooker())


SCENARIO = Scenario(
    name="bench.sim:SCENARIO",
    build=build,
    hazards=(
        Hazard("crash", 60, for_ms=(100, 20_000), amount=(0, 5), share=1),
        Hazard("pause", 30, for_ms=(100, 20_000), share=1),
        Hazard("partition", 30, for_ms=(100, 30_000), share=1),
        Hazard("loss", 30, for_ms=(1_000, 60_000), amount=(50, 500), share=1),
        Hazard("store_mute", 10, for_ms=(1_000, 30_000), amount=(100, 900), share=1),
        Hazard("clock_rate", 30, amount=(-200, 200), share=1),
    ),
    faults_ms=HOURS * 3_600_000,
    settle_ms=0,
)


def _cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _nothing(_number: int, _a: object, _b: object) -> None:
    pass


def bare_heap(events: int) -> None:
    """The minimum that a simulator of this shape does for this many events."""
    numbers = itertools.count()
    heap: list[tuple[int, int, Callable[[int, object, object], None], object, object]] = [
        (place, next(numbers), _nothing, None, None) for place in range(2 * NODES)
    ]
    for _ in range(events):
        at_us, number, handler, a, b = heapq.heappop(heap)
        handler(number, a, b)
        heapq.heappush(heap, (at_us + 1_500_000, next(numbers), _nothing, None, None))


def main() -> None:
    report = run(SCENARIO, 0)
    invariant(report.broken is None, f"the benchmark's own world broke: {report.broken}")
    ours_s, bare_s = float("inf"), float("inf")
    for _ in range(REPEAT):
        ours_s = min(ours_s, _cpu_s(lambda: run(SCENARIO, 0)))
        bare_s = min(bare_s, _cpu_s(lambda: bare_heap(report.events)))
    figure(
        "sim.core.hours_per_cpu_min",
        60 * HOURS / ours_s,
        "h/min",
        goal=">= 100",
        peer="as many events through a bare heap",
        peer_value=60 * HOURS / bare_s,
        machines=NODES + 3,
        events=report.events,
        faults=report.faults(),
    )
    figure(
        "sim.core.us_per_event",
        1e6 * ours_s / report.events,
        "us",
        goal="<= 10",
        peer="as many events through a bare heap",
        peer_value=1e6 * bare_s / report.events,
    )


if __name__ == "__main__":
    main()
