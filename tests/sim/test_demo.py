"""The demonstration world: it keeps its invariants, and planted bugs are found."""

from __future__ import annotations

import pytest

from holdfast.sim.campaign import Summary, campaign
from holdfast.sim.faults import KINDS
from holdfast.sim.mutants import Mutant, confirm, load, search
from holdfast.sim.run import draw_plan, find, run
from holdfast.sim.shrink import shrink
from tests.scale import scaled
from tests.sim.demo.mutants import MUTANTS, RECORDED
from tests.sim.demo.world import SCENARIO
from tests.sim.findings import SEEDS_MAX, bug_params, check_bug_is_found, check_recorded_search

SEEDS = scaled(40, 100)
BENIGN_SEEDS = 6

BUGS = [mutant for mutant in MUTANTS if not mutant.benign]
CONTROLS = [mutant for mutant in MUTANTS if mutant.benign]


@pytest.fixture(scope="module")
def summary() -> Summary:
    return campaign(SCENARIO.name, range(SEEDS))


def test_the_demonstration_world_keeps_its_promises(summary: Summary) -> None:
    """Exactly once, one lamp, no stale epoch, true views, and it settles. [N5, N6]"""
    assert summary.failed == [], summary.describe()
    assert summary.faults() > 80 * SEEDS


def test_every_kind_of_fault_takes_place(summary: Summary) -> None:
    """A hazard that never strikes proves nothing. [N6]"""
    # These strike at points, not at random times; the sweeps cover them.
    by_point = {"crash_author"}
    # Its world has one plane; `test_two_planes` cuts the link between two.
    between_planes = {"region_cut"}
    assert set(summary.injected) == set(KINDS) - by_point - between_planes


@pytest.mark.parametrize("mutant", bug_params(BUGS, RECORDED), ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    """By an invariant that it breaks, not by a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_found_every_bug_and_no_control() -> None:
    """Half of the planted bugs within 20 seeds. [N6]"""
    check_recorded_search(MUTANTS, RECORDED, bugs_min=20, half_within=20)


@pytest.mark.parametrize("mutant", CONTROLS, ids=lambda mutant: mutant.name)
def test_a_benign_change_does_not_alarm(mutant: Mutant) -> None:
    """A checker with false alarms is worse than none. [N6]"""
    assert search(mutant, seeds_max=BENIGN_SEEDS).seed is None


@pytest.mark.parametrize("name", ["not-applied-means-done", "deadline-from-reply", "lost-wake-up"])
def test_a_failure_is_shrunk_to_a_plan_that_a_person_can_read(name: str) -> None:
    """At most 50 entries, and it still fails in the same way. [N6]"""
    mutant = next(mutant for mutant in BUGS if mutant.name == name)
    seed = confirm(mutant, load(RECORDED), seeds_max=SEEDS_MAX).seed or 0
    with mutant.planted():
        scenario = find(mutant.scenario)
        plan = draw_plan(scenario, seed)
        broken = run(scenario, seed, plan, tell=False).broken
        assert broken is not None
        small = shrink(scenario, seed, plan, broken, runs_max=150)
        assert small.reached_goal()
        assert small.plan.size() < plan.size() / 2
        assert run(scenario, seed, small.plan, tell=False).broken == small.broken
