"""The world of all controllers with one rollout after the other and late watch events.

    python -m holdfast.sim run holdfast.sim.worlds.all_controllers.rollouts_under_faults:ROLLING
    --seeds 0-99

A replica that was unavailable when a rollout looked may be available when it is stopped: work
becomes ready all the time here, and the controllers learn of it late.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from holdfast.sim.plan import SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.randomness import between
from holdfast.sim.worlds.all_controllers.scenario import SCENARIO

FAULTS_MS = 180_000
CHANGES = 14

HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("watch_hold", 400, for_ms=(500, 8_000), only="server", share=1),
    Hazard("delivery_lose", 200, for_ms=(1_000, 20_000), amount=(50, 500), only="controllers"),
    Hazard("delay", 200, for_ms=(1_000, 20_000), amount=(100, 1_500), only="controllers"),
    Hazard("work_exit", 300, amount=(0, 2), only="agent", share=0.8),
    Hazard("shim_kill", 120, only="agent"),
    Hazard("pause", 120, for_ms=(500, 5_000), amount=(0, 6), only="controllers"),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="controllers"),
)


def script(rng: Random) -> Sequence[Act]:
    """Services with at most one replica unavailable, and templates that change repeatedly."""
    made = [
        {"do": "make", "type": "Service", "name": f"w{n}", "tenant": TENANTS[0], "replicas": 4}
        for n in range(3)
    ]
    acts = [Act(500 + 100 * n, "operator", body) for n, body in enumerate(made)]
    for number in range(CHANGES):
        changed = {"do": "change", "some": between(rng, 0, 99), "edition": number}
        acts.append(Act(between(rng, 10_000, FAULTS_MS - 20_000), "operator", changed))
    return sorted(acts, key=lambda act: act.at_ms)


ROLLING = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.all_controllers.rollouts_under_faults:ROLLING",
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    script=script,
)
