"""The end-to-end world with times as short as the law of fencing allows, and hazards at the moments
that matter for it.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.tight:TIGHT --seeds 0-99

A fence waits here exactly as long as it must, and clocks drift as far as that law allows. Agents
pause between a request and its answer, or between a decision and its action; controllers miss the
heartbeats of healthy nodes. So code that counts from the wrong moment, or leaves out one of the
terms, lets work run twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.model.nodes import fence
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.plan import SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes.process_table import KILL_MS
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts

NODES = 5
# Shorter than a zone is silent at times, so that it is given up while its nodes work.
ZONE_SILENCE_MAX_MS = 30_000
# Each node is a zone of its own, so that no disruption limit holds back marks and fences.
ZONES = "abcde"
FAULTS_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
RHO = 2_000
_SHORT = FenceTiming(
    ack_window_ms=250,
    self_stop_after_ms=6_000,
    grace_ms=0,
    kill_bound_ms=KILL_MS[1],
    margin_ms=0,
    fence_after_ms=0,
)

HAZARDS = (
    *SELDOM_LATE,
    # Marked after seven seconds, fenced after eight more; or heartbeats return in between.
    Hazard("deaf", 600, for_ms=(9_000, 30_000), only="agent", share=0.9),
    # Answers that take long, and agents that process them late.
    Hazard("delay", 500, (5_000, 30_000), (100, 900), only="agent", peers="server", share=0.8),
    Hazard("pause", 300, for_ms=(500, 5_000), amount=(0, 4), only="agent"),
    Hazard("start_stall", 300, amount=(3_000, 40_000), only="agent"),
    Hazard("crash", 60, for_ms=(0, 10_000), amount=(0, 6), only="agent"),
    Hazard("crash", 90, for_ms=(0, 5_000), amount=(0, 6), only="controllers"),
    Hazard("crash", 90, for_ms=(0, 3_000), amount=(0, 6), only="server"),
    Hazard("crash", 60, for_ms=(0, 10_000), amount=(0, 6), only="scheduler", share=0.4),
    Hazard("pause", 60, for_ms=(1_000, 20_000), amount=(0, 6), only="controllers", share=0.4),
    Hazard("machine_freeze", 90, for_ms=(12_000, 40_000), amount=(1, 1), only="agent", share=0.4),
    Hazard("reboot", 30, for_ms=(1_000, 20_000), only="agent", share=0.4),
    Hazard("work_exit", 300, amount=(0, 2), only="agent"),
    Hazard("work_ill", 90, for_ms=(5_000, 15_000), only="agent"),
    Hazard("shim_kill", 60, only="agent"),
    Hazard("clock_rate", 400, amount=(-RHO, RHO), share=0.8),
    calendar_steps(120, "controllers"),
    calendar_steps(120, "server", share=0.4),
    Hazard("partition", 60, for_ms=(500, 20_000), only="agent", share=0.4),
    Hazard("scatter", 90, for_ms=(2_000, 20_000), amount=(500, 8_000), only="controllers"),
    Hazard("loss", 60, for_ms=(1_000, 20_000), amount=(50, 600), only="agent", share=0.4),
    Hazard("duplicate", 60, for_ms=(1_000, 20_000), amount=(100, 800), share=0.4),
    Hazard("store_slow", 30, for_ms=(1_000, 20_000), amount=(10, 220), share=0.4),
    Hazard("store_mute", 60, for_ms=(1_000, 20_000), amount=(100, 900), share=0.4),
    Hazard("store_late", 60, for_ms=(1_000, 20_000), amount=(50, 600), share=0.4),
    Hazard("watch_hold", 200, for_ms=(1_000, 20_000), only="agent"),
    Hazard("stream_break", 60, share=0.4),
)


# When all nodes fall silent at once, the observers are at fault and not the nodes.
_ZONE_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("deaf_zone", 90, for_ms=(20_000, 60_000), only="agent", share=0.9),
    Hazard("deaf", 200, for_ms=(9_000, 30_000), only="agent"),
    Hazard("crash", 120, for_ms=(0, 3_000), amount=(0, 6), only="server"),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="controllers"),
    Hazard("partition", 60, for_ms=(500, 20_000), only="agent", share=0.4),
    Hazard("partition", 60, for_ms=(500, 20_000), only="controllers", share=0.4),
    Hazard("delay", 60, for_ms=(2_000, 20_000), amount=(100, 900), share=0.4),
)
# Clocks that drift so much that the drift term dominates the wait of a fence.
_SKEW = 100_000
_SKEW_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("clock_rate", 900, amount=(-_SKEW, _SKEW), share=1),
    *(hazard for hazard in HAZARDS if hazard.kind in ("deaf", "work_exit")),
)
# Controllers that hardly live as long as a fence takes, with calendars that jump.
_TAKEOVER_HAZARDS = (
    *SELDOM_LATE,
    Hazard("deaf", 900, for_ms=(12_000, 30_000), only="agent", share=1),
    Hazard("crash", 900, for_ms=(0, 500), amount=(0, 6), only="controllers", share=1),
    calendar_steps(300, "controllers"),
    Hazard("clock_rate", 100, amount=(-RHO, RHO)),
)


def timing(drift_ppm: int = RHO) -> FenceTiming:
    """The shortest times that the law of fencing allows."""
    short = msgspec.structs.replace(_SHORT, drift_ppm=drift_ppm)
    return msgspec.structs.replace(short, fence_after_ms=fence.fence_after_min_ms(short))


def tight(zones: str = ZONES, drift_ppm: int = RHO) -> Callable[[World], None]:
    """Five nodes, each in a zone of its own or all in one."""
    settings = PlaneSettings(fence=timing(drift_ppm), zone_silence_max_ms=ZONE_SILENCE_MAX_MS)
    return world_of(*parts(NODES, zones=zones, faults_ms=FAULTS_MS), *LAWS, settings=settings)


def script(rng: Random) -> Sequence[Act]:
    """A few services, and an operator who keeps changing them."""
    acts = [Act(500 + 100 * i, "operator", _service(rng, i)) for i in range(3)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng))
        for _ in range(between(rng, 2, 10))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random) -> dict[str, Any]:
    some = between(rng, 0, 99)
    return pick(
        rng,
        (
            {"do": "scale", "some": some, "replicas": between(rng, 0, 4)},
            {"do": "kill", "some": some},
        ),
    )


def _service(rng: Random, number: int) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 2, 4),
        "cpu": pick(rng, ("500m", "1")),
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": pick(rng, (False, False, False, False, True)),
        "budget": None,
        "port": 0,
        "grace": pick(rng, (1, 10, 60)),
        "probed": pick(rng, (False, True)),
    }


TIGHT = Scenario(
    name="holdfast.sim.worlds.end_to_end.tight:TIGHT",
    build=tight(),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same in one zone, where the observers may be at fault and not the node.
ZONE = msgspec.structs.replace(
    TIGHT,
    name="holdfast.sim.worlds.end_to_end.tight:ZONE",
    build=tight(zones="a"),
    hazards=_ZONE_HAZARDS,
)

# The same with clocks that drift by a tenth.
SKEWED = msgspec.structs.replace(
    TIGHT,
    name="holdfast.sim.worlds.end_to_end.tight:SKEWED",
    build=tight(drift_ppm=_SKEW),
    hazards=_SKEW_HAZARDS,
)

# The same with controllers that take over from each other all the time.
TAKEOVER = msgspec.structs.replace(
    TIGHT, name="holdfast.sim.worlds.end_to_end.tight:TAKEOVER", hazards=_TAKEOVER_HAZARDS
)
