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
from holdfast.sim.scenarios.example_plane import ExamplePlane
from holdfast.sim.scenarios.people import SteadyClient, workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, ObjectRemoved, ReservationEnded, RunLog
from holdfast.sim.scenarios.sentences import Sentence, demand, first
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import ACTIVE
from holdfast.sim.worlds.authority.scenario import apply_requests
from holdfast.sim.worlds.authority.scripted_clients import ObjectSnapshot

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


class ReservationHolder(SteadyClient):
    """A scheduler that holds places for others, and never comes for them."""

    period_ms = 500
    scope = "scheduler:holder"

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._wanted: list[dict[str, Any]] = []

    def on_prompt(self, body: dict[str, Any]) -> None:
        self._wanted.append(dict(body))

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for wanted in self._wanted:
            for workload in snapshot.all(Workload):
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

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(request, HoldCapacity) and isinstance(answer, Accepted):
            self._wanted = [it for it in self._wanted if it["name"] != request.owner.name]


def build(world: World) -> None:
    plane = ExamplePlane(world, controllers=all_controllers)
    plane.scheduler("main")
    for name in (*LOST, *LEFT):
        # Zones of two nodes: of these everybody is believed.
        plane.node(name, zone=name[-2])
    world.add(
        HOLDER,
        lambda seat: ReservationHolder(seat, HOLDER_NAME),
        store="store",
        identity=HOLDER_NAME,
    )
    _leave(plane)
    _furnish(plane)
    _lose(plane)
    plane.ready(EXPECTS)


def _leave(plane: ExamplePlane) -> None:
    """What was there before: a workload with many children, and one that cannot go."""
    seed = plane.world.seed
    held = Workload(ObjectMeta(name=STUCK, namespace=TENANT, finalizers=(FOREIGN,)), spec=NOTHING)
    ghost = Workload(ObjectMeta(name=GHOST, namespace=TENANT), spec=NOTHING)
    apply_requests(plane.keyspace, seed, [Create(held), Create(ghost)], "leaks")
    made = plane.stored(Workload, TENANT, GHOST)
    owner = OwnerReference(API_VERSION, "Workload", GHOST, made.metadata.uid)
    strays = [
        Create(
            Secret(ObjectMeta(name=f"stray-{number}", namespace=TENANT, owner_references=(owner,)))
        )
        for number in range(STRAYS)
    ]
    apply_requests(plane.keyspace, seed, [*strays, Remove("workloads", TENANT, STUCK)], "strays")


def _furnish(plane: ExamplePlane) -> None:
    """All work begins on the nodes that will be lost."""
    for name in LEFT:
        plane.act(8_000, {"do": "cordon", "node": name})
        plane.act(30_000, {"do": "uncordon", "node": name})
    plane.act(11_000, workload_act(SERVICE, TENANT, replicas=4))
    plane.act(11_000, workload_act(HELD_FOR, "search"))
    plane.act(11_000, workload_act(EXPIRING, "billing"))
    plane.act(22_000, {"do": "child", "name": SHARED, "tenant": TENANT, "owners": [GHOST, SERVICE]})
    for name, node, for_s in ((EXPIRING, LEFT[0], SHORT_S), (HELD_FOR, LEFT[1], LONG_S)):
        plane.act(34_000, {"name": name, "node": node, "for_s": for_s}, HOLDER)


def _lose(plane: ExamplePlane) -> None:
    for name in LOST:
        late_ms = between(plane.rng, 0, 2_000)
        plane.fault(LOST_AT_MS + late_ms, "reboot", name, for_ms=END_MS)
    plane.act(LOST_AT_MS + 3_000, {"do": "delete", "name": GHOST, "tenant": TENANT})
    # What is bound there next starts slowly: it is bound and does not run.
    slow_ms = between(plane.rng, 4_000, 6_000)
    plane.cue(
        lambda it: isinstance(it.what, Bound) and it.what.node in LEFT,
        lambda world: strike(world, "pause", _bound(plane.log)[-1].what.node, for_ms=slow_ms),
    )


def _bound(log: RunLog) -> list[LogEntry]:
    """What was placed on the nodes that are left."""
    return log.all(Bound, lambda it: it.node in LEFT)


# The sentences ------------------------------------------------------------------------------------


def _events(log: RunLog, reason: str) -> list[Event]:
    return [it for it in log.store_copy.all("objects/events/") if it.reason == reason]


def _gone(log: RunLog, plural: str) -> list[LogEntry]:
    return log.all(ObjectRemoved, lambda it: it.plural == plural)


def _expired(log: RunLog) -> str:
    given = log.all(ReservationEnded, lambda it: it.owner == EXPIRING)
    moment = first(given, f"what was held for {EXPIRING} was never given back")
    late_ms = moment.at_ms + log.marks["origin"] - wall_ms(moment.what.deadline)
    demand(0 <= late_ms <= LATE_MS, f"it was given back {late_ms} ms after its deadline")
    told = [it for it in _events(log, "Expired") if EXPIRING in it.message]
    demand(told, "nobody told that it was given back")
    return f"given back {late_ms} ms after its deadline; {told[0].message}"


def _ownerless(log: RunLog) -> str:
    removed = [it for it in _gone(log, "secrets") if it.what.name.startswith("stray-")]
    demand(len(removed) == STRAYS, f"{len(removed)} of {STRAYS} were collected")
    told = [it for it in _events(log, "Collected") if it.involved_object.kind == "Secret"]
    demand(told, "nobody told that they were collected")
    demand(GHOST in told[0].message, f"it is said of one: {told[0].message}")
    return f"{len(removed)} were collected, {len(told)} are told of: {told[0].message}"


def _finalizer(log: RunLog) -> str:
    found = log.store_copy.now.get(f"objects/workloads/{TENANT}/{STUCK}")
    demand(found is not None, f"{STUCK} is gone, and its finalizer was somebody else's")
    names = found.metadata.finalizers if found is not None else ()
    demand(FOREIGN in names, f"its finalizers are {names}")
    told = [it for it in _events(log, "StillHeld") if it.involved_object.name == STUCK]
    demand(told, f"nobody told for what {STUCK} waits")
    demand(FOREIGN in told[0].message, f"it is said: {told[0].message}")
    return told[0].message


def _dead_nodes(log: RunLog) -> str:
    ends: list[str] = []
    for old in _were_lost(log):
        node = old.status.binding.node if old.status.binding is not None else ""
        fenced = log.node_changes(node, NodePhase.FENCED)
        at_ms = first(fenced, f"{node} was never fenced").at_ms
        moved = log.state_changes(old.name, *_REPAIRED)
        demand(len(moved) == len(_REPAIRED), f"{old.name} was not ended: {moved}")
        demand(moved[0].at_ms >= at_ms, f"{old.name} was ended before the fence of {node}")
        said = [it.what.evidence for it in moved]
        demand(all(said), f"{old.name} was ended without evidence")
        ends += said
        _replaced_once(log, old)
    return f"{len(_were_lost(log))} replicas: {ends[0]}" if ends else ""


_REPAIRED = (State.FAILED, State.RELEASED)


def _were_lost(log: RunLog) -> list[Replica]:
    there = log.all(Bound, lambda it: it.node in LOST and it.replica.spec.workload == SERVICE)
    demand(there, f"nothing of {SERVICE} was on a node that was lost")
    return [it.what.replica for it in there]


def _replaced_once(log: RunLog, old: Replica) -> None:
    spec = old.spec
    new = [
        it.what.replica
        for it in _bound(log)
        if it.what.replica.spec.workload == spec.workload
        and it.what.replica.spec.ordinal == spec.ordinal
    ]
    demand(len(new) == 1, f"{old.name} was replaced {len(new)} times")
    found = log.replica(new[0].name)
    state = found.status.state if found is not None else None
    demand(state is State.RUNNING, f"{new[0].name} is {state}")


def _progress(log: RunLog) -> str:
    """What lives, has time left, or has another owner."""
    held = [
        it
        for it in log.store_copy.all("objects/reservations/")
        if it.spec.owner.name == HELD_FOR and it.status.phase in ACTIVE
    ]
    demand(held, f"what is held for {HELD_FOR} is gone, and its time is not over")
    shared = log.store_copy.now.get(f"objects/secrets/{TENANT}/{SHARED}")
    demand(shared is not None, f"{SHARED} is gone, and one of its owners lives")
    slow = [it for it in _bound(log) if _is_ended(log, it)]
    demand(not slow, f"{[it.what for it in slow]} were stopped before they had started")
    return f"{held[0].name} is held, {SHARED} is there, {len(_bound(log))} slow starts went on"


def _is_ended(log: RunLog, moment: LogEntry) -> bool:
    found = log.replica(moment.what.replica.name)
    return found is None or found.status.state is not State.RUNNING


def _rate(log: RunLog) -> str:
    at_ms = [it.at_ms for it in _gone(log, "secrets")]
    demand(at_ms, "nothing was collected")
    most = max(sum(begin <= it < begin + WINDOW_MS for it in at_ms) for begin in at_ms)
    allowed = ACTS_BURST + ACTS_PER_S * WINDOW_MS // 1_000
    demand(most <= allowed, f"{most} were collected within a second, {allowed} may be")
    return f"{len(at_ms)} within {max(at_ms) - min(at_ms)} ms, {most} within one second at most"


EXPECTS = (
    Sentence("sc13.expired", "What was held and not come for is given back in time.", _expired),
    Sentence("sc13.ownerless", "Children without an owner are collected.", _ownerless),
    Sentence(
        "sc13.finalizer",
        "A finalizer of somebody else stays, and people are told for whom it waits.",
        _finalizer,
    ),
    Sentence(
        "sc13.dead-nodes",
        "What was bound to dead nodes ends after the fence, with evidence, and is replaced once.",
        _dead_nodes,
    ),
    Sentence("sc13.progress", "Useful progress that looks like a leak is kept.", _progress),
    Sentence("sc13.rate", "Clearing up is rate-limited.", _rate),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc13_repair_in_an_incident:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=5_000,
)
