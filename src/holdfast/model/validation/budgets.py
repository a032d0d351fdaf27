"""Validates quotas and grants: the limits of a tenant, and a region's part of them."""

from __future__ import annotations

from holdfast.model.kinds.region import Grant
from holdfast.model.kinds.tenant import ObjectCaps, Quota, QuotaSpec
from holdfast.model.quota.charging import QUOTA_NAME
from holdfast.model.validation import amounts, names
from holdfast.model.validation.findings import FieldPath
from holdfast.model.validation.moments import after_creation

# Less than one workload a second would be unusable.
WRITE_BYTES_MIN = 1 << 10
# Every bind writes the sums of all priority classes of its tenant.
CLASSES_MAX = 32


def quota(obj: Quota, at: FieldPath) -> None:
    if obj.name and obj.name != QUOTA_NAME:
        # A quota with another name would look like a limit and have no effect.
        at["metadata"]["name"].wrong(
            obj.name, f'must be "{QUOTA_NAME}": a tenant has one quota with this name'
        )
    spec, at = obj.spec, at["spec"]
    names.optional_name(at["cohort"], spec.cohort)
    hard = amounts.table(at["hard"], spec.hard)
    amounts.table(at["reclaimable"], spec.reclaimable)
    for resource in amounts.table(at["borrowing"], spec.borrowing):
        if resource not in spec.hard:
            at["borrowing"].entry(resource).wrong(
                resource, "must be limited in spec.hard: an unlimited resource cannot be borrowed"
            )
    if spec.borrowing and not spec.cohort:
        at["borrowing"].wrong(spec.borrowing, "must be left out without a cohort to borrow from")
    _minimum(at["fairness"]["minimum"], spec, hard)
    _classes(at["priorityClasses"], spec)
    _caps(at["objects"], spec.objects)
    if spec.requests_per_second == 0:
        at["requestsPerSecond"].wrong(
            0, "must be at least 1: with 0 the quota could never be changed again"
        )
    stated = spec.write_bytes_per_second
    if stated is not None and stated < WRITE_BYTES_MIN:
        at["writeBytesPerSecond"].wrong(stated, f"must be at least {WRITE_BYTES_MIN}")


def _minimum(at: FieldPath, spec: QuotaSpec, hard: dict[str, int]) -> None:
    """Checks the minimum share. None is above its tenant's nominal amount, so that together they
    are never above the sum of the cohort.
    """
    for resource, units in amounts.table(at, spec.fairness.minimum).items():
        place = at.entry(resource)
        stated = spec.fairness.minimum[resource]
        if resource not in spec.hard:
            place.wrong(
                stated, "must be of a resource in spec.hard: a minimum is a part of the quota"
            )
        elif units > hard.get(resource, units):
            place.wrong(stated, f"must be at most spec.hard, which is {spec.hard[resource]}")


def _classes(at: FieldPath, spec: QuotaSpec) -> None:
    """Checks the budgets of priority classes."""
    if not names.at_most(at, spec.priority_classes, CLASSES_MAX):
        return
    for name, budget in spec.priority_classes.items():
        place = at.entry(name)
        if not names.is_name(name):
            place.wrong(name, f"must be the name of a priority class: {names.NAME_RULE}")
        elif not budget:
            place.wrong(budget, "must name a resource: a budget without one limits nothing")
        else:
            amounts.table(place, budget)


def _caps(at: FieldPath, caps: ObjectCaps) -> None:
    """A cap above the cap that contains it would have no effect."""
    for field, value, whole, most in (
        ("pending", caps.pending, "replicas", caps.replicas),
        ("replicas", caps.replicas, "objects", caps.objects),
        ("workloads", caps.workloads, "objects", caps.objects),
    ):
        if value is not None and most is not None and value > most:
            at[field].wrong(value, f"must be at most {whole}, which is {most}")


def grant(obj: Grant, at: FieldPath) -> None:
    spec, at = obj.spec, at["spec"]
    names.name(at["tenant"], spec.tenant)
    names.name(at["region"], spec.region)
    for field, budget in (
        ("guaranteed", spec.guaranteed),
        ("recovery", spec.recovery),
        ("temporary", spec.temporary),
    ):
        amounts.table(at[field], budget)
    after_creation(at["expires"], spec.expires, obj)


def grant_status(obj: Grant, at: FieldPath) -> None:
    if obj.status.accepted_serial > obj.spec.serial:
        at["status"]["acceptedSerial"].wrong(
            obj.status.accepted_serial, f"must be at most the serial, which is {obj.spec.serial}"
        )


def grant_update(old: Grant, new: Grant, at: FieldPath) -> None:
    """A region distinguishes renewals by their serial, so every change needs a greater one."""
    before, after = old.spec, new.spec
    if after.serial < before.serial:
        at["spec"]["serial"].wrong(after.serial, f"must not fall below {before.serial}")
    elif after.serial == before.serial and after != before:
        at["spec"]["serial"].wrong(after.serial, "must grow when the budget or its expiry changes")
    if new.status.accepted_serial < old.status.accepted_serial:
        at["status"]["acceptedSerial"].wrong(
            new.status.accepted_serial, f"must not fall below {old.status.accepted_serial}"
        )
