"""controller:status: the progress of a workload, counted from its replicas.

It owns observedGeneration, progress and the conditions Available, Bound and SchedulingRetrying of a
workload, and writes them only when they differ, and at most once per interval; large workloads
pause longer between two counts. The counts are of now: each replica that is not released is in
exactly one of queued, scheduled, bound and not running yet, starting, ready, stopping, unknown,
failed, succeeded; `bound` also counts those that run, and `ready` those that serve. A replica that
runs on a node whose phase is not Ready is unknown, whatever its last report says, from the moment
the node is suspected: marks may be held back for ever in a silent zone, and its replicas would
count as ready all the time. This is for users and tools; evictions, rollouts and endpoints go by
the replicas themselves.

For a job, `succeeded` counts all complete indexes. A job has no Available: it ends with Complete or
Failed, which controller:workload writes; and a cron job has nothing to count.

The update names the resourceVersion it rests on, which its own success changes. It carries no
operation id: every workload would fill up with ids of counts, and push out those of its users.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    BY_WORKLOAD,
    Controller,
    ReconcilePlan,
    key_of,
)
from holdfast.correct.jobs.account import JobTally, deadline_ms, tally
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.workload.each_node import BY_TYPE, is_same_home, nodes_wanted
from holdfast.correct.workload.endings import BACKOFF_REASON, ending, endings, replaced_at_ms
from holdfast.correct.workload.replica_creation import revision_of
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import CRASH_LOOP, Replica, TransitionRecord
from holdfast.model.kinds.workload import (
    LASTING,
    Progress,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.lifecycle import READY_STAGES, Actor, Stage, State
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.requests import Term, Update
from holdfast.model.time import Instant, rfc3339, timestamp
from holdfast.model.workload.jobs import COMPLETE, completions, finished_condition
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

# The meaning of the counts of a workload, as conditions that users and tools can wait for.
#
# They follow from the counts alone, so that they never change without them, and each names the
# generation of the count.
#
#     Available            as many are ready as are wanted; Unknown if that depends on silent nodes
#     Bound                none waits for a node
#     SchedulingRetrying   the scheduler found no node for some; the reason is the most common one

AVAILABLE, BOUND, RETRYING = "Available", "Bound", "SchedulingRetrying"
# The reason of a replica that no scheduler has tried yet.
UNTRIED_REASON = "WaitingForScheduler"
# The number of reasons in one message.
NAMED_MAX = 4


def workload_conditions(
    kind: WorkloadType, progress: Progress, known: Iterable[Condition], generation: int
) -> Iterable[Condition]:
    """The conditions of a workload. Jobs have Complete and Failed instead of Available."""
    if kind in LASTING:
        yield _available(progress, generation)
        yield _bound(progress, generation)
    retrying = _retrying(progress, generation)
    # The condition is False only where it was True before.
    was_said = any(it.type == RETRYING for it in known)
    if kind is not WorkloadType.CRON and (was_said or retrying.status is ConditionStatus.TRUE):
        yield retrying


def _available(progress: Progress, generation: int) -> Condition:
    status, reason = ConditionStatus.FALSE, "NotAllReady"
    message = f"{progress.ready} of {progress.desired} replicas are ready"
    if progress.unknown:
        message += f", {progress.unknown} are unknown because their nodes are silent"
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
    message = f"{waiting} of {progress.admitted} replicas wait for a node"
    if missing and not waiting:
        message = f"{missing} of {progress.desired} replicas are not created yet"
    return Condition(BOUND, _truth(is_bound), generation, reason=reason, message=message)


def _retrying(progress: Progress, generation: int) -> Condition:
    """From the reasons of schedulers only: a pause after a crash is not scheduling, and a replica
    that was not tried yet is not retried."""
    passive = (UNTRIED_REASON, BACKOFF_REASON)
    reasons = {it: n for it, n in progress.pending_reasons.items() if it not in passive}
    if not reasons:
        none = "no replica is being retried"
        return Condition(RETRYING, _truth(False), generation, reason="NothingWaits", message=none)
    ranked = sorted(reasons, key=lambda it: (-reasons[it], it))
    named = ", ".join(f"{it} {reasons[it]}" for it in ranked[:NAMED_MAX])
    more = ", …" if len(ranked) > NAMED_MAX else ""
    message = f"{progress.queued} replicas wait for a node: {named}{more}"
    return Condition(RETRYING, _truth(True), generation, reason=ranked[0], message=message)


def _truth(is_so: bool) -> ConditionStatus:
    return ConditionStatus.TRUE if is_so else ConditionStatus.FALSE


# The number of reasons in the status; the rest is in the status of the replicas.
REASONS_MAX = 16
SENTENCE_MAX = 240

_TROUBLES = (State.FAILED, State.UNKNOWN)
# Where an ending or a restart in place leads.
_ENDS = (*_TROUBLES, State.SUCCEEDED, State.RUNNING)


class StatusController(Controller):
    """See the module's docstring."""

    actor = Actor.STATUS
    follows = ("workloads", "replicas", "nodes", "tenants", "regions")
    indexes = (BY_WORKLOAD, BY_TYPE, BY_NODE)

    def __init__(self, every_ms: int = 0) -> None:
        """`every_ms` is the shortest time between two writes of one workload's status."""
        self._rests, self._every_ms = Cooldowns(), every_ms
        self.remembers = (self._rests,)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
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
        # The wanted number of a per-node workload follows from the nodes and from who may use them.
        return self._per_node(view)

    @staticmethod
    def _per_node(view: Snapshot) -> list[Key]:
        return [key_of(it) for it in view.found(BY_TYPE, WorkloadType.PER_NODE.value)]

    @staticmethod
    def _there(node: Node, change: ObjectChange, view: Snapshot) -> list[Key]:
        """The workloads on a node, if it has just become silent or ready again."""
        if _is_ready_node(change.before) == _is_ready_node(change.after):
            return []
        there: list[Replica] = view.found(BY_NODE, node.name)
        return list(dict.fromkeys((it.namespace, it.spec.workload) for it in there))

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return [key_of(workload) for workload in view.all("workloads")]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
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
            desired = nodes_wanted(view, workload)
        status = workload_status(workload, mine, now, desired, _silent(mine, view))
        if status == workload.status:
            return ReconcilePlan()
        self._rests.rest_for(key, self._every_ms, now)
        return ReconcilePlan((Update(msgspec.structs.replace(workload, status=status), "status"),))


def _stated(spec: WorkloadSpec) -> int:
    """The number of replicas of a service, or of completions of a job."""
    match spec.type:
        case WorkloadType.SERVICE:
            return spec.replicas
        case WorkloadType.JOB:
            return completions(spec)
    return 0


def workload_status(
    workload: Workload,
    mine: list[Replica],
    now: Instant,
    desired: int | None = None,
    silent: Collection[str] = (),
) -> WorkloadStatus:
    """The status as it should be, with the parts of other writers unchanged.

    `desired` is given where the workload's spec has no number. `silent` are the nodes that are not
    Ready.
    """
    before, generation = workload.status, workload.metadata.generation
    progress = count_stages(workload, mine, desired, silent)
    conditions = before.conditions
    for one in workload_conditions(workload.spec.type, progress, before.conditions, generation):
        conditions = with_condition(conditions, one, timestamp(now.wall_ms))
    return msgspec.structs.replace(
        before, observed_generation=generation, progress=progress, conditions=conditions
    )


def _is_ready_node(node: Any) -> bool:
    return isinstance(node, Node) and node.status.phase is NodePhase.READY


def _silent(mine: list[Replica], view: Snapshot) -> set[str]:
    """The nodes of these replicas that are not Ready."""
    nodes = {it.status.binding.node for it in mine if it.status.binding is not None}
    return {name for name in nodes if not _is_ready_node(view.get("nodes", "", name))}


def _is_cut_off(replica: Replica, silent: Collection[str]) -> bool:
    """Whether its last report says that it runs, and its node is silent."""
    status = replica.status
    if status.state is not State.RUNNING or status.binding is None:
        return False
    return status.binding.node in silent


def count_stages(
    workload: Workload,
    mine: list[Replica],
    desired: int | None = None,
    silent: Collection[str] = (),
) -> Progress:
    """The counts of a workload's replicas, and what happened last."""
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
    # Only a released replica may wait for its next incarnation.
    waiting = _crashed(workload, mine, job) if len(there) < len(mine) else []
    deadline, deadline_state = _deadline(workload)
    return Progress(
        desired=_stated(workload.spec) if desired is None else desired,
        admitted=len(there),
        queued=states.count(State.PENDING),
        scheduled=states.count(State.RESERVED),
        bound=states.count(State.BOUND) + len(running) + cut_off,
        starting=sum(stage not in READY_STAGES for stage in running),
        ready=sum(stage in READY_STAGES for stage in running),
        serving=running.count(Stage.SERVING),
        stopping=states.count(State.STOPPING),
        unknown=states.count(State.UNKNOWN) + cut_off,
        failed=states.count(State.FAILED),
        succeeded=len(job.completed) if job is not None else states.count(State.SUCCEEDED),
        updated=sum(it.spec.revision == revision for it in there),
        pending_reasons=_reasons(there, len(waiting) + sum(map(_is_looping, there))),
        last_action=_last_action(mine) or before.last_action,
        last_error=_last_error(mine, waiting) or before.last_error,
        deadline=deadline,
        deadline_state=deadline_state,
    )


def _deadline(workload: Workload) -> tuple[datetime | None, str]:
    """The deadline of a job, and whether it was met."""
    due_ms, over = deadline_ms(workload), finished_condition(workload)
    if due_ms is None or workload.spec.type is not WorkloadType.JOB:
        before = workload.status.progress
        return before.deadline, before.deadline_state
    state = "Running" if over is None else "Met" if over.type == COMPLETE else "Missed"
    return timestamp(due_ms), state


def _crashed(workload: Workload, mine: list[Replica], job: JobTally | None) -> list[Replica]:
    """The last replica of each ordinal that waits after a crash."""
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
    """Whether the transition is a restart in place."""
    return record.from_state is record.to is State.RUNNING


def _is_looping(replica: Replica) -> bool:
    """Whether it waits on its node for its next start, because the last ones ended too soon."""
    status = replica.status
    is_over = status.state is State.RUNNING and status.stage not in READY_STAGES
    return is_over and any(it.reason == CRASH_LOOP for it in status.transitions[-1:])


def _reasons(there: list[Replica], crashed: int) -> dict[str, int]:
    """The number of waiting replicas for each reason, by name."""
    reasons: dict[str, int] = {BACKOFF_REASON: crashed} if crashed else {}
    for replica in there:
        if replica.status.state is not State.PENDING:
            continue
        pending = replica.status.pending
        for reason in (pending.reasons if pending is not None else None) or (UNTRIED_REASON,):
            reasons[reason] = reasons.get(reason, 0) + 1
    return {reason: reasons[reason] for reason in sorted(reasons)[:REASONS_MAX]}


def _last_action(mine: list[Replica]) -> str:
    """The last transition of any of its replicas."""
    found = _newest((it, record) for it in mine for record in it.status.transitions[-1:])
    if found is None:
        return ""
    replica, record = found
    return _clipped(f"{replica.name} became {record.to.value} by {record.by}: {record.reason}")


def _last_error(mine: list[Replica], waiting: list[Replica]) -> str:
    """The last ending of any of its replicas, final or before a restart in place, and until when
    the next incarnation waits because of it.
    """
    found = _newest(
        (it, record)
        for it in mine
        for record in it.status.transitions
        # A cheap check first: there are thousands of transitions, and most lead elsewhere.
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
            # By name among transitions of one commit, which have the same time.
            found = step
    return found


def _clipped(text: str) -> str:
    return text if len(text) <= SENTENCE_MAX else f"{text[: SENTENCE_MAX - 1]}…"
