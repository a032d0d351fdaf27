"""The independent recount: whether every ledger equals the sum of its objects.

Operators, live tests and the simulator's checkers run it over all records of one revision. It reads
nothing else and changes nothing. Each discrepancy is a sentence. There must be none at any
revision, because the same transaction writes an object and every ledger that counts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import msgspec

from holdfast.commit.ledgers.derived_records import UNCOUNTED
from holdfast.commit.ledgers.ledger_sums import (
    CapacityHolding,
    StoreContents,
    discrepancies,
    holdings,
    nonzero,
    open_claims,
    places_pages,
    promised_holdings,
    tenant_holdings,
    total,
    victim_holdings,
)
from holdfast.commit.record_encoding import Epoch
from holdfast.model import keys
from holdfast.model.access.rights import AccessLedger, ledger_of
from holdfast.model.kinds.access import Role, RoleBinding
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.region import Region
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import CapacityClass, Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import TAKES_BACK, Cause, State
from holdfast.model.placement.disruption import disruption_ledger_of
from holdfast.model.quantity import MILLI
from holdfast.model.quota.allowance import ceiling, cohort_nominal, cohort_used
from holdfast.model.quota.charging import QUOTA_NAME, quota_cohort
from holdfast.model.quota.ledger import (
    Amounts,
    DeviceSlot,
    DisruptionLedger,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    allocatable_of,
    firm_of,
    gate_of,
    limits_of,
)
from holdfast.model.quota.weights import replicas_wanted, weight
from holdfast.model.registry import kind_of_struct
from holdfast.model.transaction import Record

# The recount of nodes: sums, devices, ports and promises.


def _by_node(found: list[CapacityHolding]) -> dict[str, list[CapacityHolding]]:
    split: dict[str, list[CapacityHolding]] = {}
    for holding in found:
        split.setdefault(holding.node, []).append(holding)
    return split


def node_discrepancies(contents: StoreContents) -> Iterator[str]:
    """The differences between a node's ledger and the node, its replicas and its reservations."""
    registered = {node.name: node for node in contents.of(Node)}
    ledgers: dict[str, NodeLedger] = contents.under(f"{keys.LEDGERS}node/")
    victims = victim_holdings(contents, Cause.PREEMPTION)
    held, promised, leaving = map(
        _by_node, (holdings(contents), promised_holdings(contents), victims)
    )
    for name in dict.fromkeys((*registered, *ledgers, *held, *promised)):
        if not name:
            # A claim on quota alone has no node.
            continue
        node, ledger = registered.get(name), ledgers.get(name)
        if node is None or ledger is None:
            lacks = "object" if node is None else "ledger"
            yield f"node {name} has no {lacks}, and {len(held.get(name, []))} holders"
            continue
        yield from _mirror(node, ledger)
        yield from _held(name, ledger, held.get(name, []))
        yield from _promised(name, ledger, promised.get(name, []))
        gone = total(holding.sums for holding in leaving.get(name, []))
        yield from discrepancies(f"node {name}", "leaving", nonzero(ledger.leaving), gone)


def _mirror(node: Node, ledger: NodeLedger) -> Iterator[str]:
    whose = f"node {node.name}"
    yield from discrepancies(whose, "gate", ledger.gate, gate_of(node))
    yield from discrepancies(whose, "allocatable", ledger.allocatable, allocatable_of(node))
    yield from discrepancies(whose, "firm", ledger.firm, firm_of(node))
    yield from discrepancies(whose, "port share", ledger.port_share, node.spec.port_share)
    listed = sorted(device.id for device in node.spec.devices)
    there = sorted(name for name, slot in ledger.devices.items() if not slot.absent)
    yield from discrepancies(whose, "devices", there, listed)


def _held(name: str, ledger: NodeLedger, found: list[CapacityHolding]) -> Iterator[str]:
    whose = f"node {name}"
    sums = total(holding.sums for holding in found)
    yield from discrepancies(whose, "used", nonzero(ledger.used), sums)
    lanes = total(holding.sums for holding in found if holding.recovery)
    yield from discrepancies(whose, "recovery", nonzero(ledger.recovery), lanes)
    tenants = dict(Counter(holding.tenant for holding in found))
    yield from discrepancies(whose, "tenants", nonzero(ledger.tenants), tenants)
    owners: dict[str, dict[str, int]] = {}
    ports: dict[str, str] = {}
    for holding in found:
        for share in holding.devices:
            slot = owners.setdefault(share.device, {})
            slot[holding.owner] = slot.get(holding.owner, 0) + share.milli
        for port in holding.ports:
            if port in ports:
                yield f"{whose}: port {port} belongs to {ports[port]} and to {holding.owner}"
            ports[port] = holding.owner
    for device in dict.fromkeys((*ledger.devices, *owners)):
        mine, slot_ = owners.get(device, {}), ledger.devices.get(device)
        have = nonzero(slot_.owners) if slot_ is not None else None
        yield from discrepancies(f"{whose}, device {device}", "owners", have, mine)
        if sum(mine.values()) > MILLI:
            yield f"{whose}: device {device} is owned more than whole: {mine}"
    yield from discrepancies(whose, "ports", ledger.ports, ports)


def _promised(name: str, ledger: NodeLedger, found: list[CapacityHolding]) -> Iterator[str]:
    whose = f"node {name}"
    by_owner: dict[str, list[CapacityHolding]] = {}
    for holding in found:
        by_owner.setdefault(holding.owner, []).append(holding)
    sums = {owner: total(h.sums for h in mine) for owner, mine in by_owner.items()}
    have = {owner: nonzero(amounts) for owner, amounts in ledger.promised.items()}
    yield from discrepancies(whose, "promised", have, sums)
    ports = {port: holding.owner for holding in found for port in holding.ports}
    yield from discrepancies(whose, "promised ports", ledger.promised_ports, ports)
    devices = {share.device: h.owner for h in found for share in h.devices}
    slots: dict[str, DeviceSlot] = ledger.devices
    listed = {device: slot.promised for device, slot in slots.items() if slot.promised}
    # A device that the node no longer lists keeps no promise.
    kept = {device: owner for device, owner in devices.items() if device in slots}
    yield from discrepancies(whose, "promised devices", listed, kept)


_CLASSES = (CapacityClass.HARD, CapacityClass.RECLAIMABLE)
_NO_USE = TenantUse()
_NO_LIMITS = TenantLimits()


def recount(records: Iterable[Record]) -> list[str]:
    """Every discrepancy between the ledgers and the objects of one revision."""
    contents = StoreContents(records)
    return [
        *(f"{key} cannot be read" for key in contents.unreadable),
        *node_discrepancies(contents),
        *_quotas(contents),
        *_objects(contents),
        *_workloads(contents),
        *_pools(contents),
        *_access(contents),
        *_leases(contents),
        *_reserved(contents),
    ]


def excesses(records: Iterable[Record]) -> list[str]:
    """Everything that is charged beyond its limit. Wrong only if no limit was lowered
    afterwards.
    """
    contents = StoreContents(records)
    found = []
    for name, ledger in contents.under(f"{keys.LEDGERS}node/").items():
        for what, units in ledger.used.items():
            if units and ledger.free(what) < 0 and not ledger.promised:
                most = units + ledger.free(what)
                found.append(f"node {name} has {most} of {what}, and {units} are charged to it")
    for cohort, quota in contents.under(f"{keys.LEDGERS}quota/").items():
        found += _cohort_excesses(cohort, quota)
    return found


def _cohort_excesses(cohort: str, ledger: QuotaLedger) -> Iterator[str]:
    for tenant, use in ledger.used.items():
        limits = ledger.limits.get(tenant, _NO_LIMITS)
        for of in _CLASSES:
            for what, units in _use(use, of).items():
                most = ceiling(limits, of, what)
                if most is not None and units > most:
                    yield f"tenant {tenant} may have {most} of {of.value} {what} and has {units}"
        for name, budget in limits.classes.items():
            for what, most in budget.items():
                units = use.classes.get(name, {}).get(what, 0)
                if units > most:
                    yield f"tenant {tenant} may have {most} of {name} {what} and has {units}"
    for what in dict.fromkeys(w for limits in ledger.limits.values() for w in limits.hard):
        if cohort_used(ledger, what) > cohort_nominal(ledger, what):
            yield f"cohort {cohort} has more of {what} than its tenants' nominal amounts"


def _use(use: TenantUse, of: CapacityClass) -> dict[str, int]:
    return use.hard if of is CapacityClass.HARD else use.reclaimable


# Tenants -----------------------------------------------------------------------------------------


def _charges(
    found: list[CapacityHolding], of: Callable[[CapacityHolding], str]
) -> dict[str, dict[str, Amounts]]:
    """The charges of each tenant, by one of the two kinds of class."""
    split: dict[str, dict[str, list[Amounts]]] = {}
    for holding in found:
        name = of(holding)
        if name:
            split.setdefault(holding.tenant, {}).setdefault(name, []).append(holding.charge)
    return {
        tenant: {name: sums for name, amounts in classes.items() if (sums := total(amounts))}
        for tenant, classes in split.items()
    }


def _quotas(contents: StoreContents) -> Iterator[str]:
    quotas = {q.namespace: q for q in contents.of(Quota) if q.name == QUOTA_NAME}
    ledgers: dict[str, QuotaLedger] = contents.under(f"{keys.LEDGERS}quota/")
    found = tenant_holdings(contents)
    charges = _charges(found, lambda it: it.capacity_class)
    budgets = _charges(found, lambda it: it.priority_class)
    leaving = _charges(victim_holdings(contents, *TAKES_BACK), lambda it: it.capacity_class)
    listed: dict[str, list[str]] = {}
    for cohort, ledger in ledgers.items():
        for tenant in dict.fromkeys((*ledger.used, *ledger.limits)):
            listed.setdefault(tenant, []).append(cohort)
    for tenant in dict.fromkeys((*quotas, *charges, *listed)):
        quota = quotas.get(tenant)
        home = quota_cohort(quota, tenant)
        limits = limits_of(quota) if quota is not None else _NO_LIMITS
        for cohort in dict.fromkeys((home, *listed.get(tenant, ()))):
            # In every other cohort the tenant must have left nothing behind.
            mine = cohort == home
            ledger = ledgers.get(cohort, QuotaLedger())
            whose = f"tenant {tenant} in cohort {cohort}"
            stated = ledger.limits.get(tenant, _NO_LIMITS)
            yield from discrepancies(whose, "limits", stated, limits if mine else _NO_LIMITS)
            use = ledger.used.get(tenant, _NO_USE)
            for of in _CLASSES:
                sums = charges.get(tenant, {}).get(of.value, {}) if mine else {}
                yield from discrepancies(whose, of.value, nonzero(_use(use, of)), sums)
            gone = leaving.get(tenant, {}).get(CapacityClass.HARD.value, {}) if mine else {}
            yield from discrepancies(whose, "leaving", nonzero(use.leaving), gone)
            by_class = budgets.get(tenant, {}) if mine else {}
            yield from discrepancies(whose, "by priority class", use.classes, by_class)


def _objects(contents: StoreContents) -> Iterator[str]:
    counts: dict[str, dict[str, int]] = {}
    weights: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for struct, objects in contents.kinds():
        kind = kind_of_struct(struct)
        if not kind.namespaced or kind.plural in UNCOUNTED:
            continue
        for obj in objects:
            tenant = counts.setdefault(obj.namespace, {})
            tenant[kind.plural] = tenant.get(kind.plural, 0) + 1
            weights[obj.namespace] = weights.get(obj.namespace, 0) + weight(obj)
            wanted[obj.namespace] = wanted.get(obj.namespace, 0) + replicas_wanted(obj)
    ledgers: dict[str, ObjectsLedger] = contents.under(f"{keys.LEDGERS}objects/")
    for tenant_name in dict.fromkeys((*counts, *ledgers)):
        have, whose = ledgers.get(tenant_name, ObjectsLedger()), f"tenant {tenant_name}"
        mine = counts.get(tenant_name, {})
        yield from discrepancies(whose, "counts", nonzero(have.counts), mine)
        yield from discrepancies(whose, "bytes", have.bytes, weights.get(tenant_name, 0))
        yield from discrepancies(whose, "wanted replicas", have.wanted, wanted.get(tenant_name, 0))


# Everything else ---------------------------------------------------------------------------------


def _workloads(contents: StoreContents) -> Iterator[str]:
    mine: dict[str, list[Replica]] = {}
    for replica in contents.of(Replica):
        mine.setdefault(f"{replica.namespace}/{replica.spec.workload}", []).append(replica)
    workloads = {f"{w.namespace}/{w.name}": w for w in contents.of(Workload)}
    ledgers: dict[str, DisruptionLedger] = contents.under(f"{keys.LEDGERS}disruption/")
    pages = places_pages(contents)
    for key in dict.fromkeys((*workloads, *mine, *ledgers)):
        whose, ledger = f"workload {key}", ledgers.get(key, DisruptionLedger())
        workload, replicas = workloads.get(key), mine.get(key, [])
        if workload is None:
            yield from discrepancies(whose, "replicas", ledger.replicas, len(replicas))
            if replicas:
                yield f"{whose} is gone, and {len(replicas)} of its replicas are there"
            continue
        wanted = disruption_ledger_of(workload, replicas, pages.get(key, ()))
        have = msgspec.structs.replace(ledger, pages=tuple(sorted(ledger.pages)))
        for field in DisruptionLedger.__struct_fields__:
            yield from discrepancies(whose, field, getattr(have, field), getattr(wanted, field))


def _pools(contents: StoreContents) -> Iterator[str]:
    pools = contents.values.get(keys.pools_ledger(), PoolsLedger())
    expected = {
        region.name: {p.name: p.protected_for for p in region.spec.pools if p.protected_for}
        for region in contents.of(Region)
    }
    protected = {name: table for name, table in expected.items() if table}
    yield from discrepancies("the pools", "protected", pools.protected, protected)


def _access(contents: StoreContents) -> Iterator[str]:
    roles, bindings = tuple(contents.of(Role)), tuple(contents.of(RoleBinding))
    ledgers: dict[str, AccessLedger] = contents.under(f"{keys.LEDGERS}access/")
    for namespace in dict.fromkeys((*(it.namespace for it in (*roles, *bindings)), *ledgers)):
        have = ledgers.get(namespace, AccessLedger())
        wanted = ledger_of(
            namespace,
            (role for role in roles if role.namespace == namespace),
            (binding for binding in bindings if binding.namespace == namespace),
        )
        yield from discrepancies(f"namespace {namespace}", "roles", have.roles, wanted.roles)
        yield from discrepancies(f"namespace {namespace}", "bindings", have.given, wanted.given)


def _leases(contents: StoreContents) -> Iterator[str]:
    """Compare epochs with their leases. A released lease keeps its last holder's epoch."""
    epochs: dict[str, Epoch] = contents.under(keys.EPOCHS)
    leases = {lease.spec.scope: lease.spec for lease in contents.of(Lease)}
    for scope in dict.fromkeys((*epochs, *leases)):
        epoch, lease = epochs.get(scope), leases.get(scope)
        if epoch is None or lease is None:
            yield f"scope {scope} has {'no epoch' if epoch is None else 'no lease'}"
        elif epoch.epoch != lease.epoch or lease.holder not in ("", epoch.holder):
            yield (
                f"scope {scope}: the lease is {lease.holder}'s at epoch {lease.epoch}, the epoch "
                f"{epoch.holder}'s at {epoch.epoch}"
            )


def _reserved(contents: StoreContents) -> Iterator[str]:
    """Check that a replica is Reserved exactly while a reservation holds an open claim for it."""
    claims = {
        (reservation.namespace, reservation.name, claim.replica)
        for reservation in contents.of(Reservation)
        for claim in open_claims(reservation)
    }
    for replica in contents.of(Replica):
        if replica.status.state is not State.RESERVED:
            continue
        if (replica.namespace, replica.status.reservation, replica.name) not in claims:
            who = f"{replica.namespace}/{replica.name}"
            yield f"replica {who} is Reserved, and {replica.status.reservation} holds nothing"
