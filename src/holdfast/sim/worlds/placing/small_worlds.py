"""Small worlds of four nodes, each for one rule of scheduling under contention.

    python -m holdfast.sim run holdfast.sim.worlds.placing.small_worlds:RIVALS --seeds 0-99

| world | what competes |
|---|---|
| `RIVALS` | two large gangs, of which one fits: room for either appears for both at once |
| `TURNS` | two tenants whose quotas change places, so that each takes back what the other holds |
| `SHARES` | a tenant with much work, and one that comes later, for places that become free |
| `STATED` | jobs that state their durations, and one that needs a whole node |

In `STATED` nothing goes wrong, the others have the faults of the placing world.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.kinds.tenant import Quota
from holdfast.model.meta import Object
from holdfast.sim.plan import Act
from holdfast.sim.planes import invariants
from holdfast.sim.planes.components import add_scheduler
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.worlds.placing import contended
from holdfast.sim.worlds.placing.gang_worlds import whole_gangs
from holdfast.sim.worlds.placing.order_checks import FairTurns, KeptStarts
from holdfast.sim.worlds.placing.scenario import (
    FAULTS_MS,
    HAZARDS,
    LENT_SETTLE_MS,
    RESYNC_MS,
    SETTLE_MS,
    competing,
    placing,
    sharded_among,
)

NODES = 4
# What all nodes have together, in whole processors.
CPUS = 4 * NODES
NAME = "holdfast.sim.worlds.placing.small_worlds:"


def objects() -> tuple[Object, ...]:
    """Those of the placing world, with quotas that never are in the way."""
    found = []
    for it in defaults():
        if isinstance(it, Quota):
            hard = {"cpu": str(10 * CPUS), "gpu": "3"}
            it = msgspec.structs.replace(it, spec=msgspec.structs.replace(it.spec, hard=hard))
        found.append(it)
    return tuple(found)


def _create(name: str, tenant: str, replicas: int, cpu: str = "1", **more: Any) -> dict[str, Any]:
    return {
        "do": "create",
        "name": name,
        "tenant": tenant,
        "replicas": replicas,
        "cpu": cpu,
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": False,
        "budget": None,
        "port": 0,
        "grace": 1,
        **more,
    }


# Gangs --------------------------------------------------------------------------------------------


def rivals_script(rng: Random) -> Sequence[Act]:
    """The fleet is full, two gangs wait, and then all of it becomes free."""
    acts = [Act(500, "operator", _create("w0", "ada", CPUS))]
    for number, tenant in enumerate(TENANTS, start=1):
        members = between(rng, CPUS - 5, CPUS - 3)
        acts.append(
            Act(20_000, "operator", _create(f"w{number}", tenant, members, gang=True, spare=0))
        )
    free = {"do": "scale", "some": 0, "replicas": 0}
    return [*acts, Act(between(rng, 40_000, FAULTS_MS - 20_000), "operator", free)]


RIVALS = Scenario(
    name=f"{NAME}RIVALS",
    build=placing(NODES, sharded_among(gang_together_max=2), whole_gangs, objects=objects()),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=rivals_script,
)


# Turns --------------------------------------------------------------------------------------------


def turns_script(rng: Random) -> Sequence[Act]:
    """Important work of two tenants, whose quotas change places again and again."""
    acts = [
        Act(
            500 + 100 * number,
            "operator",
            _create(f"w{number}", TENANTS[number % 2], 1, "2", **{"class": "high"}),
        )
        for number in range(CPUS)
    ]
    at_ms, few_is_first = 30_000, pick(rng, (True, False))
    while at_ms < FAULTS_MS - 20_000:
        few_is_first = not few_is_first
        few, many = between(rng, 0, 2), between(rng, 22, 26)
        for tenant, is_few in zip(TENANTS, (few_is_first, not few_is_first), strict=True):
            body = {"do": "quota", "tenant": tenant, "cpu": few if is_few else many}
            acts.append(Act(at_ms, "operator", body))
        at_ms += between(rng, 15_000, 40_000)
    return acts


TURNS = Scenario(
    name=f"{NAME}TURNS",
    build=placing(
        NODES,
        competing(),
        *contended.LAWS,
        objects=contended.objects(),
        quiet=contended.LENT_QUIET,
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=LENT_SETTLE_MS,
    script=turns_script,
)


# Shares -------------------------------------------------------------------------------------------


def shares_script(rng: Random) -> Sequence[Act]:
    """One tenant fills the fleet, the other comes later, and work is deleted all the time."""
    acts = [
        Act(500, "operator", _create("w0", "ada", 2 * CPUS)),
        Act(between(rng, 20_000, 60_000), "operator", _create("w1", "bob", 2 * CPUS)),
    ]
    acts += [
        Act(between(rng, 60_000, FAULTS_MS - 60_000), "operator", {"do": "kill", "some": number})
        for number in range(60)
    ]
    return sorted(acts, key=lambda act: act.at_ms)


SHARES = Scenario(
    name=f"{NAME}SHARES",
    build=placing(
        NODES,
        competing(),
        invariants.checked(lambda plane: FairTurns(plane.store_copy)),
        objects=objects(),
    ),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=shares_script,
)


# Stated durations ---------------------------------------------------------------------------------


def stated_script(rng: Random) -> Sequence[Act]:
    """Long jobs on all nodes, then one that needs a whole node, then many small ones."""
    acts = [
        Act(500, "operator", _create("w0", "ada", NODES, "3", seconds=between(rng, 60, 100))),
        Act(20_000, "operator", _create("w1", "ada", 1, "4", seconds=30)),
    ]
    for number in range(2, 2 + between(rng, 4, 8)):
        seconds = pick(rng, (None, 20, 200))
        body = _create(f"w{number}", pick(rng, TENANTS), between(rng, 1, 3), seconds=seconds)
        acts.append(Act(between(rng, 26_000, 60_000), "operator", body))
    return sorted(acts, key=lambda act: act.at_ms)


def one_scheduler(plane: SimulatedPlane) -> None:
    """Several that compete each reserve starts by themselves."""
    add_scheduler(plane, "s0", "scheduler-s0", is_observed=True, resync_ms=RESYNC_MS)


STATED = Scenario(
    name=f"{NAME}STATED",
    build=placing(
        NODES,
        one_scheduler,
        invariants.checked(lambda plane: KeptStarts(plane.store_copy)),
        objects=objects(),
    ),
    # A fault delays a start that was stated before it.
    hazards=(),
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=stated_script,
)
