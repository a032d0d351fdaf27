"""When a job is over, and how much of it there is. Asked by the commit and by controllers alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.model.kinds.workload import CronStatus, Workload, WorkloadSpec, WorkloadType
from holdfast.model.meta import API_VERSION, Condition, ConditionStatus, ObjectMeta, OwnerReference

COMPLETE = "Complete"
FAILED = "Failed"
# The reason of the latter when the time that was stated is over.
DEADLINE_EXCEEDED = "DeadlineExceeded"


def completions(spec: WorkloadSpec) -> int:
    """How many of its replicas must succeed."""
    stated = spec.job.completions
    return spec.replicas if stated is None else stated


def finished_condition(job: Workload) -> Condition | None:
    """The condition that says that a job is over, for better or worse. It is never taken back."""
    for condition in job.status.conditions:
        if condition.type in (COMPLETE, FAILED) and condition.status is ConditionStatus.TRUE:
            return condition
    return None


# The runs of a cron job: each is a job of its own, named after the minute that it is for.
#
# controller:workload makes them by this, and the commit holds it to it. The name follows from the
# schedule alone, so that nobody who asks twice, or after somebody else, starts a second run for one
# minute.

# Every run carries the name of its cron job, for selectors, and the moment that it is for.
CRON_LABEL = "holdfast.dev/cron"
SCHEDULED_ANNOTATION = "holdfast.dev/scheduled-at"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_DIGITS_MAX = 8
# When a calendar is set back, so many runs are not started a second time.
RUNS_REMEMBERED = 32


def run_name(cron: str, scheduled: datetime) -> str:
    """The name of the run for a moment of the schedule."""
    return f"{cron}-{(scheduled - _EPOCH) // _MINUTE}"


def scheduled_at(cron: str, name: str) -> datetime | None:
    """For which moment of its cron job's schedule a run is, by its name; None if it is for none."""
    digits = name.removeprefix(f"{cron}-")
    if digits == name or not digits.isascii() or not digits.isdigit():
        return None
    if len(digits) > _DIGITS_MAX or digits != str(int(digits)):
        return None
    return _EPOCH + int(digits) * _MINUTE


def last_run(status: CronStatus, now: datetime) -> datetime | None:
    """The last moment up to now for which a run was started.

    Later ones were started when a calendar was ahead, and say nothing about those in between.
    """
    known = (status.last_schedule, *status.recent_schedules)
    return max((it for it in known if it is not None and it <= now), default=None)


def remember_run(status: CronStatus, scheduled: datetime) -> tuple[datetime, ...]:
    """The moments to remember once a run was started for one more: the last that were started."""
    return (*status.recent_schedules, scheduled)[-RUNS_REMEMBERED:]


def run_spec(spec: WorkloadSpec) -> WorkloadSpec:
    """What a run of this cron job is to do."""
    return msgspec.structs.replace(spec, type=WorkloadType.JOB, cron=None)


def run_of(cron: Workload, scheduled: datetime) -> Workload:
    """The run of a cron job for a moment of its schedule."""
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
    """The cron job that this is a run of, if it is one."""
    if workload.spec.type is not WorkloadType.JOB:
        return None
    owners = workload.metadata.owner_references
    return next((it for it in owners if it.controller and it.kind == "Workload"), None)
