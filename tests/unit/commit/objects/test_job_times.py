"""The times of a job are judged by the authority's clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.commit.ages import Ages
from holdfast.model.kinds.workload import Job, Workload, WorkloadType
from holdfast.model.meta import Condition, ConditionStatus
from holdfast.model.refusal import Reason
from holdfast.model.requests import Remove, Update
from holdfast.model.time import Instant, timestamp
from holdfast.model.workload.jobs import COMPLETE, DEADLINE_EXCEEDED, FAILED
from tests.plane import START_WALL_MS, WORKLOADS, Plane, accepted, refused

DAY_MS = 86_400_000


@pytest.fixture
def plane() -> Plane:
    made = Plane()
    made.tenant()
    return made


def job(plane: Plane, **stated: Any) -> Workload:
    made: Workload = plane.workload("sum", type=WorkloadType.JOB, job=Job(**stated))
    return made


def ends(plane: Plane, of: Workload, kind: str, reason: str = "AllSucceeded") -> Any:
    """What controller:workload asks for; its calendar is a day ahead."""
    now: Workload = plane.get(of)
    at = timestamp(plane.now.wall_ms + DAY_MS)
    said = Condition(kind, ConditionStatus.TRUE, 1, at, reason, "it is said")
    status = msgspec.structs.replace(now.status, conditions=(said,))
    return plane.ask(WORKLOADS, Update(msgspec.structs.replace(now, status=status), "status"))


def removed(plane: Plane, of: Workload) -> Any:
    return plane.ask(WORKLOADS, Remove("workloads", of.namespace, of.name, of.metadata.uid))


def test_a_deadline_is_missed_by_the_authoritys_clock_and_no_other(plane: Plane) -> None:
    """A controller whose calendar is ahead fails no job."""
    made = job(plane, deadline_seconds=60)
    plane.elapsed_ms += 59_999
    refused(ends(plane, made, FAILED, DEADLINE_EXCEEDED), Reason.WRONG_STATE)
    plane.elapsed_ms += 1
    accepted(ends(plane, made, FAILED, DEADLINE_EXCEEDED))


def test_a_job_without_a_deadline_misses_none(plane: Plane) -> None:
    refused(ends(plane, job(plane), FAILED, DEADLINE_EXCEEDED), Reason.WRONG_STATE)


def test_the_end_of_a_job_carries_the_authoritys_stamp(plane: Plane) -> None:
    made = job(plane)
    accepted(ends(plane, made, COMPLETE))
    status = plane.get(made).status
    assert status.conditions[0].last_transition_time == status.job.completion_time == plane.at()


def test_a_job_is_removed_when_its_time_to_live_is_over_and_not_before(plane: Plane) -> None:
    """Nor one that goes on, or that says nothing of a time to live."""
    made = job(plane, ttl_seconds_after_finished=100)
    refused(removed(plane, made), Reason.NOT_ALLOWED)
    accepted(ends(plane, made, COMPLETE))
    plane.elapsed_ms += 99_999
    refused(removed(plane, made), Reason.NOT_ALLOWED)
    plane.elapsed_ms += 1
    accepted(removed(plane, made))


@pytest.mark.parametrize("step", [300_000, -300_000, 40 * DAY_MS, -40 * DAY_MS])
def test_an_authority_whose_calendar_is_set_counts_on_its_own_clock(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Neither early nor late."""
    ages = plane.authority.ages = Ages()
    ages.begin(plane.now)
    made = job(plane, deadline_seconds=600)
    stepped = property(lambda it: Instant(it.elapsed_ms, START_WALL_MS + it.elapsed_ms + step))
    monkeypatch.setattr(Plane, "now", stepped)
    plane.elapsed_ms += 599_999
    ages.observe(plane.now)
    refused(ends(plane, made, FAILED, DEADLINE_EXCEEDED), Reason.WRONG_STATE)
    plane.elapsed_ms += 1
    ages.observe(plane.now)
    accepted(ends(plane, made, FAILED, DEADLINE_EXCEEDED))
