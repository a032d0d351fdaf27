"""Tenant, Quota and PriorityClass. Each tenant is a namespace."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from holdfast.model.kind_declaration import (
    OPERATORS,
    Kind,
    KindRules,
    Unwritten,
    Writers,
    count,
    join_map,
    moment,
    text,
)
from holdfast.model.kinds.placement import Isolation
from holdfast.model.kinds.template import Resources
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import (
    Condition,
    Count,
    Object,
    Part,
    Quantity,
    Revision,
    Seconds,
    Timestamp,
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


class TenantFairness(Part, frozen=True):
    """What the tenant has and what it is owed, in percent of the plane, as its scheduler sees it.

    share: the largest part of any resource that it holds.
    entitlement: the share that it would have if work were divided fairly now.
    debt: the entitlement less the share; negative if it has more than its part.
    remembered: the average of its share, of which half is forgotten after each half-life.
    settle_by: by when a debt above the tolerance is settled; absent if there is none.
    """

    share: str = ""
    entitlement: str = ""
    debt: str = ""
    remembered: str = ""
    settle_by: Timestamp | None = None


class TenantStatus(Part, frozen=True):
    """What was observed.

    The server that answers fills in the fairness figures, from the reports of schedulers. They are
    not stored, and a change of them alone is no event of a watch.

    phase: Active, or Terminating while its objects go away.
    fairness: its share, what it is entitled to and what it is owed.
    conditions: each type has one writer.
    """

    phase: TenantPhase = TenantPhase.ACTIVE
    fairness: TenantFairness | None = None
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


class FairShare(Part, frozen=True):
    """What a tenant is entitled to, compared with others, when not all work fits.

    weight: its part of what tenants compete for, relative to the weights of the others.
    minimum: amounts that it gets before any tenant gets more than its own minimum, by resource.
    """

    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    minimum: dict[str, Quantity] = {}


class Lending(Part, frozen=True):
    """How the cohort takes back what this tenant has borrowed, when the lender needs it.

    notice_seconds: how long before the first replica is stopped the borrower is told.
    stops_per_minute: the most replicas of this tenant that are stopped in a minute.
    """

    notice_seconds: Seconds = 60
    stops_per_minute: Annotated[int, Meta(ge=1, le=10_000)] = 60


class QueueLimits(Part, frozen=True):
    """How much of a tenant's work a scheduler considers at once; absent means no own limit.

    pending_per_workload: the replicas of one workload that are queued; the others wait in the
        store.
    binds: the binds of the tenant that are sent and not settled.
    binds_per_workload: the same for one workload.
    """

    pending_per_workload: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    binds: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    binds_per_workload: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


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
    fairness: what it is entitled to when not all work fits.
    lending: how the cohort takes back what it has borrowed.
    queue: how much of its work a scheduler considers at once.
    """

    cohort: str = ""
    hard: dict[str, Quantity] = {}
    reclaimable: dict[str, Quantity] = {}
    borrowing: dict[str, Quantity] = {}
    priority_classes: dict[str, dict[str, Quantity]] = {}
    objects: ObjectCaps = ObjectCaps()
    requests_per_second: Count | None = None
    write_bytes_per_second: Count | None = None
    fairness: FairShare = FairShare()
    lending: Lending = Lending()
    queue: QueueLimits = QueueLimits()


class ReclaimNotice(Part, frozen=True):
    """The cohort wants back what this tenant has borrowed.

    since: when the tenant was told.
    deadline: from when on its replicas may be stopped.
    amounts: how much, by resource.
    lenders: how many tenants wait for it; a tenant learns no name of another.
    """

    since: Timestamp
    deadline: Timestamp
    amounts: dict[str, str] = {}
    lenders: Count = 0


class QuotaStatus(Part, frozen=True):
    """What is known of a quota besides what is stated.

    The server that answers fills in what is used, from the ledger. That is not stored, and a change
    of it alone is no event of a watch.

    used: by class and resource.
    used_revision: the revision of the store at which the ledger was read.
    used_at: when that was; the time since then is the age of `used`.
    reclaim: what the cohort wants back, and when; absent if nothing.
    conditions: each type has one writer; Exhausted is not written yet.
    """

    used: dict[str, dict[str, str]] = {}
    used_revision: Revision = 0
    used_at: Timestamp | None = None
    reclaim: ReclaimNotice | None = None
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
    preempts: whether it may stop other work to make room: reclaimable work of lower value, and what
        other tenants have borrowed from its own.
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


def _fairness(of: Callable[[TenantFairness], str]) -> Callable[[Tenant], str]:
    def figure(tenant: Tenant) -> str:
        found = tenant.status.fairness
        return of(found) if found is not None else "-"

    return figure


def _settle_by(tenant: Tenant) -> datetime | None:
    return tenant.status.fairness.settle_by if tenant.status.fairness is not None else None


def _reclaim(quota: Quota) -> str:
    notice = quota.status.reclaim
    if notice is None:
        return "-"
    return f"{join_map(notice.amounts)} from {notice.deadline.isoformat(timespec='seconds')}"


def _budgets(quota: Quota) -> str:
    classes = quota.spec.priority_classes
    return ";".join(f"{name}:{join_map(budget)}" for name, budget in classes.items()) or "-"


def _quota_rules() -> KindRules:
    from holdfast.model.validation import budgets

    return KindRules(budgets.quota)


QUOTA_KIND = Kind(
    Quota,
    "quotas",
    rules=_quota_rules,
    # What is used of it is filled in when it is read, and never stored.
    writers=Writers(
        spec=OPERATORS,
        status={"reclaim": Actor.QUOTA},
        conditions={"Exhausted": Actor.QUOTA},
    ),
    columns=(
        text("Cohort", lambda o: o.spec.cohort or "-", "with whom it lends and borrows"),
        text("Hard", lambda o: join_map(o.spec.hard), "what may be committed"),
        text("Used", lambda o: join_map(o.status.used.get("hard", {})), "what is committed"),
        text("Borrowing", lambda o: join_map(o.spec.borrowing), "on top of that", wide=True),
        text("Reclaim", _reclaim, "what the cohort wants back, and from when on it stops work"),
        text("Budgets", _budgets, "by priority class", wide=True),
    ),
    removal_order=9,
    computed=("used", "used_revision", "used_at"),
    unwritten=Unwritten((), ("Exhausted",)),
)


def _tenant_rules() -> KindRules:
    from holdfast.model.validation import tenancy

    return KindRules(tenancy.tenant)


TENANT_KIND = Kind(
    Tenant,
    "tenants",
    rules=_tenant_rules,
    writers=Writers(
        spec=OPERATORS, status={"phase": Actor.GARBAGE}, conditions={"Emptied": Actor.GARBAGE}
    ),
    columns=(
        text("Phase", lambda o: o.status.phase.value, "Active or Terminating"),
        text("Residency", lambda o: o.spec.residency or "-", "where its data must stay"),
        text(
            "Share",
            _fairness(lambda it: it.share),
            "the largest part of any resource that it holds",
        ),
        text("Entitlement", _fairness(lambda it: it.entitlement), "what its part would be"),
        text("Debt", _fairness(lambda it: it.debt), "what it is owed; negative if it has more"),
        text("Regions", lambda o: ",".join(o.spec.regions) or "*", "which it may use", wide=True),
        text("Remembered", _fairness(lambda it: it.remembered), "its average share", wide=True),
        moment("Settle by", _settle_by, "when a debt is settled", wide=True),
    ),
    namespaced=False,
    short_names=("tn",),
    computed=("fairness",),
)


def _priority_class_rules() -> KindRules:
    from holdfast.model.validation import tenancy

    return KindRules(tenancy.priority_class)


PRIORITY_CLASS_KIND = Kind(
    PriorityClass,
    "priorityclasses",
    rules=_priority_class_rules,
    writers=Writers(spec=OPERATORS),
    columns=(
        count("Value", lambda o: o.spec.value, "higher goes first"),
        text("Class", lambda o: o.spec.capacity_class.value, "how its capacity is charged"),
        text("Tenants", lambda o: ",".join(o.spec.allowed_tenants) or "*", "who may use it"),
    ),
    namespaced=False,
    short_names=("pc",),
    status=False,
    immutable=("spec.value",),
)
