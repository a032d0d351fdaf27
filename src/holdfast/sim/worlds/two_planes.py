"""Two region planes with a network between them, and a link that is cut.

    python -m holdfast.sim run holdfast.sim.worlds.two_planes:TWO --seeds 0-99

Each plane has its own store, servers, scheduler, controllers and nodes, and all invariants of the
end-to-end world hold in it. In each, a `Neighbour` asks the servers of the other one. The link
between them is cut for up to a minute: no question gets an answer, and each plane keeps working.

At home the neighbour is a server, in the other plane a user without rights: what it has at home
must not count there. Nothing that is in one plane may be in the other (`Apart`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.commit.record_encoding import decode
from holdfast.model import keys
from holdfast.model.access.identity import server
from holdfast.model.kinds.node import Node
from holdfast.model.machine import Answered, Ask, Question, Started, Wake, Woken
from holdfast.model.nodes.heartbeat import server_scope
from holdfast.model.plane import Plane, PlaneRole
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import Accepted, AcquireLease
from holdfast.model.time import Instant
from holdfast.observe.watch_events import SERVERS
from holdfast.sim.check import Checker, Commit, Settles
from holdfast.sim.plan import SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.planes.plane_scope import AcrossPlanes
from holdfast.sim.planes.process_table import ProcessStarted
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, join
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import LAWS, WELL_WITHIN_MS, parts, service

_SERVERS = ("server-1", "server-2")
# Planes are not called like their regions: neither name stands for the other.
EU = Plane("europe", PlaneRole.REGION, "eu", servers=_SERVERS)
US = Plane("america", PlaneRole.REGION, "us", servers=_SERVERS)
NODES = 3
_NODES = keys.kind_prefix(kind_of_struct(Node))
FAULTS_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
ASK_EVERY_MS = 1_000
ASK_TIMEOUT_MS = 2_000
# One in this many questions is a request that only a server of that plane may send.
LEASE_EVERY = 5
LEASE_MS = 10_000
# After the faults, the planes reach each other within this time: two questions and their time-outs,
# and one that is asked when the link is back.
LINKED_WITHIN_MS = 10_000

HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("region_cut", 120, for_ms=(5_000, 60_000), share=1),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server", share=0.5),
    Hazard("crash", 60, for_ms=(0, 20_000), amount=(0, 6), only="agent", share=0.5),
    Hazard("partition", 60, for_ms=(500, 40_000), only="agent", share=0.5),
    Hazard("work_exit", 60, amount=(0, 2), only="agent", share=0.5),
)


class NeighbourAnswer(msgspec.Struct, frozen=True):
    """A fact: whether the servers of the other plane answered a question."""

    is_answered: bool


class NeighbourRefused(msgspec.Struct, frozen=True):
    """A fact: what the other plane made of a request that only its own servers may send."""

    reason: str


class Neighbour:
    """Asks the servers of another plane again and again, and now and then wants a server's lease.

    Its identity at home is that of a server which the other plane has too.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._calls = 0

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Started() | Woken():
                self._calls += 1
                wanted: Question = Get("regions", "eu")
                if self._calls % LEASE_EVERY == 0:
                    wanted = AcquireLease(server_scope(_SERVERS[0]), LEASE_MS, 0, 0)
                ask = Ask(self._calls, self._servers, wanted, ASK_TIMEOUT_MS)
                return [ask, Wake("ask", now.monotonic_ms + ASK_EVERY_MS)]
            case Answered(body=Refusal(reason=reason)):
                return [StateFact(NeighbourRefused(reason.value))]
            case Answered(body=Accepted()):
                return [StateFact(NeighbourRefused(""))]
            case Answered(body=body):
                return [StateFact(NeighbourAnswer(isinstance(body, GetResult)))]
        return []


class Apart(AcrossPlanes):
    """APART: what is in one plane is in no other, and no plane takes another's server for its own.

    An object has its uid in one plane only, and only machines of a plane write to its store. All
    planes have nodes: components that ask the servers of another plane get none registered.
    """

    invariants = ("APART",)

    def __init__(self, planes: Sequence[SimulatedPlane]) -> None:
        self._nodeless = {it.plane.name for it in planes}
        # The plane of each uid of an object.
        self._home: dict[str, str] = {}
        # How often each plane refused the other's server.
        self.refused: dict[str, int] = {}

    def on_plane_commit(self, plane: str, commit: Commit) -> None:
        if commit.author.partition("/")[0] != plane:
            self.violated("APART", f"{commit.author} writes to the store of {plane}")
        for change in commit.changes:
            if change.key.startswith(_NODES):
                self._nodeless.discard(plane)
            if change.value is not None and change.key.startswith(keys.OBJECTS):
                uid = decode(change.key, change.value).metadata.uid
                home = self._home.setdefault(uid, plane)
                if uid and home != plane:
                    self.violated("APART", f"{change.key} of {home} is in {plane} too: {uid}")

    def on_plane_fact(self, plane: str, fact: Any) -> None:
        if isinstance(fact, NeighbourRefused):
            if fact.reason != Reason.NOT_OWNER:
                got = fact.reason or "was accepted"
                self.violated("APART", f"the server of {plane} counts in the other plane: {got}")
            self.refused[plane] = self.refused.get(plane, 0) + 1

    def at_end(self, world: World) -> None:
        if self._nodeless:
            self.violated("APART", f"no node was registered in {', '.join(sorted(self._nodeless))}")


class Link(Checker):
    """LINK: nothing passes a link that is cut, and after the faults the planes reach each other."""

    invariants = ("LINK",)

    def __init__(self, plane: SimulatedPlane, other: str) -> None:
        self._whole = plane.whole
        self._path = f"{other}/{plane.plane.servers[0]}", plane.world.hosts["neighbour"].name
        self._answered_us = 0
        # What happened in this plane while it could not be reached.
        self.unanswered = self.started = self.answered = 0

    def on_fact(self, world: World, fact: Any) -> None:
        there, here = (self._whole.hosts[name] for name in self._path)
        is_cut = self._whole.network.path(there, here).cut
        match fact:
            case ProcessStarted():
                self.started += is_cut
            case NeighbourAnswer(is_answered=True):
                if is_cut:
                    self.violated("LINK", "an answer came over a link that is cut")
                self.answered += 1
                self._answered_us = world.now_us
            case NeighbourAnswer():
                self.unanswered += is_cut

    def missing(self, world: World) -> str | None:
        silent_ms = (world.now_us - self._answered_us) // 1_000
        return f"no answer for {silent_ms} ms" if silent_ms > LINKED_WITHIN_MS else None


def neighbour_of(other: Plane) -> Trait:
    """A machine that asks the servers of the other plane, and what must hold of the link."""

    def add(plane: SimulatedPlane) -> None:
        plane.add(
            "neighbour",
            lambda _seat: Neighbour(f"{other.name}/{SERVERS}"),
            server(_SERVERS[0]),
            abroad={other.name: f"neighbour-{plane.plane.name}"},
        )
        link = Link(plane, other.name)
        plane.world.check(link, Settles("LINK", link.missing, within_ms=LINKED_WITHIN_MS))

    return add


def script(rng: Random) -> Sequence[Act]:
    """A few services in each plane, and operators who scale and kill."""
    small = {"cpu": "500m", "port": 0, "replicas": 2}
    acts = []
    for plane in (EU, US):
        operator = f"{plane.name}/operator"
        acts += [Act(500 + 100 * n, operator, service(rng, n) | small) for n in range(3)]
        for _ in range(8):
            some, at_ms = between(rng, 0, 99), between(rng, 5_000, FAULTS_MS - 10_000)
            scaled = {"do": "scale", "some": some, "replicas": between(rng, 0, 4)}
            acts.append(Act(at_ms, operator, scaled if some % 2 else {"do": "kill", "some": some}))
    return sorted(acts, key=lambda act: act.at_ms)


_USUAL = (*parts(NODES, faults_ms=FAULTS_MS), *LAWS)

TWO = Scenario(
    name="holdfast.sim.worlds.two_planes:TWO",
    build=join(
        {EU: (*_USUAL, neighbour_of(US)), US: (*_USUAL, neighbour_of(EU))},
        # All servers of a plane have its settings, and no two planes need the same.
        settings={US: PlaneSettings(observation_age_max_ms=20_000)},
        across=(Apart,),
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)
