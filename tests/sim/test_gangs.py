"""Gangs under faults: all or none, no room held for ever, and progress where two compete."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.sim.mutants import Mutant, load
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.run import attempt, find
from holdfast.sim.world import World
from holdfast.sim.worlds.placing.gang_checks import WholeGangs
from holdfast.sim.worlds.placing.gang_preemption_checks import PreemptedGangs
from tests.scale import scaled
from tests.sim.findings import bug_params, check_bug_is_found, everything_happened
from tests.sim.placing.gang_bugs import CONTENDED, GANGS, LARGE, MUTANTS, RECORDED

together = pytest.mark.xdist_group("gang-worlds")
SEEDS = scaled((2, 3, 8), tuple(range(20)))
# Of the first seeds these have all that is looked for.
CONTENDED_SEEDS = scaled((3, 12), tuple(range(40)))
DEMANDED = (
    "accepted BindTogether",
    "BindTogether refused",
    "accepted CommitGang",
    "accepted Reserve",
    "Reserve refused",
    "accepted Unreserve",
)


class Campaign(msgspec.Struct):
    """The results of all seeds of both worlds."""

    broken: dict[str, str] = {}
    formed: int = 0
    counts: dict[str, int] = {}


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    found = Campaign()
    for scenario in (GANGS, LARGE):
        for seed in SEEDS:
            world = World(seed)
            broken = attempt(find(scenario), world)
            if broken is not None:
                found.broken[f"{scenario} {seed}"] = str(broken)
            found.formed += world.checker(WholeGangs).formed
            for what, count in world.checker(PlaneCensus).counts.items():
                found.counts[what] = found.counts.get(what, 0) + count
    return found


@together
@pytest.mark.timeout(600)
def test_gangs_start_as_a_whole_and_hold_nothing_for_ever(campaign: Campaign) -> None:
    """At every commit, and progress after the faults: with competing schedulers, crashes, lost and
    late answers, and clocks that step. [G5, C7.6, N6]"""
    assert campaign.broken == {}


@together
@pytest.mark.timeout(600)
def test_gangs_are_bound_by_one_transaction_and_by_reservations(campaign: Campaign) -> None:
    """The worlds prove nothing about what never happens. [N6]"""
    assert campaign.formed
    everything_happened(DEMANDED, campaign.counts)


@pytest.mark.timeout(600)
def test_gangs_preempt_and_are_preempted_as_a_whole() -> None:
    """On several nodes at once, within their domains, with work of other classes, and only for as
    many members as start together. [G4, G5, D3]"""
    found: dict[str, int] = {}
    for seed in CONTENDED_SEEDS:
        world = World(seed)
        broken = attempt(find(CONTENDED), world)
        assert broken is None, f"{broken}; holdfast sim run {CONTENDED} --seed {seed}"
        checker = world.checker(PreemptedGangs)
        for what in ("shrunk", "ended", "preemptions", "within"):
            found[what] = found.get(what, 0) + getattr(checker, what)
    assert all(found.values()), found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", bug_params(MUTANTS, RECORDED), ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_gangs_is_found(mutant: Mutant) -> None:
    """By an invariant that it breaks, not by a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_is_of_these_bugs() -> None:
    """[N6]"""
    assert {finding.mutant for finding in load(RECORDED)} == {it.name for it in MUTANTS}
