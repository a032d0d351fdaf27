"""When a job is finished, and the runs of cron jobs. Used by the commit and by controllers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.model.kinds.workload import CronStatus, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import API_VERSION, Condition, ConditionStatus, ObjectMeta, OwnerReference

COMPLETE = "Complete"
FAILED = "Failed"
# The reason of a Failed condition after the job's deadline.
DEADLINE_EXCEEDED = "DeadlineExceeded"


def completions(spec: WorkloadSpec) -> int:
    """How many of its replicas must succeed."""
    stated = spec.job.completions
    return spec.replicas if stated is None else stated


def finished_condition(job: Workload) -> Condition | None:
    """The condition that a job is Complete or Failed; None before. It is never withdrawn."""
    for condition in job.status.conditions:
        if condition.type in (COMPLETE, FAILED) and condition.status is ConditionStatus.TRUE:
            return condition
    return None


def is_open(job: Workload) -> bool:
    """Whether a job may still do something: it has not finished, and nobody deletes it."""
    return finished_condition(job) is None and job.metadata.deletion_timestamp is None


# The runs of a cron job: each is a job of its own, named after the minute that it is for.
#
# controller:workload creates them, and the commit enforces the same rules. The name follows from
# the schedule alone, so a repeated request cannot start a second run for the same minute.

# Every run carries the name of its cron job, for selectors, and its scheduled time.
CRON_LABEL = "holdfast.dev/cron"
SCHEDULED_ANNOTATION = "holdfast.dev/scheduled-at"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_DIGITS_MAX = 8
# When a wall clock is set back, this many runs are not started a second time.
RUNS_REMEMBERED = 32


def run_name(cron: str, scheduled: datetime) -> str:
    """The name of the run for a scheduled time."""
    return f"{cron}-{(scheduled - _EPOCH) // _MINUTE}"


def scheduled_at(cron: str, name: str) -> datetime | None:
    """The scheduled time of a run, by its name; None if the name is not that of a run."""
    digits = name.removeprefix(f"{cron}-")
    if digits == name or not digits.isascii() or not digits.isdigit():
        return None
    if len(digits) > _DIGITS_MAX or digits != str(int(digits)):
        return None
    return _EPOCH + int(digits) * _MINUTE


def last_run(status: CronStatus, now: datetime) -> datetime | None:
    """The last scheduled time up to now for which a run was started.

    Later ones were started while a wall clock was ahead, and say nothing about those in between.
    """
    known = (status.last_schedule, *status.recent_schedules)
    return max((it for it in known if it is not None and it <= now), default=None)


def remember_run(status: CronStatus, scheduled: datetime) -> tuple[datetime, ...]:
    """The scheduled times to remember after starting one more run: the last ones started."""
    return (*status.recent_schedules, scheduled)[-RUNS_REMEMBERED:]


def run_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """The spec of a run of this cron job."""
    return msgspec.structs.replace(spec, type=WorkloadType.JOB, cron=None)


def run_of(cron: Workload, scheduled: datetime) -> Workload:
    """The run of a cron job for a scheduled time."""
    owner = OwnerReference(
        api_version=API_VERSION,
        kind="Workload",
        name=cron.name,
        uid=cron.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )
    metadata = ObjectMeta(
        name=run_name(cron.name, scheduled),
        namespace=cron.namespace,
        labels={CRON_LABEL: cron.name},
        annotations={SCHEDULED_ANNOTATION: scheduled.isoformat().replace("+00:00", "Z")},
        owner_references=(owner,),
    )
    return Workload(metadata, spec=run_spec(cron.spec))


def cron_of(workload: Workload) -> OwnerReference | None:
    """The cron job of a run; None if the workload is not a run."""
    if workload.spec.type is not WorkloadType.JOB:
        return None
    owners = workload.metadata.owner_references
    return next((it for it in owners if it.controller and it.kind == "Workload"), None)
