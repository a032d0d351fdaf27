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
from holdfast.model.errors import agree, suspect
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota
from holdfast.model.lifecycle import TAKES_BACK, Cause
from holdfast.model.placement.fit import (
    Allocation,
    begin_departure,
    finish_departure,
    return_allocation,
    take_allocation,
)
from holdfast.model.quota.allowance import (
    charge_quota,
    grant_refusal,
    leave_quota,
    quota_refusal,
    refund_quota,
)
from holdfast.model.quota.charging import (
    QUOTA_NAME,
    budget_of,
    capacity_class_of,
    is_recovery,
    quota_cohort,
)
from holdfast.model.quota.ledger import Amounts, GrantLedger, NodeLedger, QuotaLedger, add, subtract
from holdfast.model.refusal import Reason, Refusal

# The budget of a grant that ordinary work draws on.
GUARANTEED = "guaranteed"


def cohort_of(draft: Draft, tenant: str) -> str:
    """The cohort whose ledger a tenant is charged in."""
    return quota_cohort(draft.object(Quota, tenant, QUOTA_NAME), tenant)


def capacity_class(draft: Draft, priority_class: str) -> CapacityClass:
    """Whether work of this priority class is charged as committed or as reclaimable capacity."""
    return capacity_class_of(draft.object(PriorityClass, "", budget_of(priority_class)))


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
        after = take_allocation(ledger, held, owner.metadata.uid, recovery=is_recovery(owner))
        draft.write(key, msgspec.structs.replace(after, tenants=tenants))


def return_node(draft: Draft, node: str, held: Allocation, owner: Replica | Reservation) -> None:
    """Record what `owner` returns to a node. A removed node has no ledger to correct."""
    key = keys.node_ledger(node)
    ledger = draft.ledger(NodeLedger, key)
    if ledger is None:
        return
    with suspect(key):
        after = return_allocation(ledger, held, owner.metadata.uid, recovery=is_recovery(owner))
        # A ledger of an older version has none.
        if owner.namespace in ledger.tenants:
            tenants = subtract(ledger.tenants, {owner.namespace: 1})
            after = msgspec.structs.replace(after, tenants=tenants)
        draft.write(key, after)


def held_by_binding(binding: Binding) -> Allocation:
    """The allocation of a binding."""
    return Allocation(charge=binding.charge, devices=binding.devices, ports=binding.ports)


def note_departure(
    draft: Draft, replica: Replica, binding: Binding, before: Cause | None, after: Cause | None
) -> None:
    """Record what a replica that is stopped for other work still holds and is about to give back,
    or that it has been given back: on its node, and of committed work in its cohort.

    `before` is the cause by which it is noted now, `after` that by which it is to be.
    """
    held = held_by_binding(binding)
    key = keys.node_ledger(binding.node)
    ledger = draft.ledger(NodeLedger, key)
    leaves = after is Cause.PREEMPTION
    if ledger is not None and leaves != (before is Cause.PREEMPTION):
        with suspect(key):
            draft.write(key, (begin_departure if leaves else finish_departure)(ledger, held))
    leaves = after in TAKES_BACK
    is_hard = binding.capacity_class in ("", CapacityClass.HARD.value)
    if not is_hard or leaves == (before in TAKES_BACK):
        return
    key = keys.quota_ledger(cohort_of(draft, replica.namespace))
    quota = draft.ledger(QuotaLedger, key)
    if quota is not None:
        with suspect(key):
            sign = 1 if leaves else -1
            draft.write(key, leave_quota(quota, replica.namespace, binding.charge, sign))


def release_binding(draft: Draft, replica: Replica, binding: Binding) -> None:
    """Release everything that a bound replica held, to its node and its tenant."""
    return_node(draft, binding.node, held_by_binding(binding), replica)
    note_departure(draft, replica, binding, replica.status.cause, None)
    of = CapacityClass(binding.capacity_class)
    refund_tenant(draft, replica.namespace, of, binding.charge, binding.priority_class)
