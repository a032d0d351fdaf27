"""The end-to-end world with too little capacity, and with watch events that never arrive.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.crowded:CROWDED --seeds 0-99
    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.crowded:LOSSY --seeds 0-99

In `CROWDED` many equal replicas wait for capacity, and as soon as some is freed, a younger replica
asks for it too. In `LOSSY` hardly anything goes wrong except that watch events are lost: no crash
and no broken stream makes a component list again, so only the resync finds what was missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from holdfast.sim.plan import SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import world_of
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts

NODES = 3
FAULTS_MS = 90_000
SETTLE_MS = WELL_WITHIN_MS + 60_000
KILL_EVERY_MS = (2_500, 6_000)
# More than fits on all nodes together.
REPLICAS = (6, 9)

_CROWDED_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="scheduler", share=0.4),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="agent", share=0.4),
    Hazard("store_mute", 60, for_ms=(1_000, 20_000), amount=(100, 900), share=0.4),
    Hazard("loss", 60, for_ms=(1_000, 20_000), amount=(50, 400), only="scheduler", share=0.4),
    Hazard("watch_hold", 120, for_ms=(1_000, 15_000), only="scheduler", share=0.4),
)
_LOSSY_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("delivery_lose", 120, for_ms=(5_000, 40_000), amount=(200, 900), share=0.9),
    Hazard("delivery_lose", 60, for_ms=(5_000, 40_000), amount=(200, 900), only="scheduler"),
    Hazard("delivery_lose", 60, for_ms=(5_000, 40_000), amount=(200, 900), only="controllers"),
    Hazard("work_exit", 60, amount=(0, 2), only="agent"),
)


def script(rng: Random, replicas: tuple[int, int]) -> Sequence[Act]:
    """Two services of one tenant that ask for the same, and an operator who kills replicas."""
    names = [Act(500 + 100 * i, "operator", _service(rng, i, replicas)) for i in range(2)]
    acts, at_ms = names, 5_000
    while at_ms < FAULTS_MS:
        acts.append(Act(at_ms, "operator", {"do": "kill", "some": between(rng, 0, 99)}))
        at_ms += between(rng, *KILL_EVERY_MS)
    return acts


def _service(rng: Random, number: int, replicas: tuple[int, int]) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": TENANTS[0],
        "replicas": between(rng, *replicas),
        "cpu": "1",
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": False,
        "budget": None,
        "port": 0,
        "grace": 1,
    }


CROWDED = Scenario(
    name="holdfast.sim.worlds.end_to_end.crowded:CROWDED",
    build=world_of(*parts(NODES, faults_ms=FAULTS_MS), *LAWS),
    hazards=_CROWDED_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=partial(script, replicas=REPLICAS),
)

LOSSY = Scenario(
    name="holdfast.sim.worlds.end_to_end.crowded:LOSSY",
    build=world_of(*parts(NODES, faults_ms=FAULTS_MS), *LAWS),
    hazards=_LOSSY_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=partial(script, replicas=(1, 3)),
)
