"""The participants of the authority world, its faults, and its checkers.

    python -m holdfast.sim run holdfast.sim.worlds.authority.scenario:SCENARIO --seeds 0-99

`SCENARIO` has all faults that servers must survive. In `ALONE`, servers cannot reach each other and
have wrong calendars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.commit.authority import Authority
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.errors import invariant
from holdfast.model.kinds.region import Region, RegionSpec
from holdfast.model.kinds.tenant import PriorityClass, PriorityClassSpec, Quota, QuotaSpec, Tenant
from holdfast.model.machine import Answer, Answered, Asked, Txn
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.requests import Accepted, Create
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.check import Settles
from holdfast.sim.plan import CALENDAR_STEPS_MS, LATENESS, Hazard, calendar_steps
from holdfast.sim.randomness import stream
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.budget_checks import DisruptionBudgets
from holdfast.sim.worlds.authority.census import SETTINGS, AuthorityCensus, CountedServer
from holdfast.sim.worlds.authority.commit_checks import (
    FreshEvidence,
    NodeMarks,
    OperationMemory,
    ReservationClaims,
)
from holdfast.sim.worlds.authority.invariants import FieldOwnership, LawfulTransitions
from holdfast.sim.worlds.authority.ledger_oracle import LedgerTotals, StoreCopy
from holdfast.sim.worlds.authority.liveness import (
    PlaceableReplicas,
    QuietStore,
    overdue_reservation,
    unsettled_work,
)
from holdfast.sim.worlds.authority.people import FAULTS_MS, NODES, TENANTS, Operator, script
from holdfast.sim.worlds.authority.rogues import ADMIN, Rogue
from holdfast.sim.worlds.authority.scripted_agents import ScriptedAgent
from holdfast.sim.worlds.authority.scripted_clients import ScriptedClient, StateFact
from holdfast.sim.worlds.authority.scripted_controllers import (
    ScriptedDrainController,
    ScriptedEndpointsController,
    ScriptedGarbageController,
    ScriptedNodesController,
    ScriptedRepairController,
    ScriptedWorkloadController,
)
from holdfast.sim.worlds.authority.scripted_schedulers import ScriptedScheduler
from holdfast.sim.worlds.authority.witness import (
    FOLLOWER,
    AcknowledgedWrites,
    FinalRecount,
    OperationsOnce,
    TruthfulRefusals,
    WatchFollower,
    WatchOrder,
)
from holdfast.store.memory import Keyspace

SETTLE_MS = 150_000
# Few enough that a server which asks late may find that the fate of its transaction is gone.
TOKENS_MAX = 4
SERVERS = ("server-1", "server-2", "server-3")

HAZARDS = (
    *LATENESS,
    Hazard("crash", 240, for_ms=(0, 10_000), amount=(0, 6)),
    Hazard("crash", 240, for_ms=(0, 3_000), amount=(0, 6), only="server"),
    Hazard("pause", 160, for_ms=(500, 25_000), amount=(0, 6)),
    # A scheduler that stalls for longer than its lease, with a bind in flight.
    Hazard("pause", 200, for_ms=(9_000, 25_000), amount=(1, 8), only="scheduler"),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(30),
    calendar_steps(30, "server"),
    Hazard("partition", 60, for_ms=(500, 20_000)),
    Hazard("cut", 60, for_ms=(500, 20_000)),
    Hazard("loss", 60, for_ms=(1_000, 40_000), amount=(50, 600)),
    Hazard("duplicate", 90, for_ms=(1_000, 60_000), amount=(100, 800)),
    Hazard("delay", 40, for_ms=(1_000, 30_000), amount=(1, 3_000)),
    Hazard("scatter", 60, for_ms=(1_000, 30_000), amount=(1, 4_000)),
    Hazard("store_slow", 40, for_ms=(1_000, 20_000), amount=(10, 2_000)),
    Hazard("store_fail", 40, for_ms=(1_000, 20_000), amount=(100, 900)),
    Hazard("store_mute", 90, for_ms=(1_000, 30_000), amount=(100, 900)),
    Hazard("store_late", 90, for_ms=(1_000, 30_000), amount=(50, 600)),
    Hazard("store_stall", 30, for_ms=(100, 10_000)),
    Hazard("store_compact", 60, amount=(0, 3)),
    Hazard("watch_hold", 40, for_ms=(100, 30_000), only=FOLLOWER),
    Hazard("watch_expire", 40, only=FOLLOWER),
)


# The limit for urgent work of one tenant: less than it sometimes wants.
URGENT_CPU = "5"


def create_defaults(keyspace: Keyspace, seed: int, cpu: str = "8", urgent_cpu: str = "") -> None:
    """Creates the objects that exist before any fault: regions, tenants, quotas, priorities."""
    cohort = QuotaSpec(
        cohort="house",
        hard={"cpu": cpu, "gpu": "3"},
        borrowing={"cpu": "4", "gpu": "1"},
        priority_classes={"urgent": {"cpu": urgent_cpu}} if urgent_cpu else {},
    )
    objects: tuple[Object, ...] = (
        Region(ObjectMeta(name="eu"), spec=RegionSpec(jurisdictions=("eu",))),
        Region(ObjectMeta(name="us"), spec=RegionSpec(jurisdictions=("us",))),
        PriorityClass(ObjectMeta(name="urgent"), spec=PriorityClassSpec(value=100, preempts=True)),
        *(Tenant(ObjectMeta(name=tenant)) for tenant in TENANTS),
        *(Quota(ObjectMeta(name="default", namespace=t), spec=cohort) for t in TENANTS),
    )
    create_objects(keyspace, seed, objects)


def create_objects(keyspace: Keyspace, seed: int, objects: Sequence[Object]) -> None:
    """Creates these objects as an operator, before the run begins."""
    apply_requests(keyspace, seed, [Create(obj) for obj in objects], "furnish")


def apply_requests(keyspace: Keyspace, seed: int, requests: Sequence[Any], purpose: str) -> None:
    """Applies these requests as an operator, long before the run begins.

    `purpose` names the stream that uids are drawn from. Each call needs its own.
    """
    authority = Authority(stream(seed, purpose), keyspace)
    for call, request in enumerate(requests, start=1):
        _apply_request(authority, keyspace, Asked(call, ADMIN, request))


def _apply_request(authority: Authority, keyspace: Keyspace, asked: Asked) -> None:
    work: list[Any] = [asked]
    while work:
        for effect in authority.step(work.pop(0), Instant(0, 0)):
            if isinstance(effect, Txn):
                outcome = keyspace.txn(effect.transaction, token=effect.token)
                work.append(Answered(effect.call, outcome))
            elif isinstance(effect, Answer):
                invariant(
                    isinstance(effect.body, Accepted), f"initial request refused: {effect.body}"
                )


def build(world: World) -> None:
    """Three servers over one store, and every type of scripted client."""
    keyspace = Keyspace(tokens_max=TOKENS_MAX)
    create_defaults(keyspace, world.seed, urgent_cpu=URGENT_CPU)
    world.add_store(keyspace=keyspace)
    world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))
    for name in SERVERS:
        world.add(name, CountedServer, store="store", identity=f"system:server:{name}")
    world.balance("api", SERVERS)
    _add_clients(world)
    world.add(FOLLOWER, WatchFollower, store="store")
    _add_checkers(world, keyspace)


def _add_checkers(world: World, keyspace: Keyspace) -> None:
    records = tuple(keyspace.range("", keys.END).records)
    store_copy = StoreCopy()
    store_copy.learn(records)
    # The copy comes first: the other checkers read from it what the commit has changed.
    world.check(
        store_copy,
        LedgerTotals(store_copy),
        ReservationClaims(store_copy),
        LawfulTransitions(store_copy),
        NodeMarks(store_copy),
        FieldOwnership(store_copy),
    )
    world.check(DisruptionBudgets(store_copy))
    world.check(
        AcknowledgedWrites(store_copy, records),
        OperationsOnce(store_copy),
        TruthfulRefusals(store_copy),
        WatchOrder(records),
        FinalRecount(),
    )
    world.check(
        QuietStore(store_copy),
        AuthorityCensus(store_copy),
        OperationMemory(store_copy, SETTINGS),
        FreshEvidence(store_copy),
    )
    placeable = PlaceableReplicas(store_copy)
    world.check(
        Settles("V1", lambda w: unsettled_work(store_copy, w), within_ms=120_000),
        Settles("V2", placeable.missing, within_ms=20_000),
        Settles("INV12", lambda w: overdue_reservation(store_copy, w), within_ms=60_000),
    )


def _add_clients(world: World) -> None:
    def add(
        name: str, identity: str | Identity, make: Callable[[Seat, str], ScriptedClient]
    ) -> None:
        who = identity if isinstance(identity, str) else identity.name
        world.add(name, lambda seat: make(seat, who), store="store", identity=identity)

    for name, scope in (("one", "one"), ("two", "two"), ("three", "shared"), ("four", "shared")):
        add(f"scheduler-{name}", f"system:scheduler:{name}", _scheduler(f"scheduler:{scope}"))
    add("controller-workload", "system:controller:workload", ScriptedWorkloadController)
    add("controller-nodes", "system:controller:nodes", ScriptedNodesController)
    add("controller-repair", "system:controller:repair", ScriptedRepairController)
    add("controller-garbage", "system:controller:garbage", ScriptedGarbageController)
    add("controller-drain", "system:controller:drain", ScriptedDrainController)
    add("controller-endpoints", "system:controller:endpoints", ScriptedEndpointsController)
    for number in range(NODES):
        add(f"agent-{number}", f"system:node:node-{number}", _agent(number))
    add("operator", ADMIN, Operator)
    add("mallory", Identity(name="mallory"), Rogue)
    add("intruder", "system:node:node-x", Rogue)
    add("busybody", "system:controller:status", Rogue)


def _scheduler(scope: str) -> Callable[[Seat, str], ScriptedClient]:
    return lambda seat, identity: ScriptedScheduler(seat, identity, scope)


def _agent(number: int) -> Callable[[Seat, str], ScriptedClient]:
    zone = "us-a" if number == NODES - 1 else f"eu-{'ab'[number % 2]}"
    gpus = 1 if number < 3 else 0
    return lambda seat, identity: ScriptedAgent(seat, identity, f"node-{number}", zone, gpus)


SCENARIO = Scenario(
    name="holdfast.sim.worlds.authority.scenario:SCENARIO",
    build=build,
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)


# The authority world in which servers cannot reach each other and have wrong calendars.
#
# A server that cannot reach the holder of the lease `authority` decides by itself, and stamps what
# it accepts by its own calendar. One server holds the lease for a long time and finds these stamps
# later. It must not remove any kept operation early because of them.
#
# python -m holdfast.sim run holdfast.sim.worlds.authority.scenario:ALONE --seeds 0-99

LONE_HAZARDS = (
    *LATENESS,
    Hazard("partition", 300, for_ms=(5_000, 40_000), only="server", peers="server", share=1),
    Hazard(
        "clock_step",
        200,
        for_ms=(20_000, 90_000),
        only="server",
        share=1,
        amounts=CALENDAR_STEPS_MS,
        alone=True,
    ),
    Hazard("loss", 60, for_ms=(1_000, 40_000), amount=(50, 600)),
    Hazard("duplicate", 90, for_ms=(1_000, 60_000), amount=(100, 800)),
    Hazard("store_late", 90, for_ms=(1_000, 30_000), amount=(50, 600)),
)

ALONE = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.authority.scenario:ALONE", hazards=LONE_HAZARDS
)
