"""What a write of one object changes elsewhere in the same transaction.

A node's ledger mirrors the node, a cohort's ledger the quotas of its tenants, the pools ledger the
regions, a namespace's access ledger its roles and bindings, and a tenant's objects ledger counts
its objects. A node that goes takes its certificates along. All of it happens here, for create,
update and delete alike.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.charges import QUOTA_NAME, alone
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.records import encode
from holdfast.commit.revoking import revoke_node
from holdfast.model import keys
from holdfast.model.disruption import (
    allowed_missing,
    counts_missing,
    desired_of,
    lost,
    made_up,
)
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.quota import ObjectCaps, Quota
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.role import Role, RoleBinding
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.ledger import (
    DisruptionLedger,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    limits_of,
    mirrored,
)
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.rights import AccessLedger, says_something, with_binding, with_role

# Objects that tell what happened have their own retention and do not count towards a tenant's caps.
UNCOUNTED = ("events", "decisions")
# What all roles and bindings of a namespace may take together: they are one record, and a store
# takes a megabyte and a half at once.
ACCESS_BYTES_MAX = 256 * 1024


def reflect(
    draft: Draft, context: Context, old: Object | None, new: Object | None
) -> Refusal | None:
    """Write all that depends on this object, after the object changed from `old` to `new`."""
    some = new if new is not None else old
    match some:
        case Node():
            refusal = _node(draft, some, gone=new is None)
            if refusal is None and new is None:
                revoke_node(draft, context, some)
            return refusal
        case Quota() if some.name == QUOTA_NAME:
            _quota(draft, some.namespace, old, new)
        case Region():
            _region(draft, some.name, new)
        case Tenant() if new is None:
            _tenant_gone(draft, some.name)
        case Workload():
            _workload(draft, some, gone=new is None)
        case Replica() if old is None or new is None:
            _replica(draft, some, 1 if old is None else -1)
        case Role() | RoleBinding():
            refusal = _access(draft, some, gone=new is None)
            if refusal is not None:
                return refusal
    if some is not None and (old is None or new is None):
        return _count(draft, context, some, 1 if old is None else -1)
    return None


def _node(draft: Draft, node: Node, *, gone: bool) -> Refusal | None:
    key = keys.node_ledger(node.name)
    ledger = draft.ledger(NodeLedger, key)
    if not gone:
        after = mirrored(node, ledger)
        if after != ledger:
            draft.write(key, after)
        return None
    busy = ledger is not None and (
        ledger.used
        or ledger.ports
        or ledger.promised
        or any(s.owners for s in ledger.devices.values())
    )
    if busy:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"node {node.name} still has work or reservations: drain it first",
            {"node": node.name},
        )
    if ledger is not None:
        draft.delete(key)
    return None


def _cohort(quota: Object | None, tenant: str) -> str:
    return (isinstance(quota, Quota) and quota.spec.cohort) or alone(tenant)


def _quota(draft: Draft, tenant: str, old: Object | None, new: Object | None) -> None:
    """Mirror the limits, and take the tenant's sums along when it changes its cohort."""
    before, after = _cohort(old, tenant), _cohort(new, tenant)
    limits = limits_of(new) if isinstance(new, Quota) else TenantLimits()
    source = draft.ledger(QuotaLedger, keys.quota_ledger(before)) or QuotaLedger()
    use = source.used.get(tenant, TenantUse())
    if before != after:
        rest = QuotaLedger(
            limits={who: value for who, value in source.limits.items() if who != tenant},
            used={who: value for who, value in source.used.items() if who != tenant},
        )
        draft.write(keys.quota_ledger(before), rest)
        source = draft.ledger(QuotaLedger, keys.quota_ledger(after)) or QuotaLedger()
    changed = msgspec.structs.replace(
        source,
        limits={**source.limits, tenant: limits},
        used={**source.used, tenant: use},
    )
    if changed != source:
        draft.write(keys.quota_ledger(after), changed)


def _region(draft: Draft, name: str, new: Object | None) -> None:
    pools = draft.ledger(PoolsLedger, keys.pools_ledger()) or PoolsLedger()
    mine = {
        pool.name: pool.protected_for
        for pool in (new.spec.pools if isinstance(new, Region) else ())
        if pool.protected_for is not None
    }
    rest = {region: table for region, table in pools.protected.items() if region != name}
    after = PoolsLedger(protected={**rest, name: mine} if mine else rest)
    if after != pools:
        draft.write(keys.pools_ledger(), after)


def _tenant_gone(draft: Draft, tenant: str) -> None:
    """Leave no empty ledgers behind. One that still has sums in it would be evidence of a leak."""
    counted, charged = keys.objects_ledger(tenant), keys.quota_ledger(alone(tenant))
    objects = draft.ledger(ObjectsLedger, counted)
    if objects is not None and not objects.counts:
        draft.delete(counted)
    quota = draft.ledger(QuotaLedger, charged)
    if quota is not None and all(use == TenantUse() for use in quota.used.values()):
        draft.delete(charged)


def _workload(draft: Draft, workload: Workload, *, gone: bool) -> None:
    """The budget follows the spec. Who is out is left as it is; who is missing counts only while
    there is a budget, since nobody settles what has none.
    """
    key = keys.disruption_ledger(workload.namespace, workload.name)
    ledger = draft.ledger(DisruptionLedger, key)
    if gone:
        if ledger is not None:
            draft.delete(key)
        return
    allowed = allowed_missing(workload.spec.disruption, workload.spec.replicas)
    before = ledger if ledger is not None else DisruptionLedger()
    after = msgspec.structs.replace(
        before,
        allowed=allowed,
        desired=desired_of(workload),
        missing=before.missing if counts_missing(workload) else (),
    )
    if after != before:
        draft.write(key, after)


def _replica(draft: Draft, replica: Replica, change: int) -> None:
    """Count a workload's replicas.

    One that is born is missing until it was seen ready, so its place counts all the time: before
    its birth as one that is not there, and after it as one that does not work yet.
    """
    key = keys.disruption_ledger(replica.namespace, replica.spec.workload)
    ledger = draft.ledger(DisruptionLedger, key) or DisruptionLedger()
    if change < 0:
        ledger = made_up(ledger, replica.metadata.uid)
    elif ledger.allowed is not None:
        workload = draft.object(Workload, replica.namespace, replica.spec.workload)
        if workload is not None and counts_missing(workload):
            ledger = lost(ledger, replica.metadata.uid)
    draft.write(key, msgspec.structs.replace(ledger, replicas=ledger.replicas + change))


def _access(draft: Draft, some: Role | RoleBinding, *, gone: bool) -> Refusal | None:
    """What roles and bindings come to, for whoever decides what somebody may do."""
    key = keys.access_ledger(some.namespace)
    before = draft.ledger(AccessLedger, key) or AccessLedger()
    counts = not gone and says_something(some)
    if isinstance(some, Role):
        after = with_role(before, some.name, some.rules if counts else None)
    else:
        after = with_binding(before, some.namespace, some.name, some if counts else None)
    if after == before:
        return None
    if after == AccessLedger():
        draft.delete(key)
        return None
    size = len(encode(after))
    if not gone and size > ACCESS_BYTES_MAX:
        return Refusal(
            Reason.OBJECT_CAP,
            f"the roles and bindings of namespace {some.namespace} would take {size} bytes "
            f"together; at most {ACCESS_BYTES_MAX}",
            {"tenant": some.namespace, "resource": "roles", "limit": str(ACCESS_BYTES_MAX)},
        )
    draft.write(key, after)
    return None


def erase(draft: Draft, context: Context, obj: Object) -> Refusal | None:
    """Delete an object and all that mirrors it."""
    refusal = reflect(draft, context, obj, None)
    if refusal is None:
        draft.delete(keys.key_of(obj))
    return refusal


def _count(draft: Draft, context: Context, some: Object, change: int) -> Refusal | None:
    kind = kind_of(some)
    if not kind.namespaced or kind.plural in UNCOUNTED:
        return None
    key = keys.objects_ledger(some.namespace)
    ledger = draft.ledger(ObjectsLedger, key) or ObjectsLedger()
    count = ledger.counts.get(kind.plural, 0) + change
    if change > 0:
        refusal = _cap_refusal(draft, context, some.namespace, kind.plural, count, ledger)
        if refusal is not None:
            return refusal
    counts = {**ledger.counts, kind.plural: count}
    draft.write(key, ObjectsLedger(counts={p: n for p, n in counts.items() if n > 0}))
    return None


def _cap_refusal(
    draft: Draft, context: Context, tenant: str, plural: str, count: int, ledger: ObjectsLedger
) -> Refusal | None:
    quota = draft.object(Quota, tenant, QUOTA_NAME)
    stated = quota.spec.objects if quota is not None else ObjectCaps()
    most = context.settings.objects_per_tenant_max
    own = {"workloads": stated.workloads, "replicas": stated.replicas}.get(plural)
    default = context.settings.workloads_per_tenant_max if plural == "workloads" else most
    for what, have, cap in (
        (plural, count, default if own is None else own),
        (
            "objects",
            sum(ledger.counts.values()) + 1,
            most if stated.objects is None else stated.objects,
        ),
    ):
        if have > cap:
            return _over(tenant, what, cap)
    return None


def _over(tenant: str, what: str, cap: int) -> Refusal:
    return Refusal(
        Reason.OBJECT_CAP,
        f"tenant {tenant} has reached its cap of {cap} {what}",
        {
            "tenant": tenant,
            "resource": what,
            "limit": str(cap),
            "field": "metadata.namespace",
            "policy": "object-cap",
            "scope": f"Tenant {tenant}",
        },
    )
