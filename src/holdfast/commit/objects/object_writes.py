"""Writes through the ordinary verbs: create, update, patch.

These run admission, keep the server's own metadata, count generations, remember operations and
write the derived records. A write that changes nothing is not stored, so its version stays.
`deletion.py` deletes.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.access.authorize import identity_refusal, verb_refusal
from holdfast.commit.access.visibility import visible_object
from holdfast.commit.apply.server_side import entries_after_update
from holdfast.commit.apply.shapes import shape_of, tree_of
from holdfast.commit.component_preconditions import grounds_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, NotLoaded
from holdfast.commit.ledgers.derived_records import update_derived_records
from holdfast.commit.ledgers.leaks import only_disowns
from holdfast.commit.lifecycle.replica_birth import (
    birth_refusal,
    new_replica,
    places_key,
    predecessor,
)
from holdfast.commit.objects.admission import Admission, admit, invalid
from holdfast.commit.objects.admission_policies import policy_keys
from holdfast.commit.objects.deletion import (
    FINALIZERS,
    finalizer_removal_refusal,
    finalizers_refusal,
    finish,
    only_removes_finalizers,
    restore_finalizers,
)
from holdfast.commit.objects.field_writers import (
    claim_refusal,
    is_maker,
    shared_with_people,
    status_refusal,
    without_computed,
)
from holdfast.commit.objects.job_times import end_refusal, run_refusal, stamp_job_end
from holdfast.commit.objects.preconditions import (
    states_a_version,
    version_refusal,
    versioned_refusal,
)
from holdfast.commit.operations import (
    add_operation,
    digest,
    past_key,
    recall,
    recall_past,
    recall_unversioned,
    remember_past,
    remember_unversioned,
)
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed, Written
from holdfast.model import keys
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import ManagedFields, Object, ObjectMeta
from holdfast.model.no_effect import keeping_no_effect, with_no_effect
from holdfast.model.no_effect import warnings as no_effect_warnings
from holdfast.model.quota.charging import QUOTA_NAME, budget_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of, kind_of_struct
from holdfast.model.requests import Create, Update
from holdfast.model.validation import validate_status, validate_update

STATUS = "status"
SCALE = "scale"
# The number of random characters in a generated name, as in Kubernetes.
SUFFIX_LENGTH = 5
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


Outcome = Written | Replayed | Refusal


def create(draft: Draft, context: Context, request: Create) -> Outcome:
    """Create an object."""
    kind = kind_of(request.object)
    refusal = authorize(draft, context, "create", kind, request.object.namespace)
    refusal = (
        refusal or grounds_refusal(draft, context, request) or versioned_refusal(request.object)
    )
    if refusal is not None:
        return refusal
    mark = digest(request)
    named = _named(context, request.object)
    _suppose_absent(draft, context, named, request.operation)
    try:
        return _create(draft, context, named, request, mark)
    except NotLoaded:
        # Rare, so only now is it worth listing everything that a creation reads. This draft is
        # dropped.
        _load_for_birth(draft, named)
        raise


def _create(draft: Draft, context: Context, named: Object, request: Create, mark: str) -> Outcome:
    if not isinstance(named, Replica):
        past = recall_past(draft, context, request.operation, mark)
        if past is not None:
            return past
    there: Object | None = draft.read(keys.key_of(named))
    if there is not None:
        return recall(there.metadata, request.operation, mark) or _exists(there)
    return create_named(draft, context, named, request, mark)


def _suppose_absent(draft: Draft, context: Context, obj: Object, operation: str) -> None:
    """Assume that the records of a new object do not exist yet; that need not be read."""
    draft.suppose_absent(keys.key_of(obj))
    if operation and not isinstance(obj, Replica):
        draft.suppose_absent(past_key(context, operation))
    if isinstance(obj, Workload):
        draft.suppose_absent(keys.disruption_ledger(obj.namespace, obj.name))
    if isinstance(obj, Replica):
        draft.suppose_absent(places_key(obj))


def _load_for_birth(draft: Draft, obj: Object) -> None:
    """Load at once what admission and the ledgers will read.

    A decision that is interrupted for each record in turn is made, and validated, once for each.
    """
    kind, tenant = kind_of(obj), obj.namespace
    wanted = [keys.key_of(obj)]
    if kind.namespaced:
        wanted += [
            keys.object_key(kind_of_struct(Tenant), "", tenant),
            keys.object_key(kind_of_struct(Quota), tenant, QUOTA_NAME),
            keys.objects_ledger(tenant),
            *policy_keys(obj),
        ]
    if isinstance(obj, Workload | Replica):
        workload = obj.spec.workload if isinstance(obj, Replica) else obj.name
        priority = budget_of(obj.spec.template.priority_class)
        wanted += [
            keys.object_key(kind_of_struct(Workload), tenant, workload),
            keys.disruption_ledger(tenant, workload),
            keys.object_key(kind_of_struct(PriorityClass), "", priority),
        ]
    if isinstance(obj, Replica) and obj.spec.incarnation > 0:
        wanted += [keys.object_key(kind, tenant, predecessor(obj.spec))]
    draft.load(*wanted)


def authorize(
    draft: Draft,
    context: Context,
    verb: str,
    kind: Kind,
    namespace: str,
    subresource: str = "",
    name: str = "",
) -> Refusal | None:
    """Authorize a verb on a resource. A caller without permission learns nothing: not that an
    object exists, nor its contents.
    """
    refusal = identity_refusal(context) or verb_refusal(
        draft, context, verb, kind, namespace, subresource, name
    )
    if refusal is not None:
        return refusal
    has = {"": True, STATUS: kind.status, SCALE: kind.scale}
    if has.get(subresource):
        return None
    what = f"{kind.plural}/{subresource}"
    return Refusal(Reason.MISSING, f"there is no resource {what}", {"resource": what})


def _exists(there: Object) -> Refusal:
    kind = kind_of(there)
    return Refusal(
        Reason.EXISTS,
        f"{kind.plural} {there.name!r} already exists",
        {"name": there.name, "uid": there.metadata.uid},
    )


def _named(context: Context, obj: Object) -> Object:
    """The object with its final name, with or without namespace, as its kind requires."""
    metadata = obj.metadata
    if metadata.name or not metadata.generate_name:
        return obj
    letters = [
        _SUFFIX_LETTERS[int(context.rng.random() * len(_SUFFIX_LETTERS))]
        for _ in range(SUFFIX_LENGTH)
    ]
    name = metadata.generate_name[: 63 - SUFFIX_LENGTH] + "".join(letters)
    return msgspec.structs.replace(obj, metadata=msgspec.structs.replace(metadata, name=name))


def create_named(
    draft: Draft, context: Context, obj: Object, request: Create, mark: str, result: str = ""
) -> Outcome:
    """Create an object whose name is known to be free. `result` is remembered with the
    operation.
    """
    admission = Admission(object=_bare(obj))
    refusal = admit(draft, context, admission) or finalizers_refusal(None, admission.object)
    if refusal is not None:
        return refusal
    fresh = _fresh(context, admission.object)
    if is_maker(context, fresh):
        refusal = run_refusal(draft, context, fresh)
        if refusal is not None:
            return refusal
    if isinstance(fresh, Replica):
        refusal = birth_refusal(draft, fresh)
        if refusal is not None:
            return refusal
        fresh = new_replica(draft, context, fresh)
    # After the managed fields are computed: a field that the server sets has no manager.
    fresh = with_no_effect(_managed(context, None, fresh, request.manager, ""), context.at)
    if not isinstance(fresh, Replica):
        # The object remembers it as well, but only while it exists: a copy of the request that
        # created it must not bring a deleted object back. For replicas the places ledger ensures
        # that.
        remember_past(draft, context, fresh, request.operation, mark, result)
    fresh = add_operation(draft, context, fresh, request.operation, mark, result)
    refusal = update_derived_records(draft, context, None, fresh)
    if refusal is not None:
        return refusal
    draft.write(keys.key_of(fresh), fresh)
    return Written(fresh, (*admission.warnings, *no_effect_warnings(fresh)), created=True)


def _bare(obj: Object) -> Object:
    """The object without the fields that only the server sets; a client's values are ignored."""
    metadata = obj.metadata
    kept = ObjectMeta(
        name=metadata.name,
        generate_name=metadata.generate_name,
        namespace=metadata.namespace if kind_of(obj).namespaced else "",
        labels=metadata.labels,
        annotations=metadata.annotations,
        owner_references=metadata.owner_references,
        finalizers=metadata.finalizers,
    )
    bare = msgspec.structs.replace(obj, metadata=kept)
    if hasattr(bare, STATUS):
        bare = msgspec.structs.replace(bare, status=type(obj.status)())  # type: ignore[attr-defined]
    return bare


def _fresh(context: Context, obj: Object) -> Object:
    own = FINALIZERS.get(type(obj), ())
    metadata = msgspec.structs.replace(
        obj.metadata,
        uid=context.new_uid(),
        generation=1,
        creation_timestamp=context.at,
        finalizers=tuple(dict.fromkeys((*own, *obj.metadata.finalizers))),
    )
    return msgspec.structs.replace(obj, metadata=metadata)


def update(draft: Draft, context: Context, request: Update) -> Outcome:
    """Replace an object's spec and metadata, or its status alone."""
    given, part = request.object, request.subresource
    refusal = authorize(draft, context, "update", kind_of(given), given.namespace, part, given.name)
    refusal = refusal or grounds_refusal(draft, context, request)
    if refusal is not None:
        return refusal
    mark = digest(request)
    old: Object | None = visible_object(context, draft.read(keys.key_of(given)))
    if old is None:
        return not_found_refusal(kind_of(given), given.namespace, given.name)
    is_versioned = states_a_version(given.metadata)
    past = recall_change(draft, context, old, request.operation, mark, is_versioned=is_versioned)
    if past is not None:
        return past
    refusal = version_refusal(draft, old, given.metadata)
    if refusal is not None:
        return refusal
    wanted = restore_finalizers(context, old, merge_change(old, given, part))
    written = rewrite(draft, context, old, wanted, request.manager, part, request.operation, mark)
    if isinstance(written, Written) and not is_versioned:
        remember_unversioned(draft, context, old, request.operation, mark)
    return written


def recall_change(
    draft: Draft, context: Context, old: Object, operation: str, mark: str, *, is_versioned: bool
) -> Replayed | Refusal | None:
    """Whether this change was accepted before, on this object or on an earlier one of its name."""
    past = recall(old.metadata, operation, mark)
    if past is not None or is_versioned:
        return past
    return recall_unversioned(draft, context, keys.key_of(old), operation, mark)


def not_found_refusal(kind: Kind, namespace: str, name: str) -> Refusal:
    where = f"{namespace}/{name}" if namespace else name
    return Refusal(Reason.MISSING, f"{kind.plural} {where!r} not found", {"name": name})


def merge_change(old: Object, given: Object, subresource: str) -> Object:
    """The object with the caller's change: the status or scale alone, or all but the status."""
    if subresource == STATUS:
        return msgspec.structs.replace(old, status=given.status)  # type: ignore[attr-defined]
    if subresource == SCALE and isinstance(old, Workload) and isinstance(given, Workload):
        spec = msgspec.structs.replace(old.spec, replicas=given.spec.replicas)
        return msgspec.structs.replace(old, spec=spec)
    metadata = msgspec.structs.replace(
        old.metadata,
        labels=given.metadata.labels,
        annotations=given.metadata.annotations,
        owner_references=given.metadata.owner_references,
        finalizers=given.metadata.finalizers,
    )
    merged = msgspec.structs.replace(given, metadata=metadata)
    if hasattr(old, STATUS):
        merged = msgspec.structs.replace(merged, status=old.status)  # type: ignore[attr-defined]
    return merged


def rewrite(
    draft: Draft,
    context: Context,
    old: Object,
    new: Object,
    manager: str,
    subresource: str,
    operation: str,
    mark: str,
    fields: tuple[ManagedFields, ...] | None = None,
) -> Outcome:
    """Admit a changed object and write it, unless nothing changed after all."""
    if subresource == STATUS:
        new = without_computed(old, keeping_no_effect(old, new))
    admission = Admission(object=new, old=old)
    if subresource == STATUS:
        admission = Admission(object=stamp_job_end(context, old, new), old=old)
        refusal = (
            status_refusal(context, old, new)
            or _status_invalid(old, new)
            or end_refusal(context, old, new)
        )
    else:
        refusal = (
            finalizer_removal_refusal(draft, context, old, new)
            or finalizers_refusal(old, new)
            or _admit_change(draft, context, admission)
        )
    if refusal is None and fields is not None and fields != old.metadata.managed_fields:
        refusal = claim_refusal(context, old, status=subresource == STATUS)
    if refusal is not None:
        return refusal
    after = _counted(old, admission.object)
    if fields is None:
        after = _managed(context, old, after, manager, subresource)
    else:
        metadata = msgspec.structs.replace(after.metadata, managed_fields=fields)
        after = msgspec.structs.replace(after, metadata=metadata)
    said = tuple(admission.warnings)
    if not subresource:
        after = with_no_effect(after, context.at)
        said = (*said, *no_effect_warnings(after))
    if after == old:
        return Written(old, said)
    after = add_operation(draft, context, after, operation, mark)
    refusal = finish(draft, context, old, after)
    if refusal is not None:
        return refusal
    return Written(after, said)


def _status_invalid(old: Object, new: Object) -> Refusal | None:
    errors = (*validate_status(new), *validate_update(old, new))
    return invalid(new, errors) if errors else None


def _admit_change(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Run admission on a change, unless it changes nothing or only removes finalizers."""
    old, new = admission.old, admission.object
    if old is None or new == old or only_removes_finalizers(context, old, new):
        return None
    if only_disowns(draft, context, old, new):
        return None
    return admit(draft, context, admission)


def _counted(old: Object, new: Object) -> Object:
    """Count a change of the spec in the generation; changes of metadata or status do not count."""
    fields = [f for f in type(new).__struct_fields__ if f not in ("metadata", STATUS)]
    if all(getattr(old, field) == getattr(new, field) for field in fields):
        return new
    metadata = msgspec.structs.replace(new.metadata, generation=old.metadata.generation + 1)
    return msgspec.structs.replace(new, metadata=metadata)


def _managed(
    context: Context, old: Object | None, new: Object, manager: str, subresource: str
) -> Object:
    """The object with its managed fields brought up to date.

    Objects that only components write are not shared between managers: `field_writers.py` says who
    owns each of their fields, so entries on each of thousands of replicas would say nothing.
    """
    if not shared_with_people(type(new)):
        return new
    fields = entries_after_update(
        tree_of(old) if old is not None else None,
        tree_of(new),
        old.metadata.managed_fields if old is not None else (),
        manager=manager or context.identity.name,
        now=context.at,
        shape=shape_of(type(new)),
        subresource=subresource,
    )
    metadata = msgspec.structs.replace(new.metadata, managed_fields=fields)
    return msgspec.structs.replace(new, metadata=metadata)


STEPS = (
    PlacementStep(
        "create an object",
        "user, controller:workload",
        "what the caller believes to be missing; a controller, under its epoch",
        "another client creates it, its owner is deleted, it existed and is gone, or its "
        "purpose is already fulfilled: a job's index, a scheduled time of a cron job",
        "the first commit; the other gets AlreadyExists. The owner records what was "
        "done, the places ledger which incarnations existed, and both are compared",
        request=Create,
        handler=create,
        compares=(
            ComparedRecord.OBJECT,
            ComparedRecord.TENANT,
            ComparedRecord.OBJECTS_LEDGER,
            ComparedRecord.PLACES_LEDGER,
            ComparedRecord.EPOCH,
        ),
    ),
    PlacementStep(
        "update an object",
        "its writers",
        "the object at a resourceVersion",
        "another client writes it",
        "the first commit; the other gets StaleObject",
        request=Update,
        handler=update,
        compares=(ComparedRecord.OBJECT,),
    ),
)
