"""One replica end to end under faults: invariants hold, faults happen, planted bugs are found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.sim.check import Violation
from holdfast.sim.mutants import Mutant, load, search
from holdfast.sim.planes.checkers.plane_census import PlaneCensus
from holdfast.sim.planes.checkers.process_checks import OneCopy
from holdfast.sim.run import find, play, run
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import DEMANDED
from tests.scale import scaled, some_of
from tests.sim.authority.coverage import counts_table
from tests.sim.end_to_end.mutants import MUTANTS, RECORDED
from tests.sim.end_to_end.planting import (
    CALM,
    CROWDED,
    HUNG,
    LOSSY,
    LOWERED,
    ONE,
    QUICK,
    RETIMED,
    REUSED,
    SKEWED,
    TAKEOVER,
    TIGHT,
    TWO_MACHINES,
    WHOLE,
    ZONE,
)
from tests.sim.findings import (
    check_bug_is_found,
    check_recorded_search,
    check_same_in_every_process,
    everything_happened,
)

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("end-to-end-world")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/simulator.md").read_text(encoding="utf-8")
SEEDS = scaled(3, 70)
# One seed in this many must keep the desired state for the whole ten minutes.
WHOLE_EVERY = 10
CALM_SEEDS = scaled(1, 2)
# Worlds with too little time, too little capacity, or lost watch events.
EDGES = {
    TIGHT: scaled(1, 14),
    ZONE: scaled(1, 5),
    SKEWED: scaled(1, 3),
    TAKEOVER: scaled(1, 4),
    CROWDED: scaled(1, 5),
    LOSSY: scaled(1, 6),
    HUNG: scaled(1, 5),
    ONE: scaled(1, 5),
    # Where a node's name passes to another machine, and where the plane's timing changes.
    REUSED: scaled(1, 8),
    TWO_MACHINES: scaled(1, 3),
    RETIMED: scaled(1, 8),
    LOWERED: scaled(1, 8),
}
BENIGN_SEEDS = scaled(1, 2)

BUGS = [mutant for mutant in MUTANTS if not mutant.benign]
# Every run looks for these, which need few seeds; the long one looks for all.
SOON_FOUND = {
    *("no-deadline", "deadline-ignored-by-the-shim", "stopping-taken-back", "nothing-adopted"),
    *(
        "renewed-without-reading",
        "exit-reported-too-early",
        "fenced-at-once",
        "marks-never-cleared",
    ),
}
CONTROLS = [mutant for mutant in MUTANTS if mutant.benign]


class Campaign(msgspec.Struct):
    """The results of all seeds."""

    broken: dict[int, str] = {}
    counts: dict[str, int] = {}
    injected: dict[str, int] = {}
    starts: int = 0


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for what, count in more.items():
        sums[what] = sums.get(what, 0) + count


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    found = Campaign()
    for seed in range(SEEDS):
        name, world = WHOLE if seed % WHOLE_EVERY == 0 else QUICK, World(seed)
        try:
            play(find(name), world)
        except (Violation, InvariantBroken) as error:
            command = f"python -m holdfast.sim replay {name} --seed {seed}"
            found.broken[seed] = f"{error}; to repeat it: {command}"
        found.starts += world.checker(OneCopy).starts
        _add(found.counts, world.checker(PlaneCensus).counts)
        _add(found.injected, world.injected)
    return found


@together
@pytest.mark.timeout(900)
def test_the_invariants_of_one_replica_hold_end_to_end_under_faults(campaign: Campaign) -> None:
    """INV1 to INV7 and INV10 to INV12 at every commit and start of a process, V1 to V5 after the
    faults. [C6.1, N5, N6]"""
    assert campaign.broken == {}
    assert campaign.starts > 20 * SEEDS
    assert sum(campaign.injected.values()) > 50 * SEEDS


@together
@pytest.mark.timeout(900)
def test_everything_that_may_happen_to_a_replica_does(campaign: Campaign) -> None:
    """Marks, fences, adoptions, takeovers, lost answers and the rest must all happen. [N6]"""
    print(counts_table(campaign.counts))
    everything_happened(DEMANDED, campaign.counts)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", EDGES, ids=lambda name: name.partition(":")[2].lower())
def test_the_invariants_hold_at_the_edges(world: str) -> None:
    """Fences that wait exactly as long as they must, controllers without heartbeats, clocks with
    the largest allowed drift, too little capacity, lost events, servers that hang, names that pass
    to another machine, timings that change. [INV2, INV12, SC6, V1, V2, V5, N6]"""
    broken = {seed: run(find(world), seed, tell=False).broken for seed in range(EDGES[world])}
    assert {seed: what for seed, what in broken.items() if what is not None} == {}


@pytest.mark.parametrize("seed", range(CALM_SEEDS))
def test_without_faults_no_component_misses_anything(seed: int) -> None:
    """The resync finds nothing, no node is suspected, and no deadline passes. [N6]"""
    world = World(seed)
    play(find(CALM), world)
    counts = world.checker(PlaneCensus).counts
    assert world.checker(PlaneCensus).missed == 0
    assert counts["started"] > 0
    doubts = ("node suspected", "node marked", "node fenced", "ended: DeadlinePassed")
    assert [what for what in doubts if counts.get(what)] == []


@pytest.mark.parametrize(
    "mutant",
    [it if it.name in SOON_FOUND else pytest.param(it, marks=pytest.mark.long) for it in BUGS],
    ids=lambda mutant: mutant.name,
)
def test_a_bug_planted_in_the_end_to_end_world_is_found(mutant: Mutant) -> None:
    """By an invariant that it breaks, not by a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_found_every_bug_of_the_end_to_end_world_and_no_control() -> None:
    """At least 42 bugs, half of them within 10 seeds, and 3 controls that do not alarm. [N6]"""
    check_recorded_search(MUTANTS, RECORDED, bugs_min=42, controls_min=3, half_within=10)


def test_the_page_shows_each_bug_of_the_end_to_end_world_as_it_was_found() -> None:
    """Which invariant found it, in which world, and how many seeds that took. [N6]"""
    recorded = {finding.mutant: finding for finding in load(RECORDED)}
    for mutant in BUGS:
        finding = recorded[mutant.name]
        world = mutant.scenario.partition(":")[2]
        what = f"| `{mutant.name}` | {mutant.mistake} | `{world}` "
        assert f"{what}| {finding.invariant} | {finding.seeds} |" in PAGE.splitlines()


@pytest.mark.parametrize("mutant", some_of(CONTROLS, 8), ids=lambda mutant: mutant.name)
def test_a_benign_change_of_the_end_to_end_world_does_not_alarm(mutant: Mutant) -> None:
    """A checker with false alarms is worse than none. [N6]"""
    assert search(mutant, seeds_max=BENIGN_SEEDS).seed is None


@pytest.mark.long
def test_a_seed_of_the_end_to_end_world_means_the_same_run_in_every_process() -> None:
    """Under different hash seeds, also with every stimulus and effect spelt out. [N6]"""
    check_same_in_every_process(scaled(TIGHT, QUICK), scaled((), (3, 17)), 5)
