"""Rebuilding a ledger: its value as the sum of the objects of one revision.

`holdfast repair recount` writes it in place of a ledger in quarantine. Each transaction that
changes what a ledger counts also writes the ledger. So if the ledger was not written since, the
count is still right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.commit.ledgers.charges import GUARANTEED
from holdfast.commit.ledgers.derived_records import UNCOUNTED
from holdfast.commit.ledgers.ledger_sums import (
    CapacityHolding,
    StoreContents,
    holdings,
    places_pages,
    promised_holdings,
    tenant_holdings,
    total,
    victim_holdings,
)
from holdfast.commit.record_encoding import Epoch
from holdfast.model import keys
from holdfast.model.access.rights import AccessLedger, ledger_of
from holdfast.model.errors import Invalid, Missing
from holdfast.model.kinds.access import Role, RoleBinding
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import TAKES_BACK, Cause
from holdfast.model.placement.disruption import disruption_ledger_of
from holdfast.model.quota.charging import QUOTA_NAME, quota_cohort
from holdfast.model.quota.ledger import (
    Amounts,
    DeviceSlot,
    DisruptionLedger,
    GrantLedger,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
    TenantUse,
    limits_of,
    mirror_node,
)
from holdfast.model.quota.weights import replicas_wanted, weight
from holdfast.model.registry import kind_of_struct


def rebuild_ledger(contents: StoreContents, key: str) -> Any:
    """The ledger of this key. Raises Invalid if the key is no ledger or no sum of objects, or if
    an unreadable object may count in it: without that object, what it holds would be given out
    again.
    """
    is_epoch = key.startswith(keys.EPOCHS)
    sort, _, name = (key if is_epoch else key.removeprefix(keys.LEDGERS)).partition("/")
    rebuild = _REBUILD.get(sort) if is_epoch or key.startswith(keys.LEDGERS) else None
    if rebuild is None:
        sorts = ", ".join(f"{keys.LEDGERS}{it}/" for it in _REBUILD if it != _EPOCHS)
        raise Invalid(
            f"key: {key!r} is not a sum of objects; recount supports {sorts}, {keys.EPOCHS}"
        )
    hidden = next((it for it in contents.unreadable if _may_count(it, sort, name)), None)
    if hidden is not None:
        raise Invalid(f"{hidden} is unreadable and may count in {key}: restore it first")
    return rebuild(contents, name)


def _may_count(unreadable: str, sort: str, name: str) -> bool:
    """Whether an object of which only the key is known may be counted."""
    if not unreadable.startswith(keys.OBJECTS):
        return False
    plural, _, rest = unreadable.removeprefix(keys.OBJECTS).partition("/")
    if sort == "objects":
        return plural not in UNCOUNTED and rest.startswith(f"{name}/")
    if sort in ("disruption", "grant"):
        # These belong to one namespace, as do the objects that they count.
        return plural in _COUNTED[sort] and rest.partition("/")[0] == name.partition("/")[0]
    return plural in _COUNTED[sort]


def _node(contents: StoreContents, name: str) -> NodeLedger:
    node = next((it for it in contents.of(Node) if it.name == name), None)
    if node is None:
        raise Missing(f"node {name} does not exist")
    mine = [it for it in holdings(contents) if it.node == name]
    owed = [it for it in promised_holdings(contents) if it.node == name]
    gone = [it for it in victim_holdings(contents, Cause.PREEMPTION) if it.node == name]
    base = mirror_node(node, None)
    by_owner: dict[str, list[Amounts]] = {}
    for it in owed:
        by_owner.setdefault(it.owner, []).append(it.sums)
    return msgspec.structs.replace(
        base,
        used=total(it.sums for it in mine),
        devices=_devices(base.devices, mine, owed),
        ports={port: it.owner for it in mine for port in it.ports},
        promised={owner: total(sums) for owner, sums in by_owner.items()},
        promised_ports={port: it.owner for it in owed for port in it.ports},
        leaving=total(it.sums for it in gone),
        tenants=dict(Counter(it.tenant for it in mine)),
        recovery=total(it.sums for it in mine if it.recovery),
    )


def _devices(
    slots: dict[str, DeviceSlot], mine: list[CapacityHolding], owed: list[CapacityHolding]
) -> dict[str, DeviceSlot]:
    """The node's devices with their owners. A removed device stays while it has an owner."""
    found = dict(slots)
    for it in mine:
        for share in it.devices:
            slot = found.get(share.device) or DeviceSlot(share.device_class, absent=True)
            owners = {**slot.owners, it.owner: slot.owners.get(it.owner, 0) + share.milli}
            found[share.device] = msgspec.structs.replace(slot, owners=owners)
    for it in owed:
        for share in it.devices:
            slot = found.get(share.device) or DeviceSlot(share.device_class, absent=True)
            found[share.device] = msgspec.structs.replace(slot, promised=it.owner)
    return found


def _quota(contents: StoreContents, cohort: str) -> QuotaLedger:
    quotas = {it.namespace: it for it in contents.of(Quota) if it.name == QUOTA_NAME}

    def home(tenant: str) -> str:
        return quota_cohort(quotas.get(tenant), tenant)

    limits = {it: limits_of(quota) for it, quota in quotas.items() if home(it) == cohort}
    charged: dict[str, list[CapacityHolding]] = {}
    for held in tenant_holdings(contents):
        if held.capacity_class and home(held.tenant) == cohort:
            charged.setdefault(held.tenant, []).append(held)
    gone = victim_holdings(contents, *TAKES_BACK)
    return QuotaLedger(
        limits,
        {
            tenant: _use(held, [it for it in gone if it.tenant == tenant])
            for tenant, held in charged.items()
        },
    )


def _use(held: list[CapacityHolding], gone: list[CapacityHolding]) -> TenantUse:
    def of_class(name: str) -> Amounts:
        return total(it.charge for it in held if it.capacity_class == name)

    names = dict.fromkeys(it.priority_class for it in held if it.priority_class)
    classes = {name: total(it.charge for it in held if it.priority_class == name) for name in names}
    return TenantUse(
        hard=of_class("hard"),
        reclaimable=of_class("reclaimable"),
        classes={name: sums for name, sums in classes.items() if sums},
        leaving=total(it.charge for it in gone if it.capacity_class == "hard"),
    )


def _objects(contents: StoreContents, tenant: str) -> ObjectsLedger:
    counts: Amounts = {}
    size = wanted = 0
    for struct, objects in contents.kinds():
        kind = kind_of_struct(struct)
        if kind.namespaced and kind.plural not in UNCOUNTED:
            mine = [obj for obj in objects if obj.namespace == tenant]
            counts.update({kind.plural: len(mine)} if mine else {})
            size += sum(map(weight, mine))
            wanted += sum(map(replicas_wanted, mine))
    return ObjectsLedger(counts, size, wanted)


def _pools(contents: StoreContents, _name: str) -> PoolsLedger:
    expected = {
        region.name: {p.name: p.protected_for for p in region.spec.pools if p.protected_for}
        for region in contents.of(Region)
    }
    return PoolsLedger({name: table for name, table in expected.items() if table})


def _access(contents: StoreContents, namespace: str) -> AccessLedger:
    return ledger_of(
        namespace,
        (it for it in contents.of(Role) if it.namespace == namespace),
        (it for it in contents.of(RoleBinding) if it.namespace == namespace),
    )


def _disruption(contents: StoreContents, name: str) -> DisruptionLedger:
    namespace, _, workload = name.partition("/")
    found = [it for it in contents.of(Workload) if (it.namespace, it.name) == (namespace, workload)]
    if not found:
        raise Missing(f"workload {name} does not exist")
    mine = [
        it
        for it in contents.of(Replica)
        if (it.namespace, it.spec.workload) == (namespace, workload)
    ]
    return disruption_ledger_of(found[0], mine, places_pages(contents).get(name, ()))


def _grant(contents: StoreContents, tenant: str) -> GrantLedger:
    """What the tenant holds, under the terms that the ledger states: no object has them.

    Work from before the grant is counted as well, because nothing distinguishes it. So the grant is
    never exceeded, and is whole again when that work has ended.
    """
    key = keys.grant_ledger(tenant)
    ledger: GrantLedger | None = contents.values.get(key)
    if ledger is None:
        raise Invalid(
            f"{key}: no object states what was granted; restore it first, then recount it"
        )
    held = [
        it.charge for it in tenant_holdings(contents) if it.tenant == tenant and it.capacity_class
    ]
    return msgspec.structs.replace(ledger, used={**ledger.used, GUARANTEED: total(held)})


def _epoch(contents: StoreContents, scope: str) -> Epoch:
    """The epoch of the lease: each takeover writes both. Under an epoch without a holder no
    process acts until the next takeover.
    """
    lease = next((it.spec for it in contents.of(Lease) if it.spec.scope == scope), None)
    if lease is None:
        raise Missing(f"scope {scope} has no lease")
    return Epoch(lease.epoch, lease.holder)


_EPOCHS = keys.EPOCHS.rstrip("/")
# The kinds that each sum is made of. A tenant's objects are those of all kinds.
_COUNTED = {
    "node": ("nodes", "replicas", "reservations"),
    "quota": ("quotas", "replicas", "reservations"),
    "pools": ("regions",),
    "access": ("roles", "rolebindings"),
    "disruption": ("workloads", "replicas"),
    "grant": ("replicas", "reservations"),
    _EPOCHS: ("leases",),
}
_REBUILD: dict[str, Callable[[StoreContents, str], Any]] = {
    "node": _node,
    "quota": _quota,
    "objects": _objects,
    "pools": _pools,
    "access": _access,
    "disruption": _disruption,
    "grant": _grant,
    _EPOCHS: _epoch,
}
