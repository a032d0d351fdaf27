"""Bugs planted in agents and their shims, and benign controls.

    python -m holdfast.sim mutants tests.sim.agents.mutants:MUTANTS \
        --record tests/sim/agents/found.json

searches for each over many seeds and records which found it; the tests run each at its seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import rewrite, swap
from tests.sim.agents.bugs import AGENT, PROBES, STARTS, STOPS, TABLE, TOLD, benign

RECORDED = Path(__file__).with_name("found.json")

CONTROLS = (
    benign(
        "asked-all-at-once",
        "an agent that starts asks all the work that it finds in the same moment",
        rewrite(
            AGENT + "work:ReplicaWork.watch", "rng.random() if self.is_adopted else 0.0", "0.0"
        ),
    ),
    benign(
        "longer-pauses",
        "the pause before a start is twice as long from the beginning",
        swap(AGENT + "work:RESTART_MIN_MS", 200),
    ),
    benign(
        "starting-work-not-renewed",
        "a renewal moves the deadline of what runs; what is being started waits for the next one",
        rewrite(
            TABLE + "_extend",
            "held.shim.extend(effect.deadline_ms)",
            "held.is_running and held.shim.extend(effect.deadline_ms)",
        ),
    ),
    benign(
        "flaps-waited-out-for-longer",
        "work that was not ready any more is called ready again after longer",
        swap(AGENT + "work:FLAP_MIN_MS", 2_000),
    ),
)

MUTANTS = (*STARTS, *PROBES, *STOPS, *TOLD, *CONTROLS)
