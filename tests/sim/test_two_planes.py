"""Two planes in one world: each keeps its invariants while the link between them is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.commit.context import PlaneSettings
from holdfast.model.machine import Answered, Ask, Asked, Ended, Open, Opened, Started
from holdfast.model.plane import Plane, PlaneRole
from holdfast.model.read_requests import Get
from holdfast.model.time import Instant
from holdfast.model.transaction import Put, Transaction
from holdfast.sim.check import CRASHED, LIVELOCK, TOO_SHORT, Checker, Commit
from holdfast.sim.mutants import Mutant, rewrite, search, swap
from holdfast.sim.planes.plane_scope import AcrossPlanes, PlaneChecker, scoped
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, join
from holdfast.sim.run import attempt
from holdfast.sim.world import World
from holdfast.sim.worlds.two_planes import EU, TWO, US, Apart, Link
from tests.scale import scaled
from tests.sim.findings import everything_happened

SEEDS = scaled(2, 40)
# What must happen in each plane: answers over the link, none while it is cut, starts of work, and
# a refusal of what only the other plane's own servers may send.
COUNTED = ("answered", "unanswered", "started")
DEMANDED = tuple(f"{plane.name}: {what}" for plane in (EU, US) for what in (*COUNTED, "refused"))
# Bugs of the simulator itself that would make a world of several planes worthless.
MUTANTS = (
    Mutant(
        "asks-another-plane",
        "a component's address finds the servers of the first plane of the world",
        TWO.name,
        (
            rewrite(
                "holdfast.sim.calls:Calls.find", "asker.prefix + address", '"europe/" + address'
            ),
        ),
    ),
    Mutant(
        "cut-without-effect",
        "a message that is under way when a link is cut arrives",
        TWO.name,
        (swap("holdfast.sim.calls:Calls.lost_on_the_way", lambda *_: False),),
    ),
    Mutant(
        "home-identity-abroad",
        "a machine arrives in another plane as who it is at home: a server as one of that plane",
        TWO.name,
        (swap("holdfast.sim.cell:Cell.identity_at", lambda cell, _server: cell.identity),),
    ),
    Mutant(
        "same-random-numbers",
        "two planes draw the same uids",
        TWO.name,
        (
            rewrite(
                "holdfast.sim.lives:Lives.start_event",
                "machine/{cell.name}",
                "machine/{cell.host.own_name}",
            ),
        ),
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
            for what in COUNTED:
                counts[f"{plane}: {what}"] = counts.get(f"{plane}: {what}", 0) + getattr(link, what)
            apart = next(it for it in world.checkers if isinstance(it, Apart))
            refused = counts.get(f"{plane}: refused", 0) + apart.refused.get(plane, 0)
            counts[f"{plane}: refused"] = refused
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
    eu, us = scoped(world, "eu", "one"), scoped(world, "us", "one")
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


class Says:
    """Does this when it starts."""

    def __init__(self, *effects: Any) -> None:
        self.effects = effects
        self.stimuli: list[Any] = []

    def step(self, stimulus: Any, _now: Instant) -> Sequence[Any]:
        self.stimuli.append(stimulus)
        return self.effects if isinstance(stimulus, Started) else ()


def test_a_machine_is_in_another_plane_who_it_presents_itself_as_there() -> None:
    """Without credentials for that plane it asks nothing there and opens no stream. [N6]"""
    effects = (Ask(1, "us/servers", Get("regions", "eu"), 1_000, "me"), Open(1, "us/servers", None))
    guest, stranger, server = Says(*effects), Says(*effects), Says()
    at_home = Says(Ask(1, "servers", Get("regions", "eu"), 1_000, "me"))

    def servers(plane: SimulatedPlane) -> None:
        plane.world.add_store()
        plane.add_servers(lambda _seat, _settings: server)

    def clients(plane: SimulatedPlane) -> None:
        me = "system:server:one"
        plane.add("guest", lambda _seat: guest, me, abroad={"us": "guest"})
        plane.add("stranger", lambda _seat: stranger, me, abroad={"asia": me})

    def local(plane: SimulatedPlane) -> None:
        plane.add("client", lambda _seat: at_home, "local")

    us = Plane("us", servers=("one",))
    world = World(0)
    join({us: (servers, local), Plane("eu"): (clients,)})(world)
    world.run_until(5_000_000)
    heard = [it.sender for it in server.stimuli if isinstance(it, Asked | Opened)]
    assert sorted(heard) == ["guest", "guest", "me"]
    _, *refused = stranger.stimuli
    assert {type(it) for it in refused} == {Answered, Ended}
    assert all("stranger has no credentials for us/servers" in str(it.body) for it in refused)


def test_each_plane_has_its_settings_and_its_computers_are_in_its_region() -> None:
    """And a checker across the planes sees the commits and facts of both. [N6]"""
    made: dict[str, SimulatedPlane] = {}

    def note(plane: SimulatedPlane) -> None:
        made[plane.plane.name] = plane
        plane.world.add_store()

    north = Plane("north", PlaneRole.REGION, "eu")
    south, top = Plane("south", region="eu"), Plane("top", PlaneRole.GLOBAL)
    lonely = Plane("lonely", PlaneRole.GLOBAL)
    planes: dict[Plane, Sequence[Trait]] = dict.fromkeys((north, south, top, lonely), (note,))
    heard = HeardAcross()
    settings = {south: PlaneSettings(operations_kept=3)}
    world = World(0)
    join(planes, settings=settings, regions={top: "eu"}, across=(lambda _made: heard,))(world)
    kept = [made[plane.name].settings.operations_kept for plane in (north, south)]
    assert kept == [PlaneSettings().operations_kept, 3]
    assert [made[it.name].settings.plane for it in planes] == list(planes)
    hosts = [made[plane.name].world.hosts["store"] for plane in planes]
    assert [host.region for host in hosts] == ["eu", "eu", "eu", "lonely"]
    assert {host.own_name for host in hosts} == {"store"}
    for plane in (north, south):
        put = Transaction((), (Put("key", b"1"),))
        world.storage.write(world.stores[f"{plane.name}/store"], put, f"{plane.name}/one")
        made[plane.name].world.fact("it is written")
    assert heard.commits == [("north", "store", "north/one"), ("south", "store", "south/one")]
    assert heard.facts == [("north", "it is written"), ("south", "it is written")]


class HeardAcross(AcrossPlanes):
    """What a checker across planes hears."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, Any]] = []
        self.commits: list[tuple[str, str, str]] = []

    def on_plane_commit(self, plane: str, commit: Commit) -> None:
        self.commits.append((plane, commit.store, commit.author))

    def on_plane_fact(self, plane: str, fact: Any) -> None:
        self.facts.append((plane, fact))
