"""Deletion: requested at once, done when no finalizer is left.

Nothing outlives its owner. A workload is held by its replicas, a replica by whatever it still has
on a node, a tenant by its objects. Each of these finalizers can be removed only by its owner, and
only when the ledger, read in the same transaction, proves that nothing is left. controller:garbage
collects the dependents of a deleted owner; `ledgers/leaks.py` has the proofs that it needs.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.access.authorize import identity_refusal, may_give_up, verb_refusal
from holdfast.commit.access.escalation import built_in_refusal
from holdfast.commit.access.visibility import visible_object
from holdfast.commit.component_preconditions import grounds_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.derived_records import erase, update_derived_records
from holdfast.commit.ledgers.leaks import (
    early_deletion_refusal,
    leak_refusal,
)
from holdfast.commit.lifecycle.evict import stop
from holdfast.commit.lifecycle.replica_birth import is_success_uncounted
from holdfast.commit.lifecycle.reserve import drop_refusal, release_reservation
from holdfast.commit.lifecycle.transitions import RELEASE_FINALIZER, give_up
from holdfast.commit.objects.field_writers import removal_refusal
from holdfast.commit.objects.job_times import life_refusal
from holdfast.commit.objects.preconditions import removal_precondition_refusal
from holdfast.commit.operations import (
    add_operation,
    digest,
    recall,
    recall_past,
    recall_unversioned,
    remember_past,
    remember_unversioned,
)
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed
from holdfast.model import keys
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor, Cause, State
from holdfast.model.meta import (
    CONTENTS_FINALIZER,
    FOREGROUND_FINALIZER,
    ORPHAN_FINALIZER,
    REPLICAS_FINALIZER,
    Object,
    ObjectMeta,
)
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import DisruptionLedger, ObjectsLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import Propagation, Remove

# Finalizers that the server itself puts on new objects.
FINALIZERS: dict[type[Object], tuple[str, ...]] = {
    Workload: (REPLICAS_FINALIZER,),
    Replica: (RELEASE_FINALIZER,),
    Tenant: (CONTENTS_FINALIZER,),
}
# Who may remove them; the proofs are below.
REMOVERS: dict[str, tuple[Actor, ...]] = {
    REPLICAS_FINALIZER: (Actor.WORKLOAD, Actor.GARBAGE),
    CONTENTS_FINALIZER: (Actor.GARBAGE,),
    FOREGROUND_FINALIZER: (Actor.GARBAGE,),
    ORPHAN_FINALIZER: (Actor.GARBAGE,),
    RELEASE_FINALIZER: (),
}
_BY_PROPAGATION = {
    Propagation.FOREGROUND: FOREGROUND_FINALIZER,
    Propagation.ORPHAN: ORPHAN_FINALIZER,
}


def finalizer_removal_refusal(
    draft: Draft, context: Context, old: Object, new: Object
) -> Refusal | None:
    """Refuse the removal of finalizers that may not go yet."""
    for name in old.metadata.finalizers:
        if name in new.metadata.finalizers or name not in REMOVERS:
            continue
        if not context.is_actor(*REMOVERS[name]):
            return Refusal(
                Reason.NOT_OWNER,
                f"metadata.finalizers: {name}: {context.identity.name} may not remove it",
                {"finalizer": name},
            )
        # Without it, a later deletion would not wait for objects that are created until then.
        if old.metadata.deletion_timestamp is None:
            return Refusal(
                Reason.WRONG_STATE,
                f"metadata.finalizers: {name}: it stays until {old.name} is deleted",
                {"finalizer": name},
            )
        refusal = _still_held(draft, old, name)
        if refusal is not None:
            return refusal
    return None


def finalizers_refusal(old: Object | None, new: Object) -> Refusal | None:
    """Refuse an object with system finalizers that are not its own.

    They would never be removed, or by the wrong component.
    """
    known = old.metadata.finalizers if old is not None else FINALIZERS.get(type(new), ())
    for name in new.metadata.finalizers:
        if name in REMOVERS and name not in known:
            return Refusal(
                Reason.NOT_ALLOWED,
                f"metadata.finalizers: {name}: only the system sets it",
                {"field": "metadata.finalizers", "finalizer": name},
            )
    return None


def restore_finalizers(context: Context, old: Object, new: Object) -> Object:
    """The object with the system finalizers that a person left out and may not remove.

    A person who writes a whole object from a file does not know of them, and does not mean to
    remove them. A component does.
    """
    if not context.is_actor(Actor.USER):
        return new
    named = new.metadata.finalizers
    mine = [n for n, actors in REMOVERS.items() if context.is_actor(*actors)]
    left = [n for n in old.metadata.finalizers if n in REMOVERS and n not in (*named, *mine)]
    if not left:
        return new
    # In the old order, so that nothing changes where no change was meant.
    kept = [n for n in old.metadata.finalizers if n in left or n in named]
    kept += [n for n in named if n not in kept]
    metadata = msgspec.structs.replace(new.metadata, finalizers=tuple(kept))
    return msgspec.structs.replace(new, metadata=metadata)


def only_removes_finalizers(context: Context, old: Object, new: Object) -> bool:
    """Whether the change only removes finalizers that the caller may remove.

    Then it needs no permission on the spec: the controller that empties a workload does not own it.
    """
    gone = [name for name in old.metadata.finalizers if name not in new.metadata.finalizers]
    metadata = msgspec.structs.replace(new.metadata, finalizers=old.metadata.finalizers)
    same = msgspec.structs.replace(new, metadata=metadata) == old
    mine = all(context.is_actor(*REMOVERS.get(name, ())) for name in gone)
    return bool(gone) and same and mine


def _still_held(draft: Draft, old: Object, finalizer: str) -> Refusal | None:
    left = 0
    if finalizer == REPLICAS_FINALIZER:
        key = keys.disruption_ledger(old.namespace, old.name)
        left = (draft.ledger(DisruptionLedger, key) or DisruptionLedger()).replicas
    elif finalizer == CONTENTS_FINALIZER:
        counts = (
            draft.ledger(ObjectsLedger, keys.objects_ledger(old.name)) or ObjectsLedger()
        ).counts
        left = sum(counts.values())
    if not left:
        return None
    return Refusal(
        Reason.WRONG_STATE,
        f"metadata.finalizers: {finalizer}: {left} objects still hold {old.name}",
        {"finalizer": finalizer, "left": str(left)},
    )


def finish(draft: Draft, context: Context, old: Object, after: Object) -> Refusal | None:
    """Write a changed object, or erase it when its deletion was waiting for this change."""
    if after.metadata.deletion_timestamp is not None and not after.metadata.finalizers:
        return erase(draft, context, old)
    refusal = update_derived_records(draft, context, old, after)
    if refusal is None:
        draft.write(keys.key_of(after), after)
    return refusal


def remove(draft: Draft, context: Context, request: Remove) -> Object | Replayed | Refusal:
    """Request an object's deletion. Returns it as it was, or as it waits for its finalizers."""
    kind, mark = kind_of_plural(request.plural), digest(request)
    refusal = (
        identity_refusal(context)
        or _door(draft, context, request, kind)
        or grounds_refusal(draft, context, request)
    )
    if refusal is not None:
        return refusal
    past = recall_past(draft, context, request.operation, mark)
    if past is not None:
        return past
    key = keys.object_key(kind, request.namespace, request.name)
    obj: Object | None = visible_object(context, draft.read(key))
    if obj is None:
        what = f"{kind.plural} {request.name!r} not found"
        return Refusal(Reason.MISSING, what, {"name": request.name})
    done = recall(obj.metadata, request.operation, mark)
    if done is None and not request.uid:
        done = recall_unversioned(draft, context, key, request.operation, mark)
    if done is not None:
        return done
    refusal = (
        removal_precondition_refusal(draft, request, obj)
        or removal_refusal(context, obj)
        or built_in_refusal(context, obj, None)
        or leak_refusal(draft, context, obj)
        or life_refusal(context, obj)
        or early_deletion_refusal(context, obj)
        or _reservation_refusal(draft, context, obj)
        or _orphan_refusal(request, obj)
    )
    if refusal is not None:
        return refusal
    return _removed(draft, context, request, obj, mark)


def _door(draft: Draft, context: Context, request: Remove, kind: Kind) -> Refusal | None:
    """Authorize a deletion. One of many that are deleted together needs the permission
    `deletecollection`, as in Kubernetes.
    """
    if request.collection:
        return verb_refusal(draft, context, "deletecollection", kind, request.namespace)
    return verb_refusal(draft, context, "delete", kind, request.namespace, name=request.name)


def _reservation_refusal(draft: Draft, context: Context, obj: Object) -> Refusal | None:
    """Apply the rules of a release to the deletion of a reservation."""
    if not isinstance(obj, Reservation) or not is_active(obj):
        return None
    if context.is_actor(Actor.GARBAGE):
        # It has already proven the leak.
        return None
    return drop_refusal(draft, context, obj)


def _orphan_refusal(request: Remove, obj: Object) -> Refusal | None:
    if request.propagation is Propagation.ORPHAN and isinstance(obj, Workload):
        return Refusal(
            Reason.NOT_ALLOWED,
            "replicas cannot be orphaned: no controller would own their transitions",
        )
    return None


def _removed(
    draft: Draft, context: Context, request: Remove, obj: Object, mark: str
) -> Object | Refusal:
    asked = _asked(draft, context, request, obj)
    if isinstance(obj, Replica):
        moved_on = _stopped(draft, context, request, obj, asked)
        if isinstance(moved_on, Object) and not request.uid:
            # The object is deleted with the proof that it stopped, and its remembered operations
            # with it.
            remember_unversioned(draft, context, obj, request.operation, mark)
        if moved_on is not None:
            return moved_on
    if isinstance(obj, Reservation):
        # What it still holds is released in this transaction; afterwards no component could release
        # it.
        left = release_reservation(draft, context, obj, "its deletion was asked for")
        if isinstance(left, Refusal):
            return left
        # It may have to wait for a finalizer, but it must never again claim to hold something.
        obj = left or obj
    if asked == obj.metadata and asked.finalizers:
        if not request.uid:
            remember_unversioned(draft, context, obj, request.operation, mark)
        return obj
    after = msgspec.structs.replace(obj, metadata=asked)
    after = add_operation(draft, context, after, request.operation, mark)
    if not asked.finalizers or not request.uid:
        # A request without uid means the object that exists now, and no later one of its name.
        remember_past(draft, context, obj, request.operation, mark)
    return finish(draft, context, obj, after) or after


def _asked(draft: Draft, context: Context, request: Remove, obj: Object) -> ObjectMeta:
    """The metadata of an object whose deletion is requested, for the first time or again."""
    metadata = obj.metadata
    finalizers = metadata.finalizers
    if isinstance(obj, Replica) and _may_go(draft, obj):
        finalizers = tuple(name for name in finalizers if name != RELEASE_FINALIZER)
    grace = request.grace_seconds
    if metadata.deletion_timestamp is None:
        waits_for = _BY_PROPAGATION.get(request.propagation)
        more = (waits_for,) if waits_for is not None and waits_for not in finalizers else ()
        return msgspec.structs.replace(
            metadata,
            deletion_timestamp=context.at,
            deletion_grace_period_seconds=grace,
            finalizers=(*finalizers, *more),
        )
    # A second request may shorten the grace, never extend it.
    before = metadata.deletion_grace_period_seconds
    if grace is not None and before is not None:
        grace = min(grace, before)
    return msgspec.structs.replace(
        metadata,
        deletion_grace_period_seconds=before if grace is None else grace,
        finalizers=finalizers,
    )


def _may_go(draft: Draft, replica: Replica) -> bool:
    """Whether nothing holds the object of a replica any more."""
    return replica.status.state is State.RELEASED and not is_success_uncounted(draft, replica)


def _stopped(
    draft: Draft, context: Context, request: Remove, replica: Replica, asked: ObjectMeta
) -> Object | Refusal | None:
    """The replica after the transition that its deletion starts, if any.

    A replica is deleted once it is Released. Until then its deletion states what is wanted; a
    person's deletion also stops what runs. With `force` an operator declares unreachable work gone;
    it is recorded as such, and is outside what the fence guarantees. For work that runs on when it
    is cut off it also releases what the work holds, once the node is fenced.
    """
    dying = msgspec.structs.replace(replica, metadata=asked)
    operation, mark = request.operation, digest(request)
    state = replica.status.state
    if state in (State.BOUND, State.RUNNING) and context.is_actor(Actor.USER):
        why = "its deletion was asked for"
        return stop(draft, context, dying, Cause.USER_DELETE, why, operation, mark)
    if request.force and may_give_up(draft, context, replica):
        return give_up(draft, context, dying, operation, mark)
    return None


STEPS = (
    PlacementStep(
        "delete an object",
        "its writers, controller:garbage",
        "the object; for garbage: that its owners are gone",
        "it is held by a finalizer, or its owner lives",
        "finalizers and ledgers in the transaction",
        request=Remove,
        handler=remove,
        compares=(ComparedRecord.OBJECT,),
    ),
)
