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
from holdfast.model.kinds.node import Device
from holdfast.model.kinds.placement import Isolation
from holdfast.model.meta import Object
from holdfast.propose.queue.shard import SchedulerShare
from holdfast.sim.plan import LATENESS, Act, Hazard, calendar_steps
from holdfast.sim.planes import invariants
from holdfast.sim.planes.components import (
    add_scheduler,
    controllers,
    follower,
    hollow_nodes,
    operator,
    servers,
    store,
)
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.people import RestingOperator
from holdfast.sim.worlds.placing.checks import NoHotLoop, PlacedWork, ShardLeases

NODES, MANY_NODES = 20, 200
# Some nodes isolate tenants, some take one tenant at a time, and some agents report nothing.
ISOLATIONS = (None, Isolation.USER, Isolation.NONE, Isolation.CONTAINER, None)
SCHEDULERS_MAX = 3
SHARD_COUNT = 3
RESYNC_MS = 60_000
# In one world of this many, schedulers share one scope.
SHARED_ONE_IN = 3
FAULTS_MS = 240_000
WELL_WITHIN_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 80_000
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


def competing(resync_ms: int = RESYNC_MS, **options: Any) -> Trait:
    """One to three schedulers with these options; in some seeds two of them share one scope."""

    def add(plane: SimulatedPlane) -> None:
        rng = plane.world.rng("placing")
        count = between(rng, 1, SCHEDULERS_MAX)
        is_shared = between(rng, 1, SHARED_ONE_IN) == 1
        for number in range(count):
            scope = "scheduler:shared" if is_shared and number < SCHEDULERS_MAX - 1 else ""
            _add_scheduler(plane, number, scope=scope, resync_ms=resync_ms, **options)

    return add


def sharded_among(**options: Any) -> Trait:
    """Two schedulers for each shard of the tenants, of which one leads and one stands by."""

    def add(plane: SimulatedPlane) -> None:
        for number in range(2 * SHARD_COUNT):
            share = SchedulerShare(number % SHARD_COUNT, SHARD_COUNT)
            _add_scheduler(plane, number, share=share, **options)

    return add


def _add_scheduler(plane: SimulatedPlane, number: int, **options: Any) -> None:
    add_scheduler(plane, f"s{number}", f"scheduler-s{number}", is_observed=True, **options)


def fleet(count: int) -> dict[str, NodeFacts]:
    """Nodes of two regions, some with a GPU, which isolate tenants in different ways."""
    return {f"node-{number}": _facts(number) for number in range(count)}


def _facts(number: int) -> NodeFacts:
    region = "us" if number % 5 == 4 else "eu"
    gpus = 1 if number % 4 == 0 else 0
    devices = tuple(Device(id=f"gpu-{n}", device_class="gpu", memory="16Gi") for n in range(gpus))
    return NodeFacts(
        region=region,
        zone=f"{region}-{'abc'[number % 3]}",
        capacity={"cpu": "4", "memory": "16Gi"},
        devices=devices,
        isolation=ISOLATIONS[number % len(ISOLATIONS)],
    )


# Where tenants lend each other quota, the first resync after the faults may still take something
# back, and at the second the borrower gets what its lender could not use. The third one changes
# what the others are told, and a report with other numbers may wait for half a minute.
LENT_QUIET_MS = 3 * RESYNC_MS + 30_000
LENT_SETTLE_MS = LENT_QUIET_MS + 40_000

BEFORE_QUIET: tuple[Trait, ...] = (
    invariants.copied,
    invariants.commits,
    invariants.acknowledgements,
    invariants.watches(FOLLOWED),
)
AFTER_QUIET: tuple[Trait, ...] = (
    invariants.starves_nothing,
    invariants.checked(lambda _plane: NoHotLoop()),
    invariants.counted(),
    invariants.settles(lambda plane: PlacedWork(plane.store_copy), WELL_WITHIN_MS),
)


def placing(
    count: int,
    schedulers: Trait,
    *more: Trait,
    objects: Sequence[Object] = (),
    quiet: Trait = invariants.quiet,
) -> Callable[[World], None]:
    """Two servers over one store, schedulers, a controller runner, and hollow nodes.

    `objects` are those that exist before the run, if not the defaults; `quiet` says from when on
    nothing may be written.
    """
    return world_of(
        store(*(objects or defaults(cpu=str(count)))),
        servers(),
        schedulers,
        controllers("controllers"),
        hollow_nodes(fleet(count)),
        operator(RestingOperator),
        follower(FOLLOWED),
        *BEFORE_QUIET,
        quiet,
        *AFTER_QUIET,
        *more,
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
    build=placing(NODES, competing()),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same on two hundred nodes.
MANY = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:MANY",
    build=placing(MANY_NODES, competing()),
    script=partial(script, nodes=MANY_NODES),
)

# Three shards of tenants, of which one is empty, with two schedulers for each.
SHARDS = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:SHARDS",
    build=placing(
        NODES,
        sharded_among(),
        invariants.checked(lambda plane: ShardLeases(plane.store_copy, SHARD_COUNT)),
    ),
)

# Nothing goes wrong, and no resync retries a replica that no event woke.
PROMPT = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.placing.scenario:PROMPT",
    build=placing(NODES, competing(resync_ms=10 * FAULTS_MS)),
    hazards=(),
)

# Nothing goes wrong: watch events bring everything, and a resync finds nothing.
CALM = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.placing.scenario:CALM", hazards=()
)
