"""Derived records: what a write of one object changes elsewhere in the same transaction.

A node's ledger follows the node, a cohort's ledger the quotas of its tenants, the pools ledger the
regions, a namespace's access ledger its roles and bindings, and a tenant's objects ledger counts
its objects. The deletion of a node revokes its certificates, and that of a lease deletes its epoch.
All of it happens here, for create, update and delete alike.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.commit.access.revocation import revoke_node
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.charges import quarantine_refusal
from holdfast.commit.lifecycle.replica_birth import leave_place
from holdfast.commit.record_encoding import Epoch, EpochFloor, encode
from holdfast.model import keys
from holdfast.model.access.rights import AccessLedger, is_custom, with_binding, with_role
from holdfast.model.kinds.access import Role, RoleBinding
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import ObjectCaps, Quota, Tenant
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object
from holdfast.model.placement.disruption import (
    allowed_missing,
    availability_key,
    count_change,
    desired_of,
)
from holdfast.model.quota.charging import QUOTA_NAME, quota_cohort
from holdfast.model.quota.ledger import (
    DisruptionLedger,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    limits_of,
    mirror_node,
)
from holdfast.model.quota.weights import replicas_wanted, weighs_the_same, weight
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of

# Objects that record history have their own retention and do not count towards a tenant's caps.
UNCOUNTED = ("events", "decisions")
# The size limit for all roles and bindings of a namespace: they are one record, and a store takes
# one and a half megabytes at once.
ACCESS_BYTES_MAX = 256 * 1024


def update_derived_records(
    draft: Draft, context: Context, old: Object | None, new: Object | None
) -> Refusal | None:
    """Write all records that depend on this object, after it changed from `old` to `new`."""
    some = new if new is not None else old
    match some:
        case Node():
            refusal = _node(draft, some, gone=new is None)
            if refusal is None and new is None:
                revoke_node(draft, context, some)
            return refusal
        case Quota() if some.name == QUOTA_NAME:
            refusal = _quota(draft, some.namespace, old, new)
            if refusal is not None:
                return refusal
        case Region():
            _region(draft, some.name, new)
        case Tenant() if new is None:
            _tenant_gone(draft, some.name)
        case Workload():
            _workload(draft, some, gone=new is None)
        case Replica():
            _replica(draft, some, gone=new is None)
        case Role() | RoleBinding():
            refusal = _access(draft, some, gone=new is None)
            if refusal is not None:
                return refusal
    if some is None or (old is not None and new is not None and weighs_the_same(old, new)):
        return None
    return _count(draft, context, some, old, new)


def forget_epoch(draft: Draft, scope: str) -> None:
    """Delete the epoch of a scope whose lease is deleted. The floor rises with every deleted
    epoch, so that none is ever used again.
    """
    current: Epoch | None = draft.read(keys.epoch(scope))
    if current is None:
        return
    floor: EpochFloor | None = draft.read(keys.epoch_floor())
    if floor is None or floor.epoch < current.epoch:
        draft.write(keys.epoch_floor(), EpochFloor(current.epoch))
    draft.delete(keys.epoch(scope))


def _node(draft: Draft, node: Node, *, gone: bool) -> Refusal | None:
    key = keys.node_ledger(node.name)
    ledger = draft.ledger(NodeLedger, key)
    if not gone:
        after = mirror_node(node, ledger)
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
    return quota_cohort(quota if isinstance(quota, Quota) else None, tenant)


def _quota(draft: Draft, tenant: str, old: Object | None, new: Object | None) -> Refusal | None:
    """Copy the limits, and move the tenant's sums when it changes its cohort.

    Sums in doubt stay where they are: a recount of the ledger in quarantine would not find them any
    more, and the other ledger would trust them.
    """
    before, after = _cohort(old, tenant), _cohort(new, tenant)
    limits = limits_of(new) if isinstance(new, Quota) else TenantLimits()
    source = draft.ledger(QuotaLedger, keys.quota_ledger(before)) or QuotaLedger()
    use = source.used.get(tenant, TenantUse())
    if before != after:
        refusal = quarantine_refusal(source, tenant, before)
        if refusal is not None:
            return refusal
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
    return None


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
    """Delete empty ledgers. One with sums left in it would be evidence of a leak."""
    counted, charged = keys.objects_ledger(tenant), keys.quota_ledger(quota_cohort(None, tenant))
    objects = draft.ledger(ObjectsLedger, counted)
    if objects is not None and not objects.counts:
        draft.delete(counted)
    quota = draft.ledger(QuotaLedger, charged)
    if quota is not None and all(use == TenantUse() for use in quota.used.values()):
        draft.delete(charged)


def _workload(draft: Draft, workload: Workload, *, gone: bool) -> None:
    """Update the budget from the spec; the counts do not depend on it."""
    key = keys.disruption_ledger(workload.namespace, workload.name)
    ledger = draft.ledger(DisruptionLedger, key)
    if gone:
        if ledger is not None:
            draft.delete(key)
            for page in ledger.pages:
                draft.delete(keys.places_ledger(workload.namespace, workload.name, page))
        return
    before = ledger if ledger is not None else DisruptionLedger()
    after = msgspec.structs.replace(
        before,
        allowed=allowed_missing(workload.spec.disruption, workload.spec.replicas),
        desired=desired_of(workload),
        type=workload.spec.type,
    )
    if after != before:
        draft.write(key, after)


def write_replica(draft: Draft, replica: Replica) -> None:
    """Write an existing replica, and update the counts of its workload's ledger. A write that
    bypasses this function breaks the sum.
    """
    _replica(draft, replica, gone=False)
    draft.write(keys.key_of(replica), replica)


def _replica(draft: Draft, replica: Replica, *, gone: bool) -> None:
    """Count a workload's replicas, and the healthy ones among them.

    The ledger has counted the replica as this draft last read it. A deleted replica leaves its
    incarnation behind.
    """
    before: Replica | None = draft.read(keys.key_of(replica))
    after = None if gone else replica
    if availability_key(before) == availability_key(after):
        return
    key = keys.disruption_ledger(replica.namespace, replica.spec.workload)
    ledger = draft.ledger(DisruptionLedger, key) or DisruptionLedger()
    ledger = count_change(ledger, before, after)
    if gone:
        ledger = leave_place(draft, replica, ledger)
    draft.write(key, ledger)


def _access(draft: Draft, some: Role | RoleBinding, *, gone: bool) -> Refusal | None:
    """Update the access ledger, from which authorization reads roles and bindings."""
    key = keys.access_ledger(some.namespace)
    before = draft.ledger(AccessLedger, key) or AccessLedger()
    counts = not gone and is_custom(some)
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
            f"together; at most {ACCESS_BYTES_MAX} are allowed",
            {"tenant": some.namespace, "resource": "roles", "limit": str(ACCESS_BYTES_MAX)},
        )
    draft.write(key, after)
    return None


def erase(draft: Draft, context: Context, obj: Object) -> Refusal | None:
    """Delete an object and its derived records."""
    refusal = update_derived_records(draft, context, obj, None)
    if refusal is None:
        draft.delete(keys.key_of(obj))
        if isinstance(obj, Lease):
            forget_epoch(draft, obj.spec.scope)
    return refusal


def _count(
    draft: Draft, context: Context, some: Object, old: Object | None, new: Object | None
) -> Refusal | None:
    kind = kind_of(some)
    if not kind.namespaced or kind.plural in UNCOUNTED:
        return None
    key = keys.objects_ledger(some.namespace)
    ledger = draft.ledger(ObjectsLedger, key) or ObjectsLedger()
    count = ledger.counts.get(kind.plural, 0) + (new is not None) - (old is not None)
    more, wanted = _growth(old, new, weight), _growth(old, new, replicas_wanted)
    after = ObjectsLedger(
        counts={p: n for p, n in {**ledger.counts, kind.plural: count}.items() if n > 0},
        # A ledger of an older version lacks what that version did not count.
        bytes=max(0, ledger.bytes + more),
        wanted=max(0, ledger.wanted + wanted),
    )
    if old is None or more > 0 or wanted > 0:
        refusal = _cap_refusal(draft, context, some.namespace, kind.plural, ledger, after)
        if refusal is not None:
            return refusal
    draft.write(key, after)
    return None


def _cap_refusal(
    draft: Draft,
    context: Context,
    tenant: str,
    plural: str,
    before: ObjectsLedger,
    after: ObjectsLedger,
) -> Refusal | None:
    """Refuse growth beyond a cap. An object that does not grow may already be beyond it."""
    quota = draft.object(Quota, tenant, QUOTA_NAME)
    stated = quota.spec.objects if quota is not None else ObjectCaps()
    settings = context.settings
    most = settings.objects_per_tenant_max
    own = {"workloads": stated.workloads, "replicas": stated.replicas}.get(plural)
    default = settings.workloads_per_tenant_max if plural == "workloads" else most
    for what, had, have, cap in (
        (plural, before.counts.get(plural, 0), after.counts.get(plural, 0), _first(own, default)),
        (
            "objects",
            sum(before.counts.values()),
            sum(after.counts.values()),
            _first(stated.objects, most),
        ),
        ("bytes", before.bytes, after.bytes, _first(stated.bytes, settings.bytes_per_tenant_max)),
        # Checked before any replica is created: creations that a cap will refuse would delay all
        # others.
        ("replicas", before.wanted, after.wanted, _first(stated.replicas, most)),
    ):
        if had < have > cap:
            return _over(tenant, what, cap)
    return None


def _growth(old: Object | None, new: Object | None, of: Callable[[Object], int]) -> int:
    return (of(new) if new is not None else 0) - (of(old) if old is not None else 0)


def _first(stated: int | None, default: int) -> int:
    return default if stated is None else stated


def _over(tenant: str, what: str, cap: int) -> Refusal:
    return Refusal(
        Reason.OBJECT_CAP,
        f"tenant {tenant} has reached its cap of {cap} {what}: delete objects, or ask an operator "
        f"to raise spec.objects.{what} of its Quota",
        {
            "tenant": tenant,
            "resource": what,
            "limit": str(cap),
            "field": "metadata.namespace",
            "policy": "object-cap",
            "scope": f"Tenant {tenant}",
        },
    )
