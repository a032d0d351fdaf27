"""The authority under faults: its promises hold, all takes part, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.sim.check import CRASHED, LIVELOCK, TOO_SHORT, Violation
from holdfast.sim.mutants import Mutant, confirm, load, search
from holdfast.sim.run import find, play
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.census import Census
from tests.sim.authority.coverage import demanded, told
from tests.sim.authority.mutants import MUTANTS, RECORDED
from tests.sim.authority.planting import SCENARIO

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("authority-world")

ROOT = Path(__file__).parents[2]
SEEDS = 70
BENIGN_SEEDS = 3
# A planted bug that takes more seeds than this counts as not found.
SEEDS_MAX = 50

BUGS = [mutant for mutant in MUTANTS if not mutant.benign]
CONTROLS = [mutant for mutant in MUTANTS if mutant.benign]


class Campaign(msgspec.Struct):
    """What all seeds came to."""

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
        _add(found.counts, world.checker(Census).counts)
        _add(found.injected, world.injected)
    return found


@together
@pytest.mark.timeout(600)
def test_the_authority_keeps_its_promises_under_faults(campaign: Campaign) -> None:
    """INV1, INV3 to INV7, INV10 to INV12 after every commit, and all settles. [C6.1, C6.5, N5]"""
    assert campaign.broken == {}
    assert sum(campaign.injected.values()) > 20_000


@together
@pytest.mark.timeout(600)
def test_everything_that_may_happen_to_the_authority_does(campaign: Campaign) -> None:
    """Every request, refusal, row of the law, fate of a lost answer; or it proves nothing. [N6]"""
    print(told(campaign.counts))
    assert [what for what in demanded() if not campaign.counts.get(what)] == []


@pytest.mark.parametrize("mutant", BUGS, ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_the_authority_is_found(mutant: Mutant) -> None:
    """By a promise that it breaks, not by breaking down. [N6, C6.1]"""
    finding = confirm(mutant, load(RECORDED), seeds_max=SEEDS_MAX)
    assert finding.as_hoped()
    assert finding.invariant not in (CRASHED, LIVELOCK, TOO_SHORT)


def test_the_recorded_search_found_every_bug_of_the_authority_and_no_control() -> None:
    """At least 20 bugs, half of them within 5 seeds, and 5 controls that do not alarm. [N6]"""
    recorded = {finding.mutant: finding for finding in load(RECORDED)}
    assert recorded.keys() == {mutant.name for mutant in MUTANTS}
    assert all(finding.as_hoped() for finding in recorded.values())
    seeds = sorted(finding.seeds for finding in recorded.values() if not finding.benign)
    assert len(seeds) >= 20
    assert seeds[-1] <= SEEDS_MAX
    assert seeds[len(seeds) // 2] <= 5
    assert len(CONTROLS) >= 5


@pytest.mark.parametrize("mutant", CONTROLS, ids=lambda mutant: mutant.name)
def test_a_benign_change_of_the_authority_does_not_alarm(mutant: Mutant) -> None:
    """A checker that cries wolf is worse than none. [N6]"""
    assert search(mutant, seeds_max=BENIGN_SEEDS).seed is None


_PROGRAM = f"""
from holdfast.sim.run import find, run
scenario = find("{SCENARIO}")
for seed in (3, 17, 41):
    print(run(scenario, seed).digest)
print(run(scenario, 5, full_trace=True).digest)
"""


def _digests(hash_seed: str) -> list[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    program = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_seed_of_the_authority_means_the_same_run_in_every_process() -> None:
    """Under different hash seeds, also with every stimulus and effect spelt out. [N6]"""
    first = _digests("1")
    assert len(set(first)) == 4
    assert first == _digests("4242")
