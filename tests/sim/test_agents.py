"""Agents and their work under faults: promises hold, everything happens, planted bugs are found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.sim.mutants import Mutant, load, search
from holdfast.sim.planes.checkers.process_checks import OneCopy
from holdfast.sim.run import attempt, find, run
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.scenario import DEMANDED, AgentCensus
from tests.scale import scaled, some_of
from tests.sim.agents.bugs import AGENTS, AWAY, PORTS, STOPPING
from tests.sim.agents.mutants import MUTANTS, RECORDED
from tests.sim.findings import (
    bug_params,
    check_bug_is_found,
    check_recorded_search,
    everything_happened,
)

# The tests that use the campaign run in one process, so that it is run once.
together = pytest.mark.xdist_group("agents-world")

PAGE = (Path(__file__).parents[2] / "docs/simulator.md").read_text(encoding="utf-8")
SEEDS = {PORTS: scaled(1, 2), AGENTS: scaled(2, 6), AWAY: scaled(1, 2), STOPPING: scaled(1, 2)}

BUGS = [mutant for mutant in MUTANTS if not mutant.benign]
CONTROLS = [mutant for mutant in MUTANTS if mutant.benign]


class Campaign(msgspec.Struct):
    """The sums over all seeds."""

    broken: dict[str, str] = {}
    counts: dict[str, int] = {}
    starts: int = 0


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    found = Campaign()
    for name, seeds in SEEDS.items():
        for seed in range(seeds):
            world = World(seed)
            broken = attempt(find(name), world)
            if broken is not None:
                command = f"python -m holdfast.sim replay {name} --seed {seed}"
                found.broken[command] = f"{broken.invariant}: {broken.message}"
            found.starts += world.checker(OneCopy).starts
            for what, count in world.checker(AgentCensus).counts.items():
                found.counts[what] = found.counts.get(what, 0) + count
    return found


@together
@pytest.mark.timeout(600)
def test_agents_keep_their_promises_under_faults(campaign: Campaign) -> None:
    """All promises hold, also when the servers are away for ten minutes: one copy, stops in time,
    growing pauses, pre-stop hooks, Secrets, status, addresses.
    [INV2, C7.3, C7.6, E5, H1, H3, H4, H8, I5, N6]"""
    assert campaign.broken == {}
    assert campaign.starts > 20 * SEEDS[AGENTS]


@together
@pytest.mark.timeout(600)
def test_everything_that_may_happen_to_the_work_of_an_agent_does(campaign: Campaign) -> None:
    """Every kind of end, refusal, adoption, report and return occurs. [N6]"""
    everything_happened(DEMANDED, campaign.counts)


@pytest.mark.parametrize("mutant", bug_params(BUGS, RECORDED), ids=lambda mutant: mutant.name)
def test_a_bug_planted_in_agents_is_found(mutant: Mutant) -> None:
    """A broken promise finds it, not a crash. [N6]"""
    check_bug_is_found(mutant, RECORDED)


def test_the_recorded_search_found_every_bug_of_agents_and_no_control() -> None:
    """At least 20 bugs are found, half of them within 5 seeds, and 3 controls do not alarm. [N6]"""
    check_recorded_search(MUTANTS, RECORDED, bugs_min=20, controls_min=3, half_within=5)


def test_the_page_shows_each_bug_of_agents_as_it_was_found() -> None:
    """The page names the promise that found it, and the number of seeds. [N6]"""
    recorded = {finding.mutant: finding for finding in load(RECORDED)}
    for mutant in BUGS:
        finding = recorded[mutant.name]
        what = f"| `{mutant.name}` | {mutant.mistake} | {finding.invariant} | {finding.seeds} |"
        assert what in PAGE.splitlines()


@pytest.mark.parametrize("mutant", some_of(CONTROLS, 6), ids=lambda mutant: mutant.name)
def test_a_benign_change_of_agents_does_not_alarm(mutant: Mutant) -> None:
    """A checker with false alarms is worse than none. [N6]"""
    assert search(mutant, seeds_max=1).seed is None


def test_a_seed_of_the_agents_world_means_the_same_run_twice() -> None:
    """Two runs of a seed have the same digest. [N6]"""
    first, again = (run(find(AGENTS), 3).digest for _ in range(2))
    assert first == again
