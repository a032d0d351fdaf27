"""The components of the end-to-end world, its faults, and what must hold in the end.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.scenario:SCENARIO --seeds 0-99

`QUICK` is the same with a shorter calm after the faults, `CALM` has no faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.agent.agent import Agent
from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.model import keys
from holdfast.model.machine import Machine
from holdfast.model.meta import Object
from holdfast.model.requests import Create
from holdfast.observe.watch_events import SERVERS
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Factory, Seat
from holdfast.sim.check import Settles
from holdfast.sim.plan import LATENESS, Act, Hazard, calendar_steps
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.budget_checks import DisruptionBudgets
from holdfast.sim.worlds.authority.commit_checks import ReservationClaims
from holdfast.sim.worlds.authority.invariants import FieldOwnership, LawfulTransitions
from holdfast.sim.worlds.authority.ledger_oracle import LedgerTotals, StoreCopy
from holdfast.sim.worlds.authority.liveness import (
    PlaceableReplicas,
    QuietStore,
    overdue_reservation,
)
from holdfast.sim.worlds.authority.people import TENANTS
from holdfast.sim.worlds.authority.rogues import ADMIN
from holdfast.sim.worlds.authority.scenario import apply_requests, create_defaults
from holdfast.sim.worlds.authority.scripted_clients import SERVERS as CLIENT_SERVERS
from holdfast.sim.worlds.authority.scripted_clients import StateFact
from holdfast.sim.worlds.authority.witness import (
    FOLLOWER,
    AcknowledgedWrites,
    FinalRecount,
    OperationsOnce,
    WatchFollower,
    WatchOrder,
)
from holdfast.sim.worlds.end_to_end.census import EndToEndCensus
from holdfast.sim.worlds.end_to_end.checks import DesiredWork, OneCopy, ReleasedAfterStop
from holdfast.sim.worlds.end_to_end.component_taps import tap_component
from holdfast.sim.worlds.end_to_end.node_checks import JudgedNodes, Reborn
from holdfast.sim.worlds.end_to_end.node_health_taps import HeartbeatFilter
from holdfast.sim.worlds.end_to_end.people import NAME as RESERVER
from holdfast.sim.worlds.end_to_end.people import SCOPE as RESERVER_SCOPE
from holdfast.sim.worlds.end_to_end.people import ReservingScheduler, RestingOperator
from holdfast.sim.worlds.end_to_end.process_table import Processes
from holdfast.sim.worlds.end_to_end.servers import SimServer
from holdfast.sim.worlds.placing.checks import NoStarvation
from holdfast.store.memory import Keyspace

NODES = 20
ZONES = "abc"
# One world in this many has two schedulers that know nothing of each other, and one world in this
# many has a scheduler that reserves places.
RIVAL_EVERY = 5
RESERVER_EVERY = 4
MAIN_AWAY_MS = 12_000
SERVER_NAMES = ("server-1", "server-2")
FAULTS_MS = 600_000
# V1 demands the desired state within 120 s, and that it stays so for 600 s.
WELL_WITHIN_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 600_000
SETTINGS = PlaneSettings()
# What the watcher of the store follows: the objects that are written most, except leases.
FOLLOWED = "objects/replicas/"

HAZARDS = (
    *LATENESS,
    Hazard("crash", 60, for_ms=(0, 10_000), amount=(0, 6)),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server"),
    Hazard("crash", 60, for_ms=(0, 60_000), amount=(0, 6), only="agent"),
    Hazard("pause", 60, for_ms=(500, 25_000), amount=(0, 6)),
    # An agent that is paused for longer than its fence takes, in the middle of something.
    Hazard("pause", 60, for_ms=(30_000, 200_000), amount=(0, 8), only="agent"),
    Hazard("reboot", 12, for_ms=(1_000, 150_000), only="agent"),
    Hazard("machine_freeze", 6, for_ms=(1_000, 120_000), amount=(0, 1), only="agent"),
    Hazard("work_exit", 60, amount=(0, 2), only="agent"),
    Hazard("shim_kill", 30, only="agent"),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(10),
    calendar_steps(15, "server", share=0.4),
    calendar_steps(15, "controllers", share=0.4),
    # A node that is cut off completely, for longer and for shorter than the fence.
    Hazard("partition", 30, for_ms=(500, 150_000), only="agent"),
    Hazard("partition", 20, for_ms=(500, 20_000)),
    Hazard("cut", 30, for_ms=(500, 60_000)),
    Hazard("loss", 30, for_ms=(1_000, 60_000), amount=(50, 600)),
    Hazard("duplicate", 30, for_ms=(1_000, 60_000), amount=(100, 800)),
    Hazard("delay", 20, for_ms=(1_000, 60_000), amount=(1, 3_000)),
    Hazard("scatter", 20, for_ms=(1_000, 60_000), amount=(1, 4_000)),
    Hazard("store_slow", 12, for_ms=(1_000, 20_000), amount=(10, 3_000)),
    Hazard("store_fail", 12, for_ms=(1_000, 20_000), amount=(100, 900)),
    Hazard("store_mute", 20, for_ms=(1_000, 30_000), amount=(100, 900)),
    Hazard("store_late", 20, for_ms=(1_000, 30_000), amount=(50, 600)),
    Hazard("store_stall", 12, for_ms=(100, 10_000)),
    Hazard("store_compact", 20, amount=(0, 3)),
    Hazard("watch_hold", 40, for_ms=(100, 60_000)),
    Hazard("watch_expire", 20),
    Hazard("delivery_lose", 12, for_ms=(1_000, 60_000), amount=(50, 300), share=0.3),
    Hazard("delivery_repeat", 20, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("delivery_stale", 20, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("stream_break", 60),
)


def build(world: World) -> None:
    """Two servers over one store, a scheduler, two controller runners, twenty nodes."""
    build_with(world, NODES)


def build_with(
    world: World,
    nodes: int,
    *,
    settings: PlaneSettings = SETTINGS,
    zones: str = ZONES,
    faults_ms: int = FAULTS_MS,
    more: Sequence[Object] = (),
    server: Callable[[Seat, PlaneSettings], Machine] = SimServer,
    component: Callable[[Factory], Factory] = lambda make: make,
    settings_of: Callable[[str], PlaneSettings] | None = None,
    asked: tuple[str, ...] = SERVER_NAMES,
) -> None:
    """The same with any number of nodes in any zones, and with other settings and times.

    `more` objects exist from the beginning. `server` makes each life of a server, with the settings
    that `settings_of` gives for its name. `component` changes how all clients of the servers are
    made. `asked` are the addresses at which controllers ask for the heartbeat reports.
    """
    of = settings_of or (lambda _name: settings)
    keyspace = Keyspace()
    create_defaults(keyspace, world.seed, cpu=str(nodes * 2))
    apply_requests(keyspace, world.seed, [Create(obj) for obj in more], "more")
    world.add_store(keyspace=keyspace)
    world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))
    processes = Processes(world, settings.fence)
    where = {f"agent-{number}": f"eu-{zones[number % len(zones)]}" for number in range(nodes)}
    heartbeats = HeartbeatFilter(world, where, settings.fence)
    for name in SERVER_NAMES:
        identity = f"system:server:{name}"
        world.add(name, lambda seat: server(seat, of(seat.name)), store="store", identity=identity)
    world.balance(SERVERS, SERVER_NAMES)
    world.balance(CLIENT_SERVERS, SERVER_NAMES)
    _add_components(world, heartbeats, asked, component)
    _add_guests(world, faults_ms, component)
    for node, zone in where.items():
        _add_agent(world, node, zone, component)
    customer = component(lambda seat: RestingOperator(seat, ADMIN.name))
    world.add("operator", customer, store="store", identity=ADMIN)
    world.add(FOLLOWER, lambda seat: WatchFollower(seat, FOLLOWED), store="store")
    store_copy = _add_checkers(world, keyspace, processes)
    world.check(
        JudgedNodes(store_copy, heartbeats, settings.fence),
        Reborn(store_copy, processes),
        NoStarvation(store_copy),
    )


def _add_components(
    world: World,
    heartbeats: HeartbeatFilter,
    asked: tuple[str, ...],
    component: Callable[[Factory], Factory],
) -> None:
    def scheduler(seat: Seat) -> Scheduler:
        return Scheduler("main", seat.rng)

    def team(seat: Seat) -> ControllerRunner:
        return ControllerRunner(core_controllers(), seat.rng, name=seat.name, servers=asked)

    name = "system:scheduler:main"
    world.add("scheduler", component(tap_component(name, scheduler)), identity=name)
    runner = component(tap_component("", heartbeats.around(team)))
    for number in (1, 2):
        world.add(f"controllers-{number}", runner, identity="system:controllers")


def _add_guests(world: World, faults_ms: int, component: Callable[[Factory], Factory]) -> None:
    """Add the components that run only while faults last."""

    def rival(seat: Seat) -> Scheduler:
        return Scheduler("rival", seat.rng)

    def reserver(seat: Seat) -> ReservingScheduler:
        return ReservingScheduler(seat, RESERVER, RESERVER_SCOPE)

    guests = []
    if world.seed % RIVAL_EVERY == 1:
        # A second scheduler under another name: both place all pending replicas. It ends with the
        # faults, since two that explain the same wait would never stop rewriting it.
        other = "system:scheduler:rival"
        scheduler = component(tap_component(other, rival))
        guests.append(world.add("scheduler-2", scheduler, identity=other))
    if world.seed % RESERVER_EVERY == 2:
        guests.append(world.add("keeper", component(reserver), store="store", identity=RESERVER))
        # It gets its chance while no other scheduler places anything.
        main = world.cells["scheduler"]
        world.post(1_000, lambda *_: world.pause_for(main, MAIN_AWAY_MS), None, None)
    for cell in guests:
        world.post(faults_ms * 1000 + 1, lambda _number, it, _: world.remove(it), cell, None)


def _add_agent(world: World, node: str, zone: str, component: Callable[[Factory], Factory]) -> None:
    facts = NodeFacts(
        region="eu", zone=zone, capacity={"cpu": "4", "memory": "16Gi"}, installation=node
    )
    name = f"system:node:{node}"
    make: Callable[[Seat], Agent] = lambda seat: Agent(node, facts, seat.rng)  # noqa: E731
    world.add(node, component(tap_component(name, make)), identity=name)


def _add_checkers(world: World, keyspace: Keyspace, processes: Processes) -> StoreCopy:
    records = tuple(keyspace.range("", keys.END).records)
    store_copy = StoreCopy()
    store_copy.learn(records)
    desired, placeable = DesiredWork(store_copy, processes), PlaceableReplicas(store_copy)
    # The copy of the store is first: the others read from it what the commit has changed.
    world.check(
        store_copy,
        LedgerTotals(store_copy),
        LawfulTransitions(store_copy),
        FieldOwnership(store_copy, status=True),
        DisruptionBudgets(store_copy),
    )
    world.check(OneCopy(store_copy, processes), ReleasedAfterStop(store_copy, processes))
    census = EndToEndCensus(store_copy)
    census.begin(world)
    world.check(
        AcknowledgedWrites(store_copy, records),
        OperationsOnce(store_copy),
        WatchOrder(records, FOLLOWED),
        ReservationClaims(store_copy),
    )
    world.check(FinalRecount(), QuietStore(store_copy), census)
    world.check(
        Settles("V1", desired.missing, within_ms=WELL_WITHIN_MS),
        Settles("V1", desired.untrusted, within_ms=WELL_WITHIN_MS),
        Settles("V2", placeable.missing, within_ms=20_000),
        Settles("V3", desired.silent, within_ms=WELL_WITHIN_MS),
        Settles("INV12", lambda w: overdue_reservation(store_copy, w), within_ms=60_000),
    )
    return store_copy


def script(rng: Random) -> Sequence[Act]:
    """What the operator does over the run."""
    acts = [Act(500 + 100 * i, "operator", service(rng, i)) for i in range(4)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng, number))
        for number in range(4, 4 + between(rng, 4, 16))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random, number: int) -> dict[str, Any]:
    some, node = between(rng, 0, 99), f"agent-{between(rng, 0, NODES - 1)}"
    return pick(
        rng,
        (
            service(rng, number),
            {"do": "scale", "some": some, "replicas": between(rng, 0, 8)},
            {"do": "scale", "some": some, "replicas": between(rng, 0, 8)},
            # Odd, which is a deletion in the background: no controller here does one in the
            # foreground.
            {"do": "delete", "some": some | 1},
            {"do": "kill", "some": some},
            {"do": "label", "some": some, "how": pick(rng, ("merge", "apply"))},
            {"do": "cordon", "node": node, "on": bool(some % 2)},
        ),
    )


def service(rng: Random, number: int) -> dict[str, Any]:
    """An act of the operator: create a service."""
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 1, 6),
        "cpu": pick(rng, ("500m", "1", "2")),
        "gpu": "",
        "urgent": pick(rng, (False, False, True)),
        "gang": False,
        "eu": pick(rng, (False, True)),
        "keep": pick(rng, (False, False, False, True)),
        "budget": None,
        "port": pick(rng, (0, 0, 0, 8080)),
        # Longer than the grace that the fence waits for: the shim must not grant it then.
        "grace": pick(rng, (1, 10, 60)),
    }


SCENARIO = Scenario(
    name="holdfast.sim.worlds.end_to_end.scenario:SCENARIO",
    build=build,
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same with a short calm: the desired state must last for two minutes instead of ten.
QUICK = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.end_to_end.scenario:QUICK",
    settle_ms=WELL_WITHIN_MS + 120_000,
)

# Nothing goes wrong: watch events bring everything, and a resync finds nothing.
CALM = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.end_to_end.scenario:CALM", hazards=()
)
