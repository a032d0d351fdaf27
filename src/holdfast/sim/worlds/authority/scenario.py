"""The participants of the authority world, its faults, and its checkers.

    python -m holdfast.sim run holdfast.sim.worlds.authority.scenario:SCENARIO --seeds 0-99

`SCENARIO` has all faults that servers must survive. In `ALONE`, servers cannot reach each other and
have wrong calendars.
"""

from __future__ import annotations

import msgspec

from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, PriorityClassSpec
from holdfast.model.meta import ObjectMeta
from holdfast.model.plane import Plane
from holdfast.sim.check import Settles
from holdfast.sim.plan import CALENDAR_STEPS_MS, LATENESS, Hazard, calendar_steps
from holdfast.sim.planes import invariants
from holdfast.sim.planes.checkers.budget_checks import DisruptionBudgets
from holdfast.sim.planes.checkers.commit_checks import (
    FreshEvidence,
    NodeMarks,
    OperationMemory,
    ReservationClaims,
)
from holdfast.sim.planes.checkers.ledger_oracle import LedgerTotals
from holdfast.sim.planes.checkers.liveness import (
    PlaceableReplicas,
    overdue_reservation,
    unsettled_work,
)
from holdfast.sim.planes.checkers.permitted_changes import FieldOwnership, LawfulTransitions
from holdfast.sim.planes.checkers.room_checks import CapacityClasses, OvercommittedRoom
from holdfast.sim.planes.checkers.witness import FOLLOWER, TruthfulRefusals
from holdfast.sim.planes.components import Scripted, follower, person, servers, store
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, world_of
from holdfast.sim.run import Scenario
from holdfast.sim.worlds.authority.census import SETTINGS, AuthorityCensus, CountedServer
from holdfast.sim.worlds.authority.people import (
    FAULTS_MS,
    NODES,
    SPARE,
    Operator,
    overcommitting_script,
    script,
)
from holdfast.sim.worlds.authority.rogues import Rogue
from holdfast.sim.worlds.authority.scripted_agents import ScriptedAgent
from holdfast.sim.worlds.authority.scripted_controllers import (
    ScriptedDrainController,
    ScriptedEndpointsController,
    ScriptedGarbageController,
    ScriptedNodesController,
    ScriptedRepairController,
    ScriptedWorkloadController,
)
from holdfast.sim.worlds.authority.scripted_schedulers import ScriptedScheduler

SETTLE_MS = 150_000
# Few enough that a server which asks late may find that the fate of its transaction is gone.
TOKENS_MAX = 4
THREE_SERVERS = Plane(servers=("server-1", "server-2", "server-3"))

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


def commits(plane: SimulatedPlane) -> None:
    """What every commit must keep, whatever clients ask for."""
    store_copy = plane.store_copy
    plane.world.check(
        LedgerTotals(store_copy),
        ReservationClaims(store_copy),
        LawfulTransitions(store_copy),
        NodeMarks(store_copy),
        FieldOwnership(store_copy),
        OvercommittedRoom(store_copy),
        CapacityClasses(store_copy),
        DisruptionBudgets(store_copy),
    )


def evidence(plane: SimulatedPlane) -> None:
    """What requests rest on, how long they are remembered, and what their refusals say."""
    store_copy = plane.store_copy
    plane.world.check(
        TruthfulRefusals(store_copy),
        OperationMemory(store_copy, SETTINGS),
        FreshEvidence(store_copy),
        AuthorityCensus(store_copy),
    )


def ends(plane: SimulatedPlane) -> None:
    """After the faults nothing is stuck, and what fits is placed."""
    store_copy = plane.store_copy
    placeable = PlaceableReplicas(store_copy)
    plane.world.check(
        Settles("V1", lambda w: unsettled_work(store_copy, w), within_ms=120_000),
        Settles("V2", placeable.missing, within_ms=20_000),
        Settles("INV12", lambda w: overdue_reservation(store_copy, w), within_ms=60_000),
    )


def _scheduler(name: str, scope: str) -> Trait:
    make: Scripted = lambda seat, who: ScriptedScheduler(seat, who, f"scheduler:{scope}")  # noqa: E731
    return person(f"scheduler-{name}", make, f"system:scheduler:{name}")


def _controller(name: str, make: Scripted) -> Trait:
    return person(f"controller-{name}", make, f"system:controller:{name}")


def _agent(number: int) -> Trait:
    zone = "us-a" if number == NODES - 1 else f"eu-{'ab'[number % 2]}"
    node, gpus = f"node-{number}", 1 if number < 3 else 0
    make: Scripted = lambda seat, who: ScriptedAgent(seat, who, node, zone, gpus)  # noqa: E731
    return person(f"agent-{number}", make, f"system:node:{node}")


CLIENTS: tuple[Trait, ...] = (
    _scheduler("one", "one"),
    _scheduler("two", "two"),
    _scheduler("three", "shared"),
    _scheduler("four", "shared"),
    _controller("workload", ScriptedWorkloadController),
    _controller("nodes", ScriptedNodesController),
    _controller("repair", ScriptedRepairController),
    _controller("garbage", ScriptedGarbageController),
    _controller("drain", ScriptedDrainController),
    _controller("endpoints", ScriptedEndpointsController),
    *(_agent(number) for number in range(NODES)),
    person("operator", Operator),
    person("mallory", Rogue, Identity(name="mallory")),
    person("intruder", Rogue, "system:node:node-x"),
    person("busybody", Rogue, "system:controller:status"),
)

# Three servers over one store, every type of scripted client, and what must hold.
TRAITS: tuple[Trait, ...] = (
    servers(lambda seat, _settings: CountedServer(seat)),
    *CLIENTS,
    follower(keys.OBJECTS),
    invariants.copied,
    commits,
    invariants.acknowledgements,
    invariants.watches(keys.OBJECTS),
    invariants.quiet,
    evidence,
    ends,
)


SCENARIO = Scenario(
    name="holdfast.sim.worlds.authority.scenario:SCENARIO",
    build=world_of(
        store(*defaults(urgent_cpu=URGENT_CPU), tokens_max=TOKENS_MAX),
        *TRAITS,
        plane=THREE_SERVERS,
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)


# The authority world in which the operator changes how much of each node is allocatable, while work
# is placed and capacity is held for recovery.
#
# python -m holdfast.sim run holdfast.sim.worlds.authority.scenario:OVERCOMMIT --seeds 0-99

# More than all nodes have: the nodes are the limit in this world.
AMPLE_CPU = "40"
_RECLAIMABLE = PriorityClass(
    ObjectMeta(name=SPARE), spec=PriorityClassSpec(capacity_class=CapacityClass.RECLAIMABLE)
)

OVERCOMMIT = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.authority.scenario:OVERCOMMIT",
    build=world_of(
        store(*defaults(cpu=AMPLE_CPU), _RECLAIMABLE, tokens_max=TOKENS_MAX),
        *TRAITS,
        plane=THREE_SERVERS,
    ),
    script=overcommitting_script,
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
