"""What the counts of a workload mean, as conditions that people and tools can wait for.

`status.py` asks for them with every count. They follow from the counts alone, so that they never
change without them, and each names the generation that they were counted for.

    Available            as many are ready as are wanted; Unknown if that hangs on silent nodes
    Bound                none waits for a place
    SchedulingRetrying   some have been tried and found no place; the reason is what most lack
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.endings import BACKOFF_REASON
from holdfast.model.kinds.workload import Progress, WorkloadType
from holdfast.model.meta import Condition, ConditionStatus

AVAILABLE, BOUND, RETRYING = "Available", "Bound", "SchedulingRetrying"
# What a replica waits for that no scheduler has spoken of yet.
UNTRIED_REASON = "WaitingForScheduler"
# As many reasons as a person reads in one sentence.
NAMED_MAX = 4

_SERVED = (WorkloadType.SERVICE, WorkloadType.PER_NODE)


def stated(
    kind: WorkloadType, progress: Progress, known: Iterable[Condition], generation: int
) -> Iterable[Condition]:
    """The conditions of a workload. Work that ends says with Complete or Failed how it is."""
    if kind in _SERVED:
        yield _available(progress, generation)
        yield _bound(progress, generation)
    retrying = _retrying(progress, generation)
    # That nothing is retried is worth a word only where something was.
    was_said = any(it.type == RETRYING for it in known)
    if kind is not WorkloadType.CRON and (was_said or retrying.status is ConditionStatus.TRUE):
        yield retrying


def _available(progress: Progress, generation: int) -> Condition:
    status, reason = ConditionStatus.FALSE, "NotAllReady"
    message = f"{progress.ready} of {progress.desired} replicas are ready"
    if progress.unknown:
        message += f", of {progress.unknown} it is not known: their nodes are silent"
    if progress.ready >= progress.desired:
        status, reason = ConditionStatus.TRUE, "AllReady"
    elif progress.ready + progress.unknown >= progress.desired:
        status, reason = ConditionStatus.UNKNOWN, "NodesSilent"
    return Condition(AVAILABLE, status, generation, reason=reason, message=message)


def _bound(progress: Progress, generation: int) -> Condition:
    waiting = progress.queued + progress.scheduled
    missing = max(0, progress.desired - progress.admitted)
    is_bound = not waiting and not missing
    reason = "AllBound" if is_bound else "WaitingForPlace" if waiting else "NotAllMade"
    message = f"{waiting} of {progress.admitted} replicas wait for a place"
    if missing and not waiting:
        message = f"{missing} of {progress.desired} replicas have yet to be made"
    return Condition(BOUND, _truth(is_bound), generation, reason=reason, message=message)


def _retrying(progress: Progress, generation: int) -> Condition:
    """Reasons of schedulers; work that pauses after a crash has a place, and who has not been tried
    yet retries nothing."""
    passive = (UNTRIED_REASON, BACKOFF_REASON)
    reasons = {it: n for it, n in progress.pending_reasons.items() if it not in passive}
    if not reasons:
        no = "no replica is retried"
        return Condition(RETRYING, _truth(False), generation, reason="NothingWaits", message=no)
    ranked = sorted(reasons, key=lambda it: (-reasons[it], it))
    told = ", ".join(f"{it} {reasons[it]}" for it in ranked[:NAMED_MAX])
    more = ", …" if len(ranked) > NAMED_MAX else ""
    message = f"{progress.queued} replicas wait for a place: {told}{more}"
    return Condition(RETRYING, _truth(True), generation, reason=ranked[0], message=message)


def _truth(is_so: bool) -> ConditionStatus:
    return ConditionStatus.TRUE if is_so else ConditionStatus.FALSE
