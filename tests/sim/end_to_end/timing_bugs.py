"""Planted bugs about fence timings that change while nodes are cut off."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite
from tests.sim.end_to_end.planting import AGENT, LOWERED, MODEL, RETIMED, bug

TIMINGS = (
    bug(
        "fenced-by-present-settings",
        "a fence waits for what the servers' present settings demand, whatever timing the work has",
        rewrite(
            MODEL + "nodes.fence:fence_wait_ms",
            "return timing.fence_after_ms if held is None else greatest_timing(held, timing)"
            ".fence_after_ms",
            "return timing.fence_after_ms",
        ),
        world=RETIMED,
    ),
    bug(
        "running-shims-forgotten",
        "an agent reports shorter times while running shims still grant a longer grace",
        rewrite(
            AGENT + "replica_workers:ReplicaWorkers.grace_held_ms", "return max(held)", "return 0"
        ),
        world=LOWERED,
    ),
)
