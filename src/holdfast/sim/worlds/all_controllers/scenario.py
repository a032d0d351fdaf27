"""The components of the world of all controllers, its faults, and what must hold in the end.

    python -m holdfast.sim run holdfast.sim.worlds.all_controllers.scenario:SCENARIO --seeds 0-99

`SCENARIO` has random faults, `CALM` has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.commit.context import PlaneSettings
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import Stage
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.workload.jobs import cron_of, finished_condition
from holdfast.sim.check import Commit, Settles
from holdfast.sim.plan import LATENESS, Act, Hazard, calendar_steps
from holdfast.sim.planes import invariants
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.planes.checkers.plane_census import MISSED, PlaneCensus
from holdfast.sim.planes.components import (
    controllers,
    equal_nodes,
    follower,
    hidden_heartbeats,
    operator,
    process_tables,
    scheduler,
    servers,
    store,
)
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import TWO_SERVERS, SimulatedPlane, Trait, world_of
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.checks import (
    DesiredWorkOfAllTypes,
    PlaceableOnItsNode,
    TruthfulStatus,
)
from holdfast.sim.worlds.all_controllers.invariants import (
    JobAccountTrue,
    JobTimes,
    OnePerNode,
    OneRunPerMoment,
    PublishedEndpoints,
    RolloutLimits,
)
from holdfast.sim.worlds.all_controllers.people import FATAL, AllControllersOperator
from holdfast.sim.worlds.all_controllers.process_table import FinishingProcesses

# What must happen over the seeds of the default run.
DEMANDED = (
    "node marked",
    "node fenced",
    "move Unknown -> Failed",
    "replaced",
    "accepted Bind",
    "accepted Update",
    "repeated request",
    "lost answer settled by a read",
    "lease taken over by an instance of the same identity",
    MISSED,
    "job ended: AllSucceeded",
    "job ended: RetriesExceeded",
    "job ended: FailurePolicy",
    "job ended: DeadlineExceeded",
    "job removed after its time",
    "cron run",
    "cron skipped: StillRunning",
    "cron run cleared away",
    "on a node of its own",
    "serves",
    "list written",
    "list emptied",
    "stopped: Deleted",
    "stopped: Deadline",
    "stopped: ScaleDown",
    "stopped: Rollout",
    "stopped: Drain",
    "Evict refused",
    "rollout: Progressing",
    "rollout: Idle",
)


class AllControllersCensus(PlaneCensus):
    """The counts of the end-to-end world, and those of jobs, cron jobs and endpoints."""

    def on_commit(self, world: World, commit: Commit) -> None:
        super().on_commit(world, commit)
        for _, old, new in self.store_copy.changed("objects/workloads/"):
            self._count_workload(old, new)
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            before = old if same(old, new) else None
            if before is None and new.spec.template.placement.node_selector:
                self._count("on a node of its own")
            if new.status.stage is Stage.SERVING and before is not None:
                self._count("serves", before.status.stage is not Stage.SERVING)
            for step in steps_of(before, new):
                if step.to.value == "Stopping":
                    self._count(f"stopped: {step.reason}")
        for _, old, new in self.store_copy.changed("objects/endpoints/"):
            was = bool(old is not None and old.endpoints)
            is_now = bool(new is not None and new.endpoints)
            self._count("list written" if is_now else "list emptied", is_now or was)

    def _count_workload(self, old: Workload | None, new: Workload | None) -> None:
        if old is not None and new is None:
            over = finished_condition(old)
            if over is not None:
                is_run = cron_of(old) is not None
                self._count("cron run cleared away" if is_run else "job removed after its time")
            return
        if new is None:
            return
        phase = new.status.rollout.phase
        if phase and (old is None or old.status.rollout.phase != phase):
            self._count(f"rollout: {phase.value}")
        if old is None and cron_of(new) is not None:
            self._count("cron run")
        ended, before = (
            finished_condition(new),
            finished_condition(old) if old is not None else None,
        )
        if ended is not None and before is None:
            self._count(f"job ended: {ended.reason}")
        if new.spec.type is WorkloadType.CRON and old is not None:
            skipped = new.status.cron.last_skipped
            if skipped is not None and skipped != old.status.cron.last_skipped:
                self._count(f"cron skipped: {new.status.cron.skipped_because}")


NODES = 6
ZONES = "abc"
SERVER_NAMES = TWO_SERVERS.servers
FAULTS_MS = 300_000
# Cron jobs run for a while after the faults, and are suspended before the plane must be quiet.
CRONS_REST_MS = 40_000
# How often the operator looks for one that is not suspended yet: some requests may be refused.
CRON_RESTS = 16
WELL_WITHIN_MS = 120_000
SETTLE_MS = WELL_WITHIN_MS + 90_000
# Longer than any job may take.
LONG_MS = 200_000
# A renewal every 4 s: a node is Suspect after 8 s of silence and marked after 14.
TIMING = FenceTiming(self_stop_after_ms=12_000, grace_ms=5_000, fence_after_ms=24_000)
SETTINGS = PlaneSettings(fence=TIMING)
FOLLOWED = "objects/workloads/"

HAZARDS = (
    *LATENESS,
    Hazard("crash", 120, for_ms=(0, 10_000), amount=(0, 6), only="controllers", share=0.8),
    Hazard("crash", 60, for_ms=(0, 5_000), amount=(0, 6), only="server"),
    Hazard("crash", 60, for_ms=(0, 20_000), amount=(0, 6), only="agent"),
    Hazard("crash", 30, for_ms=(0, 10_000), amount=(0, 6), only="scheduler"),
    Hazard("pause", 120, for_ms=(500, 25_000), amount=(0, 6), only="controllers"),
    Hazard("pause", 40, for_ms=(20_000, 60_000), amount=(0, 8), only="agent"),
    Hazard("reboot", 20, for_ms=(1_000, 60_000), only="agent"),
    Hazard("work_exit", 30, amount=(0, 2), only="agent"),
    Hazard("shim_kill", 20, only="agent"),
    Hazard("deaf", 40, for_ms=(15_000, 40_000), only="agent"),
    Hazard("clock_rate", 20, amount=(-200, 200)),
    calendar_steps(30, share=0.5),
    calendar_steps(30, "server", share=0.5),
    calendar_steps(30, "controllers", share=0.5),
    Hazard("partition", 40, for_ms=(500, 60_000), only="agent"),
    Hazard("partition", 40, for_ms=(500, 20_000), only="controllers"),
    Hazard("cut", 40, for_ms=(500, 20_000)),
    Hazard("loss", 40, for_ms=(1_000, 40_000), amount=(50, 600)),
    Hazard("duplicate", 40, for_ms=(1_000, 40_000), amount=(100, 800)),
    Hazard("delay", 30, for_ms=(1_000, 40_000), amount=(1, 3_000)),
    Hazard("scatter", 30, for_ms=(1_000, 40_000), amount=(1, 4_000)),
    Hazard("store_slow", 20, for_ms=(1_000, 20_000), amount=(10, 2_000)),
    Hazard("store_fail", 20, for_ms=(1_000, 20_000), amount=(100, 900)),
    Hazard("store_mute", 30, for_ms=(1_000, 30_000), amount=(100, 900)),
    Hazard("store_late", 30, for_ms=(1_000, 30_000), amount=(50, 600)),
    Hazard("store_compact", 30, amount=(0, 3)),
    Hazard("watch_hold", 90, for_ms=(100, 40_000), only="server"),
    Hazard("watch_expire", 30),
    Hazard("delivery_lose", 40, for_ms=(1_000, 40_000), amount=(50, 500), only="controllers"),
    Hazard("delivery_repeat", 30, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("delivery_stale", 30, for_ms=(1_000, 60_000), amount=(50, 500)),
    Hazard("stream_break", 90),
)


def parts(
    count: int,
    *,
    runners: Sequence[str] = ("controllers-1", "controllers-2"),
) -> tuple[Trait, ...]:
    """A scheduler, runners of all controllers, and nodes whose work also ends by itself."""
    return (
        store(*defaults(cpu=str(count * 4))),
        process_tables(FinishingProcesses),
        hidden_heartbeats,
        servers(),
        scheduler,
        controllers(*runners),
        equal_nodes(count, zones=ZONES),
        operator(AllControllersOperator),
        follower(FOLLOWED),
    )


def types_of_work(plane: SimulatedPlane) -> None:
    """What must hold of jobs, cron jobs, work on each node, endpoints and rollouts."""
    store_copy = plane.store_copy
    plane.world.check(
        JobAccountTrue(store_copy, plane.tables(FinishingProcesses)),
        OneRunPerMoment(store_copy),
        OnePerNode(store_copy),
        PublishedEndpoints(store_copy),
        RolloutLimits(store_copy),
        JobTimes(store_copy),
    )


def ends(plane: SimulatedPlane) -> None:
    """Status and schedules are right in the end."""
    truthful = TruthfulStatus(plane.store_copy)
    plane.world.check(
        Settles("CRON", truthful.unpunctual, within_ms=CRONS_REST_MS - 10_000),
        Settles("V1", truthful.missing, within_ms=WELL_WITHIN_MS),
    )


def desired(plane: SimulatedPlane) -> DesiredWorkOfAllTypes:
    return DesiredWorkOfAllTypes(plane.store_copy, plane.tables(FinishingProcesses))


LAWS: tuple[Trait, ...] = (
    invariants.copied,
    invariants.commits,
    invariants.processes,
    invariants.acknowledgements,
    invariants.watches(FOLLOWED),
    types_of_work,
    invariants.counted(AllControllersCensus),
    invariants.judged_nodes,
    invariants.node_lives,
    invariants.starves_nothing,
    invariants.quiet,
    ends,
    invariants.settles(desired, WELL_WITHIN_MS, PlaceableOnItsNode),
)


def script(rng: Random) -> Sequence[Act]:
    """What the operator does over the run, and what the operator cleans up after it."""
    firsts = (_service, _job, _job, _cron, _per_node)
    acts = [Act(500 + 100 * i, "operator", make(rng, i)) for i, make in enumerate(firsts)]
    acts += [
        Act(between(rng, 5_000, FAULTS_MS - 20_000), "operator", _act(rng, number))
        for number in range(len(firsts), len(firsts) + between(rng, 4, 14))
    ]
    acts += [Act(FAULTS_MS + 500, "operator", {"do": "open"}) for _ in range(NODES)]
    rest = {"do": "rest-crons", "some": 0}
    acts += [Act(FAULTS_MS + CRONS_REST_MS, "operator", rest) for _ in range(CRON_RESTS)]
    return sorted(acts, key=lambda act: act.at_ms)


def _act(rng: Random, number: int) -> dict[str, Any]:
    some, node = between(rng, 0, 99), f"agent-{between(rng, 0, NODES - 1)}"
    make = pick(rng, (_service, _job, _job, _cron))
    return pick(
        rng,
        (
            make(rng, number),
            make(rng, number),
            {"do": "scale", "some": some, "replicas": between(rng, 0, 5)},
            # Odd, which is a deletion in the background: no controller here does one in the
            # foreground.
            {"do": "delete", "some": some | 1},
            {"do": "kill", "some": some},
            {"do": "change", "some": some, "edition": number},
            {"do": "change", "some": some, "edition": number},
            {"do": "change", "some": some, "edition": number % 2},
            {"do": "parallelism", "some": some, "count": between(rng, 0, 3)},
            {"do": "cordon", "node": node, "on": bool(some % 2)},
            {"do": "drain", "node": node, "on": bool(some % 3)},
            {"do": "drain", "node": node, "on": bool(some % 3)},
            {"do": "label", "some": some, "how": pick(rng, ("merge", "apply"))},
        ),
    )


# How many replicas of a service a rollout may make unavailable, and how many it may add.
_LIMITS: tuple[dict[str, Any], ...] = (
    {"unavailable": 1},
    {"unavailable": "50%"},
    {"unavailable": 0, "surge": 1},
)


def _service(rng: Random, number: int) -> dict[str, Any]:
    return {
        **_named(rng, number, "Service"),
        "replicas": between(rng, 1, 5),
        "grace": pick(rng, (1, 10)),
        "budget": pick(rng, (None, 1, 2)),
        **pick(rng, _LIMITS),
    }


def _job(rng: Random, number: int) -> dict[str, Any]:
    """Some fail a few times, some too often, some take longer than their deadline."""
    times, rules = pick(rng, (0, 0, 1, 2, 99)), pick(rng, (False, False, True))
    is_long = pick(rng, (False, False, False, True))
    return {
        **_named(rng, number, "Job"),
        "replicas": between(rng, 1, 5),
        "parallelism": pick(rng, (None, 1, 2, 3)),
        "ms": LONG_MS if is_long else pick(rng, (500, 3_000)) if times else 8_000,
        "times": times,
        "code": FATAL if rules else 1,
        "rules": rules,
        "restart": "Never" if rules else pick(rng, ("Never", "OnFailure")),
        "retries": pick(rng, (0, 3) if times > 2 else (0, 3, 20)),
        "deadline": pick(rng, (20, 60)) if is_long else pick(rng, (None, None, 5)),
        "ttl": pick(rng, (None, None, 5, 30)),
    }


def _cron(rng: Random, number: int) -> dict[str, Any]:
    ms = pick(rng, (1_000, 10_000, 65_000))
    return {
        **_named(rng, number, "Cron"),
        "ms": ms,
        "concurrency": pick(rng, ("Forbid", "Forbid", "Allow", "Replace")),
        "history": between(rng, 0, 2),
        "times": pick(rng, (0, 0, 1)) if ms < 60_000 else 0,
        "retries": 2,
    }


def _per_node(rng: Random, number: int) -> dict[str, Any]:
    return {**_named(rng, number, "PerNode"), "cpu": "250m"}


def _named(rng: Random, number: int, kind: str) -> dict[str, Any]:
    return {"do": "make", "type": kind, "name": f"w{number}", "tenant": pick(rng, TENANTS)}


SCENARIO = Scenario(
    name="holdfast.sim.worlds.all_controllers.scenario:SCENARIO",
    build=world_of(*parts(NODES), *LAWS, settings=SETTINGS),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# Nothing goes wrong: watch events bring everything, and a resync finds nothing.
CALM = msgspec.structs.replace(
    SCENARIO, name="holdfast.sim.worlds.all_controllers.scenario:CALM", hazards=()
)
