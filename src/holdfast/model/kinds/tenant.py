"""Tenant, Quota and PriorityClass. Each tenant is a namespace."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Resources
from holdfast.model.meta import Condition, Count, Object, Part, Quantity, Revision, Timestamp

# The resources in a tenant's namespace, in the order in which they are deleted with the tenant.
# Replicas are deleted with their workloads. controller:garbage lists and removes these.
CONTENTS = (
    "workloads",
    "overrides",
    "commitments",
    "endpoints",
    "workloadrevisions",
    "reservations",
    "secrets",
    "tokens",
    "rolebindings",
    "roles",
    "quotas",
    "events",
)


class TenantPhase(StrEnum):
    ACTIVE = "Active"
    TERMINATING = "Terminating"


class ImagePolicy(Part, frozen=True):
    """Which images a tenant's containers may use.

    registries: prefixes of references, such as registry.example.com/team, or directories of nodes,
        such as /srv/images; empty means all.
    digests_only: accept only references by digest, which always name the same content.
    """

    registries: tuple[str, ...] = ()
    digests_only: bool = False


class TenantSpec(Part, frozen=True):
    """Rules for all of a tenant's work.

    display_name: a name for users.
    residency: the jurisdiction that none of its data may leave.
    regions: the only regions it may use; empty means all.
    suspended: accept no new work.
    isolation: the minimum isolation of its work from that of other tenants.
    users: the users of nodes that its processes may run as, on nodes where each tenant has its own
        user; empty means only that one.
    host_network: whether its containers may use the network of their nodes.
    images: which images its containers may use.
    defaults: the resources of each replica of work that does not state them; a resource that is
        left out has the plane's default.
    minimum: the least resources of each replica; a resource that is left out has the plane's
        minimum.
    """

    display_name: str = ""
    residency: str = ""
    regions: tuple[str, ...] = ()
    suspended: bool = False
    isolation: Isolation = Isolation.NONE
    users: tuple[str, ...] = ()
    host_network: bool = False
    images: ImagePolicy = ImagePolicy()
    defaults: Resources = Resources()
    minimum: Resources = Resources()


class TenantStatus(Part, frozen=True):
    """What was observed.

    phase: Active, or Terminating while its objects go away.
    conditions: each type has one writer.
    """

    phase: TenantPhase = TenantPhase.ACTIVE
    conditions: tuple[Condition, ...] = ()


class Tenant(Object, frozen=True, kw_only=True, tag="Tenant"):
    """An owner of work; its name is the namespace of all its objects.

    spec: rules for all of its work.
    status: what was observed.
    """

    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()


# Quota: how much a tenant may have committed at once.
#
# Its usage is in the quota ledger.


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
    bytes: the bytes of all of them together, without statuses and records of the server.
    """

    workloads: Count | None = None
    replicas: Count | None = None
    pending: Count | None = None
    objects: Count | None = None
    bytes: Count | None = None


class QuotaSpec(Part, frozen=True):
    """Limits. A resource that is not named is not limited.

    cohort: tenants of one cohort lend each other unused quota; by default a tenant is alone.
    hard: nominal amounts of committed capacity, by resource.
    reclaimable: nominal amounts for work that may be preempted, by resource.
    borrowing: how much may be borrowed from the cohort on top of the hard nominal amounts, by
        resource.
    priority_classes: budgets, by priority class and resource: the most that all work of the class
        may use together, whatever else is free. A class that is not named has no budget.
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

    The server that answers fills in what is used, from the ledger. That is not stored, and a change
    of it alone is no event of a watch.

    used: by class and resource.
    used_revision: the revision of the store at which the ledger was read.
    used_at: when that was; the time since then is the age of `used`.
    conditions: each type has one writer; Exhausted is not written yet.
    """

    used: dict[str, dict[str, str]] = {}
    used_revision: Revision = 0
    used_at: Timestamp | None = None
    conditions: tuple[Condition, ...] = ()


class Quota(Object, frozen=True, kw_only=True, tag="Quota"):
    """How much a tenant may have committed at once. One per tenant counts: the one named `default`.

    spec: the limits.
    status: what is used of them.
    """

    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


# PriorityClass: how urgent work is, and who may use it.


class PriorityClassSpec(Part, frozen=True):
    """The meaning of the class.

    value: higher values are placed first.
    urgent: use the fast lane of the queue.
    capacity_class: hard work is charged as committed capacity, reclaimable work may be preempted.
    preempts: whether it may preempt less important work. It has no effect yet.
    allowed_tenants: the only tenants that may use it; empty means all.
    description: a description for users.
    """

    value: Annotated[int, Meta(ge=-1_000_000, le=1_000_000_000)] = 0
    urgent: bool = False
    capacity_class: CapacityClass = CapacityClass.HARD
    preempts: bool = False
    allowed_tenants: tuple[str, ...] = ()
    description: str = ""


class PriorityClass(Object, frozen=True, kw_only=True, tag="PriorityClass"):
    """How urgent work is, and who may use it. The class `default` applies if none is named.

    spec: the meaning of the class.
    """

    spec: PriorityClassSpec = PriorityClassSpec()
