"""The end-to-end world where the plane's fence timing changes while nodes are cut off.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.fence_timings:RETIMED --seeds 0-99

The fault `retimed` restarts a server with other settings, as an operator does who restarts the
servers one after the other: timings go up and down, and two servers may differ for a long time.
Each timing by itself waits exactly as long as the law of fencing demands, so a fence that uses one
timing for work started under another lets work run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.model.nodes import fence
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.check import Checker
from holdfast.sim.faults import MACHINE, FaultKind
from holdfast.sim.plan import SELDOM_LATE, Act, Fault, Hazard, calendar_steps
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import (
    LAWS,
    SERVER_NAMES,
    WELL_WITHIN_MS,
    parts,
)
from holdfast.sim.worlds.end_to_end.tight import RHO, timing

NODES = 4
ZONES = "abcd"
FAULTS_MS = 180_000
SETTLE_MS = WELL_WITHIN_MS + 30_000


def _safe(**changes: int) -> FenceTiming:
    short = msgspec.structs.replace(timing(), fence_after_ms=0, **changes)
    return msgspec.structs.replace(short, fence_after_ms=fence.fence_after_min_ms(short))


# The usual one, one with a long grace, one that waits long for renewals, one with all of it.
TIMINGS = (
    _safe(),
    _safe(grace_ms=25_000),
    _safe(self_stop_after_ms=25_000, ack_window_ms=1_000),
    _safe(self_stop_after_ms=18_000, grace_ms=15_000),
)

_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("retimed", 240, for_ms=(0, 3_000), amount=(0, len(TIMINGS) - 1), only="server", share=1),
    Hazard("partition", 400, for_ms=(20_000, 70_000), only="agent", share=0.9),
    Hazard("deaf", 200, for_ms=(9_000, 30_000), only="agent", share=0.5),
    Hazard("delay", 200, (5_000, 30_000), (100, 900), only="agent", peers="server", share=0.4),
    Hazard("pause", 100, for_ms=(500, 5_000), amount=(0, 4), only="agent", share=0.5),
    Hazard("crash", 100, for_ms=(0, 10_000), amount=(0, 6), only="agent", share=0.6),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="controllers", share=0.4),
    Hazard("work_exit", 100, amount=(0, 2), only="agent", share=0.6),
    Hazard("clock_rate", 200, amount=(-RHO, RHO), share=0.6),
    Hazard("store_mute", 60, for_ms=(1_000, 20_000), amount=(100, 900), share=0.4),
)

# The grace is lowered while nodes that still grant the longer one are cut off.
_LOWERED_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("retimed", 120, for_ms=(0, 1_000), amount=(0, 1), only="server", share=1),
    Hazard("partition", 240, for_ms=(40_000, 80_000), only="agent", share=1),
    Hazard("clock_rate", 100, amount=(-RHO, RHO), share=0.6),
)


class Retiming(Checker):
    """The settings with which each server starts next. In the end all servers have the same.

    While they differ, the timing in a node's record changes with the server that it talks to.
    """

    def __init__(self, world: World, at_once: bool) -> None:
        # Whether all servers are restarted together.
        self._at_once = at_once
        self._chosen: dict[str, int] = {}
        world.faults.add("retimed", FaultKind(MACHINE, self._strike))

    def on_calm(self, world: World) -> None:
        wanted = self._chosen.get(SERVER_NAMES[0], 0)
        for name in SERVER_NAMES:
            if self._chosen.get(name, 0) != wanted:
                self._chosen[name] = wanted
                world.crash(world.cells[name], 0)

    def settings(self, server: str) -> PlaneSettings:
        return PlaneSettings(fence=TIMINGS[self._chosen.get(server, 0)])

    def _strike(self, world: World, fault: Fault) -> None:
        for name in SERVER_NAMES if self._at_once else (fault.target,):
            self._chosen[name] = fault.amount
            world.crash(world.cells[name], fault.for_ms)


def retimed(*, at_once: bool = False) -> Callable[[World], None]:
    """Four nodes, each in a zone of its own, and servers whose settings change."""

    def servers_change(plane: SimulatedPlane) -> None:
        retiming = Retiming(plane.world, at_once)
        plane.settings_of = retiming.settings
        plane.world.check(retiming)

    # The checkers need the shortest time for which a server has listened.
    settings = PlaneSettings(fence=TIMINGS[0])
    usual = parts(NODES, zones=ZONES, faults_ms=FAULTS_MS)
    return world_of(servers_change, *usual, *LAWS, settings=settings)


def script(rng: Random, graces: tuple[int, ...] = (10, 60, 60)) -> Sequence[Act]:
    """Services with graces far beyond what the plane allows, and an operator who scales them."""
    acts = [Act(500 + 100 * i, "operator", _service(rng, i, graces)) for i in range(3)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng))
        for _ in range(between(rng, 1, 6))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random) -> dict[str, Any]:
    return {"do": "scale", "some": between(rng, 0, 99), "replicas": between(rng, 1, 4)}


def _service(rng: Random, number: int, graces: tuple[int, ...]) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 2, 4),
        "cpu": "500m",
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": False,
        "budget": None,
        "port": 0,
        "grace": pick(rng, graces),
    }


RETIMED = Scenario(
    name="holdfast.sim.worlds.end_to_end.fence_timings:RETIMED",
    build=retimed(),
    hazards=_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same where only the grace changes, on all servers at once, and all work uses all the grace
# that it is given.
LOWERED = msgspec.structs.replace(
    RETIMED,
    name="holdfast.sim.worlds.end_to_end.fence_timings:LOWERED",
    build=retimed(at_once=True),
    hazards=_LOWERED_HAZARDS,
    script=partial(script, graces=(60,)),
)
