"""controller:status: how far a workload has come, counted from its replicas.

It owns observedGeneration, progress and the conditions Available, Bound and SchedulingRetrying of a
workload, and writes them only when they differ, and no more often than once in an interval; large
workloads rest longer between two counts. The counts are of now: each replica that
is not released is in exactly one of queued, scheduled, bound and not running yet, starting, ready,
stopping, unknown, failed, succeeded; `bound` also counts those that run, and `ready` those that
serve. What runs on a node that is not heard any more (its phase is not Ready) is unknown, whatever
its last report says, from the moment the node is suspected: a zone that went dark may be held back
from marks for ever, and its replicas would be called ready all the time. This is for people and
tools; evictions, rollouts and endpoints go by the replicas themselves, as before.

Of a job, `succeeded` counts all indexes that are complete. A job has no Available: it ends
with Complete or Failed, which controller:workload writes; and a cron job has nothing to count.
The conditions follow from the counts (`status_conditions.py`).

The update names the resourceVersion it rests on, which its own success changes. It carries no
operation id: every workload would fill up with ids of counts, and push out those of its users.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    BY_WORKLOAD,
    Controller,
    ReconcilePlan,
    View,
    key_of,
)
from holdfast.correct.jobs.account import JobTally, deadline_ms, tally
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.workload.each_node import BY_TYPE, is_same_home, wanted
from holdfast.correct.workload.endings import BACKOFF_REASON, ending, endings, replaced_at_ms
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.jobs import COMPLETE, completions, finished_condition
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import CRASH_LOOP, Replica, TransitionRecord
from holdfast.model.kinds.workload import (
    Progress,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.lifecycle import Stage, State
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.requests import Term, Update
from holdfast.model.time import Instant, rfc3339, timestamp
from holdfast.observe.cache import Key, ObjectChange

# What the counts of a workload mean, as conditions that people and tools can wait for.
#
# `status.py` asks for them with every count. They follow from the counts alone, so that they never
# change without them, and each names the generation that they were counted for.
#
#     Available            as many are ready as are wanted; Unknown if that hangs on silent nodes
#     Bound                none waits for a place
#     SchedulingRetrying   some have been tried and found no place; the reason is what most lack

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


# As many reasons are shown as a person reads; the rest is with the replicas.
REASONS_MAX = 16
SENTENCE_MAX = 240

_READY = (Stage.READY, Stage.SERVING)
_TROUBLES = (State.FAILED, State.UNKNOWN)
# Where an ending or a restart in place leads.
_ENDS = (*_TROUBLES, State.SUCCEEDED, State.RUNNING)


class StatusController(Controller):
    """See the module's docstring."""

    name = "status"
    follows = ("workloads", "replicas", "nodes", "tenants", "regions")
    indexes = (BY_WORKLOAD, BY_TYPE, BY_NODE)

    def __init__(self, every_ms: int = 0) -> None:
        """`every_ms` is the shortest time between two writes of one workload's status."""
        self._rests, self._every_ms = Cooldowns(), every_ms

    def keys_of(self, change: ObjectChange, view: View) -> Iterable[Key]:
        obj: Any = change.object
        match obj:
            case Workload():
                return (key_of(obj),)
            case Replica():
                return ((obj.namespace, obj.spec.workload),)
            case Node():
                there = self._there(obj, change, view)
                if is_same_home(change.before, change.after):
                    return there
                return [*there, *self._per_node(view)]
        # What is wanted of one per node follows from the nodes, and from who may use them.
        return self._per_node(view)

    @staticmethod
    def _per_node(view: View) -> list[Key]:
        return [key_of(it) for it in view.found(BY_TYPE, WorkloadType.PER_NODE.value)]

    @staticmethod
    def _there(node: Node, change: ObjectChange, view: View) -> list[Key]:
        """The workloads on a node, if it has just fallen silent or is heard again."""
        if _is_heard(change.before) == _is_heard(change.after):
            return []
        there: list[Replica] = view.found(BY_NODE, node.name)
        return list(dict.fromkeys((it.namespace, it.spec.workload) for it in there))

    def all_keys(self, view: View) -> Iterable[Key]:
        self._rests.clear()
        return [key_of(workload) for workload in view.all("workloads")]

    def reconcile(self, view: View, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        workload: Workload | None = view.get("workloads", *key)
        if workload is None:
            self._rests.forget(key)
            return ReconcilePlan()
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        named: list[Replica] = view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
        mine = [it for it in named if it.spec.workload_uid == workload.metadata.uid]
        self._rests.rest(key, len(named), now)
        desired = None
        if workload.spec.type is WorkloadType.PER_NODE:
            desired = wanted(view, workload)
        status = seen(workload, mine, now, desired, _silent(mine, view))
        if status == workload.status:
            return ReconcilePlan()
        self._rests.rest_for(key, self._every_ms, now)
        return ReconcilePlan((Update(msgspec.structs.replace(workload, status=status), "status"),))


def _stated(spec: WorkloadSpec) -> int:
    """How many replicas a service should have, or a job should see succeed."""
    match spec.type:
        case WorkloadType.SERVICE:
            return spec.replicas
        case WorkloadType.JOB:
            return completions(spec)
    return 0


def seen(
    workload: Workload,
    mine: list[Replica],
    now: Instant,
    desired: int | None = None,
    silent: Collection[str] = (),
) -> WorkloadStatus:
    """The status as it should be, with the parts of other writers as they are.

    `desired` is given where the workload itself does not say how many are wanted. `silent` are the
    nodes that are not heard.
    """
    before, generation = workload.status, workload.metadata.generation
    progress = counted(workload, mine, desired, silent)
    conditions = before.conditions
    for news in stated(workload.spec.type, progress, before.conditions, generation):
        conditions = with_condition(conditions, news, timestamp(now.wall_ms))
    return msgspec.structs.replace(
        before, observed_generation=generation, progress=progress, conditions=conditions
    )


def _is_heard(node: Any) -> bool:
    return isinstance(node, Node) and node.status.phase is NodePhase.READY


def _silent(mine: list[Replica], view: View) -> set[str]:
    """The nodes of these replicas that are not heard any more."""
    nodes = {it.status.binding.node for it in mine if it.status.binding is not None}
    return {name for name in nodes if not _is_heard(view.get("nodes", "", name))}


def _is_cut_off(replica: Replica, silent: Collection[str]) -> bool:
    """Whether it is said to run on a node that says nothing."""
    status = replica.status
    if status.state is not State.RUNNING or status.binding is None:
        return False
    return status.binding.node in silent


def counted(
    workload: Workload,
    mine: list[Replica],
    desired: int | None = None,
    silent: Collection[str] = (),
) -> Progress:
    """How many replicas have come how far, and what happened last."""
    there = [it for it in mine if it.status.state is not State.RELEASED]
    states = [it.status.state for it in there]
    cut_off = sum(_is_cut_off(it, silent) for it in there)
    running = [
        it.status.stage
        for it in there
        if it.status.state is State.RUNNING and not _is_cut_off(it, silent)
    ]
    revision = revision_of(workload.spec.template)
    before = workload.status.progress
    job = tally(workload, mine) if workload.spec.type is WorkloadType.JOB else None
    # Only one that was released has left its place.
    waiting = _crashed(workload, mine, job) if len(there) < len(mine) else []
    return Progress(
        desired=_stated(workload.spec) if desired is None else desired,
        admitted=len(there),
        queued=states.count(State.PENDING),
        scheduled=states.count(State.RESERVED),
        bound=states.count(State.BOUND) + len(running) + cut_off,
        starting=sum(stage not in _READY for stage in running),
        ready=sum(stage in _READY for stage in running),
        serving=running.count(Stage.SERVING),
        stopping=states.count(State.STOPPING),
        unknown=states.count(State.UNKNOWN) + cut_off,
        failed=states.count(State.FAILED),
        succeeded=len(job.completed) if job is not None else states.count(State.SUCCEEDED),
        updated=sum(it.spec.revision == revision for it in there),
        pending_reasons=_reasons(there, len(waiting) + sum(map(_is_looping, there))),
        last_action=_last_action(mine) or before.last_action,
        last_error=_last_error(mine, waiting) or before.last_error,
        **_deadline(workload),
    )


def _deadline(workload: Workload) -> dict[str, Any]:
    """The deadline of a job, and how that stands."""
    due_ms, over = deadline_ms(workload), finished_condition(workload)
    if due_ms is None or workload.spec.type is not WorkloadType.JOB:
        before = workload.status.progress
        return {"deadline": before.deadline, "deadline_state": before.deadline_state}
    state = "Running" if over is None else "Met" if over.type == COMPLETE else "Missed"
    return {"deadline": timestamp(due_ms), "deadline_state": state}


def _crashed(workload: Workload, mine: list[Replica], job: JobTally | None) -> list[Replica]:
    """The last replica of each place that waits for its next one because it crashed."""
    newest: dict[int, Replica] = {}
    for replica in sorted(mine, key=lambda it: it.spec.incarnation):
        newest[replica.spec.ordinal] = replica
    is_service = workload.spec.type is WorkloadType.SERVICE
    if job is not None and finished_condition(workload) is not None:
        return []
    return [
        it
        for ordinal, it in sorted(newest.items())
        if it.status.state is State.RELEASED
        and endings(it)
        and (not is_service or ordinal < workload.spec.replicas)
        and (job is None or ordinal not in job.completed)
    ]


def _is_restart(record: TransitionRecord) -> bool:
    """Whether it ended there and was to be started again in place."""
    return record.from_state is record.to is State.RUNNING


def _is_looping(replica: Replica) -> bool:
    """Whether it waits at its node for its next start, because the last ones ended too soon."""
    status = replica.status
    is_over = status.state is State.RUNNING and status.stage not in _READY
    return is_over and any(it.reason == CRASH_LOOP for it in status.transitions[-1:])


def _reasons(there: list[Replica], crashed: int) -> dict[str, int]:
    """How many wait for each reason, in the order of their names."""
    reasons: dict[str, int] = {BACKOFF_REASON: crashed} if crashed else {}
    for replica in there:
        if replica.status.state is not State.PENDING:
            continue
        pending = replica.status.pending
        for reason in (pending.reasons if pending is not None else None) or (UNTRIED_REASON,):
            reasons[reason] = reasons.get(reason, 0) + 1
    return {reason: reasons[reason] for reason in sorted(reasons)[:REASONS_MAX]}


def _last_action(mine: list[Replica]) -> str:
    """The last step of any of its replicas."""
    found = _newest((it, record) for it in mine for record in it.status.transitions[-1:])
    if found is None:
        return ""
    replica, record = found
    return _clipped(f"{replica.name} became {record.to.value} by {record.by}: {record.reason}")


def _last_error(mine: list[Replica], waiting: list[Replica]) -> str:
    """The last ending of any of its replicas, for good or before a restart in place, and until when
    the next one waits because of it.
    """
    found = _newest(
        (it, record)
        for it in mine
        for record in it.status.transitions
        # Most steps lead to none of these, and there are thousands of them.
        if record.to in _ENDS
        and (record.to in _TROUBLES or record is ending(it) or _is_restart(record))
    )
    if found is None:
        return ""
    replica, record = found
    became = "was restarted" if _is_restart(record) else f"became {record.to.value}"
    sentence = f"{replica.name} {became}: {record.reason}"
    if record.evidence:
        sentence += f" ({record.evidence})"
    if any(it is replica for it in waiting):
        until, count = rfc3339(replaced_at_ms(replica)), endings(replica)
        sentence = f"{BACKOFF_REASON} until {until}, {count} in a row: {sentence}"
    return _clipped(sentence)


def _newest(
    steps: Iterable[tuple[Replica, TransitionRecord]],
) -> tuple[Replica, TransitionRecord] | None:
    found: tuple[Replica, TransitionRecord] | None = None
    for step in steps:
        replica, record = step
        if found is None or record.at > found[1].at:
            found = step
        elif record.at == found[1].at and replica.name > found[0].name:
            # By name among those of one moment, of which there are as many as one commit has.
            found = step
    return found


def _clipped(text: str) -> str:
    return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 1]}…"
