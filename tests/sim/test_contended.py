"""Work that competes for less room than it needs, under faults: victims are legal, needed, and
stopped once, and what may preempt does not wait.
"""

from __future__ import annotations

import pytest

from holdfast.model.time import Instant
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.plans import PlacementPlan, PlanRunner
from holdfast.sim.mutants import load
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.placing.gang_checks import WholeGangs
from holdfast.sim.worlds.placing.order_checks import KeptStarts
from holdfast.sim.worlds.placing.preemption_checks import PreemptedWork
from tests.scale import scaled
from tests.sim.findings import check_recorded_search, everything_happened
from tests.sim.placing.gang_bugs import MUTANTS as GANG_BUGS
from tests.sim.placing.gang_bugs import RECORDED as FOUND_GANGS
from tests.sim.placing.mutants import PREEMPTION
from tests.sim.placing.mutants import RECORDED as FOUND

SMALL = "holdfast.sim.worlds.placing.small_worlds:"
WORLD = "holdfast.sim.worlds.placing.contended:CONTENDED"
# They preempt most, and take back both by a preemption and after a notice.
SEEDS = scaled((16, 17, 18), tuple(range(60)))
RIVAL_SEEDS, TURNS_SEEDS = scaled((1, 2), tuple(range(20))), scaled((1,), tuple(range(20)))
SHARES_SEEDS, STATED_SEEDS = scaled((0,), tuple(range(20))), scaled((0, 1), tuple(range(20)))
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


@pytest.mark.timeout(600)
def test_of_two_rival_gangs_one_starts_and_the_other_holds_nothing() -> None:
    """Room for either becomes free for both at once. [C7.6, G5]"""
    for seed in RIVAL_SEEDS:
        world = _played("RIVALS", seed)
        assert world.checker(WholeGangs).formed, seed


@pytest.mark.timeout(600)
def test_no_work_is_stopped_in_turn_when_quotas_change_places() -> None:
    """Each tenant takes back what the other holds, but not from work that stopped its own. [G4]"""
    assert sum(_played("TURNS", seed).checker(PreemptedWork).reclaimed for seed in TURNS_SEEDS)


@pytest.mark.timeout(600)
def test_a_tenant_that_comes_later_gets_what_becomes_free() -> None:
    """[G2, E6]"""
    for seed in SHARES_SEEDS:
        _played("SHARES", seed)


@pytest.mark.timeout(600)
def test_a_job_starts_when_it_was_told_that_it_would() -> None:
    """All work ends by its statement, and nothing that takes longer passes the job. [E3]"""
    assert sum(_played("STATED", seed).checker(KeptStarts).kept for seed in STATED_SEEDS)


def _played(name: str, seed: int) -> World:
    world = World(seed)
    broken = attempt(find(SMALL + name), world)
    assert broken is None, f"{broken}; holdfast sim run {SMALL}{name} --seed {seed}"
    return world


def test_at_least_twenty_planted_bugs_break_the_rules_of_contention() -> None:
    """Of preemption, borrowing, fairness, backfill and gangs, each within 50 seeds. [N6]"""
    names = {it.name for it in PREEMPTION}
    found = [it for it in load(FOUND) if it.mutant in names] + load(FOUND_GANGS)
    check_recorded_search((*PREEMPTION, *GANG_BUGS), found, bugs_min=24)
