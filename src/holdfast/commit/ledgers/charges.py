"""Charges and refunds: the one place that changes node, device, quota and grant ledgers.

Bind, reserve, preempt, release and repair all go through here, so that one transaction writes a
charge to every ledger, and a refund is exactly what was charged.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.model import keys
from holdfast.model.allowance import charge_quota, grant_refusal, quota_refusal, refund_quota
from holdfast.model.errors import agree, suspect
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota
from holdfast.model.ledger import Amounts, GrantLedger, NodeLedger, QuotaLedger, add, subtract
from holdfast.model.lifecycle import Cause
from holdfast.model.placement.fit import (
    Allocation,
    finish_departure,
    return_allocation,
    take_allocation,
)
from holdfast.model.refusal import Reason, Refusal

# The name of the Quota object that limits a tenant.
QUOTA_NAME = "default"
# The class of a workload that names none.
PRIORITY_NAME = "default"
# The budget of a grant that ordinary work draws on.
GUARANTEED = "guaranteed"


def cohort_of(draft: Draft, tenant: str) -> str:
    """The cohort whose ledger a tenant is charged in. A tenant without one has a cohort of its
    own.
    """
    quota = draft.object(Quota, tenant, QUOTA_NAME)
    return (
        single_tenant_cohort(tenant)
        if quota is None or not quota.spec.cohort
        else quota.spec.cohort
    )


def single_tenant_cohort(tenant: str) -> str:
    """The cohort of a tenant that belongs to none.

    No real cohort can have this name, because it contains a colon.
    """
    return f"tenant:{tenant}"


def capacity_class(draft: Draft, priority_class: str) -> CapacityClass:
    """Whether work of this priority class is charged as committed or as reclaimable capacity."""
    found = draft.object(PriorityClass, "", priority_class or PRIORITY_NAME)
    return found.spec.capacity_class if found is not None else CapacityClass.HARD


def budget_of(priority_class: str) -> str:
    """The priority class whose budget is charged: the default if the work names none."""
    return priority_class or PRIORITY_NAME


def quarantine_refusal(ledger: QuotaLedger, tenant: str, cohort: str) -> Refusal | None:
    """Refuse a charge to a cohort whose ledger is in quarantine: its use is unknown."""
    if not ledger.quarantined:
        return None
    return Refusal(
        Reason.QUOTA_QUARANTINED,
        f"the quota ledger of {cohort} is in quarantine; see `holdfast repair list`",
        {"tenant": tenant, "cohort": cohort},
    )


def charge_tenant(
    draft: Draft, context: Context, tenant: str, of: CapacityClass, amounts: Amounts, budget: str
) -> str | Refusal:
    """Charge the tenant's quota and its budget for the priority class, and its grant if the
    plane has one. Returns the cohort.
    """
    cohort = cohort_of(draft, tenant)
    key = keys.quota_ledger(cohort)
    ledger = draft.ledger(QuotaLedger, key) or QuotaLedger()
    refusal = quarantine_refusal(ledger, tenant, cohort) or quota_refusal(
        ledger, tenant, of, amounts, budget
    )
    if refusal is not None:
        return refusal
    grant = draft.ledger(GrantLedger, keys.grant_ledger(tenant))
    if grant is not None:
        refusal = grant_refusal(grant, GUARANTEED, amounts, context.at, context.settings.skew_ms)
        if refusal is not None:
            return refusal
        _spend(draft, tenant, grant, add(grant.used.get(GUARANTEED, {}), amounts))
    draft.write(key, charge_quota(ledger, tenant, of, amounts, budget))
    return cohort


def allowance_refusal(
    draft: Draft,
    context: Context,
    tenant: str,
    of: CapacityClass,
    amounts: Amounts,
    budget: str,
    leavers: Iterable[Replica],
) -> Refusal | None:
    """Whether a charge would be refused once these replicas have released what they hold."""
    leavers = tuple(leavers)
    cohort = cohort_of(draft, tenant)
    key = keys.quota_ledger(cohort)
    ledger = draft.ledger(QuotaLedger, key) or QuotaLedger()
    refusal = quarantine_refusal(ledger, tenant, cohort)
    if refusal is not None:
        return refusal
    grant = draft.ledger(GrantLedger, keys.grant_ledger(tenant))
    spent = grant.used.get(GUARANTEED, {}) if grant is not None else {}
    cohorts = for_each(leavers, lambda replica: cohort_of(draft, replica.namespace))
    for replica, theirs in zip(leavers, cohorts, strict=True):
        binding = replica.status.binding
        if binding is None or theirs != cohort:
            continue
        class_of = CapacityClass(binding.capacity_class)
        paid = binding.priority_class
        with suspect(key):
            ledger = refund_quota(ledger, replica.namespace, class_of, binding.charge, paid)
        if replica.namespace == tenant:
            spent = _less(spent, binding.charge)
    refusal = quota_refusal(ledger, tenant, of, amounts, budget)
    if refusal is not None or grant is None:
        return refusal
    left = msgspec.structs.replace(grant, used={**grant.used, GUARANTEED: spent})
    return grant_refusal(left, GUARANTEED, amounts, context.at, context.settings.skew_ms)


def refund_tenant(
    draft: Draft, tenant: str, of: CapacityClass, amounts: Amounts, budget: str
) -> None:
    """Refund a charge to the budget that was charged.

    The tenant may have changed its cohort; its sums moved with it.
    """
    key = keys.quota_ledger(cohort_of(draft, tenant))
    ledger = draft.ledger(QuotaLedger, key)
    with suspect(key):
        agree(ledger is not None, f"tenant {tenant} is refunded but has no quota ledger")
        if ledger is not None:
            draft.write(key, refund_quota(ledger, tenant, of, amounts, budget))
    grant = draft.ledger(GrantLedger, keys.grant_ledger(tenant))
    if grant is not None:
        _spend(draft, tenant, grant, _less(grant.used.get(GUARANTEED, {}), amounts))


def _less(used: Amounts, amounts: Amounts) -> Amounts:
    """The remaining use of a grant.

    Work from before the grant refunds what it never drew; that must not make the grant larger.
    """
    return {resource: units for resource, units in subtract(used, amounts).items() if units > 0}


def _spend(draft: Draft, tenant: str, grant: GrantLedger, used: Amounts) -> None:
    whole = {**grant.used, GUARANTEED: used}
    draft.write(keys.grant_ledger(tenant), msgspec.structs.replace(grant, used=whole))


def take_node(
    draft: Draft, node: str, ledger: NodeLedger, held: Allocation, owner: Replica | Reservation
) -> None:
    """Record in the node's ledger what `owner` takes."""
    key = keys.node_ledger(node)
    with suspect(key):
        tenants = add(ledger.tenants, {owner.namespace: 1})
        after = take_allocation(ledger, held, owner.metadata.uid)
        draft.write(key, msgspec.structs.replace(after, tenants=tenants))


def return_node(draft: Draft, node: str, held: Allocation, owner: Replica | Reservation) -> None:
    """Record what `owner` returns to a node. A removed node has no ledger to correct."""
    key = keys.node_ledger(node)
    ledger = draft.ledger(NodeLedger, key)
    if ledger is None:
        return
    with suspect(key):
        after = return_allocation(ledger, held, owner.metadata.uid)
        # A ledger of an older version has none.
        if owner.namespace in ledger.tenants:
            tenants = subtract(ledger.tenants, {owner.namespace: 1})
            after = msgspec.structs.replace(after, tenants=tenants)
        draft.write(key, after)


def held_by_binding(binding: Binding) -> Allocation:
    """The allocation of a binding."""
    return Allocation(charge=binding.charge, devices=binding.devices, ports=binding.ports)


def release_binding(draft: Draft, replica: Replica, binding: Binding) -> None:
    """Release everything that a bound replica held, to its node and its tenant."""
    held = held_by_binding(binding)
    return_node(draft, binding.node, held, replica)
    key = keys.node_ledger(binding.node)
    ledger = draft.ledger(NodeLedger, key)
    if ledger is not None and replica.status.cause is Cause.PREEMPTION:
        with suspect(key):
            draft.write(key, finish_departure(ledger, held))
    of = CapacityClass(binding.capacity_class)
    refund_tenant(draft, replica.namespace, of, binding.charge, binding.priority_class)
