"""One replica end to end: the simulated hours per minute of CPU, with all checkers."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from bench.harness import figure
from bench.sim import bare_heap
from holdfast.model.errors import invariant
from holdfast.sim.planes.simulated_plane import world_of
from holdfast.sim.run import Report, Scenario, run
from holdfast.sim.worlds.end_to_end.scenario import (
    CALM,
    FAULTS_MS,
    LAWS,
    NODES,
    QUICK,
    SCENARIO,
    parts,
)

SEEDS = (0, 3, 5)
# The same world with ten times as many nodes. One seed of it takes as long as all of the others.
MANY = 200
MANY_NODES = msgspec.structs.replace(
    QUICK,
    name="bench.end_to_end_sim:MANY_NODES",
    build=world_of(*parts(MANY, faults_ms=FAULTS_MS), *LAWS),
)
# What 25 hours per minute are at 20 nodes, where a bare event takes 0.2 µs: 4.3 µs for a step.
STEP_COST_GOAL = "<= 20"
REPEAT = 3
MS_PER_HOUR = 3_600_000
PEER = "as many events through a bare heap"


def _timed(scenario: Scenario, seed: int) -> tuple[float, Report]:
    """The best of a few runs of one seed, all of which are the same run."""
    best_s, report = float("inf"), None
    for _ in range(REPEAT):
        began = time.process_time()
        report = run(scenario, seed)
        best_s = min(best_s, time.process_time() - began)
    invariant(report is not None and report.broken is None, f"the world broke: {report}")
    return best_s, report  # type: ignore[return-value]


def _bare_s(events: int) -> float:
    began = time.process_time()
    bare_heap(events)
    return time.process_time() - began


def simulated(
    kind: str,
    scenario: Scenario,
    goal: str | None,
    *,
    nodes: int = NODES,
    seeds: Sequence[int] = SEEDS,
    step_goal: str | None = None,
) -> None:
    """Some nodes, two servers, a scheduler, two replicas of all controllers, every checker."""
    runs = [_timed(scenario, seed) for seed in seeds]
    hours = sum(report.virtual_ms for _, report in runs) / MS_PER_HOUR
    events = sum(report.events for _, report in runs)
    ours_s = sum(seconds for seconds, _ in runs)
    bare_s = min(_bare_s(events) for _ in range(REPEAT))
    figure(
        f"{kind}.hours_per_cpu_min.n{nodes}",
        hours / (ours_s / 60),
        "h/min",
        goal=goal,
        peer=PEER,
        peer_value=hours / (bare_s / 60),
        nodes=nodes,
        events=events,
        faults=sum(report.faults() for _, report in runs),
    )
    # The same on a slow machine and on a fast one.
    figure(
        f"{kind}.step_cost_ratio" if nodes == NODES else f"{kind}.step_cost_ratio.n{nodes}",
        ours_s / bare_s,
        "x",
        goal=step_goal,
        peer=PEER,
        peer_value=1,
        us_per_event=round(1e6 * ours_s / events, 2),
    )


def main() -> None:
    """Part of `bench.end_to_end`, and on its own where no plane can be started."""
    simulated("sim", SCENARIO, ">= 25", step_goal=STEP_COST_GOAL)
    simulated("sim", MANY_NODES, ">= 2.5", nodes=MANY, seeds=SEEDS[:1])
    simulated("sim.calm", CALM, None)


if __name__ == "__main__":
    main()
