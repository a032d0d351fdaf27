"""The world of all controllers where the wall clocks of hosts are set all the time, one at a time.

    python -m holdfast.sim run holdfast.sim.worlds.all_controllers.calendars:CALENDARS --seeds 0-99

Jobs have deadlines and times to live that are longer than any fault lasts; cron jobs are created
and changed while a calendar is ahead. Controllers restart often, and first see everything with a
wrong calendar.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.sim.plan import CALENDAR_STEPS_MS, SELDOM_LATE, Act, Hazard
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.randomness import between
from holdfast.sim.worlds.all_controllers.scenario import (
    CRON_RESTS,
    CRONS_REST_MS,
    LONG_MS,
    SCENARIO,
)

FAULTS_MS = 180_000
# Longer than a calendar stays wrong.
PATIENCE_S = 80


def _steps(only: str) -> Hazard:
    return Hazard(
        "clock_step",
        150,
        for_ms=(5_000, 40_000),
        only=only,
        share=1,
        amounts=CALENDAR_STEPS_MS,
        alone=True,
    )


HAZARDS = (
    *SELDOM_LATE,
    _steps("controllers"),
    _steps("server"),
    Hazard("crash", 240, for_ms=(0, 3_000), amount=(0, 6), only="controllers", share=1),
    Hazard("crash", 60, for_ms=(0, 3_000), amount=(0, 6), only="server", share=0.4),
)


def _make(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"do": "make", "type": kind, "name": name, "tenant": TENANTS[0], **more}


def script(rng: Random) -> Sequence[Act]:
    """Jobs with long deadlines, and cron jobs that are created, suspended and resumed."""
    acts = []
    for number in range(3):
        at_ms = between(rng, 500, FAULTS_MS // 2)
        late = _make("Job", f"late{number}", ms=LONG_MS, deadline=PATIENCE_S, retries=20)
        kept = _make("Job", f"kept{number}", ms=2_000, ttl=PATIENCE_S, retries=20)
        cron = _make("Cron", f"cron{number}", ms=1_000, history=1, retries=2)
        acts += [Act(at_ms + 100 * n, "operator", it) for n, it in enumerate((late, kept, cron))]
    for _ in range(6):
        do = "rest-crons" if between(rng, 0, 1) else "wake-cron"
        turned = {"do": do, "some": between(rng, 0, 99)}
        acts.append(Act(between(rng, FAULTS_MS // 2, FAULTS_MS - 10_000), "operator", turned))
    rest = {"do": "rest-crons", "some": 0}
    acts += [Act(FAULTS_MS + CRONS_REST_MS, "operator", rest) for _ in range(CRON_RESTS)]
    return sorted(acts, key=lambda act: act.at_ms)


CALENDARS = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.all_controllers.calendars:CALENDARS",
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    script=script,
)
