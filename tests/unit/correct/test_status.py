"""controller:status: counts, reasons, and the condition Available."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.controller import ReconcilePlan
from holdfast.correct.status import (
    AVAILABLE,
    REASONS_MAX,
    SENTENCE_MAX,
    StatusController,
    count_stages,
    workload_status,
)
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import CRASH_LOOP, Pending, Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Job, JobStatus, RolloutStatus, Workload, WorkloadType
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import Condition, ConditionStatus, condition
from holdfast.observe.cache import ObjectChange
from tests.unit.correct.views import (
    AGENT,
    NOW,
    TEMPLATE,
    TERM,
    at,
    later,
    meta,
    node,
    record,
    replaced,
    replica,
    view,
    workload,
)

KEY = ("acme", "web")


def plan(*objects: Any, after_ms: int = 0) -> Any:
    return StatusController().reconcile(view(*objects), KEY, TERM, later(after_ms))


def test_each_replica_is_counted_where_it_is() -> None:
    """Two of four ready is not zero; what is released is not there. [A6, A11, I6]"""
    mine = [
        replica(State.PENDING, 0),
        replica(State.RESERVED, 1),
        replica(State.BOUND, 2),
        replica(State.RUNNING, 3, stage=Stage.STARTING),
        replica(State.RUNNING, 4, stage=Stage.READY),
        replica(State.RUNNING, 5, stage=Stage.SERVING),
        replica(State.STOPPING, 6),
        replica(State.UNKNOWN, 7),
        replica(State.FAILED, 8),
        replica(State.SUCCEEDED, 9),
        replica(State.RELEASED, 10),
    ]
    got = count_stages(workload(12), mine)
    assert (got.desired, got.admitted, got.queued, got.scheduled) == (12, 10, 1, 1)
    assert (got.bound, got.starting, got.ready, got.serving) == (4, 1, 2, 1)
    assert (got.stopping, got.unknown, got.failed, got.succeeded) == (1, 1, 1, 1)


SILENT = (NodePhase.SUSPECT, NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


@pytest.mark.parametrize("phase", SILENT)
def test_what_runs_on_a_silent_node_is_unknown_and_not_ready(phase: NodePhase) -> None:
    """Whatever its last report says, and although no node of a silent zone may be marked. It stays
    bound, and what is not said to run is counted as before. [A6, I6, H3]"""
    mine = [
        replica(State.RUNNING, 0, stage=Stage.SERVING),
        replica(State.RUNNING, 1, stage=Stage.SERVING, node="dark"),
        replica(State.RUNNING, 2, stage=Stage.STARTING, node="dark"),
        replica(State.STOPPING, 3, node="dark"),
        replica(State.BOUND, 4, node="dark"),
        replica(State.UNKNOWN, 5, node="dark"),
        replica(State.RUNNING, 6, stage=Stage.READY, node="deleted"),
    ]
    (update,) = plan(workload(7), *mine, node(), node("dark", phase)).requests
    got = update.object.status.progress
    assert (got.bound, got.starting, got.ready, got.serving) == (5, 0, 1, 1)
    assert (got.stopping, got.unknown, got.admitted) == (1, 4, 7)


def test_a_node_that_falls_silent_or_comes_back_has_its_workloads_counted_again() -> None:
    """And one that only renews its status has not."""
    ready, dark = node(), node(phase=NodePhase.SUSPECT)
    cordoned = msgspec.structs.replace(ready, spec=msgspec.structs.replace(ready.spec, pool="x"))
    snapshot = view(workload(2), replica(ordinal=0), replica(ordinal=1), replica(node="other"))
    controller = StatusController()
    for before, after in ((ready, dark), (dark, ready), (ready, None), (None, ready)):
        change = ObjectChange("nodes", before, after)
        assert list(controller.keys_of(change, snapshot)) == [KEY]
    quiet = ObjectChange("nodes", ready, cordoned)
    assert list(controller.keys_of(quiet, snapshot)) == []


@pytest.mark.parametrize(
    "silent, desired, status, reason",
    [
        (0, 2, ConditionStatus.TRUE, "AllReady"),
        (1, 2, ConditionStatus.UNKNOWN, "NodesSilent"),
        (1, 1, ConditionStatus.TRUE, "AllReady"),
        (1, 3, ConditionStatus.FALSE, "NotAllReady"),
    ],
)
def test_whether_a_service_is_available_is_not_known_if_it_hangs_on_silent_nodes(
    silent: int, desired: int, status: ConditionStatus, reason: str
) -> None:
    """[A6, I6]"""
    names = ["node-a"] * (2 - silent) + ["dark"] * silent
    mine = [
        replica(State.RUNNING, number, stage=Stage.READY, node=name)
        for number, name in enumerate(names)
    ]
    got = workload_status(workload(desired), mine, NOW, silent={"dark"})
    available = condition(got.conditions, AVAILABLE)
    assert available is not None
    assert (available.status, available.reason) == (status, reason)
    assert ("their nodes are silent" in available.message) == bool(silent)


def test_replicas_of_the_current_template_are_counted_as_updated() -> None:
    """By the revision they were made from. [I6]"""
    new = replica()
    spec = msgspec.structs.replace(new.spec, revision=revision_of(TEMPLATE))
    new = msgspec.structs.replace(new, spec=spec)
    assert count_stages(workload(2), [new, replica(ordinal=1)]).updated == 1


def test_every_wait_has_a_reason() -> None:
    """The scheduler's reasons, or that it has not tried yet. [E3, A11]"""
    full = Pending(reasons={"NodeFull": 3, "Tainted": 1})
    mine = [
        replica(State.PENDING, 0, pending=full),
        replica(State.PENDING, 1, pending=Pending(reasons={"NodeFull": 2})),
        replica(State.PENDING, 2),
    ]
    assert count_stages(workload(3), mine).pending_reasons == {
        "NodeFull": 2,
        "Tainted": 1,
        "WaitingForScheduler": 1,
    }


def test_reasons_and_sentences_are_bounded() -> None:
    """Invented reasons cannot fill a workload's status."""
    many = Pending(reasons={f"R{at:03}": 1 for at in range(100)})
    step = msgspec.structs.replace(record(State.FAILED, AGENT), evidence="x" * 5_000)
    got = count_stages(workload(1), [replica(State.PENDING, pending=many, transitions=(step,))])
    assert len(got.pending_reasons) == REASONS_MAX
    assert len(got.last_error) == SENTENCE_MAX


def test_a_crash_loop_is_named_with_its_end() -> None:
    """Until when the place waits, and after how many endings. [E3, A7]"""
    steps = (record(State.FAILED, AGENT, 0, State.RUNNING), record(State.RELEASED, AGENT, 1))
    got = count_stages(workload(1), [replica(State.RELEASED, transitions=steps)])
    assert got.pending_reasons == {"CrashLoopBackoff": 1}
    assert got.last_error == (
        "CrashLoopBackoff until 2027-01-15T08:00:01Z, 1 in a row: web-0-0 became Failed: exit 1"
    )
    assert got.last_action == f"web-0-0 became Released by {AGENT}: exit 1"


@pytest.mark.parametrize(
    "stage, reason, is_waiting",
    [
        (Stage.STARTING, CRASH_LOOP, True),
        (Stage.READY, CRASH_LOOP, False),
        (Stage.STARTING, "Restarted", False),
    ],
)
def test_a_crash_loop_in_place_is_named_with_its_last_end(
    stage: Stage, reason: str, is_waiting: bool
) -> None:
    """Its replica stays Running all the while, so nothing else would say so. [E3, A7, A11]"""
    step = record(State.RUNNING, AGENT, 0, State.RUNNING)
    step = msgspec.structs.replace(step, reason=reason, evidence="attempt 2: exit code 3")
    got = count_stages(workload(1), [replica(State.RUNNING, stage=stage, transitions=(step,))])
    assert got.pending_reasons == ({"CrashLoopBackoff": 1} if is_waiting else {})
    assert got.last_error == f"web-0-0 was restarted: {reason} (attempt 2: exit code 3)"


def test_the_last_error_stays_when_its_replica_is_gone() -> None:
    """What last went wrong is worth knowing also after it was mended. [A11]"""
    service = workload(1)
    steps = (record(State.FAILED, AGENT, 0, State.RUNNING),)
    broken = told(service, [replica(State.FAILED, transitions=steps)])
    mended = told(broken, [replica(State.RUNNING, incarnation=1)])
    assert mended.status.progress.last_error == "web-0-0 became Failed: exit 1"
    assert mended.status.progress.pending_reasons == {}


def told(service: Workload, mine: list[Replica]) -> Workload:
    return msgspec.structs.replace(service, status=workload_status(service, mine, NOW))


def test_nothing_is_written_when_nothing_differs() -> None:
    """Neither at once nor an hour later. [V4, I1]"""
    mine = [replica(), replica(State.PENDING, 1)]
    service = told(workload(2), mine)
    assert plan(service, *mine, node()).requests == ()
    assert plan(service, *mine, node(), after_ms=3_600_000).requests == ()


def test_only_its_own_parts_are_written() -> None:
    """Rollout, autoscale and other conditions stay as they are. [A9]"""
    other = Condition("Progressing", ConditionStatus.TRUE, reason="Rolling")
    status = msgspec.structs.replace(
        workload().status, rollout=RolloutStatus(current="abc"), conditions=(other,)
    )
    service = msgspec.structs.replace(workload(1), status=status)
    (update,) = plan(service, replica()).requests
    assert update.subresource == "status"
    assert update.object.metadata == service.metadata
    assert update.object.status.rollout == status.rollout
    assert update.object.status.conditions[0] == other
    assert update.object.status.observed_generation == 1


@pytest.mark.parametrize(
    "ready, status, reason",
    [(0, ConditionStatus.FALSE, "NotAllReady"), (2, ConditionStatus.TRUE, "AllReady")],
)
def test_available_says_whether_all_that_are_wanted_are_ready(
    ready: int, status: ConditionStatus, reason: str
) -> None:
    """With the generation it speaks of, and the time of its last change. [A2]"""
    mine = [replica(ordinal=at) for at in range(ready)]
    got = condition(told(workload(2), mine).status.conditions, AVAILABLE)
    assert got is not None
    assert (got.status, got.reason, got.observed_generation) == (status, reason, 1)
    assert got.message == f"{ready} of 2 replicas are ready"


@pytest.mark.parametrize("kind", [WorkloadType.JOB, WorkloadType.CRON])
def test_work_that_ends_is_counted_and_never_called_available(kind: WorkloadType) -> None:
    """A job ends with Complete or Failed, which another controller writes. [A9, A11]"""
    job = told(workload(2, type=kind), [])
    assert condition(job.status.conditions, AVAILABLE) is None
    assert job.status.observed_generation == 1
    assert job.status.progress.desired == (2 if kind is WorkloadType.JOB else 0)


def test_of_a_job_all_that_is_complete_counts_as_succeeded_and_its_deadline_is_shown() -> None:
    """What the account says and what replicas say besides, each index once. [A11]"""
    metadata = replaced(workload().metadata, creation_timestamp=at())
    account = JobStatus(succeeded=2, completed_indexes="0-1")
    job = workload(4, type=WorkloadType.JOB, job=Job(deadline_seconds=60))
    job = replaced(job, metadata=metadata, status=replaced(job.status, job=account))
    steps = (record(State.SUCCEEDED, AGENT, 0, State.RUNNING), record(State.RELEASED, AGENT))
    mine = [replica(State.RELEASED, 1, transitions=steps), replica(State.RELEASED, 2)]
    mine[1] = replaced(mine[1], status=replaced(mine[1].status, transitions=steps))
    progress = count_stages(job, mine)
    assert (progress.desired, progress.succeeded) == (4, 3)
    assert (progress.deadline, progress.deadline_state) == (at(60_000), "Running")


def test_one_per_node_wants_as_many_as_there_are_nodes_for_it() -> None:
    """Nodes that take no work count only if they have one. [A11]"""
    service = workload(1, type=WorkloadType.PER_NODE)
    tenant = Tenant(meta("acme"))
    cordoned = node("node-c")
    cordoned = replaced(cordoned, spec=replaced(cordoned.spec, cordoned=True))
    snapshot = view(service, tenant, node("node-a"), node("node-b"), cordoned)
    (update,) = StatusController().reconcile(snapshot, KEY, TERM, NOW).requests
    assert update.object.status.progress.desired == 2


def test_a_large_service_is_counted_less_often() -> None:
    """Counting costs by the replica, so it is paced by their number; nothing is left out."""
    controller, service = StatusController(), workload(200)
    mine = [replica(State.PENDING, ordinal) for ordinal in range(200)]

    def look(after_ms: int, *objects: Replica) -> ReconcilePlan:
        return controller.reconcile(view(service, *objects), KEY, TERM, later(after_ms))

    assert len(look(0, *mine).requests) == 1
    early = look(5, *mine[1:])
    assert (early.requests, early.wake_after_ms) == ((), 15)
    (update,) = look(20, *mine[1:]).requests
    assert update.object.status.progress.queued == 199


def test_a_workload_that_is_gone_needs_nothing() -> None:
    """A key may be looked at after its object went."""
    assert plan().requests == ()
