"""The authority under faults: promises hold, everything happens, planted bugs are found."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.sim.check import Violation
from holdfast.sim.mutants import Mutant, search
from holdfast.sim.planes.checkers.room_checks import OvercommittedRoom
from holdfast.sim.run import find, play, run
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.census import AuthorityCensus
from tests.scale import scaled, some_of
from tests.sim.authority.coverage import counts_table, demanded
from tests.sim.authority.mutants import MUTANTS, RECORDED
from tests.sim.authority.overcommit import OVERCOMMIT
from tests.sim.authority.planting import ALONE, SCENARIO
from tests.sim.findings import (
    bug_params,
    check_bug_is_found,
    check_recorded_search,
    check_same_in_every_process,
    everything_happened,
)

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("authority-world")

SEEDS = scaled(9, 70)
LONE_SEEDS = scaled(4, 60)
OVERCOMMIT_SEEDS = scaled(6, 60)
BENIGN_SEEDS = scaled(1, 3)

BUGS = [mutant for mutant in MUTANTS if not mutant.benign]
CONTROLS = [mutant for mutant in MUTANTS if mutant.benign]


class Campaign(msgspec.Struct):
    """The sums over all seeds."""

    broken: dict[int, str] = {}
    counts: dict[str, int] = {}
    injected: dict[str, int] = {}


def _add(sums: dict[str, int], more: dict[str, int]) -> None:
    for what, count in more.items():
        sums[what] = sums.get(what, 0) + count


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    scenario, found = find(SCENARIO), Campaign()
    for seed in range(SEEDS):
        world = World(seed)
        try:
            play(scenario, world)
        except (Violation, InvariantBroken) as error:
            command = f"python -m holdfast.sim replay {SCENARIO} --seed {seed}"
            found.broken[seed] = f"{error}; to repeat it: {command}"
        _add(found.counts, world.checker(AuthorityCensus).counts)
        _add(found.injected, world.injected)
    return found


@together
@pytest.mark.timeout(600)
def test_the_authority_keeps_its_promises_under_faults(campaign: Campaign) -> None:
    """INV1, INV3 to INV7, INV10 to INV12 hold after every commit, and all work settles.
    [C6.1, C6.5, N5]"""
    assert campaign.broken == {}
    assert sum(campaign.injected.values()) > 250 * SEEDS


@together
@pytest.mark.timeout(600)
def test_everything_that_may_happen_to_the_authority_does(campaign: Campaign) -> None:
    """Every request, refusal, lifecycle row and fate of a lost answer occurs. [N6]"""
    print(counts_table(campaign.counts))
    everything_happened(demanded(), campaign.counts)


@pytest.mark.timeout(600)
def test_servers_that_decide_alone_by_wrong_calendars_keep_all_promises() -> None:
    """No accepted operation is removed early because of that. [INV3, C6.1, N5]"""
    scenario = find(ALONE)
    broken = {seed: run(scenario, seed).broken for seed in range(LONE_SEEDS)}
    assert not any(broken.values()), broken


@pytest.mark.timeout(600)
def test_overcommit_that_changes_under_load_gives_no_room_that_is_not_allowed() -> None:
    """What is held for recovery is never overcommitted, and classes never mix. [INV4, D3, D6]"""
    scenario, beyond = find(OVERCOMMIT), 0
    for seed in range(OVERCOMMIT_SEEDS):
        world = World(seed)
        play(scenario, world)
        beyond += world.checker(OvercommittedRoom).seen
    # The nodes did hold more than is there.
    assert beyond > 0


@pytest.mark.parametrize("mutant", bug_params(BUGS, RECORDED), ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_the_authority_is_found(mutant: Mutant) -> None:
    """A broken promise finds it, not a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_found_every_bug_of_the_authority_and_no_control() -> None:
    """At least 20 bugs are found, half of them within 5 seeds, and 5 controls do not alarm. [N6]"""
    check_recorded_search(MUTANTS, RECORDED, bugs_min=20, controls_min=5, half_within=5)


@pytest.mark.parametrize("mutant", some_of(CONTROLS, 3), ids=lambda mutant: mutant.name)
def test_a_benign_change_of_the_authority_does_not_alarm(mutant: Mutant) -> None:
    """A checker with false alarms is worse than none. [N6]"""
    assert search(mutant, seeds_max=BENIGN_SEEDS).seed is None


def test_a_seed_of_the_authority_means_the_same_run_in_every_process() -> None:
    """The digests are equal under different hash seeds, also those of full traces. [N6]"""
    check_same_in_every_process(SCENARIO, scaled((), (3, 17, 41)), 5)
