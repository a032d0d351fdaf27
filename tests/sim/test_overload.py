"""Overload on servers of several speeds: the sentences are true, and each can become untrue.

HOLDFAST_STORM_LONG=1, as `make storm-long` sets it, plays more seeds.
"""

from __future__ import annotations

import os

import pytest

from holdfast.sim.catalogue import find_entry
from holdfast.sim.check import CRASHED, LIVELOCK
from holdfast.sim.run import find, run
from holdfast.sim.scenarios.sentences import SentenceChecks, perform
from holdfast.sim.world import World
from tests.scale import some_of
from tests.sim.scenarios.bugs import Bug
from tests.sim.scenarios.overload_bugs import BUGS

NAMES = ("overload-quarter", "overload-fourfold", "overload", "overload-slow-store")
SEEDS = 12 if os.environ.get("HOLDFAST_STORM_LONG") else 1


def play(name: str, seed: int) -> None:
    played = perform(find(find_entry(name).scenario), seed)
    assert played.broken is None, f"{name} seed {seed}: {played.broken}"
    assert all(outcome.evidence and not outcome.wrong for outcome in played.outcomes)
    for outcome in played.outcomes:
        print(outcome.describe())


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", some_of(NAMES, 2))
def test_limits_fit_a_server_of_any_speed(name: str, seed: int) -> None:
    """Goodput, leases first, refusals soon, and recovery, in service times. [E6, I1, N3]"""
    play(name, seed)


@pytest.mark.parametrize(
    "bug", some_of(BUGS, 3), ids=lambda bug: f"{bug.sentence}-{bug.mutant.mistake}"
)
def test_overload_shows_what_it_is_about(bug: Bug) -> None:
    """Constants, a limit that only grows or only shrinks, leases behind tenants. [N6]"""
    with bug.mutant.planted():
        played = perform(find(bug.mutant.scenario), 0)
    (outcome,) = (it for it in played.outcomes if it.name == bug.sentence)
    assert outcome.wrong, f"{bug.sentence} stayed true: {outcome.evidence}"
    assert played.broken is not None
    assert played.broken.invariant not in (CRASHED, LIVELOCK)


def test_every_sentence_of_an_overload_has_a_bug() -> None:
    """A check that cannot fail is a defect. [N6]"""
    world = World(0)
    find(find_entry("overload").scenario).build(world)
    assert {bug.sentence for bug in BUGS} == set(world.checker(SentenceChecks).invariants)


def test_a_seed_of_an_overload_means_the_same_run() -> None:
    """[N6]"""
    scenario = find(find_entry("overload-quarter").scenario)
    assert run(scenario, 7).digest == run(scenario, 7).digest
