"""Work that competes for less room than it needs, under faults: victims are legal, needed, and
stopped once, and what may preempt does not wait.
"""

from __future__ import annotations

import pytest

from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.census import EndToEndCensus
from holdfast.sim.worlds.placing.preemption_checks import PreemptedWork
from tests.scale import scaled
from tests.sim.findings import everything_happened

WORLD = "holdfast.sim.worlds.placing.contended:CONTENDED"
# Of the first seeds these preempt most, and the first one reclaims.
SEEDS = scaled((17, 18), tuple(range(60)))
# What must happen over the seeds of the default run.
DEMANDED = ("accepted StopAndReserve", "accepted Bind", "accepted ReportPending", "replaced")


@pytest.mark.timeout(600)
def test_only_legal_victims_are_stopped_and_only_where_it_helps() -> None:
    """Each at the instant of its stop, none twice, for a place that no other work takes; and no two
    workloads stop each other in turn. [G1, G4, C6.8, D3]"""
    victims = reclaimed = 0
    counts: dict[str, int] = {}
    for seed in SEEDS:
        world = World(seed)
        broken = attempt(find(WORLD), world)
        assert broken is None, f"{broken}; holdfast sim run contended --seed {seed}"
        checker = world.checker(PreemptedWork)
        victims, reclaimed = victims + checker.victims, reclaimed + checker.reclaimed
        for what, count in world.checker(EndToEndCensus).counts.items():
            counts[what] = counts.get(what, 0) + count
    assert victims > len(SEEDS)
    assert reclaimed, "nothing that was borrowed was taken back"
    everything_happened(DEMANDED, counts)
