"""Creating a run of a cron job, the one workload that a controller creates.

The cron job is read, and so compared, and the same transaction records the scheduled time of the
run in its status. So there is at most one run for each scheduled time: however many controllers try
to start it, whatever became of the first run, and however clocks have been set meanwhile, as far
back as times are remembered. A run for a future time was started by a clock that was ahead; it
prevents no other run.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import keys
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.workload.jobs import (
    DEADLINE_EXCEEDED,
    cron_of,
    finished_condition,
    last_run,
    remember_run,
    run_spec,
    scheduled_at,
)


def run_refusal(draft: Draft, context: Context, run: Object) -> Refusal | None:
    """Refuse a run that may not be created. Otherwise record it in its cron job."""
    if not isinstance(run, Workload):
        return _no(run, Reason.NOT_OWNER, "only runs of cron jobs may be created this way")
    owner = cron_of(run)
    cron = draft.object(Workload, run.namespace, owner.name) if owner is not None else None
    if owner is None or cron is None or cron.metadata.uid != owner.uid:
        return _no(run, Reason.MISSING, "its cron job is gone")
    if cron.spec.type is not WorkloadType.CRON or cron.spec.cron is None:
        return _no(run, Reason.NOT_OWNER, f"{cron.name} is not a cron job")
    if cron.metadata.deletion_timestamp is not None:
        return _no(run, Reason.TERMINATING, f"cron job {cron.name} is being deleted")
    if cron.spec.cron.suspend:
        return _no(run, Reason.WRONG_STATE, f"cron job {cron.name} is suspended")
    if run.spec != run_spec(cron.spec):
        return _no(run, Reason.STALE_OBJECT, f"the template of cron job {cron.name} has changed")
    scheduled = scheduled_at(cron.name, run.name)
    if scheduled is None:
        return _no(run, Reason.NOT_ALLOWED, "its name must be <cron job>-<minutes since 1970>")
    refusal = _time_refusal(context, cron, run, scheduled)
    if refusal is None:
        recent = remember_run(cron.status.cron, scheduled)
        status = msgspec.structs.replace(
            cron.status.cron, last_schedule=scheduled, recent_schedules=recent
        )
        whole = msgspec.structs.replace(cron.status, cron=status)
        draft.write(keys.key_of(cron), msgspec.structs.replace(cron, status=whole))
    return refusal


def _time_refusal(
    context: Context, cron: Workload, run: Workload, scheduled: datetime
) -> Refusal | None:
    now = context.at + timedelta(milliseconds=context.settings.skew_ms)
    # A controller whose clock is ahead would start runs early.
    if scheduled > now:
        return _no(run, Reason.WRONG_STATE, f"its time {scheduled.isoformat()} has not come yet")
    last = last_run(cron.status.cron, now)
    if (last is not None and scheduled <= last) or scheduled in cron.status.cron.recent_schedules:
        text = f"cron job {cron.name} has already started its run for {scheduled.isoformat()}"
        return _no(run, Reason.EXISTS, text)
    made = cron.metadata.creation_timestamp
    if made is not None and scheduled < made - timedelta(minutes=1) and made <= now:
        text = f"cron job {cron.name} did not exist at {scheduled.isoformat()}"
        return _no(run, Reason.WRONG_STATE, text)
    return None


def _no(run: Object, reason: Reason, why: str) -> Refusal:
    return Refusal(reason, f"{type(run).__name__} {run.name}: {why}", {"name": run.name})


# The times of a job: its deadline and its time to live, by the authority's clock.
#
# controller:workload reports when a job has ended, and removes one that has been over for long
# enough. Its clock may be wrong. So the authority judges again what depends on time, and the end of
# a job carries the authority's timestamp.


def end_refusal(context: Context, old: Object, new: Object) -> Refusal | None:
    """Refuse a report that a job missed a deadline that has not come yet."""
    if not isinstance(old, Workload) or not isinstance(new, Workload):
        return None
    ends = finished_condition(new) if finished_condition(old) is None else None
    begun, within_s = old.metadata.creation_timestamp, old.spec.job.deadline_seconds
    if ends is None or ends.reason != DEADLINE_EXCEEDED or begun is None:
        return None
    if within_s is not None and context.age_ms(begun) >= within_s * 1_000:
        return None
    return Refusal(
        Reason.WRONG_STATE,
        f"job {old.name} has time left: spec.job.deadlineSeconds counts from its creation, by the "
        "clock of the servers",
        {"name": old.name},
    )


def stamp_job_end(context: Context, old: Object, new: Object) -> Object:
    """The job with the authority's timestamp on its end, if it ends with this change."""
    if not isinstance(old, Workload) or not isinstance(new, Workload):
        return new
    ends = finished_condition(new) if finished_condition(old) is None else None
    if ends is None:
        return new
    stamped = msgspec.structs.replace(ends, last_transition_time=context.at)
    status = msgspec.structs.replace(
        new.status,
        conditions=tuple(stamped if it is ends else it for it in new.status.conditions),
        job=msgspec.structs.replace(new.status.job, completion_time=context.at),
    )
    return msgspec.structs.replace(new, status=status)


def life_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse the removal of a job by controller:workload before its time to live.

    Runs belong to their cron job; of all other jobs only the time to live ends one.
    """
    if not isinstance(obj, Workload) or not context.is_actor(Actor.WORKLOAD):
        return None
    if cron_of(obj) is not None:
        return None
    over, ttl_s = finished_condition(obj), obj.spec.job.ttl_seconds_after_finished
    since = over.last_transition_time if over is not None else None
    if since is not None and ttl_s is not None and context.age_ms(since) >= ttl_s * 1_000:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"workload {obj.name} has not been over for as long as "
        "spec.job.ttlSecondsAfterFinished says",
        {"name": obj.name},
    )
