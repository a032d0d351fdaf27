"""The components of the placing world, its faults, and what must hold in the end.

    python -m holdfast.sim run holdfast.sim.worlds.placing.scenario:SCENARIO --seeds 0-99

`MANY` has more nodes, `SHARDS` shards the tenants, `PROMPT` has no resync, `CALM` has no faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast.agent.node_facts import NodeFacts
from holdfast.commit.context import PlaneSettings
from holdfast.correct.all_controllers import core_controllers
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.model import keys
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Isolation
from holdfast.observe.watch_events import SERVERS
from holdfast.propose.queue.shard import SchedulerShare
from holdfast.propose.scheduler import Scheduler
from holdfast.sim.cell import Seat
from holdfast.sim.check import Settles
from holdfast.sim.plan import LATENESS, Act, Hazard, calendar_steps
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.scheduler_taps import tap_scheduler
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.budget_checks import DisruptionBudgets
from holdfast.sim.worlds.authority.invariants import FieldOwnership, LawfulTransitions
from holdfast.sim.worlds.authority.ledger_oracle import LedgerTotals, StoreCopy
from holdfast.sim.worlds.authority.liveness import (
    PlaceableReplicas,
    QuietStore,
    overdue_reservation,
)
from holdfast.sim.worlds.authority.people import TENANTS
from holdfast.sim.worlds.authority.rogues import ADMIN
from holdfast.sim.worlds.authority.scenario import create_defaults
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
from holdfast.sim.worlds.end_to_end.component_taps import tap_component
from holdfast.sim.worlds.end_to_end.people import RestingOperator
from holdfast.sim.worlds.end_to_end.servers import SimServer
from holdfast.sim.worlds.placing.checks import NoHotLoop, NoStarvation, PlacedWork, ShardLeases
from holdfast.sim.worlds.placing.node_fleet import HollowNode
from holdfast.store.memory import Keyspace

NODES, MANY_NODES = 20, 200
# Some nodes isolate tenants, some take one tenant at a time, and some agents report nothing.
ISOLATIONS = (None, Isolation.USER, Isolation.NONE, Isolation.CONTAINER, None)
SERVER_NAMES = ("server-1", "server-2")
SCHEDULERS_MAX = 3
RESYNC_MS = 60_000
# In one world of this many, schedulers share one scope.
SHARED_ONE_IN = 3
FAULTS_MS = 240_000
WELL_WITHIN_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 80_000
SETTINGS = PlaneSettings()
FOLLOWED = "objects/replicas/"

HAZARDS = (
    *LATENESS,
    Hazard("crash", 90, for_ms=(0, 10_000), amount=(0, 6), only="scheduler"),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server"),
    Hazard("crash", 30, for_ms=(0, 10_000), amount=(0, 6), only="controllers"),
    Hazard("crash", 60, for_ms=(0, 60_000), amount=(0, 6), only="node"),
    # A scheduler that is paused for longer than its lease, with binds half sent.
    Hazard("pause", 120, for_ms=(500, 40_000), amount=(0, 8), only="scheduler"),
    Hazard("pause", 60, for_ms=(5_000, 100_000), only="node"),
    Hazard("reboot", 20, for_ms=(1_000, 60_000), only="node"),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(20),
    calendar_steps(20, "server"),
    calendar_steps(20, "scheduler"),
    Hazard("partition", 40, for_ms=(500, 60_000), only="node"),
    Hazard("partition", 40, for_ms=(500, 20_000), only="scheduler"),
    Hazard("cut", 40, for_ms=(500, 20_000)),
    Hazard("loss", 60, for_ms=(1_000, 40_000), amount=(50, 600)),
    Hazard("duplicate", 60, for_ms=(1_000, 60_000), amount=(100, 800)),
    Hazard("delay", 40, for_ms=(1_000, 30_000), amount=(1, 3_000)),
    Hazard("delay", 60, for_ms=(1_000, 30_000), amount=(100, 3_000), only="scheduler"),
    Hazard("scatter", 40, for_ms=(1_000, 30_000), amount=(1, 4_000)),
    Hazard("store_slow", 30, for_ms=(1_000, 20_000), amount=(10, 2_000)),
    Hazard("store_fail", 30, for_ms=(1_000, 20_000), amount=(100, 900)),
    Hazard("store_mute", 60, for_ms=(1_000, 30_000), amount=(100, 900)),
    Hazard("store_late", 40, for_ms=(1_000, 30_000), amount=(50, 600)),
    Hazard("store_stall", 20, for_ms=(100, 10_000)),
    Hazard("store_compact", 40, amount=(0, 3)),
    Hazard("watch_hold", 90, for_ms=(100, 60_000), only="scheduler"),
    Hazard("watch_expire", 40),
    Hazard("delivery_lose", 40, for_ms=(1_000, 30_000), amount=(50, 400), only="scheduler"),
    Hazard("delivery_repeat", 20, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("delivery_stale", 20, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("stream_break", 60),
)


def build_with(world: World, nodes: int, *, shards: int = 0, resync_ms: int = RESYNC_MS) -> None:
    """Two servers over one store, schedulers, a controller runner, and hollow nodes."""
    keyspace = Keyspace()
    create_defaults(keyspace, world.seed, cpu=str(nodes))
    world.add_store(keyspace=keyspace)
    world.perform(StateFact, lambda _cell, effect: world.fact(effect.fact))
    for name in SERVER_NAMES:
        identity = f"system:server:{name}"
        world.add(name, lambda seat: SimServer(seat, SETTINGS), store="store", identity=identity)
    world.balance(SERVERS, SERVER_NAMES)
    world.balance(CLIENT_SERVERS, SERVER_NAMES)
    _add_shards(world, shards) if shards else _add_schedulers(world, resync_ms)
    world.add("controllers", tap_component("", _team), identity="system:controllers")
    for number in range(nodes):
        _add_node(world, number)
    world.add(
        "operator", lambda seat: RestingOperator(seat, ADMIN.name), store="store", identity=ADMIN
    )
    world.add(FOLLOWER, lambda seat: WatchFollower(seat, FOLLOWED), store="store")
    _add_checkers(world, keyspace, shards)


def _team(seat: Seat) -> ControllerRunner:
    return ControllerRunner(core_controllers(), seat.rng, name=seat.name, servers=SERVER_NAMES)


def _add_schedulers(world: World, resync_ms: int) -> None:
    rng = world.rng("placing")
    count = between(rng, 1, SCHEDULERS_MAX)
    is_shared = between(rng, 1, SHARED_ONE_IN) == 1
    for number in range(count):
        name = f"s{number}"
        scope = "scheduler:shared" if is_shared and number < SCHEDULERS_MAX - 1 else ""
        identity = f"system:scheduler:{name}"
        make: Callable[[Seat], Scheduler] = partial(_scheduler, name, scope, resync_ms)
        world.add(
            f"scheduler-{name}",
            tap_component(identity, tap_scheduler(name, make)),
            identity=identity,
        )


def _add_shards(world: World, shards: int) -> None:
    """Two schedulers for each shard of the tenants, of which one leads and one stands by."""
    for number in range(2 * shards):
        name, share = f"s{number}", SchedulerShare(number % shards, shards)
        identity = f"system:scheduler:{name}"
        make: Callable[[Seat], Scheduler] = partial(_sharded, name, share)
        world.add(
            f"scheduler-{name}",
            tap_component(identity, tap_scheduler(name, make)),
            identity=identity,
        )


def _scheduler(name: str, scope: str, resync_ms: int, seat: Seat) -> Scheduler:
    return Scheduler(name, seat.rng, scope=scope, resync_ms=resync_ms)


def _sharded(name: str, share: SchedulerShare, seat: Seat) -> Scheduler:
    return Scheduler(name, seat.rng, share=share)


def _add_node(world: World, number: int) -> None:
    name = f"node-{number}"
    region = "us" if number % 5 == 4 else "eu"
    gpus = 1 if number % 4 == 0 else 0
    devices = tuple(Device(id=f"gpu-{n}", device_class="gpu", memory="16Gi") for n in range(gpus))
    facts = NodeFacts(
        region=region,
        zone=f"{region}-{'abc'[number % 3]}",
        capacity={"cpu": "4", "memory": "16Gi"},
        devices=devices,
        isolation=ISOLATIONS[number % len(ISOLATIONS)],
    )
    identity = f"system:node:{name}"
    make: Callable[[Seat], HollowNode] = lambda seat: HollowNode(name, facts, seat.rng)  # noqa: E731
    world.add(name, tap_component(identity, make), identity=identity)


def _add_checkers(world: World, keyspace: Keyspace, shards: int) -> None:
    records = tuple(keyspace.range("", keys.END).records)
    store_copy = StoreCopy()
    store_copy.learn(records)
    placed, placeable, census = (
        PlacedWork(store_copy),
        PlaceableReplicas(store_copy),
        EndToEndCensus(store_copy),
    )
    # The copy of the store is first: the others read from it what the commit has changed.
    world.check(
        store_copy,
        LedgerTotals(store_copy),
        LawfulTransitions(store_copy),
        FieldOwnership(store_copy, status=True),
        DisruptionBudgets(store_copy),
    )
    census.begin(world)
    world.check(
        AcknowledgedWrites(store_copy, records),
        OperationsOnce(store_copy),
        WatchOrder(records, FOLLOWED),
    )
    world.check(
        FinalRecount(), QuietStore(store_copy), NoStarvation(store_copy), NoHotLoop(), census
    )
    if shards:
        world.check(ShardLeases(store_copy, shards))
    world.check(
        Settles("V1", placed.missing, within_ms=WELL_WITHIN_MS),
        Settles("V1", placed.untrusted, within_ms=WELL_WITHIN_MS),
        Settles("V2", placeable.missing, within_ms=20_000),
        Settles("V3", placed.silent, within_ms=WELL_WITHIN_MS),
        Settles("INV12", lambda w: overdue_reservation(store_copy, w), within_ms=60_000),
    )


# What users do ------------------------------------------------------------------------------------


def script(rng: Random, nodes: int = NODES) -> Sequence[Act]:
    """What the operator does over the run."""
    acts = [Act(500 + 100 * i, "operator", _workload(rng, i)) for i in range(8)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng, number, nodes))
        for number in range(8, 8 + between(rng, 10, 30))
    ]
    for tenant in TENANTS:
        at_ms = between(rng, 20_000, FAULTS_MS - 40_000)
        for when_ms, on in ((at_ms, True), (at_ms + between(rng, 1_000, 20_000), False)):
            acts.append(Act(when_ms, "operator", {"do": "suspend", "tenant": tenant, "on": on}))
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random, number: int, nodes: int) -> dict[str, Any]:
    some, node = between(rng, 0, 99), f"node-{between(rng, 0, nodes - 1)}"
    return pick(
        rng,
        (
            _workload(rng, number),
            _workload(rng, number),
            {"do": "scale", "some": some, "replicas": between(rng, 0, 10)},
            {"do": "scale", "some": some, "replicas": between(rng, 0, 10)},
            # Odd, which is a deletion in the background: no controller here does one in the
            # foreground.
            {"do": "delete", "some": some | 1},
            {"do": "kill", "some": some},
            {"do": "cordon", "node": node, "on": bool(some % 2)},
            {"do": "taint", "node": node, "on": bool(some % 2)},
            {"do": "quota", "tenant": pick(rng, TENANTS), "cpu": between(rng, 4, 40)},
        ),
    )


def _workload(rng: Random, number: int) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 1, 10),
        "cpu": pick(rng, ("500m", "1", "2", "3")),
        "gpu": pick(rng, ("", "", "", "1", "500m")),
        "urgent": pick(rng, (False, False, True)),
        "gang": False,
        "eu": pick(rng, (False, True)),
        "keep": False,
        "budget": None,
        "port": pick(rng, (0, 0, 0, 8080)),
        "isolation": pick(rng, ("none", "none", "none", "user")),
        "grace": 1,
    }


SCENARIO = Scenario(
    name="holdfast.sim.worlds.placing.scenario:SCENARIO",
    build=partial(build_with, nodes=NODES),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same on two hundred nodes.
MANY = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:MANY",
    build=partial(build_with, nodes=MANY_NODES),
    script=partial(script, nodes=MANY_NODES),
)

# Three shards of tenants, of which one is empty, with two schedulers for each.
SHARDS = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:SHARDS",
    build=partial(build_with, nodes=NODES, shards=3),
)

# Nothing goes wrong, and no resync retries a replica that no event woke.
PROMPT = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:PROMPT",
    build=partial(build_with, nodes=NODES, resync_ms=10 * FAULTS_MS),
    hazards=(),
)

# Nothing goes wrong: watch events bring everything, and a resync finds nothing.
CALM = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.placing.scenario:CALM", hazards=()
)
