"""Admission: the checks that every object passes before it is written, always in the same order.

authenticate, authorise, decode, default, validate, set aside, policy, quota, persist. The shell
decodes (and refuses what is malformed) between authorise and default; here the order is data, and
nothing is written before the last step. What admission changed, and under which rules, is recorded
on the object.

Security, ownership, quota and protected capacity fail closed: what cannot be checked is refused.
Hints fail open with a warning that is recorded too.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.commit.access.authorize import identity_refusal, is_permitted, verb_refusal
from holdfast.commit.access.escalation import escalation_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import UNCOMMITTED, Draft
from holdfast.commit.ledgers.charges import capacity_class
from holdfast.commit.objects.admission_checks import POLICY_VERSION, apply_policies
from holdfast.commit.objects.admission_policies import evaluate_policies
from holdfast.commit.objects.field_writers import is_maker, spec_refusal
from holdfast.commit.objects.object_defaults import set_aside, set_server_fields
from holdfast.model import keys
from holdfast.model.access.rights import Permission
from holdfast.model.defaults import apply_defaults
from holdfast.model.errors import FieldError, Missing
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import PriorityClass, Quota, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, OwnerReference
from holdfast.model.placement.fit import demand_of
from holdfast.model.quota.allowance import never_fits
from holdfast.model.quota.charging import QUOTA_NAME, budget_of
from holdfast.model.quota.ledger import limits_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_named, kind_of, kind_of_struct
from holdfast.model.transaction import ABSENT
from holdfast.model.validation import validate, validate_update

# Which owners an object may name with `blockOwnerDeletion`.
#
# As in Kubernetes, a person who makes an owner's deletion wait for an object must be allowed to
# update that owner: otherwise a tenant that may write a Secret could keep an operator from deleting
# a node. A reference without it blocks nothing.


def blocking_owners_refusal(
    draft: Draft, context: Context, old: Object | None, new: Object
) -> Refusal | None:
    """Refuse a person who would block the deletion of an object that they may not update.

    References that the object already had stay, whatever its writer may do now.
    """
    named = new.metadata.owner_references
    if not named or Actor.USER not in context.actors():
        return None
    before = old.metadata.owner_references if old is not None else ()
    for index, owner in enumerate(named):
        if not owner.block_owner_deletion or owner in before:
            continue
        kind = _kind_of(owner)
        if kind is None:
            continue
        where = new.namespace if kind.namespaced else ""
        if not is_permitted(
            draft, context.identity, Permission("update", kind.plural, "", where, owner.name)
        ):
            return _refusal(context, index, owner, kind, where)
    return None


def _kind_of(owner: OwnerReference) -> Kind | None:
    """The owner's kind; validation refuses an unknown one."""
    try:
        return kind_named(owner.kind)
    except Missing:
        return None


def _refusal(
    context: Context, index: int, owner: OwnerReference, kind: Kind, where: str
) -> Refusal:
    field = f"metadata.ownerReferences[{index}].blockOwnerDeletion"
    scope = where or "the cluster"
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{field}: true: {context.identity.name} may not update {kind.plural} {owner.name} in "
        f"{scope}, so may not block its deletion; leave blockOwnerDeletion out",
        {"field": field, "missing": f"update {kind.plural}", "scope": scope},
    )


# What admission changed, one sentence a line, so that a user can see why the object differs from
# the file.
CHANGES_ANNOTATION = "holdfast.dev/admission"
# What was doubtful and accepted all the same, one sentence a line.
HINTS_ANNOTATION = "holdfast.dev/admission-hints"
# The version of the policies that work was admitted under, and the records with their revisions.
BASIS_ANNOTATION = "holdfast.dev/admission-basis"
_RECORDED = (CHANGES_ANNOTATION, HINTS_ANNOTATION, BASIS_ANNOTATION)
# One object may name many regions that do not exist.
HINTS_RECORDED_MAX = 16
_TENANT, _PRIORITY, _QUOTA = (kind_of_struct(it) for it in (Tenant, PriorityClass, Quota))


class Admission(msgspec.Struct):
    """One object in admission. `object` is its form so far."""

    object: Object
    old: Object | None = None
    changes: list[str] = []
    warnings: list[str] = []
    # Sentences that are recorded on the object and not returned as warnings.
    notes: list[str] = []


Step = Callable[[Draft, Context, Admission], Refusal | None]


def invalid(obj: Object, errors: tuple[FieldError, ...]) -> Refusal:
    """All errors of an object, in one refusal."""
    listed = "; ".join(str(error) for error in errors)
    return Refusal(
        Reason.INVALID,
        f"{type(obj).__name__} {obj.name!r} is invalid: {listed}",
        {"kind": type(obj).__name__, "name": obj.name},
        errors,
    )


def _authenticate(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    return identity_refusal(context)


def _authorise(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    obj, old = admission.object, admission.old
    if old is None:
        # A change was authorized for its own verb. An apply that creates its object was authorized
        # for another verb than a create.
        refusal = verb_refusal(draft, context, "create", kind_of(obj), obj.namespace)
        if refusal is not None or is_maker(context, obj):
            return refusal
    return (
        spec_refusal(context, obj)
        or escalation_refusal(draft, context, old, obj)
        or blocking_owners_refusal(draft, context, old, obj)
    )


def _default(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    shaped = set_server_fields(context, admission.object, admission.old)
    admission.object, sentences = apply_defaults(shaped.object)
    admission.changes.extend((*shaped.changes, *sentences))
    admission.warnings.extend(shaped.warnings)
    return None


def _validate(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    errors = validate(admission.object)
    if admission.old is not None:
        errors = (*errors, *validate_update(admission.old, admission.object))
    return invalid(admission.object, errors) if errors else None


def _tenant(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Refuse a namespaced object without its tenant; only the system namespace always exists."""
    obj = admission.object
    if not kind_of(obj).namespaced or obj.namespace == SYSTEM_NAMESPACE:
        return None
    tenant = draft.object(Tenant, "", obj.namespace)
    if tenant is None:
        return _tenant_refusal(Reason.MISSING, obj, f"tenant {obj.namespace!r} does not exist")
    if admission.old is not None:
        return None
    if tenant.metadata.deletion_timestamp is not None:
        return _tenant_refusal(Reason.TERMINATING, obj, f"tenant {tenant.name} is being deleted")
    if tenant.spec.suspended and isinstance(obj, Workload):
        text = f"tenant {tenant.name} accepts no new work"
        return _tenant_refusal(Reason.TENANT_SUSPENDED, obj, text)
    return None


def _tenant_refusal(reason: Reason, obj: Object, text: str) -> Refusal:
    where = {"field": "metadata.namespace", "policy": "tenant", "scope": f"Tenant {obj.namespace}"}
    return Refusal(reason, text, {"tenant": obj.namespace, **where})


def _set_aside(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Fill in the resources that work does not state.

    A template that does not change stays as it was admitted: scaling older work, by hand or by an
    autoscaler, must not cause a rollout.
    """
    obj, old = admission.object, admission.old
    if not isinstance(obj, Workload):
        return None
    if isinstance(old, Workload) and old.spec.template == obj.spec.template:
        return None
    admission.object, sentences = set_aside(draft, context, obj)
    admission.changes.extend(sentences)
    return None


def _asks_for_no_more(admission: Admission) -> bool:
    """Whether a change asks for nothing that was not admitted before.

    Rules and quotas may have become stricter since. They must not prevent scaling down, pausing or
    labelling existing work.
    """
    old, new = admission.old, admission.object
    if not isinstance(old, Workload) or not isinstance(new, Workload):
        return isinstance(old, Replica)
    return _judged(old.spec) == _judged(new.spec) and new.spec.replicas <= old.spec.replicas


def _judged(spec: WorkloadSpec) -> tuple[object, ...]:
    return spec.type, spec.template, spec.job, spec.recovery, spec.autoscale


def _policy(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    is_new = not _asks_for_no_more(admission)
    if is_new:
        outcome = apply_policies(draft, context, admission.object)
        if isinstance(outcome, Refusal):
            return outcome
        admission.object = outcome.object
        admission.changes.extend(outcome.changes)
        admission.warnings.extend(outcome.warnings)
    # What an operator's rules check, labels for instance, may change without asking for more.
    judged = evaluate_policies(draft, context, admission.object, admission.old, is_new=is_new)
    if isinstance(judged, Refusal):
        return judged
    admission.warnings.extend(judged.warnings)
    admission.notes.extend(judged.notes)
    return None


def _quota(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Refuse work of which not even one replica fits the quota. Nothing is charged here: a
    charge without a place would be a leak.
    """
    obj = admission.object
    if not isinstance(obj, Workload | Replica) or _asks_for_no_more(admission):
        return None
    quota = draft.object(Quota, obj.namespace, QUOTA_NAME)
    if quota is None:
        return None
    template = obj.spec.template
    of, budget = capacity_class(draft, template.priority_class), budget_of(template.priority_class)
    refusal = never_fits(limits_of(quota), of, demand_of(template).amounts, budget)
    if refusal is None:
        return None
    return msgspec.structs.replace(
        refusal,
        message=f"spec.template.resources: one replica alone exceeds the quota of tenant "
        f"{obj.namespace}: {refusal.message}",
        details={
            **refusal.details,
            "field": "spec.template.resources",
            "policy": "quota",
            "scope": obj.namespace,
        },
    )


def _record(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Record on the object what admission changed, doubted and relied on.

    A change that asks for nothing new keeps the earlier record.
    """
    metadata, old = admission.object.metadata, admission.old
    said = {k: v for k, v in metadata.annotations.items() if k not in _RECORDED}
    if isinstance(old, Workload) and _asks_for_no_more(admission):
        before = old.metadata.annotations
        said |= {key: before[key] for key in _RECORDED if key in before}
        if admission.warnings or admission.notes:
            said[HINTS_ANNOTATION] = _hints(before.get(HINTS_ANNOTATION, ""), admission)
    else:
        said |= _recorded(draft, admission)
    if said != metadata.annotations:
        metadata = msgspec.structs.replace(metadata, annotations=said)
        admission.object = msgspec.structs.replace(admission.object, metadata=metadata)
    return None


def _recorded(draft: Draft, admission: Admission) -> dict[str, str]:
    found: dict[str, str] = {}
    if admission.changes:
        found[CHANGES_ANNOTATION] = "\n".join(admission.changes)
    if admission.warnings or admission.notes:
        found[HINTS_ANNOTATION] = _hints("", admission)
    if isinstance(admission.object, Workload):
        found[BASIS_ANNOTATION] = _basis(draft, admission.object)
    return found


def _hints(before: str, admission: Admission) -> str:
    """The current hints, and then those recorded before."""
    hints = [*dict.fromkeys([*admission.warnings, *admission.notes, *before.splitlines()])]
    more = len(hints) - HINTS_RECORDED_MAX
    rest = [f"and {more} more"] if more > 0 else []
    return "\n".join([*hints[:HINTS_RECORDED_MAX], *rest])


def _basis(draft: Draft, obj: Workload) -> str:
    """The version of the policies, and the revision of each record that they read."""
    priority = budget_of(obj.spec.template.priority_class)
    records = (
        ("tenant", keys.object_key(_TENANT, "", obj.namespace)),
        (f"priorityclass {priority}", keys.object_key(_PRIORITY, "", priority)),
        ("quota", keys.object_key(_QUOTA, obj.namespace, QUOTA_NAME)),
        ("pools", keys.pools_ledger()),
    )
    asked = [(name, draft.revision_read(key)) for name, key in records]
    seen = [f"{name} {_as_of(revision)}" for name, revision in asked if revision is not None]
    return f"policy {POLICY_VERSION}: {', '.join(seen)}"


def _as_of(revision: int) -> str:
    return {ABSENT: "none", UNCOMMITTED: "made together with it"}.get(revision, f"@{revision}")


# The order is part of the contract: an unknown caller learns nothing about the schema, and the
# author of an invalid object nothing about other tenants' quota.
STEPS: tuple[tuple[str, Step], ...] = (
    ("authenticate", _authenticate),
    ("authorise", _authorise),
    ("default", _default),
    ("validate", _validate),
    ("tenant", _tenant),
    ("set aside", _set_aside),
    ("policy", _policy),
    ("quota", _quota),
    ("record", _record),
)


def admit(draft: Draft, context: Context, admission: Admission) -> Refusal | None:
    """Run all steps in order. The first refusal ends it."""
    for _, step in STEPS:
        refusal = step(draft, context, admission)
        if refusal is not None:
            return refusal
    return None
