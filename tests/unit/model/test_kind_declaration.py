"""What `kubectl get` shows of a replica that gets nowhere, and of workloads of each type."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast.model.kinds.replica import Pending, Process, Replica, ReplicaSpec, ReplicaStatus
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import (
    CronStatus,
    Progress,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.lifecycle import State
from holdfast.model.meta import Condition, ConditionStatus, Object, ObjectMeta
from holdfast.model.registry import kind_of

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def cell(shown: Object, name: str) -> str:
    """What the column of this name shows of an object."""
    (column,) = (it for it in kind_of(shown).columns if it.name == name)
    return str(column.cell(shown, NOW))


@pytest.mark.parametrize(
    "state, reason, shown",
    [
        (State.BOUND, "SecretMissing: there is no secret acme/db", "SecretMissing"),
        (State.RUNNING, "NotReady: readiness probe: http: status 503", "NotReady"),
        (State.RUNNING, "CrashLoop: exit code 1; next start after 800 ms", "CrashLoop"),
        (State.RUNNING, "", ""),
        (State.RELEASED, "Stopped", ""),
    ],
)
def test_it_shows_why_its_agent_gets_no_further(state: State, reason: str, shown: str) -> None:
    """[E3]"""
    spec = ReplicaSpec(workload="web", workload_uid="u", template=Template(command=("x",)))
    status = ReplicaStatus(state=state, process=Process(reason=reason))
    meta = ObjectMeta(name="web-0-0", namespace="acme")
    assert cell(Replica(meta, spec=spec, status=status), "Waits for") == shown


def test_what_the_scheduler_says_comes_first() -> None:
    """[E3]"""
    spec = ReplicaSpec(workload="web", workload_uid="u", template=Template(command=("x",)))
    status = ReplicaStatus(pending=Pending(reasons={"NodeFull": 3}))
    meta = ObjectMeta(name="web-0-0", namespace="acme")
    assert cell(Replica(meta, spec=spec, status=status), "Waits for") == "NodeFull"


@pytest.mark.parametrize(
    "kind, ready, outcome",
    [
        (WorkloadType.SERVICE, "2/7", "-"),
        (WorkloadType.JOB, "3/7", "Complete: AllSucceeded"),
        (WorkloadType.PER_NODE, "2/5", "-"),
        (WorkloadType.CRON, "1 active", "2026-03-01T12:05+00:00"),
    ],
)
def test_each_type_of_workload_says_how_far_it_is_in_its_own_terms(
    kind: WorkloadType, ready: str, outcome: str
) -> None:
    """[A6, A11]"""
    over = Condition("Complete", ConditionStatus.TRUE, reason="AllSucceeded")
    coming = datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
    cron = CronStatus(active=("a-1",), next_schedule=coming if kind is WorkloadType.CRON else None)
    status = WorkloadStatus(
        progress=Progress(ready=2, succeeded=3, desired=5),
        cron=cron,
        conditions=(over,) if kind is WorkloadType.JOB else (),
    )
    spec = WorkloadSpec(template=Template(command=("x",)), type=kind, replicas=7)
    shown = Workload(ObjectMeta(name="web", namespace="acme"), spec=spec, status=status)
    assert (cell(shown, "Ready"), cell(shown, "Outcome")) == (ready, outcome)
