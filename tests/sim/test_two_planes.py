"""Two planes in one world: each keeps its invariants while the link between them is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.model.time import Instant
from holdfast.model.transaction import Put, Transaction
from holdfast.sim.check import CRASHED, LIVELOCK, TOO_SHORT, Checker, Commit
from holdfast.sim.mutants import Mutant, rewrite, search, swap
from holdfast.sim.planes.plane_scope import PlaneChecker, scoped
from holdfast.sim.run import attempt
from holdfast.sim.world import World
from holdfast.sim.worlds.two_planes import EU, TWO, US, Link
from tests.scale import scaled
from tests.sim.findings import everything_happened

SEEDS = scaled(2, 40)
# What must happen in each plane: answers over the link, none while it is cut, and starts of work.
DEMANDED = tuple(
    f"{plane.name}: {what}" for plane in (EU, US) for what in ("answered", "unanswered", "started")
)
# Bugs of the simulator itself that would make a world of several planes worthless.
MUTANTS = (
    Mutant(
        "asks-another-plane",
        "a component's address finds the servers of the first plane of the world",
        TWO.name,
        (rewrite("holdfast.sim.calls:Calls.find", "asker.prefix + address", '"eu/" + address'),),
    ),
    Mutant(
        "cut-without-effect",
        "a message that is under way when a link is cut arrives",
        TWO.name,
        (swap("holdfast.sim.calls:Calls.lost_on_the_way", lambda *_: False),),
    ),
)


def _link(world: World, plane: str) -> Link:
    scopes = (it.scope for it in world.checkers if isinstance(it, PlaneChecker))
    return next(scope for scope in scopes if scope.plane == plane).checker(Link)


@pytest.mark.timeout(300)
def test_each_plane_works_on_while_the_link_between_them_is_cut() -> None:
    """All invariants of the end-to-end world hold in both; questions over the link get no answer,
    and work starts in both meanwhile. [N6]"""
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        world = World(seed)
        assert attempt(TWO, world) is None, seed
        assert world.injected["region_cut"] > 0
        for plane in (EU.name, US.name):
            link = _link(world, plane)
            for what in ("answered", "unanswered", "started"):
                counts[f"{plane}: {what}"] = counts.get(f"{plane}: {what}", 0) + getattr(link, what)
    everything_happened(DEMANDED, counts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_the_walls_between_planes_is_found(mutant: Mutant) -> None:
    """[N6]"""
    finding = search(mutant, seeds_max=3)
    assert finding.seed is not None
    assert finding.invariant not in (CRASHED, LIVELOCK, TOO_SHORT), finding


def test_a_plane_sees_its_own_machines_stores_and_facts_under_plain_names() -> None:
    """And a name that another plane has too is another thing. [N6]"""
    world = World(0)
    eu, us = scoped(world, "eu"), scoped(world, "us")
    for plane in (eu, us):
        plane.add_store()
        plane.add("server-1", lambda _seat: Silent(), store="store")
    assert list(eu.cells) == list(us.cells) == ["server-1"]
    assert eu.cells["server-1"] is world.cells["eu/server-1"] is not us.cells["server-1"]
    assert eu.stores["store"] is world.stores["eu/store"]
    assert eu.hosts["server-1"].own_name == "server-1"
    assert (eu.cells["eu/server-1"].name, "server-2" in eu.cells) == ("eu/server-1", False)
    heard = {"eu": Heard(), "us": Heard()}
    eu.check(heard["eu"])
    us.check(heard["us"])
    eu.fact("it started")
    assert (heard["eu"].facts, heard["us"].facts) == (["it started"], [])
    put = Transaction((), (Put("key", b"1"),))
    world.storage.write(us.stores["store"], put, "us/server-1")
    assert (heard["eu"].commits, heard["us"].commits) == ([], [("store", "server-1")])


class Silent:
    """A machine that does nothing."""

    def step(self, _stimulus: Any, _now: Instant) -> Sequence[Any]:
        return ()


class Heard(Checker):
    """What a checker of one plane hears."""

    def __init__(self) -> None:
        self.facts: list[Any] = []
        self.commits: list[tuple[str, str]] = []

    def on_fact(self, world: World, fact: Any) -> None:
        self.facts.append(fact)

    def on_commit(self, world: World, commit: Commit) -> None:
        self.commits.append((commit.store, commit.author))
