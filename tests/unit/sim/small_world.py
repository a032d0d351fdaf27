"""A tiny scenario with a bug that some plans expose, for tests of the runner.

A ticker counts in memory what it has written to the store; after a crash it starts at zero. Its
checker reports that as a violation, so exactly the plans that crash the ticker fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.model.machine import Started, Txn, Wake, Woken
from holdfast.model.time import Instant
from holdfast.model.transaction import Put, Transaction
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import Act, Hazard, Prompted
from holdfast.sim.run import Scenario
from holdfast.sim.world import World

PERIOD_MS = 1_000


class Ticker:
    def __init__(self, seat: Seat) -> None:
        self.count = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, (Started, Woken)):
            return (*self.write(), Wake("tick", now.monotonic_ms + PERIOD_MS))
        return self.write() if isinstance(stimulus, Prompted) else ()

    def write(self) -> Sequence[Any]:
        self.count += 1
        return (Txn(self.count, Transaction((), (Put("count", b"%d" % self.count),))),)


class NeverBack(Checker):
    invariants = ("BACK",)

    def __init__(self) -> None:
        self.last = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        count = int(commit.changes[0].value or b"0")
        if count < self.last:
            self.violated("BACK", f"from {self.last} back to {count}")
        self.last = count


def build(world: World) -> None:
    world.add_store()
    world.add("ticker", Ticker, store="store")
    world.add("idle", Ticker, store="store", host="elsewhere")
    world.cells["idle"].factory = _Idle
    world.check(NeverBack())


class _Idle:
    def __init__(self, seat: Seat) -> None:
        pass

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return ()


def script(rng: Random) -> Sequence[Act]:
    return [Act(500 + 1_000 * number, "ticker", {"number": number}) for number in range(20)]


NAME = "tests.unit.sim.small_world"

# Crashes strike the idle machine often and the ticker about every second seed.
FAILING = Scenario(
    name=f"{NAME}:FAILING",
    build=build,
    hazards=(
        Hazard("crash", 600, for_ms=(0, 500), only="idle", share=1),
        Hazard("pause", 600, for_ms=(0, 500), share=1),
        Hazard("crash", 60, for_ms=(0, 500), only="ticker", share=0.5),
    ),
    faults_ms=120_000,
    settle_ms=1_000,
    script=script,
)
HEALTHY = Scenario(
    name=f"{NAME}:HEALTHY",
    build=build,
    hazards=FAILING.hazards[:2],
    faults_ms=60_000,
    settle_ms=1_000,
)
