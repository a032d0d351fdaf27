"""The components of the end-to-end world, its faults, and what must hold in the end.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.scenario:SCENARIO --seeds 0-99

`QUICK` is the same with a shorter calm after the faults, `CALM` has no faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.meta import Object
from holdfast.sim.cell import Factory
from holdfast.sim.plan import LATENESS, Act, Hazard, calendar_steps
from holdfast.sim.planes import invariants
from holdfast.sim.planes.checkers.plane_census import MISSED
from holdfast.sim.planes.checkers.process_checks import DesiredWork
from holdfast.sim.planes.components import (
    add_scheduler,
    controllers,
    equal_nodes,
    follower,
    hidden_heartbeats,
    objects,
    operator,
    process_tables,
    scheduler,
    servers,
    store,
)
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import (
    TWO_SERVERS,
    ServerFactory,
    SimulatedPlane,
    Trait,
    world_of,
)
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.worlds.end_to_end.people import NAME as RESERVER
from holdfast.sim.worlds.end_to_end.people import SCOPE, ReservingScheduler, RestingOperator

NODES = 20
ZONES = "abc"
# One world in this many has two schedulers that know nothing of each other, and one world in this
# many has a scheduler that reserves places.
RIVAL_EVERY = 5
RESERVER_EVERY = 4
MAIN_AWAY_MS = 12_000
SERVER_NAMES = TWO_SERVERS.servers
FAULTS_MS = 600_000
# V1 demands the desired state within 120 s, and that it stays so for 600 s.
WELL_WITHIN_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 600_000
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

# What must happen over the seeds of the default run.
DEMANDED = (
    "node suspected",
    "node marked",
    "node cleared",
    "node fenced",
    "node returned in a new life",
    "move Unknown -> Running",
    "move Unknown -> Failed",
    "move Pending -> Reserved",
    "move Reserved -> Bound",
    "move Reserved -> Pending",
    "replaced",
    "started again in place",
    "ended: DeadlinePassed",
    "ended: Exited",
    "ended: Rebooted",
    "ended: ShimDied",
    "ended: Stopped",
    "adopted by the next agent",
    "lease taken over by an instance of the same identity",
    "lease taken back by a later life",
    "accepted Bind",
    "accepted ReportPending",
    "accepted RegisterNode",
    "repeated request",
    "Bind refused",
    "list restarted after Expired",
    "lost answer settled by a read",
    MISSED,
)


def parts(
    count: int,
    *,
    zones: str = ZONES,
    faults_ms: int = FAULTS_MS,
    more: Sequence[Object] = (),
    server: ServerFactory | None = None,
    asked: tuple[str, ...] = (),
) -> tuple[Trait, ...]:
    """Two servers over one store, a scheduler, two controller runners, and nodes in these zones.

    `more` objects exist from the beginning, and `server` makes each life of a server. `asked` are
    the addresses at which controllers ask for heartbeat reports.
    """
    return (
        store(*defaults(cpu=str(count * 2))),
        objects(*more),
        process_tables(),
        hidden_heartbeats,
        servers(server),
        scheduler,
        controllers("controllers-1", "controllers-2", asked=asked),
        temporary_schedulers(faults_ms),
        equal_nodes(count, zones=zones, has_installation=True),
        operator(RestingOperator),
        follower(FOLLOWED),
    )


def temporary_schedulers(faults_ms: int) -> Trait:
    """In some seeds, schedulers that run only while faults last."""

    def add(plane: SimulatedPlane) -> None:
        world = plane.world
        temporary = []
        if world.seed % RIVAL_EVERY == 1:
            # A second scheduler under another name: both place all pending replicas. It ends with
            # the faults, since two that explain the same wait would never stop rewriting it.
            temporary.append(add_scheduler(plane, "rival", "scheduler-2"))
        if world.seed % RESERVER_EVERY == 2:
            make: Factory = lambda seat: ReservingScheduler(seat, RESERVER, SCOPE)  # noqa: E731
            temporary.append(plane.add("keeper", make, RESERVER, reads_store=True))
            # It gets its chance while no other scheduler places anything.
            main = world.cells["scheduler"]
            world.post(1_000, lambda *_: world.pause_for(main, MAIN_AWAY_MS), None, None)
        for cell in temporary:
            world.post(faults_ms * 1000 + 1, lambda _number, it, _: world.remove(it), cell, None)

    return add


LAWS: tuple[Trait, ...] = (
    invariants.copied,
    invariants.commits,
    invariants.processes,
    invariants.acknowledgements,
    invariants.watches(FOLLOWED),
    invariants.quiet,
    invariants.counted(),
    invariants.settles(lambda it: DesiredWork(it.store_copy, it.processes), WELL_WITHIN_MS),
    invariants.judged_nodes,
    invariants.node_lives,
    invariants.starves_nothing,
)


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
    build=world_of(*parts(NODES), *LAWS),
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
