"""The times of a job: its deadline and its time to live, by the authority's clock.

controller:workload says when a job has ended, and removes one that is over for long enough. Its
calendar is its own and may be wrong; what rests on time is therefore judged again here, and the end
of a job carries the authority's stamp.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.model.jobs import DEADLINE_EXCEEDED, finished
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.runs import cron_of


def end_refusal(context: Context, old: Object, new: Object) -> Refusal | None:
    """Whether a job is said to have missed a deadline that has not come yet."""
    if not isinstance(old, Workload) or not isinstance(new, Workload):
        return None
    ends = finished(new) if finished(old) is None else None
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


def ended(context: Context, old: Object, new: Object) -> Object:
    """The job with the authority's stamp on its end, if it ends with this change."""
    if not isinstance(old, Workload) or not isinstance(new, Workload):
        return new
    ends = finished(new) if finished(old) is None else None
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
    """Whether controller:workload would remove a job that people may still want to look at.

    Runs of a cron job are its own; of all others only the time to live ends one.
    """
    if not isinstance(obj, Workload) or not context.is_actor(Actor.WORKLOAD):
        return None
    if cron_of(obj) is not None:
        return None
    over, ttl_s = finished(obj), obj.spec.job.ttl_seconds_after_finished
    since = over.last_transition_time if over is not None else None
    if since is not None and ttl_s is not None and context.age_ms(since) >= ttl_s * 1_000:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"workload {obj.name} is not over for as long as spec.job.ttlSecondsAfterFinished says",
        {"name": obj.name},
    )
