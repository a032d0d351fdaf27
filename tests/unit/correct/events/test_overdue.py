"""What no controller may repair is recorded for those who can."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.correct.events.controller import EventsController
from holdfast.correct.events.overdue import BEHIND_AFTER_MS, HELD_AFTER_MS
from holdfast.correct.garbage.controller import GarbageController
from holdfast.correct.nodes.controller import NodesController
from holdfast.correct.repair import RepairController
from holdfast.correct.status import StatusController
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.kinds.template import OnDisconnect, RestartPolicy
from holdfast.model.kinds.workload import Job, WorkloadType
from holdfast.model.requests import Remove, Update
from holdfast.model.workload.jobs import finished_condition
from tests.plane import ADMIN, accepted, template
from tests.unit.correct.controller_rig import Rig

RESYNC_MS = 80_000


def rig(*more: Any) -> Rig:
    on = Rig([EventsController(), WorkloadController(), *more])
    on.plane.tenant()
    for name in ("node-a", "node-b", "node-c"):
        on.plane.node(name)
    return on


def warnings(on: Rig) -> dict[tuple[str, str], str]:
    return {
        (it.involved_object.name, it.reason): it.message
        for it in on.all("events")
        if it.type.value == "Warning"
    }


def test_a_deletion_that_waits_says_for_which_component() -> None:
    """Only the owner of a finalizer removes it, however long it takes. [I4, SC13]"""
    on = rig(GarbageController())
    web = on.plane.workload(replicas=0)
    finalizers = ("example.com/mine", *web.metadata.finalizers)
    metadata = msgspec.structs.replace(web.metadata, finalizers=finalizers)
    accepted(on.plane.ask(ADMIN, Update(msgspec.structs.replace(web, metadata=metadata))))
    accepted(on.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    on.run(HELD_AFTER_MS - RESYNC_MS)
    assert warnings(on) == {}
    on.run(2 * RESYNC_MS)
    said = warnings(on)["web", "StillHeld"]
    assert "waits for the removal of example.com/mine (by its owner)" in said
    assert on.get("workloads", "web", "acme") is not None
    on.writes()
    on.run(600_000)
    assert on.writes() == []


def test_how_a_job_ended_is_never_behind() -> None:
    """Its final condition is about the spec that it ended under, whatever changes later. [I4]"""
    on = rig(StatusController())
    on.plane.workload(
        type=WorkloadType.JOB,
        template=template(restart=RestartPolicy.NEVER),
        job=Job(deadline_seconds=1, parallelism=1),
    )
    on.run(5_000)
    over = on.get("workloads", "web", "acme")
    assert finished_condition(over) is not None
    job = msgspec.structs.replace(over.spec.job, parallelism=0)
    spec = msgspec.structs.replace(over.spec, job=job)
    accepted(on.plane.ask(ADMIN, Update(msgspec.structs.replace(over, spec=spec))))
    on.run(BEHIND_AFTER_MS + 3 * RESYNC_MS)
    assert ("web", "StatusBehind") not in warnings(on)


def test_status_of_an_old_spec_is_reported_and_taken_for_nothing_else() -> None:
    """The counting controller is behind; the replicas are not. [I4, H3, C6.9]"""
    on = rig()
    on.plane.workload(replicas=1)
    on.run(BEHIND_AFTER_MS - RESYNC_MS)
    assert warnings(on) == {}
    on.run(3 * RESYNC_MS)
    assert warnings(on)["web", "StatusBehind"] == "status of an older spec than generation 1"
    assert on.states() == {"web-0-0": "Pending"}


def test_status_that_keeps_up_makes_no_event() -> None:
    """[V4]"""
    on = rig(StatusController())
    on.plane.workload(replicas=1)
    on.run(BEHIND_AFTER_MS + 3 * RESYNC_MS)
    assert warnings(on) == {}


def test_work_that_runs_on_a_lost_machine_waits_for_an_operators_decision() -> None:
    """The event names the command; after it, the work is replaced and its share free. [I3, I4]"""
    on = rig(NodesController(), RepairController(), GarbageController())
    keep = template(on_disconnect=OnDisconnect.KEEP)
    on.plane.workload(replicas=1, template=keep)
    on.turn()
    on.silent = {"node-a"}
    while on.phase("node-a") != "Fenced":
        on.run(1_000)
    on.run(2_000)
    assert on.states() == {"web-0-0": "Unknown"}
    said = warnings(on)["web-0-0", "WaitsForWord"]
    assert "kubectl delete replica web-0-0 --force --grace-period=0" in said
    accepted(on.plane.ask(ADMIN, Remove("replicas", "acme", "web-0-0", force=True)))
    assert not on.plane.ledger("node-a").used
    on.turn()
    assert list(on.states().values()) == ["Running"]
    assert on.all("replicas")[0].status.binding.node != "node-a"
