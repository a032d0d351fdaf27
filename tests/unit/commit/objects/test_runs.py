"""Creating a run: what the commit holds controller:workload to."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.model.access.identity import Identity
from holdfast.model.kinds.workload import Cron, Workload, WorkloadType
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType, Remove, Update
from holdfast.model.workload.jobs import run_of
from tests.plane import ADMIN, NODES, WORKLOADS, Plane, accepted, refused

SKEW = timedelta(seconds=2)


@pytest.fixture
def plane() -> Plane:
    made = Plane()
    made.tenant()
    return made


def cron(plane: Plane, name: str = "tick") -> Workload:
    made: Workload = plane.workload(name, type=WorkloadType.CRON, cron=Cron("* * * * *"))
    return made


def minute(plane: Plane, after: int = 0) -> datetime:
    now = plane.at()
    return now.replace(second=0, microsecond=0) + timedelta(minutes=after)


def ask(plane: Plane, run: Workload, identity: Identity = WORKLOADS) -> Any:
    return plane.ask(identity, Create(run))


def test_a_run_and_its_record_on_the_cron_job_are_one_transaction(plane: Plane) -> None:
    """A crash between the two is impossible."""
    of = cron(plane)
    plane.term(WORKLOADS)
    before = len(plane.transactions)
    born = accepted(ask(plane, run_of(of, minute(plane))))
    assert len(plane.transactions) == before + 1
    assert born.spec.type is WorkloadType.JOB
    assert plane.get(of).status.cron.last_schedule == minute(plane)


def test_of_two_controllers_that_start_the_same_moment_one_does(plane: Plane) -> None:
    """They arrive together, and are decided one after the other. [K2]"""
    of = cron(plane)
    run = run_of(of, minute(plane))
    one, two = plane.ask_all((WORKLOADS, Create(run)), (WORKLOADS, Create(run)))
    accepted(one)
    refused(two, Reason.EXISTS)


def test_a_scheduled_time_is_over_once_it_was_run_and_earlier_ones_with_it(plane: Plane) -> None:
    """Even after the run is gone, and for a late controller or one with a slow clock. [E5]"""
    of = cron(plane)
    born = accepted(ask(plane, run_of(of, minute(plane))))
    gone = msgspec.structs.replace(
        born, metadata=msgspec.structs.replace(born.metadata, finalizers=())
    )
    accepted(plane.ask(ADMIN, Remove("workloads", "acme", born.name)))
    accepted(plane.ask(WORKLOADS, Update(_current(plane, gone, finalizers=()))))
    assert plane.get(born) is None
    refused(ask(plane, run_of(of, minute(plane))), Reason.EXISTS)
    refused(ask(plane, run_of(of, minute(plane, -1))), Reason.EXISTS)


def _current(plane: Plane, obj: Workload, **metadata: Any) -> Workload:
    now: Workload = plane.get(obj)
    return msgspec.structs.replace(
        now, metadata=msgspec.structs.replace(now.metadata, resource_version="", **metadata)
    )


def test_a_run_is_not_created_before_its_time(plane: Plane) -> None:
    """A controller whose clock is ahead would keep all runs until then from being started."""
    of = cron(plane)
    soon = minute(plane, 1)
    refused(ask(plane, run_of(of, soon)), Reason.WRONG_STATE)
    plane.elapsed_ms += int((soon - plane.at() - SKEW) / timedelta(milliseconds=1))
    accepted(ask(plane, run_of(of, soon)))


def test_only_the_controller_creates_runs_and_it_creates_nothing_else(plane: Plane) -> None:
    """A controller may not write what people want. [A9, A10]"""
    of, service = cron(plane), plane.workload("web")
    run = run_of(of, minute(plane))
    refused(ask(plane, run, NODES), Reason.NOT_OWNER)
    owner = msgspec.structs.replace(
        run.metadata.owner_references[0], name="web", uid=service.metadata.uid
    )
    metadata = msgspec.structs.replace(run.metadata, owner_references=(owner,))
    refused(ask(plane, msgspec.structs.replace(run, metadata=metadata)), Reason.NOT_OWNER)
    other = Workload(ObjectMeta(name="other", namespace="acme"), spec=service.spec)
    refused(ask(plane, other), Reason.MISSING)
    body = {"spec": {"replicas": 3}}
    patch = Patch("workloads", "acme", "web", PatchType.MERGE, body)
    refused(plane.ask(WORKLOADS, patch), Reason.NOT_OWNER)


def test_a_person_may_create_a_run_by_hand(plane: Plane) -> None:
    """It is a job like any other, and its cron job does not record it."""
    of = cron(plane)
    accepted(ask(plane, run_of(of, minute(plane)), ADMIN))
    assert plane.get(of).status.cron.last_schedule is None


def test_a_cron_job_has_no_replicas_of_its_own(plane: Plane) -> None:
    """No controller would own them. [A9]"""
    of = cron(plane)
    with pytest.raises(AssertionError, match="has runs, and cannot have replicas"):
        plane.replica(of)


def test_a_run_that_was_started_ahead_of_time_blocks_no_other(plane: Plane) -> None:
    """A calendar was a month ahead for a minute, and was set right."""
    of = cron(plane)
    plane.elapsed_ms += 30 * 86_400_000
    ahead = minute(plane)
    accepted(ask(plane, run_of(plane.get(of), ahead)))
    plane.elapsed_ms -= 30 * 86_400_000
    for _ in range(3):
        plane.elapsed_ms += 60_000
        accepted(ask(plane, run_of(plane.get(of), minute(plane))))
    assert plane.get(of).status.cron.recent_schedules[0] == ahead
    plane.elapsed_ms += 30 * 86_400_000 - 180_000
    assert minute(plane) == ahead
    refused(ask(plane, run_of(plane.get(of), ahead)), Reason.EXISTS)


def test_a_calendar_that_is_set_back_starts_nothing_a_second_time(plane: Plane) -> None:
    """As far back as moments are remembered, whatever became of the runs. [E5]"""
    of = cron(plane)
    for _ in range(10):
        plane.elapsed_ms += 60_000
        accepted(ask(plane, run_of(plane.get(of), minute(plane))))
    plane.elapsed_ms -= 300_000
    for _ in range(5):
        refused(ask(plane, run_of(plane.get(of), minute(plane))), Reason.EXISTS)
        plane.elapsed_ms += 60_000
    plane.elapsed_ms += 60_000
    accepted(ask(plane, run_of(plane.get(of), minute(plane))))


def test_a_cron_job_has_no_run_from_before_it_was_there(plane: Plane) -> None:
    """A controller whose calendar is behind asks for one."""
    of = cron(plane)
    refused(ask(plane, run_of(of, minute(plane, -60))), Reason.WRONG_STATE)
