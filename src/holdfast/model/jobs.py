"""When a job is over, and how much of it there is. Asked by the commit and by controllers alike."""

from __future__ import annotations

from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import Condition, ConditionStatus

COMPLETE = "Complete"
FAILED = "Failed"
# The reason of the latter when the time that was stated is over.
DEADLINE_EXCEEDED = "DeadlineExceeded"


def completions(spec: WorkloadSpec) -> int:
    """How many of its replicas must succeed."""
    stated = spec.job.completions
    return spec.replicas if stated is None else stated


def finished(job: Workload) -> Condition | None:
    """The condition that says that a job is over, for better or worse. It is never taken back."""
    for condition in job.status.conditions:
        if condition.type in (COMPLETE, FAILED) and condition.status is ConditionStatus.TRUE:
            return condition
    return None
