"""Two zones are lost, and those who clear up meet leaks, and useful things that look like leaks.

While the work of four dead nodes is replaced, a deletion leaves a hundred children without their
owner, a place that was held and not come for runs out, and another object has waited for somebody
else's finalizer for ages. What lives, has time left, or has another owner must stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.garbage.controller import ACTS_BURST, ACTS_PER_S
from holdfast.model.kinds.event import Event
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, ReservationOwner
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import State
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.placement.fit import demand_of
from holdfast.model.requests import Accepted, Create, HoldCapacity, Remove
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.sim.cell import Seat
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import strike
from holdfast.sim.scenarios.people import Steady, wants
from holdfast.sim.scenarios.sentences import Expect, demand, first
from holdfast.sim.scenarios.stage import Stage
from holdfast.sim.scenarios.story import Bound, GivenBack, Gone, Moment, Story
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import ACTIVE
from holdfast.sim.worlds.authority.scenario import settle
from holdfast.sim.worlds.authority.scripted_clients import Look

LOST = ("node-a1", "node-a2", "node-b1", "node-b2")
LEFT = ("node-c1", "node-c2")
TENANT = "risk"
SERVICE, HELD_FOR, EXPIRING, GHOST = "risk-api", "search-index", "billing-api", "ghost"
HOLDER, HOLDER_NAME = "holder", "system:scheduler:holder"
STRAYS = 80
STUCK, SHARED = "stuck", "shared"
FOREIGN = "example.com/backup"
LOST_AT_MS, END_MS = 40_000, 105_000
# One who reserves comes back in time, or does not.
SHORT_S, LONG_S = 25, 600
WINDOW_MS = 1_000
# The deadline of a reservation is acted on so late, and then somebody has to look.
LATE_MS = 20_000
NOTHING = WorkloadSpec(replicas=0, template=Template(command=("work",)))


class Holder(Steady):
    """A scheduler that holds places for others, and never comes for them."""

    period_ms = 500
    scope = "scheduler:holder"

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._wanted: list[dict[str, Any]] = []

    def prompted(self, body: dict[str, Any]) -> None:
        self._wanted.append(dict(body))

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for wanted in self._wanted:
            for workload in look.all(Workload):
                if workload.name == wanted["name"]:
                    # The same deadline at every try: it is the same intention.
                    wanted.setdefault("until_ms", now.wall_ms + wanted["for_s"] * 1_000)
                    yield self._hold(workload, wanted)

    def _hold(self, workload: Workload, wanted: dict[str, Any]) -> HoldCapacity:
        uid, demand = workload.metadata.uid, demand_of(workload.spec.template)
        return HoldCapacity(
            workload.namespace,
            ReservationOwner(kind="Workload", name=workload.name, uid=uid),
            Intent.REBALANCE,
            (Claim(node=wanted["node"], charge=demand.amounts),),
            timestamp(wanted["until_ms"]),
            self.term,
            operation=f"{self.identity}/{uid}/hold",
        )

    def heard(self, request: Any, answer: Any) -> None:
        if isinstance(request, HoldCapacity) and isinstance(answer, Accepted):
            self._wanted = [it for it in self._wanted if it["name"] != request.owner.name]


def build(world: World) -> None:
    stage = Stage(world, controllers=all_controllers)
    stage.scheduler("main")
    for name in (*LOST, *LEFT):
        # Zones of two nodes: of these everybody is believed.
        stage.node(name, zone=name[-2])
    world.add(HOLDER, lambda seat: Holder(seat, HOLDER_NAME), store="store", identity=HOLDER_NAME)
    _leave(stage)
    _furnish(stage)
    _lose(stage)
    stage.ready(EXPECTS)


def _leave(stage: Stage) -> None:
    """What was there before: a workload with many children, and one that cannot go."""
    seed = stage.world.seed
    held = Workload(ObjectMeta(name=STUCK, namespace=TENANT, finalizers=(FOREIGN,)), spec=NOTHING)
    ghost = Workload(ObjectMeta(name=GHOST, namespace=TENANT), spec=NOTHING)
    settle(stage.keyspace, seed, [Create(held), Create(ghost)], "leaks")
    made = stage.stored(Workload, TENANT, GHOST)
    owner = OwnerReference(API_VERSION, "Workload", GHOST, made.metadata.uid)
    strays = [
        Create(
            Secret(ObjectMeta(name=f"stray-{number}", namespace=TENANT, owner_references=(owner,)))
        )
        for number in range(STRAYS)
    ]
    settle(stage.keyspace, seed, [*strays, Remove("workloads", TENANT, STUCK)], "strays")


def _furnish(stage: Stage) -> None:
    """All work begins on the nodes that will be lost."""
    for name in LEFT:
        stage.act(8_000, {"do": "cordon", "node": name})
        stage.act(30_000, {"do": "uncordon", "node": name})
    stage.act(11_000, wants(SERVICE, TENANT, replicas=4))
    stage.act(11_000, wants(HELD_FOR, "search"))
    stage.act(11_000, wants(EXPIRING, "billing"))
    stage.act(22_000, {"do": "child", "name": SHARED, "tenant": TENANT, "owners": [GHOST, SERVICE]})
    for name, node, for_s in ((EXPIRING, LEFT[0], SHORT_S), (HELD_FOR, LEFT[1], LONG_S)):
        stage.act(34_000, {"name": name, "node": node, "for_s": for_s}, HOLDER)


def _lose(stage: Stage) -> None:
    for name in LOST:
        late_ms = between(stage.rng, 0, 2_000)
        stage.fault(LOST_AT_MS + late_ms, "reboot", name, for_ms=END_MS)
    stage.act(LOST_AT_MS + 3_000, {"do": "delete", "name": GHOST, "tenant": TENANT})
    # What is bound there next starts slowly: it is bound and does not run.
    slow_ms = between(stage.rng, 4_000, 6_000)
    stage.cue(
        lambda it: isinstance(it.what, Bound) and it.what.node in LEFT,
        lambda world: strike(world, "pause", _bound(stage.story)[-1].what.node, for_ms=slow_ms),
    )


def _bound(story: Story) -> list[Moment]:
    """What was placed on the nodes that are left."""
    return story.all(Bound, lambda it: it.node in LEFT)


# The sentences ------------------------------------------------------------------------------------


def _events(story: Story, reason: str) -> list[Event]:
    return [it for it in story.books.all("objects/events/") if it.reason == reason]


def _gone(story: Story, plural: str) -> list[Moment]:
    return story.all(Gone, lambda it: it.plural == plural)


def _expired(story: Story) -> str:
    given = story.all(GivenBack, lambda it: it.owner == EXPIRING)
    moment = first(given, f"what was held for {EXPIRING} was never given back")
    late_ms = moment.at_ms + story.marks["origin"] - wall_ms(moment.what.deadline)
    demand(0 <= late_ms <= LATE_MS, f"it was given back {late_ms} ms after its deadline")
    told = [it for it in _events(story, "Expired") if EXPIRING in it.message]
    demand(told, "nobody told that it was given back")
    return f"given back {late_ms} ms after its deadline; {told[0].message}"


def _ownerless(story: Story) -> str:
    removed = [it for it in _gone(story, "secrets") if it.what.name.startswith("stray-")]
    demand(len(removed) == STRAYS, f"{len(removed)} of {STRAYS} were collected")
    told = [it for it in _events(story, "Collected") if it.involved_object.kind == "Secret"]
    demand(told, "nobody told that they were collected")
    demand(GHOST in told[0].message, f"it is said of one: {told[0].message}")
    return f"{len(removed)} were collected, {len(told)} are told of: {told[0].message}"


def _finalizer(story: Story) -> str:
    found = story.books.now.get(f"objects/workloads/{TENANT}/{STUCK}")
    demand(found is not None, f"{STUCK} is gone, and its finalizer was somebody else's")
    names = found.metadata.finalizers if found is not None else ()
    demand(FOREIGN in names, f"its finalizers are {names}")
    told = [it for it in _events(story, "StillHeld") if it.involved_object.name == STUCK]
    demand(told, f"nobody told for what {STUCK} waits")
    demand(FOREIGN in told[0].message, f"it is said: {told[0].message}")
    return told[0].message


def _dead_nodes(story: Story) -> str:
    ends: list[str] = []
    for old in _were_lost(story):
        node = old.status.binding.node if old.status.binding is not None else ""
        fenced = story.judged(node, NodePhase.FENCED)
        at_ms = first(fenced, f"{node} was never fenced").at_ms
        moved = story.moved(old.name, *_REPAIRED)
        demand(len(moved) == len(_REPAIRED), f"{old.name} was not ended: {moved}")
        demand(moved[0].at_ms >= at_ms, f"{old.name} was ended before the fence of {node}")
        said = [it.what.evidence for it in moved]
        demand(all(said), f"{old.name} was ended without evidence")
        ends += said
        _replaced_once(story, old)
    return f"{len(_were_lost(story))} replicas: {ends[0]}" if ends else ""


_REPAIRED = (State.FAILED, State.RELEASED)


def _were_lost(story: Story) -> list[Replica]:
    there = story.all(Bound, lambda it: it.node in LOST and it.replica.spec.workload == SERVICE)
    demand(there, f"nothing of {SERVICE} was on a node that was lost")
    return [it.what.replica for it in there]


def _replaced_once(story: Story, old: Replica) -> None:
    spec = old.spec
    new = [
        it.what.replica
        for it in _bound(story)
        if it.what.replica.spec.workload == spec.workload
        and it.what.replica.spec.ordinal == spec.ordinal
    ]
    demand(len(new) == 1, f"{old.name} was replaced {len(new)} times")
    found = story.replica(new[0].name)
    state = found.status.state if found is not None else None
    demand(state is State.RUNNING, f"{new[0].name} is {state}")


def _progress(story: Story) -> str:
    """What lives, has time left, or has another owner."""
    held = [
        it
        for it in story.books.all("objects/reservations/")
        if it.spec.owner.name == HELD_FOR and it.status.phase in ACTIVE
    ]
    demand(held, f"what is held for {HELD_FOR} is gone, and its time is not over")
    shared = story.books.now.get(f"objects/secrets/{TENANT}/{SHARED}")
    demand(shared is not None, f"{SHARED} is gone, and one of its owners lives")
    slow = [it for it in _bound(story) if _is_ended(story, it)]
    demand(not slow, f"{[it.what for it in slow]} were stopped before they had started")
    return f"{held[0].name} is held, {SHARED} is there, {len(_bound(story))} slow starts went on"


def _is_ended(story: Story, moment: Moment) -> bool:
    found = story.replica(moment.what.replica.name)
    return found is None or found.status.state is not State.RUNNING


def _rate(story: Story) -> str:
    at_ms = [it.at_ms for it in _gone(story, "secrets")]
    demand(at_ms, "nothing was collected")
    most = max(sum(begin <= it < begin + WINDOW_MS for it in at_ms) for begin in at_ms)
    allowed = ACTS_BURST + ACTS_PER_S * WINDOW_MS // 1_000
    demand(most <= allowed, f"{most} were collected within a second, {allowed} may be")
    return f"{len(at_ms)} within {max(at_ms) - min(at_ms)} ms, {most} within one second at most"


EXPECTS = (
    Expect("sc13.expired", "What was held and not come for is given back in time.", _expired),
    Expect("sc13.ownerless", "Children without an owner are collected.", _ownerless),
    Expect(
        "sc13.finalizer",
        "A finalizer of somebody else stays, and people are told for whom it waits.",
        _finalizer,
    ),
    Expect(
        "sc13.dead-nodes",
        "What was bound to dead nodes ends after the fence, with evidence, and is replaced once.",
        _dead_nodes,
    ),
    Expect("sc13.progress", "Useful progress that looks like a leak is kept.", _progress),
    Expect("sc13.rate", "Clearing up is rate-limited.", _rate),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc13_repair_in_an_incident:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=5_000,
)
