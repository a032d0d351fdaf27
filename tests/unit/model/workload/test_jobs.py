"""When a job is over, and how much of it there is."""

from __future__ import annotations

import pytest

from holdfast.model.kinds.workload import Job, Workload, WorkloadSpec, WorkloadStatus, WorkloadType
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta
from holdfast.model.workload.jobs import completions, finished_condition
from tests.plane import template

YES, NO = ConditionStatus.TRUE, ConditionStatus.FALSE


@pytest.mark.parametrize("stated, expected", [(None, 3), (0, 0), (7, 7)])
def test_completions_are_stated_or_as_many_as_replicas(stated: int | None, expected: int) -> None:
    spec = WorkloadSpec(template=template(), replicas=3, job=Job(completions=stated))
    assert completions(spec) == expected


@pytest.mark.parametrize(
    "conditions, over",
    [
        ((), False),
        ((Condition("Available", YES),), False),
        ((Condition("Complete", NO), Condition("Failed", NO)), False),
        ((Condition("Available", YES), Condition("Complete", YES)), True),
        ((Condition("Failed", YES),), True),
    ],
)
def test_a_job_is_over_when_a_condition_says_so(
    conditions: tuple[Condition, ...], over: bool
) -> None:
    spec = WorkloadSpec(template=template(), type=WorkloadType.JOB)
    status = WorkloadStatus(conditions=conditions)
    job = Workload(ObjectMeta(name="x", namespace="acme"), spec=spec, status=status)
    assert (finished_condition(job) is not None) is over
