"""When a job is over, and why. Asked by the two halves of `jobs.py` alike, and by status."""

from __future__ import annotations

from holdfast.correct.tally import Tally
from holdfast.model.jobs import COMPLETE, DEADLINE_EXCEEDED, FAILED, completions
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Condition, ConditionStatus
from holdfast.model.time import rfc3339, wall_ms

ALL_SUCCEEDED = "AllSucceeded"
RETRIES_EXCEEDED = "RetriesExceeded"
FAILURE_POLICY = "FailurePolicy"


def deadline_ms(job: Workload) -> int | None:
    """By when, on the calendar, a job has to be complete. It counts from the job's creation."""
    begun, within_s = job.metadata.creation_timestamp, job.spec.job.deadline_seconds
    if begun is None or within_s is None:
        return None
    return wall_ms(begun) + within_s * 1_000


def verdict(job: Workload, counted: Tally, *, is_late: bool) -> Condition | None:
    """How a job that goes on has just ended, if it has. `is_late` says that its time is over."""
    total, done = completions(job.spec), len(counted.completed)
    if done >= total:
        return _said(job, COMPLETE, ALL_SUCCEEDED, f"{done} of {total} have succeeded")
    so_far = f"{done} of {total} had succeeded"
    if counted.fatal is not None:
        process = counted.fatal.status.process
        how = f"signal {process.signal}" if process.signal else f"exit code {process.exit_code}"
        why = f"{counted.fatal.name} ended with {how}, which fails the job; {so_far}"
        return _said(job, FAILED, FAILURE_POLICY, why)
    if counted.failed > job.spec.job.retries:
        why = f"{counted.failed} failures, {job.spec.job.retries} retries; {so_far}"
        return _said(job, FAILED, RETRIES_EXCEEDED, why)
    due_ms = deadline_ms(job)
    if due_ms is not None and is_late:
        why = f"the deadline was {rfc3339(due_ms)}; {so_far}"
        return _said(job, FAILED, DEADLINE_EXCEEDED, why)
    return None


def _said(job: Workload, kind: str, reason: str, message: str) -> Condition:
    generation = job.metadata.generation
    return Condition(kind, ConditionStatus.TRUE, generation, reason=reason, message=message)
