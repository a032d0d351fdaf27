"""Schedulers that compete under faults: invariants hold, and all that may happen does."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.sim.mutants import Mutant, load
from holdfast.sim.planes.checkers.plane_census import MISSED, PlaneCensus
from holdfast.sim.run import attempt, find, run
from holdfast.sim.world import World
from holdfast.sim.worlds.placing.checks import ShardLeases
from tests.scale import scaled, some_of
from tests.sim.findings import bug_params, check_bug_is_found, everything_happened
from tests.sim.placing.mutants import MUTANTS, RECORDED

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("placing-world")

WORLD = "holdfast.sim.worlds.placing.scenario:"
# Few seeds fence a node; seed 47 does.
SEEDS = scaled((*range(3), 47), (*range(28), 47))
# Enough for a scheduler of each shard to end and another one to take over.
SHARD_SEEDS = scaled((1,), (0, 1, 9))
# What must happen over the seeds of the default run.
DEMANDED = (
    "accepted Bind",
    "accepted ReportPending",
    "Bind refused",
    "RenewLease refused",
    "lost answer settled by a read",
    "list restarted after Expired",
    "lease taken back by a later life",
    "node suspected",
    "node marked",
    "node fenced",
    "node returned in a new life",
    MISSED,
    "replaced",
    "repeated request",
)


class Campaign(msgspec.Struct):
    """The results of all seeds."""

    broken: dict[int, str] = {}
    counts: dict[str, int] = {}
    schedulers: set[int] = set()


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    found = Campaign()
    for seed in SEEDS:
        world = World(seed)
        broken = attempt(find(f"{WORLD}SCENARIO"), world)
        if broken is not None:
            found.broken[seed] = f"{broken}; holdfast sim run placing --seed {seed}"
        found.schedulers.add(sum(name.startswith("scheduler-") for name in world.cells))
        for what, count in world.checker(PlaneCensus).counts.items():
            found.counts[what] = found.counts.get(what, 0) + count
    return found


@together
@pytest.mark.timeout(600)
def test_the_invariants_hold_with_competing_schedulers(campaign: Campaign) -> None:
    """INV1, INV3 to INV7, INV10 to INV12 at every commit, V1 to V5 after the faults.
    [C6.1, C7.7, N1.7, N6]"""
    assert campaign.broken == {}
    assert campaign.schedulers == {1, 2, 3}


@together
@pytest.mark.timeout(600)
def test_everything_that_may_happen_to_schedulers_does(campaign: Campaign) -> None:
    """The world proves nothing about what never happens. [N6]"""
    everything_happened(DEMANDED, campaign.counts)


def test_without_faults_no_scheduler_misses_anything() -> None:
    """[C7.7, N6]"""
    world = World(0)
    assert attempt(find(f"{WORLD}CALM"), world) is None
    assert world.checker(PlaneCensus).missed == 0
    assert world.checker(PlaneCensus).counts["accepted Bind"] > 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", some_of(range(6), 3))
def test_without_a_resync_nothing_that_fits_is_left_waiting(seed: int) -> None:
    """Events alone wake every replica that they make room for. [C7.1, E1, N6]"""
    assert run(find(f"{WORLD}PROMPT"), seed).broken is None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_invariants_hold_with_two_hundred_nodes() -> None:
    """[N6]"""
    assert run(find(f"{WORLD}MANY"), 1).broken is None


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", bug_params(MUTANTS, RECORDED), ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_the_placing_is_found(mutant: Mutant) -> None:
    """By an invariant that it breaks, not by a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_is_of_these_bugs() -> None:
    """[N6]"""
    assert {finding.mutant for finding in load(RECORDED)} == {it.name for it in MUTANTS}


@pytest.mark.timeout(600)
def test_shards_split_the_tenants_and_are_taken_over() -> None:
    """All work of a tenant is placed under one lease, by the process that holds it. [K2, K3]"""
    takeovers = 0
    for seed in SHARD_SEEDS:
        world = World(seed)
        assert attempt(find(f"{WORLD}SHARDS"), world) is None
        acted = world.checker(ShardLeases).acted
        assert sorted(acted) == ["scheduler:shard-0-of-3", "scheduler:shard-2-of-3"]
        takeovers += sum(len(schedulers) == 2 for schedulers in acted.values())
    assert takeovers
