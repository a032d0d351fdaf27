"""Checks that the tests of every world share: planted bugs, coverage, determinism.

A world has mutants and a recorded search for them (`tests/sim/<world>/mutants.py`). The
tests of each world (`tests/sim/test_<world>.py`) state how many there are and how soon they are
found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.sim.check import CRASHED, LIVELOCK, TOO_SHORT
from holdfast.sim.mutants import Finding, Mutant, confirm, load
from tests.scale import scaled

ROOT = Path(__file__).parents[2]
# A planted bug that takes more seeds than this counts as not found.
SEEDS_MAX = 50
# One in this many planted bugs of a world is searched for in every run, and all in the long run.
BUGS_EVERY = 6
# Worlds of which one seed takes as long as DEAR seeds of the others.
DEAR_WORLDS, DEAR = (":MANY",), 20
# A bug that keeps a plane so busy that one seed takes as long as that.
DEAR_BUGS = (
    "pauses-do-not-grow",
    "lease-never-renewed-again",
    "end-written-again-and-again",
)
# The share of demanded events that may be missing over the seeds of a default run.
UNSEEN_PERCENT_MAX = scaled(10, 0)


def bug_params(bugs: Sequence[Mutant], recorded: Path) -> list[Any]:
    """The planted bugs as parameters of a test; those found soonest are in every run."""
    seeds = {finding.mutant: finding.seeds for finding in load(recorded)}

    def cost(bug: Mutant) -> int:
        is_dear = bug.scenario.endswith(DEAR_WORLDS) or bug.name in DEAR_BUGS
        return seeds.get(bug.name, 0) * (DEAR if is_dear else 1)

    soonest = sorted(bugs, key=cost)[: -(-len(bugs) // BUGS_EVERY)]
    return [bug if bug in soonest else pytest.param(bug, marks=pytest.mark.long) for bug in bugs]


def everything_happened(demanded: Collection[str], counts: Mapping[str, int]) -> None:
    """Assert that the campaign had all demanded events; or the world proves nothing about them."""
    unseen = [what for what in demanded if not counts.get(what)]
    assert 100 * len(unseen) <= UNSEEN_PERCENT_MAX * len(demanded), unseen


def check_bug_is_found(mutant: Mutant, recorded: Path) -> None:
    """Assert that an invariant finds the bug, not a crash of the simulated code."""
    finding = confirm(mutant, load(recorded), seeds_max=SEEDS_MAX)
    assert finding.is_expected(), finding
    assert finding.invariant not in (CRASHED, LIVELOCK, TOO_SHORT), finding


def check_recorded_search(
    mutants: Sequence[Mutant],
    recorded: Path | Sequence[Finding],
    *,
    bugs_min: int,
    controls_min: int = 0,
    half_within: int = SEEDS_MAX,
) -> None:
    """Assert that the recorded search is of these mutants and found every bug and no control.

    There are at least `bugs_min` bugs, and half of them took no more than `half_within` seeds.
    """
    found = load(recorded) if isinstance(recorded, Path) else recorded
    findings = {finding.mutant: finding for finding in found}
    assert findings.keys() == {mutant.name for mutant in mutants}
    wrong = [finding for finding in findings.values() if not finding.is_expected()]
    assert not wrong, wrong
    seeds = sorted(finding.seeds for finding in findings.values() if not finding.benign)
    assert len(seeds) >= bugs_min, len(seeds)
    assert seeds[-1] <= SEEDS_MAX, seeds
    assert seeds[len(seeds) // 2] <= half_within, seeds
    assert len(findings) - len(seeds) >= controls_min


def check_same_in_every_process(scenario: str, seeds: Sequence[int], full_seed: int) -> None:
    """Assert equal digests under two hash seeds: for these seeds, and one with a full trace."""
    program = f"""
from holdfast.sim.run import find, run
scenario = find("{scenario}")
for seed in {tuple(seeds)}:
    print(run(scenario, seed).digest)
print(run(scenario, {full_seed}, full_trace=True).digest)
"""
    first, second = (_output_of(program, hash_seed) for hash_seed in ("1", "4242"))
    assert len(set(first)) == len(seeds) + 1, first
    assert first == second


def _output_of(program: str, hash_seed: str) -> list[str]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()
