"""controller:rollout: replaces the replicas of an old template by those of a new one.

It owns the WorkloadRevisions, the part `rollout` of a workload's status with the conditions
Progressing and RollbackObserved, and evictions for Rollout. It acts on services and per-node
workloads; runs of jobs are never replaced.

    template without a revision   -> Create it, before any replica is created from it
    status differs                -> Update: which ordinals take which revision (`progress.py`)
    a holder of another revision  -> Evict, while enough others are healthy
    old revisions beyond history  -> Remove

It creates no replicas: controller:workload does, by the targets in the status, and releases waiting
replicas of the wrong revision. The commit holds both to the targets (`model/workload/rollouts.py`).

The update names the resourceVersion that it rests on, and has no operation id for the same reason
as that of controller:status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Controller,
    ReconcilePlan,
    key_of,
    operation,
    step_id,
)
from holdfast.correct.pacing import Cooldowns, MonotonicWaits
from holdfast.correct.remembered import uids_of
from holdfast.correct.rollout.progress import COMPLETE, next_decision
from holdfast.correct.rollout.survey import ReadyTimes, RolloutPlace, led_on_nodes, survey
from holdfast.correct.rollout.widening import to_stop
from holdfast.correct.workload.each_node import BY_TYPE, is_same_home
from holdfast.correct.workload.replica_creation import is_of, revision_of
from holdfast.model.access.identity import controller
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.workload import (
    LASTING,
    RolloutPhase,
    RolloutStatus,
    Workload,
    WorkloadRevision,
    WorkloadRevisionSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.lifecycle import Actor, Cause, State
from holdfast.model.meta import (
    API_VERSION,
    Condition,
    ConditionStatus,
    ObjectMeta,
    OwnerReference,
    condition,
    with_condition,
)
from holdfast.model.requests import Create, Evict, Remove, Term, Update, target
from holdfast.model.time import Instant, timestamp
from holdfast.model.workload.rollouts import REVERTED, is_misplaced, revision_name
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# The history of a workload's templates: one WorkloadRevision for each.
#
# A revision is recorded before any replica is created from it, so that a rollback is always
# possible; the same template is the same revision, however often it returns.

IDENTITY = controller("rollout").name
BY_OWNER = Index("workloadrevisions", "owner", lambda it: (f"{it.namespace}/{it.spec.workload}",))


def belongs(revision: WorkloadRevision, workload: Workload) -> bool:
    """Whether it belongs to this workload, and not to an earlier one with the same name."""
    return any(it.uid == workload.metadata.uid for it in revision.metadata.owner_references)


def without_lost_stable(workload: Workload, known: list[WorkloadRevision]) -> Workload:
    """The workload without its stable revision if that no longer exists.

    A rollback to it is impossible; its ordinals take the current revision.
    """
    rollout = workload.status.rollout
    if rollout.stable in ("", *(it.spec.digest for it in known)):
        return workload
    status = msgspec.structs.replace(
        workload.status, rollout=msgspec.structs.replace(rollout, stable="")
    )
    return msgspec.structs.replace(workload, status=status)


def with_highest_number(status: RolloutStatus, known: list[WorkloadRevision]) -> RolloutStatus:
    """The status with the highest number of any revision, so that no number is used twice."""
    highest = max((it.spec.number for it in known), default=0)
    return msgspec.structs.replace(status, revisions=max(status.revisions, highest))


def revision_creation(workload: Workload, revision: str, known: list[WorkloadRevision]) -> Create:
    """The request that records the revision of the stated template."""
    numbers = (it.spec.number for it in known)
    number = max((*numbers, workload.status.rollout.revisions)) + 1
    uid = workload.metadata.uid
    owner = OwnerReference(API_VERSION, "Workload", workload.name, uid, controller=True)
    metadata = ObjectMeta(
        name=revision_name(workload.name, revision),
        namespace=workload.namespace,
        owner_references=(owner,),
    )
    spec = WorkloadRevisionSpec(workload.name, number, revision, workload.spec.template)
    made = WorkloadRevision(metadata=metadata, spec=spec)
    return Create(made, operation=operation(IDENTITY, uid, number, f"record-{revision}"))


def removal(revision: WorkloadRevision) -> Remove:
    """The request that removes a revision."""
    uid = revision.metadata.uid
    return Remove(
        "workloadrevisions",
        revision.namespace,
        revision.name,
        uid,
        operation=operation(IDENTITY, uid, 0, "remove"),
    )


def excess(
    workload: Workload, known: list[WorkloadRevision], mine: list[Replica]
) -> list[WorkloadRevision]:
    """The oldest revisions beyond the stated history; none that is in use."""
    rollout = workload.status.rollout
    old = [it for it in known if it.spec.digest not in (rollout.current, rollout.stable)]
    count = len(old) - workload.spec.rollout.history
    if count <= 0:
        return []
    used = {it.spec.revision for it in mine if it.status.state is not State.RELEASED}
    old.sort(key=lambda it: it.spec.number)
    return [it for it in old[:count] if it.spec.digest not in used]


PROGRESSING, ROLLBACK_OBSERVED = "Progressing", "RollbackObserved"
# How soon to reconcile again when the cache may lack the workload of a revision.
UNTOLD_PAUSE_MS = 1_000

# A reconcile compares each replica with its target revision, which costs more than a count.
REST_TIMES = 4

_AT_REST = (RolloutPhase.IDLE, RolloutPhase.FAILED)


class RolloutController(Controller):
    """See the module's docstring."""

    actor = Actor.ROLLOUT
    follows = ("workloads", "replicas", "workloadrevisions", "nodes", "tenants", "regions")
    indexes = (BY_WORKLOAD, BY_OWNER, BY_TYPE)

    def __init__(self) -> None:
        self._rests = Cooldowns()
        self._ready_times = ReadyTimes()
        self._waits = MonotonicWaits(uids_of("workloads"))
        self.remembers = (self._rests, self._ready_times, self._waits)

    # Keys ----------------------------------------------------------------------------------------

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """Without a rollout, changes of replicas of the right revision concern no key."""
        obj: Any = change.object
        match obj:
            case Workload():
                return (key_of(obj),)
            case WorkloadRevision():
                return ((obj.namespace, obj.spec.workload),)
            case Replica():
                key = obj.namespace, obj.spec.workload
                owner: Workload | None = view.get("workloads", *key)
                return () if owner is None or _is_settled(owner, obj) else (key,)
            case Node():
                if is_same_home(change.before, change.after):
                    return ()
        # The ordinals of per-node workloads follow from the nodes, and from who may use them.
        return [key_of(it) for it in view.found(BY_TYPE, WorkloadType.PER_NODE.value)]

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        named = [key_of(it) for it in view.all("workloads")]
        named += [(it.namespace, it.spec.workload) for it in view.all("workloadrevisions")]
        return dict.fromkeys(named)

    # Decisions -----------------------------------------------------------------------------------

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        workload: Workload | None = view.get("workloads", *key)
        known: list[WorkloadRevision] = view.found(BY_OWNER, f"{key[0]}/{key[1]}")
        left = [it for it in known if workload is None or not belongs(it, workload)]
        if left:
            return self._remove_strays(view, left)
        if workload is None or workload.spec.type not in LASTING:
            self._rests.forget(key)
            self._ready_times.pop(key, None)
            return ReconcilePlan()
        if workload.metadata.deletion_timestamp is not None:
            return ReconcilePlan()
        revision = revision_of(workload.spec.template)
        if not any(it.spec.digest == revision for it in known):
            return ReconcilePlan((revision_creation(workload, revision, known),))
        left_ms = self._rests.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        return self._roll_out(view, workload, revision, known, term, now)

    def _remove_strays(self, view: Snapshot, left: list[WorkloadRevision]) -> ReconcilePlan:
        """Remove revisions of a workload that is gone, or of an earlier one with its name."""
        if not all(view.knows_all_of(it) for it in left):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        return ReconcilePlan(tuple(map(removal, left[: REQUESTS_PER_PLAN_MAX + 1])))

    def _roll_out(
        self,
        view: Snapshot,
        workload: Workload,
        revision: str,
        known: list[WorkloadRevision],
        term: Term,
        now: Instant,
    ) -> ReconcilePlan:
        sound = without_lost_stable(workload, known)
        if sound is not workload and not view.knows_all_of(workload):
            return ReconcilePlan(wake_after_ms=UNTOLD_PAUSE_MS)
        mine = _mine(view, workload)
        if _is_quiet(workload, revision) and not any(is_misplaced(workload, it) for it in mine):
            rollout = workload.status.rollout
            self._ready_times.pop(key_of(workload), None)
            return self._idle(workload, rollout, known, mine, now)
        self._rests.rest(key_of(workload), REST_TIMES * len(mine), now)
        led, nodes = mine, 0
        if workload.spec.type is WorkloadType.PER_NODE:
            led, nodes = led_on_nodes(view, workload, mine)
        seen = survey(sound, led, nodes, self._ready_times.ready_ms(key_of(workload), led, now))
        decision = next_decision(sound, seen, revision, self._waits, now)
        updates = _updates(workload, with_highest_number(decision.status, known), now)
        if updates:
            # Nothing is stopped for targets that are not committed yet.
            return ReconcilePlan(tuple(updates), wake_after_ms=decision.wake_ms)
        stops = [
            _stop(it, it.holder, term) for it in to_stop(workload, seen) if it.holder is not None
        ]
        return ReconcilePlan(
            tuple(stops[: REQUESTS_PER_PLAN_MAX + 1]), wake_after_ms=decision.wake_ms
        )

    def _idle(
        self,
        workload: Workload,
        rollout: RolloutStatus,
        known: list[WorkloadRevision],
        mine: list[Replica],
        now: Instant,
    ) -> ReconcilePlan:
        """Without a rollout: write the status, and keep no more history than stated."""
        updates = _updates(workload, rollout, now)
        if updates:
            return ReconcilePlan(tuple(updates))
        gone = excess(workload, known, mine)[: REQUESTS_PER_PLAN_MAX + 1]
        return ReconcilePlan(tuple(map(removal, gone)))


def _mine(view: Snapshot, workload: Workload) -> list[Replica]:
    named: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
    return [it for it in named if is_of(it, workload)]


def _is_settled(workload: Workload, replica: Replica) -> bool:
    is_at_rest = workload.status.rollout.phase in _AT_REST
    return is_at_rest and not is_misplaced(workload, replica)


def _is_quiet(workload: Workload, revision: str) -> bool:
    """Whether no rollout is in progress, and none begins."""
    rollout = workload.status.rollout
    return rollout.phase in _AT_REST and rollout.current == revision


def _stop(place: RolloutPlace, holder: Replica, term: Term) -> Evict:
    """Evict a holder. One that is not ready costs no budget, unless it has become ready since."""
    step = "roll-to" if place.is_ready else "roll-idle-to"
    return Evict(
        target(holder),
        Cause.ROLLOUT,
        f"revision {holder.spec.revision} makes way for {place.target}",
        term,
        step_id(IDENTITY, holder, f"{step}-{place.target}"),
        idle=not place.is_ready,
    )


def _updates(workload: Workload, rollout: RolloutStatus, now: Instant) -> list[Update]:
    """The update of the status, if it differs."""
    generation = workload.metadata.generation
    rollout = msgspec.structs.replace(rollout, observed_generation=generation)
    status = msgspec.structs.replace(
        workload.status, rollout=rollout, conditions=_conditions(workload.status, rollout, now)
    )
    if status == workload.status:
        return []
    return [Update(msgspec.structs.replace(workload, status=status), "status")]


def _conditions(
    status: WorkloadStatus, rollout: RolloutStatus, now: Instant
) -> tuple[Condition, ...]:
    at, generation = timestamp(now.wall_ms), rollout.observed_generation
    # As with a Deployment of Kubernetes: a complete rollout is True, and False needs attention.
    is_well = rollout.phase in (RolloutPhase.PROGRESSING, RolloutPhase.REVERTING)
    progressing = Condition(
        PROGRESSING,
        ConditionStatus.TRUE if is_well or rollout.reason == COMPLETE else ConditionStatus.FALSE,
        generation,
        reason=rollout.reason,
        message=rollout.message,
    )
    conditions = with_condition(status.conditions, progressing, at)
    is_back = rollout.phase in REVERTED
    if not is_back and condition(conditions, ROLLBACK_OBSERVED) is None:
        return conditions
    back = Condition(
        ROLLBACK_OBSERVED,
        ConditionStatus.TRUE if is_back else ConditionStatus.FALSE,
        generation,
        reason=rollout.reason,
        message=rollout.message if is_back else "",
    )
    return with_condition(conditions, back, at)
