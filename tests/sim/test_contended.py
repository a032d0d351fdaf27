"""Work that competes for less room than it needs, under faults: victims are legal, needed, and
stopped once, and what may preempt does not wait.
"""

from __future__ import annotations

import pytest

from holdfast.model.time import Instant
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.plans import PlacementPlan, PlanRunner
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.placing.preemption_checks import PreemptedWork
from tests.scale import scaled
from tests.sim.findings import everything_happened

WORLD = "holdfast.sim.worlds.placing.contended:CONTENDED"
# They preempt most, and take back both by a preemption and after a notice.
SEEDS = scaled((16, 17, 18), tuple(range(60)))
# What must happen over the seeds of the default run.
DEMANDED = ("accepted StopAndReserve", "accepted Bind", "accepted ReportPending", "replaced")


@pytest.mark.timeout(600)
def test_only_legal_victims_are_stopped_and_only_where_it_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each at the instant of its stop, none twice, for a place that no other work takes; and no two
    workloads stop each other in turn. [G1, G4, C6.8, D3]"""
    victims = reclaimed = taken_back = 0
    swaps: list[bool] = []
    start = PlanRunner.start

    def started(runner: PlanRunner, plan: PlacementPlan, view: FleetSnapshot, now: Instant) -> None:
        # What the metric of oscillation counts once such a plan is done.
        swaps.append(plan.swaps)
        start(runner, plan, view, now)

    monkeypatch.setattr(PlanRunner, "start", started)
    counts: dict[str, int] = {}
    for seed in SEEDS:
        world = World(seed)
        broken = attempt(find(WORLD), world)
        assert broken is None, f"{broken}; holdfast sim run contended --seed {seed}"
        checker = world.checker(PreemptedWork)
        victims, reclaimed = victims + checker.victims, reclaimed + checker.reclaimed
        taken_back += checker.taken_back
        for what, count in world.checker(PlaneCensus).counts.items():
            counts[what] = counts.get(what, 0) + count
    assert victims > len(SEEDS)
    assert reclaimed, "nothing that was borrowed was taken back by a preemption"
    assert taken_back, "nothing that was borrowed was taken back after a notice"
    assert set(swaps) == {False}
    everything_happened(DEMANDED, counts)
