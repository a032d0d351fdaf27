"""Quota: how much a tenant may have committed at once.

Its usage is not here but in the quota ledger.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.meta import Condition, Count, Object, Part, Quantity


class CapacityClass(StrEnum):
    """How firm capacity is. Classes are never added to each other.

    HARD is committed and reserved, RECLAIMABLE may be preempted, SOFT is only expected and backs
    no commitment.
    """

    HARD = "hard"
    RECLAIMABLE = "reclaimable"
    SOFT = "soft"


class ObjectCaps(Part, frozen=True):
    """How many objects the tenant may have; absent means the plane's default.

    workloads: workloads.
    replicas: replicas in any state but Released.
    pending: replicas that wait for a place.
    objects: everything together.
    bytes: what was written into all of them together, statuses and records of the server not
        counted.
    """

    workloads: Count | None = None
    replicas: Count | None = None
    pending: Count | None = None
    objects: Count | None = None
    bytes: Count | None = None


class QuotaSpec(Part, frozen=True):
    """Limits. A resource that is not named is not limited.

    cohort: tenants of one cohort lend each other what they do not use; by default a tenant stands
        alone.
    hard: nominal amounts of committed capacity, by resource.
    reclaimable: nominal amounts for work that may be preempted, by resource.
    borrowing: how much may be borrowed from the cohort on top of the hard nominal amounts, by
        resource.
    priority_classes: budgets, by priority class and resource: the most that all work of the class
        may have together, whatever else is free. A class that is not named has no budget.
    objects: how many objects the tenant may have.
    requests_per_second: how many API requests a second the tenant may make.
    write_bytes_per_second: how many bytes a second the tenant's requests may write, each object
        counted whole; absent means the plane's default.
    """

    cohort: str = ""
    hard: dict[str, Quantity] = {}
    reclaimable: dict[str, Quantity] = {}
    borrowing: dict[str, Quantity] = {}
    priority_classes: dict[str, dict[str, Quantity]] = {}
    objects: ObjectCaps = ObjectCaps()
    requests_per_second: Count | None = None
    write_bytes_per_second: Count | None = None


class QuotaStatus(Part, frozen=True):
    """What is known of a quota besides what is stated.

    used: by class and resource, as the ledger has it when the Quota is read. It is not stored.
    conditions: each type has one writer.
    """

    used: dict[str, dict[str, str]] = {}
    conditions: tuple[Condition, ...] = ()


class Quota(Object, frozen=True, kw_only=True, tag="Quota"):
    """How much a tenant may have committed at once. One per tenant counts: the one named `default`.

    spec: the limits.
    status: a copy of the ledger for people.
    """

    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()
