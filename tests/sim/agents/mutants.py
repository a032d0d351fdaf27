"""Bugs planted in agents and their shims, and benign controls.

    python -m holdfast.sim mutants tests.sim.agents.mutants:MUTANTS \
        --record tests/sim/agents/found.json

searches for each over many seeds and records which found it; the tests run each at its seed.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.sim.mutants import rewrite, swap
from tests.sim.agents.bugs import AGENT, PROBES, REPORTS, STARTS, STOPS, TABLE, benign

RECORDED = Path(__file__).with_name("found.json")

CONTROLS = (
    benign(
        "asked-all-at-once",
        "an agent that starts probes all work that it adopts at the same moment",
        rewrite(
            AGENT + "work:ReplicaWork.watch", "rng.random() if self.is_adopted else 0.0", "0.0"
        ),
    ),
    benign(
        "longer-pauses",
        "the first pause before a start is twice as long",
        swap(AGENT + "work:RESTART_MIN_MS", 200),
    ),
    benign(
        "starting-work-not-renewed",
        "a renewal extends the deadline of running work only, not of starting work",
        rewrite(
            TABLE + "_extend",
            "held.shim.extend(effect.deadline_ms)",
            "held.is_running and held.shim.extend(effect.deadline_ms)",
        ),
    ),
    benign(
        "flaps-waited-out-for-longer",
        "work that was not ready is reported as ready again later",
        swap(AGENT + "work:FLAP_MIN_MS", 2_000),
    ),
)

MUTANTS = (*STARTS, *PROBES, *STOPS, *REPORTS, *CONTROLS)
