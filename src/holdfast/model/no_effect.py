"""Fields and kinds that the API accepts and that nothing acts on yet.

`commit/objects/object_writes.py` asks here with every create, update, patch and apply: the answer
carries one warning for each row that the object sets, and the object gets the condition `NoEffect`,
in the same transaction. A change that gives a field its effect removes its row; a test holds the
rows against the code.

`UNWRITTEN` lists parts of a status that are declared and that nothing writes yet. Their
descriptions say so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.kinds.commitment import Commitment, CommitmentStatus
from holdfast.model.kinds.node import Node, NodeStatus
from holdfast.model.kinds.override import Override, OverrideStatus
from holdfast.model.kinds.placement import TaintEffect
from holdfast.model.kinds.region import Grant, GrantStatus, Region, RegionStatus
from holdfast.model.kinds.replica import ReplicaStatus
from holdfast.model.kinds.reservation import ReservationStatus
from holdfast.model.kinds.schedulerpolicy import (
    PolicyScope,
    PolicyStage,
    SchedulerPolicy,
    SchedulerPolicySpec,
    SchedulerPolicyStatus,
)
from holdfast.model.kinds.tenant import PriorityClass, QuotaStatus
from holdfast.model.kinds.workload import Workload, WorkloadStatus, WorkloadType
from holdfast.model.meta import (
    AnyObject,
    Condition,
    ConditionStatus,
    Object,
    Part,
    condition,
    with_condition,
)

NO_EFFECT = "NoEffect"
REASON = "NotImplemented"

_JOBS = (WorkloadType.JOB, WorkloadType.CRON)
_STAGES = (PolicyStage.INACTIVE, PolicyStage.ACTIVE)


class NoEffectRow(msgspec.Struct, frozen=True):
    """One field, or a whole kind if `path` is empty. `instead` says what happens meanwhile.

    A field that equals its default is not written, so a row cannot tell a default that was stated
    from one that was left out.
    """

    path: str
    is_set: Callable[[Any], bool]
    instead: str


def _always(obj: Any) -> bool:
    return True


ROWS: dict[type[Object], tuple[NoEffectRow, ...]] = {
    Workload: (
        NoEffectRow(
            "spec.autoscale",
            lambda it: it.spec.autoscale is not None,
            "the number of replicas stays at spec.replicas",
        ),
        NoEffectRow(
            "spec.gang",
            lambda it: it.spec.gang is not None,
            "gangs are not scheduled, so the replicas stay Pending; remove it to place them one "
            "by one",
        ),
        NoEffectRow(
            "spec.recovery.withinSeconds",
            lambda it: it.spec.recovery is not None,
            "nothing measures how soon the work serves again",
        ),
        NoEffectRow(
            "spec.latencyTargetMs",
            lambda it: it.spec.latency_target_ms is not None,
            "nodes are not ranked by latency",
        ),
        NoEffectRow(
            "spec.job.indexed",
            lambda it: it.spec.job.indexed and it.spec.type in _JOBS,
            "every job is indexed, with the index of a replica in HOLDFAST_INDEX",
        ),
        NoEffectRow(
            "spec.template.placement.tolerations[].tolerationSeconds",
            lambda it: any(
                toleration.toleration_seconds is not None
                for toleration in it.spec.template.placement.tolerations
            ),
            "the taint is tolerated for ever",
        ),
    ),
    Node: (
        NoEffectRow(
            "spec.taints[].effect=NoExecute",
            lambda it: any(taint.effect is TaintEffect.NO_EXECUTE for taint in it.spec.taints),
            "it evicts PerNode work only, and acts as NoSchedule on all other work; drain the node "
            "to move that",
        ),
    ),
    PriorityClass: (
        NoEffectRow(
            "spec.preempts",
            lambda it: it.spec.preempts,
            "work of this class waits for free capacity",
        ),
    ),
    SchedulerPolicy: (
        NoEffectRow(
            "spec.stage",
            lambda it: it.spec.stage not in _STAGES,
            "schedulers use a policy only while its stage is Active",
        ),
        NoEffectRow(
            "spec.scope",
            lambda it: it.spec.scope != PolicyScope(),
            "an Active policy decides for all work",
        ),
        NoEffectRow(
            "spec.fallback",
            lambda it: bool(it.spec.fallback),
            "set the stage of another policy to Active to go back to it",
        ),
        NoEffectRow(
            "spec.holdSeconds",
            lambda it: it.spec.hold_seconds != SchedulerPolicySpec().hold_seconds,
            "no stage follows another by itself",
        ),
    ),
    Region: (
        NoEffectRow(
            "spec.endpoint",
            lambda it: bool(it.spec.endpoint),
            "this plane connects to no other plane",
        ),
    ),
    Grant: (NoEffectRow("", _always, "no region spends from it"),),
    Override: (NoEffectRow("", _always, "no scheduler and no controller follows it"),),
    Commitment: (NoEffectRow("", _always, "nothing proves it"),),
}


def rows_of(obj: Object) -> tuple[NoEffectRow, ...]:
    """The rows that this object sets."""
    rows = ROWS.get(type(obj))
    return tuple(row for row in rows if row.is_set(obj)) if rows is not None else ()


def sentence(obj: Object, row: NoEffectRow) -> str:
    """What a row says of an object."""
    named = f"{row.path} has" if row.path else f"{type(obj).__name__} objects have"
    return f"{named} no effect yet: {row.instead}"


def warnings(obj: Object) -> tuple[str, ...]:
    """One sentence for each row that this object sets, for the writer of the object."""
    return tuple(sentence(obj, row) for row in rows_of(obj))


def with_no_effect(obj: AnyObject, at: datetime) -> AnyObject:
    """The object with the condition `NoEffect` as its spec demands, or without it.

    The very same object if nothing changes. Kinds without conditions have only the warning.
    """
    status: Any = getattr(obj, "status", None)
    if type(obj) not in ROWS or not hasattr(status, "conditions"):
        return obj
    said = warnings(obj)
    before: tuple[Condition, ...] = status.conditions
    if said:
        stated = Condition(
            NO_EFFECT,
            ConditionStatus.TRUE,
            obj.metadata.generation,
            reason=REASON,
            message="; ".join(said),
        )
        after = with_condition(before, stated, at)
    elif condition(before, NO_EFFECT) is not None:
        after = tuple(it for it in before if it.type != NO_EFFECT)
    else:
        return obj
    if after is before:
        return obj
    status = msgspec.structs.replace(status, conditions=after)
    return msgspec.structs.replace(obj, status=status)


def keeping_no_effect(old: Object, new: AnyObject) -> AnyObject:
    """A new status with the condition `NoEffect` of the old one, whatever its writer sent of it.

    A writer that sends a whole status of its own need not know this condition.
    """
    status: Any = getattr(new, "status", None)
    if type(new) not in ROWS or not hasattr(status, "conditions"):
        return new
    before: Any = old
    kept = condition(before.status.conditions, NO_EFFECT)
    if condition(status.conditions, NO_EFFECT) == kept:
        return new
    others = tuple(it for it in status.conditions if it.type != NO_EFFECT)
    conditions = others if kept is None else (*others, kept)
    status = msgspec.structs.replace(status, conditions=conditions)
    return msgspec.structs.replace(new, status=status)


class Unwritten(msgspec.Struct, frozen=True):
    """Fields of a status, and types of its conditions, that nothing writes yet."""

    fields: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()


UNWRITTEN: dict[type[Part], Unwritten] = {
    WorkloadStatus: Unwritten(
        ("autoscale",),
        ("Recovered", "RepairComplete", "ScalingLimited", "SchedulerOverrideObserved"),
    ),
    ReplicaStatus: Unwritten((), ("Bound", "SchedulingRetrying", "Ready", "Serving", "Repairing")),
    NodeStatus: Unwritten((), ("Ready", "Pressure")),
    ReservationStatus: Unwritten(("conditions",)),
    QuotaStatus: Unwritten((), ("Exhausted",)),
    RegionStatus: Unwritten(("phase",), ("Healthy",)),
    SchedulerPolicyStatus: Unwritten(("observed_generation", "stage"), ("Observed",)),
    GrantStatus: Unwritten(("accepted_serial", "spent"), ("Accepted",)),
    OverrideStatus: Unwritten(
        ("observed_generation", "phase", "affected"), ("Active", "PostconditionsMet")
    ),
    CommitmentStatus: Unwritten(
        ("observed_generation", "state", "evidence", "proven_at", "at_revision"), ("Proven",)
    ),
}
