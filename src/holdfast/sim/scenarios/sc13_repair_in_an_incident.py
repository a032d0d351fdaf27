"""Two zones are lost, and the controllers meet leaks, and useful objects that look like leaks.

While the replicas of four dead nodes are replaced, a deletion leaves many children without their
owner, a reservation that was never used expires, and another object has long waited for a foreign
finalizer. Objects that are in use, have time left, or have another owner must stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from holdfast.model.quota.charging import is_active
from holdfast.model.requests import Accepted, Create, HoldCapacity, Remove
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.sim.cell import Seat
from holdfast.sim.planes.initial_objects import apply_requests
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import strike
from holdfast.sim.scenarios.example_plane import ExamplePlane
from holdfast.sim.scenarios.people import SteadyClient, workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, ObjectRemoved, ReservationEnded, RunLog
from holdfast.sim.scenarios.sentences import Sentence, demand, first
from holdfast.sim.world import World
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
# One reservation expires during the run, the other one does not.
SHORT_S, LONG_S = 25, 600
WINDOW_MS = 1_000
# How late a reservation may end after its deadline.
LATE_MS = 20_000
NOTHING = WorkloadSpec(replicas=0, template=Template(command=("work",)))


class ReservationHolder(SteadyClient):
    """A scheduler that holds capacity for workloads, and never uses it."""

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
                    # The same deadline at every try: it is the same operation.
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
    plane = ExamplePlane(world)
    plane.scheduler("main")
    for name in (*LOST, *LEFT):
        # Zones of two nodes: the limit per zone does not apply to them.
        plane.node(name, zone=name[-2])
    world.add(
        HOLDER,
        lambda seat: ReservationHolder(seat, HOLDER_NAME),
        store="store",
        identity=HOLDER_NAME,
    )
    _create_leaks(plane)
    _create_work(plane)
    _lose_zones(plane)
    plane.ready(SENTENCES)


def _create_leaks(plane: ExamplePlane) -> None:
    """Objects from before: a workload with many children, and one with a finalizer."""
    held = Workload(ObjectMeta(name=STUCK, namespace=TENANT, finalizers=(FOREIGN,)), spec=NOTHING)
    ghost = Workload(ObjectMeta(name=GHOST, namespace=TENANT), spec=NOTHING)
    apply_requests(plane.keyspace, plane.world.rng("leaks"), [Create(held), Create(ghost)])
    made = plane.stored(Workload, TENANT, GHOST)
    owner = OwnerReference(API_VERSION, "Workload", GHOST, made.metadata.uid)
    strays = [
        Create(
            Secret(ObjectMeta(name=f"stray-{number}", namespace=TENANT, owner_references=(owner,)))
        )
        for number in range(STRAYS)
    ]
    left = [*strays, Remove("workloads", TENANT, STUCK)]
    apply_requests(plane.keyspace, plane.world.rng("strays"), left)


def _create_work(plane: ExamplePlane) -> None:
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


def _lose_zones(plane: ExamplePlane) -> None:
    for name in LOST:
        late_ms = between(plane.rng, 0, 2_000)
        plane.fault(LOST_AT_MS + late_ms, "reboot", name, for_ms=END_MS)
    plane.act(LOST_AT_MS + 3_000, {"do": "delete", "name": GHOST, "tenant": TENANT})
    # The next replica there starts slowly: it is bound and does not run yet.
    slow_ms = between(plane.rng, 4_000, 6_000)
    plane.cue(
        lambda it: isinstance(it.what, Bound) and it.what.node in LEFT,
        lambda world: strike(
            world, "pause", _binds_to_the_rest(plane.log)[-1].what.node, for_ms=slow_ms
        ),
    )


def _binds_to_the_rest(log: RunLog) -> list[LogEntry]:
    """All binds to the nodes that are left."""
    return log.all(Bound, lambda it: it.node in LEFT)


# The sentences ------------------------------------------------------------------------------------


def _events(log: RunLog, reason: str) -> list[Event]:
    return [it for it in log.store_copy.all("objects/events/") if it.reason == reason]


def _removals(log: RunLog, plural: str) -> list[LogEntry]:
    return log.all(ObjectRemoved, lambda it: it.plural == plural)


def _reservation_ends(log: RunLog) -> str:
    ended = log.all(ReservationEnded, lambda it: it.owner == EXPIRING)
    entry = first(ended, f"the reservation for {EXPIRING} never ended")
    late_ms = entry.at_ms + log.marks["origin"] - wall_ms(entry.what.deadline)
    demand(0 <= late_ms <= LATE_MS, f"it ended {late_ms} ms after its deadline")
    events = [it for it in _events(log, "Expired") if EXPIRING in it.message]
    demand(events, "no event reports that it ended")
    return f"ended {late_ms} ms after its deadline; {events[0].message}"


def _orphans_are_collected(log: RunLog) -> str:
    removed = [it for it in _removals(log, "secrets") if it.what.name.startswith("stray-")]
    demand(len(removed) == STRAYS, f"{len(removed)} of {STRAYS} were collected")
    events = [it for it in _events(log, "Collected") if it.involved_object.kind == "Secret"]
    demand(events, "no event reports that they were collected")
    demand(GHOST in events[0].message, f"the event says: {events[0].message}")
    return f"{len(removed)} were collected, with {len(events)} events: {events[0].message}"


def _finalizer(log: RunLog) -> str:
    found = log.store_copy.now.get(f"objects/workloads/{TENANT}/{STUCK}")
    demand(found is not None, f"{STUCK} is gone, though it had a foreign finalizer")
    names = found.metadata.finalizers if found is not None else ()
    demand(FOREIGN in names, f"its finalizers are {names}")
    events = [it for it in _events(log, "StillHeld") if it.involved_object.name == STUCK]
    demand(events, f"no event says what {STUCK} waits for")
    demand(FOREIGN in events[0].message, f"the event says: {events[0].message}")
    return events[0].message


def _dead_replicas_are_replaced(log: RunLog) -> str:
    ends: list[str] = []
    for old in _lost_replicas(log):
        node = old.status.binding.node if old.status.binding is not None else ""
        fenced = log.node_changes(node, NodePhase.FENCED)
        at_ms = first(fenced, f"{node} was never fenced").at_ms
        moved = log.state_changes(old.name, *_REPAIRED)
        demand(len(moved) == len(_REPAIRED), f"{old.name} was not ended: {moved}")
        demand(moved[0].at_ms >= at_ms, f"{old.name} was ended before the fence of {node}")
        evidence = [it.what.evidence for it in moved]
        demand(all(evidence), f"{old.name} was ended without evidence")
        ends += evidence
        _check_replaced_once(log, old)
    return f"{len(_lost_replicas(log))} replicas: {ends[0]}" if ends else ""


_REPAIRED = (State.FAILED, State.RELEASED)


def _lost_replicas(log: RunLog) -> list[Replica]:
    there = log.all(Bound, lambda it: it.node in LOST and it.replica.spec.workload == SERVICE)
    demand(there, f"nothing of {SERVICE} was on a node that was lost")
    return [it.what.replica for it in there]


def _check_replaced_once(log: RunLog, old: Replica) -> None:
    spec = old.spec
    new = [
        it.what.replica
        for it in _binds_to_the_rest(log)
        if it.what.replica.spec.workload == spec.workload
        and it.what.replica.spec.ordinal == spec.ordinal
    ]
    demand(len(new) == 1, f"{old.name} was replaced {len(new)} times")
    found = log.replica(new[0].name)
    state = found.status.state if found is not None else None
    demand(state is State.RUNNING, f"{new[0].name} is {state}")


def _useful_objects_stay(log: RunLog) -> str:
    """Objects that are in use, have time left, or have another owner."""
    held = [
        it
        for it in log.store_copy.all("objects/reservations/")
        if it.spec.owner.name == HELD_FOR and is_active(it)
    ]
    demand(held, f"the reservation for {HELD_FOR} ended before its deadline")
    shared = log.store_copy.now.get(f"objects/secrets/{TENANT}/{SHARED}")
    demand(shared is not None, f"{SHARED} is gone, though one of its owners exists")
    slow = [it for it in _binds_to_the_rest(log) if _is_ended(log, it)]
    demand(not slow, f"{[it.what for it in slow]} were stopped before they had started")
    starts = len(_binds_to_the_rest(log))
    return f"{held[0].name} is held, {SHARED} is there, {starts} slow starts were left alone"


def _is_ended(log: RunLog, entry: LogEntry) -> bool:
    found = log.replica(entry.what.replica.name)
    return found is None or found.status.state is not State.RUNNING


def _is_rate_limited(log: RunLog) -> str:
    at_ms = [it.at_ms for it in _removals(log, "secrets")]
    demand(at_ms, "nothing was collected")
    most = max(sum(begin <= it < begin + WINDOW_MS for it in at_ms) for begin in at_ms)
    allowed = ACTS_BURST + ACTS_PER_S * WINDOW_MS // 1_000
    demand(most <= allowed, f"{most} were collected within a second, {allowed} are allowed")
    return f"{len(at_ms)} within {max(at_ms) - min(at_ms)} ms, {most} within one second at most"


SENTENCES = (
    Sentence("sc13.expired", "A reservation that is not used ends in time.", _reservation_ends),
    Sentence("sc13.ownerless", "Children without an owner are collected.", _orphans_are_collected),
    Sentence(
        "sc13.finalizer",
        "A foreign finalizer stays, and an event says what the object waits for.",
        _finalizer,
    ),
    Sentence(
        "sc13.dead-nodes",
        "Replicas on dead nodes end after the fence, with evidence, and are replaced once.",
        _dead_replicas_are_replaced,
    ),
    Sentence(
        "sc13.progress", "Useful progress that looks like a leak is kept.", _useful_objects_stay
    ),
    Sentence("sc13.rate", "Garbage collection is rate-limited.", _is_rate_limited),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc13_repair_in_an_incident:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=5_000,
)
