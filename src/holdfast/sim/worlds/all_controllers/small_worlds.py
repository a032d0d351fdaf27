"""Small worlds for a sweep: one workload each, two nodes, and no random faults.

    python -m holdfast.sim.worlds.all_controllers.sweep_worlds

Each is a script of one or a few acts. Its final state is its fingerprint: which workloads and
replicas exist, how jobs ended, which times of a schedule had a run, which replicas are in which
endpoint list. Times, revisions, incarnations and nodes may differ after a fault, and nothing else.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.plane import Plane
from holdfast.model.workload.jobs import cron_of, finished_condition
from holdfast.sim.plan import Act, Plan
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.simulated_plane import world_of
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.invariants import completed_indexes
from holdfast.sim.worlds.all_controllers.people import FATAL
from holdfast.sim.worlds.all_controllers.scenario import LAWS, SETTINGS, WELL_WITHIN_MS, parts

NODES = 2
SEED = 1
# Long enough for all acts and for what follows from them.
ACTIVE_MS = 45_000
# A cron job that is created at the beginning is due after one minute and again after two; in
# between, even a controller that saw nothing for 40 s must have handled the first time.
CRON_ACTIVE_MS = 115_000
SETTLE_MS = WELL_WITHIN_MS + 15_000
# When the first act is carried out: a plane needs a moment to come up.
FIRST_MS, SECOND_MS, THIRD_MS = 5_000, 15_000, 25_000

SMALL = Scenario(
    name="holdfast.sim.worlds.all_controllers.small_worlds:SMALL",
    build=world_of(
        *parts(NODES, runners=("controllers-1",)),
        *LAWS,
        plane=Plane(servers=("server-1",)),
        settings=SETTINGS,
    ),
    faults_ms=ACTIVE_MS,
    settle_ms=SETTLE_MS,
)


def _make(kind: str, **more: Any) -> dict[str, Any]:
    return {"do": "make", "type": kind, "name": "w", "tenant": "ada", **more}


def _plan(*acts: tuple[int, dict[str, Any]], active_ms: int = ACTIVE_MS) -> Plan:
    script = tuple(Act(at_ms, "operator", body) for at_ms, body in acts)
    return Plan(active_ms, SETTLE_MS, acts=script)


_JOB = partial(_make, "Job", ms=2_000)
_KILL = {"do": "kill", "some": 0}
_DELETE = {"do": "delete", "some": 1}
_REST = (CRON_ACTIVE_MS - 1_000, {"do": "rest-crons", "some": 0})

WORKLOADS: dict[str, Plan] = {
    "service": _plan((FIRST_MS, _make("Service", replicas=2))),
    "service-grows": _plan(
        (FIRST_MS, _make("Service")), (SECOND_MS, {"do": "scale", "some": 0, "replicas": 3})
    ),
    "service-shrinks": _plan(
        (FIRST_MS, _make("Service", replicas=3)),
        (SECOND_MS, {"do": "scale", "some": 0, "replicas": 1}),
    ),
    "service-goes": _plan((FIRST_MS, _make("Service", replicas=2)), (SECOND_MS, _DELETE)),
    "replica-killed": _plan((FIRST_MS, _make("Service", replicas=2)), (SECOND_MS, _KILL)),
    "job": _plan((FIRST_MS, _JOB(replicas=3, parallelism=2))),
    "job-fails-first": _plan((FIRST_MS, _JOB(replicas=2, times=2))),
    "job-fails": _plan((FIRST_MS, _JOB(replicas=2, times=99, retries=2))),
    "job-fails-for-good": _plan((FIRST_MS, _JOB(replicas=2, times=9, code=FATAL, rules=True))),
    "job-too-late": _plan((FIRST_MS, _JOB(replicas=1, deadline=8) | {"ms": 600_000})),
    "job-cleared-away": _plan((FIRST_MS, _JOB(replicas=1, ttl=5))),
    "job-paused": _plan(
        (FIRST_MS, _JOB(replicas=3, parallelism=1) | {"ms": 6_000}),
        (SECOND_MS, {"do": "parallelism", "some": 0, "count": 0}),
        (THIRD_MS, {"do": "parallelism", "some": 0, "count": 2}),
    ),
    "job-goes": _plan((FIRST_MS, _JOB(replicas=2) | {"ms": 60_000}), (SECOND_MS, _DELETE)),
    "cron": _plan((FIRST_MS, _make("Cron", ms=2_000, history=1)), _REST, active_ms=CRON_ACTIVE_MS),
    "per-node": _plan((FIRST_MS, _make("PerNode"))),
    "per-node-goes": _plan((FIRST_MS, _make("PerNode")), (SECOND_MS, _DELETE)),
}


def outcome(world: World) -> object:
    """The fingerprint: everything that a fault must not change."""
    store_copy = world.checker(StoreCopy)
    found: list[Any] = []
    for workload in store_copy.all("objects/workloads/"):
        mine = [
            (it.spec.ordinal, it.status.state.value, it.status.stage.value)
            for it in store_copy.all("objects/replicas/")
            if it.spec.workload_uid == workload.metadata.uid
        ]
        states = sorted(mine) if _is_permanent(workload) else ()
        found.append((workload.name, *_status_of(workload), states))
    listed = [
        (it.name, sorted(entry.replica.rpartition("-")[0] for entry in it.endpoints))
        for it in store_copy.all("objects/endpoints/")
    ]
    return sorted(found), sorted(listed)


def _is_permanent(workload: Workload) -> bool:
    """Which attempts of a job are kept, and how they ended, depends on how long it took."""
    return workload.spec.type in (WorkloadType.SERVICE, WorkloadType.PER_NODE)


def _status_of(workload: Workload) -> tuple[Any, ...]:
    over, status = finished_condition(workload), workload.status
    end = (over.type, over.reason) if over is not None else ()
    cron = status.cron.last_schedule if workload.spec.type is WorkloadType.CRON else None
    is_run = cron_of(workload) is not None
    return end, sorted(completed_indexes(workload)), cron, is_run, status.progress.ready
