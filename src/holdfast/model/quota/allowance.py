"""Quota, cohort and grant arithmetic: what a tenant may still use.

The commit calls `quota_refusal` inside the transaction that charges; admission, proposal and
explain call it on their snapshots. Lowering a quota evicts nothing: a tenant above its limit gets
nothing more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.model.errors import agree, invariant
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.lifecycle import State
from holdfast.model.quantity import render
from holdfast.model.quota.ledger import (
    Amounts,
    GrantLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    add,
    subtract,
    use_of,
)
from holdfast.model.refusal import Reason, Refusal

_NO_LIMITS = TenantLimits()
_NO_USE = TenantUse()
_SOFT = Refusal(Reason.QUOTA_EXCEEDED, "soft capacity cannot back a commitment")


def _over(reason: Reason, whose: str, resource: str, wanted: int, used: int, limit: int) -> Refusal:
    need, have, most = (render(resource, units) for units in (wanted, used, limit))
    return Refusal(
        reason,
        f"{whose} uses {have} of {most} {resource}, {need} more is requested",
        {"resource": resource, "needed": need, "used": have, "limit": most},
    )


def ceiling(limits: TenantLimits, of: CapacityClass, resource: str) -> int | None:
    """The most that a tenant may use of a resource; None if it is not limited."""
    if of is CapacityClass.RECLAIMABLE:
        return limits.reclaimable.get(resource)
    nominal = limits.hard.get(resource)
    return None if nominal is None else nominal + limits.borrowing.get(resource, 0)


def cohort_nominal(ledger: QuotaLedger, resource: str) -> int:
    """The cohort's total of a resource: the sum of its tenants' nominal amounts."""
    return sum(limits.hard.get(resource, 0) for limits in ledger.limits.values())


def cohort_used(ledger: QuotaLedger, resource: str) -> int:
    """What the cohort's tenants use of a resource. Tenants without a limit on it do not count."""
    return sum(
        use.hard.get(resource, 0)
        for tenant, use in ledger.used.items()
        if resource in ledger.limits.get(tenant, _NO_LIMITS).hard
    )


def above_nominal(ledger: QuotaLedger, tenant: str) -> Amounts:
    """What a tenant has borrowed: its hard use beyond its nominal amounts, by resource.

    A resource that its quota does not name is not limited, so none of it is borrowed. Reclaim and
    preemption take work back only from a tenant that is above its nominal amounts; what their
    victims still hold is given back already.
    """
    nominal = ledger.limits.get(tenant, _NO_LIMITS).hard
    use = ledger.used.get(tenant, _NO_USE)
    used = subtract(use.hard, use.leaving) if use.leaving else use.hard
    over = {resource: used.get(resource, 0) - most for resource, most in nominal.items()}
    return {resource: units for resource, units in over.items() if units > 0}


def awaits_cohort(replica: Replica) -> bool:
    """Whether a replica waits because the tenants of its cohort together have used everything.

    Its scheduler says so in its status, where the other schedulers and controller:quota see it.
    """
    pending = replica.status.pending
    return (
        replica.status.state is State.PENDING
        and replica.metadata.deletion_timestamp is None
        and pending is not None
        and Reason.COHORT_EXHAUSTED.value in pending.reasons
    )


def is_inside_nominal(ledger: QuotaLedger, tenant: str, amounts: Amounts) -> bool:
    """Whether a tenant with these hard amounts on top stays inside its nominal amounts.

    Such a tenant is owed what the others have borrowed.
    """
    nominal = ledger.limits.get(tenant, _NO_LIMITS).hard
    used = ledger.used.get(tenant, _NO_USE).hard
    return all(
        resource not in nominal or used.get(resource, 0) + units <= nominal[resource]
        for resource, units in amounts.items()
    )


def lending_refusal(
    ledger: QuotaLedger, claims: dict[str, Amounts], tenant: str, amounts: Amounts
) -> Refusal | None:
    """Refuses to lend what another tenant of the cohort waits for inside its nominal amounts.

    `claims` is what tenants wait for inside their nominal amounts, because the cohort is exhausted
    (`LenderClaims`). Without this rule a borrower
    would take again what was just taken back from it. Only proposals ask: the commit lends whatever
    is free, and a wrong proposal costs another reclaim.
    """
    for resource, units in amounts.items():
        nominal = ledger.limits.get(tenant, _NO_LIMITS).hard.get(resource)
        used = ledger.used.get(tenant, _NO_USE).hard.get(resource, 0)
        if nominal is None or not units or used + units <= nominal:
            continue
        claimed = sum(
            wanted.get(resource, 0) for other, wanted in claims.items() if other != tenant
        )
        together, whole = cohort_used(ledger, resource), cohort_nominal(ledger, resource)
        if claimed and together + claimed + units > whole:
            whose = f"the cohort, with {render(resource, claimed)} claimed back by lenders,"
            together += claimed
            # Its own reason: what a borrower is refused for them is not a claim of its own, or two
            # schedulers would take turns with what they say of it.
            return _over(Reason.CLAIMED_BY_LENDERS, whose, resource, units, together, whole)
    return None


def quota_refusal(
    ledger: QuotaLedger,
    tenant: str,
    of: CapacityClass,
    amounts: Amounts,
    priority_class: str = "",
) -> Refusal | None:
    """Refuses amounts that exceed the tenant's quota, its cohort, or its priority class budget.

    Soft capacity backs no commitment. Work without a priority class has no class budget.
    """
    if of is CapacityClass.SOFT:
        return _SOFT
    limits = ledger.limits.get(tenant, _NO_LIMITS)
    if limits is _NO_LIMITS:
        return None
    use = use_of(ledger.used.get(tenant, _NO_USE), of)
    for resource, units in amounts.items():
        most = ceiling(limits, of, resource)
        # A demand of zero is never refused, not even to a tenant above its limit.
        if most is None or not units:
            continue
        used = use.get(resource, 0)
        if used + units > most:
            return _over(Reason.QUOTA_EXCEEDED, f"tenant {tenant}", resource, units, used, most)
        if of is not CapacityClass.HARD:
            continue
        together, whole = cohort_used(ledger, resource), cohort_nominal(ledger, resource)
        if together + units > whole:
            return _over(Reason.COHORT_EXHAUSTED, "the cohort", resource, units, together, whole)
    # Most quotas have no class budgets, and every bind comes here.
    return budget_refusal(ledger, tenant, priority_class, amounts) if limits.classes else None


def budget_refusal(
    ledger: QuotaLedger, tenant: str, priority_class: str, amounts: Amounts
) -> Refusal | None:
    """Refuses amounts that exceed the tenant's budget for a priority class.

    A budget cannot be lent: it limits how much may be urgent at once, not how much exists.
    """
    budget = ledger.limits.get(tenant, _NO_LIMITS).classes.get(priority_class)
    if budget is None:
        return None
    use = ledger.used.get(tenant, _NO_USE).classes.get(priority_class, {})
    whose = f"tenant {tenant}"
    for resource, units in amounts.items():
        most = budget.get(resource)
        if most is not None and units and use.get(resource, 0) + units > most:
            return _over_budget(whose, priority_class, resource, units, use.get(resource, 0), most)
    return None


def _over_budget(
    whose: str, priority_class: str, resource: str, wanted: int, used: int, limit: int
) -> Refusal:
    whose = f"{whose}, in its budget for priority class {priority_class},"
    over = _over(Reason.PRIORITY_BUDGET_EXCEEDED, whose, resource, wanted, used, limit)
    return msgspec.structs.replace(over, details={**over.details, "priorityClass": priority_class})


def never_fits(
    limits: TenantLimits, of: CapacityClass, amounts: Amounts, priority_class: str = ""
) -> Refusal | None:
    """Refuses amounts that would not fit even if the tenant used nothing else. For admission.

    The cohort may lend, so only the tenant's own ceiling and its class budget count here.
    """
    if of is CapacityClass.SOFT:
        return _SOFT
    for resource, units in amounts.items():
        most = ceiling(limits, of, resource)
        if most is not None and units > most:
            return _over(Reason.QUOTA_EXCEEDED, "the tenant", resource, units, 0, most)
    for resource, most in limits.classes.get(priority_class, {}).items():
        units = amounts.get(resource, 0)
        if units > most:
            return _over_budget("the tenant", priority_class, resource, units, 0, most)
    return None


def _with_use(
    ledger: QuotaLedger, tenant: str, of: CapacityClass, sums: Amounts, classes: dict[str, Amounts]
) -> QuotaLedger:
    """The ledger with these sums. A tenant without usage has no entry, as in a new ledger."""
    invariant(of is not CapacityClass.SOFT, f"tenant {tenant} cannot be charged soft capacity")
    use = ledger.used.get(tenant, _NO_USE)
    if of is CapacityClass.HARD:
        use = msgspec.structs.replace(use, hard=sums, classes=classes)
    else:
        use = msgspec.structs.replace(use, reclaimable=sums, classes=classes)
    used = dict(ledger.used)
    if use.hard or use.reclaimable or use.classes:
        used[tenant] = use
    else:
        used.pop(tenant, None)
    return msgspec.structs.replace(ledger, used=used)


def charge_quota(
    ledger: QuotaLedger,
    tenant: str,
    of: CapacityClass,
    amounts: Amounts,
    priority_class: str = "",
) -> QuotaLedger:
    """The ledger after charging the tenant, for work of a priority class."""
    least = min(amounts.values(), default=0)
    invariant(least >= 0, f"tenant {tenant} took less than nothing")
    use = ledger.used.get(tenant, _NO_USE)
    classes = use.classes
    if priority_class:
        sums = add(classes.get(priority_class, {}), amounts)
        classes = {**classes, priority_class: sums} if sums else classes
    return _with_use(ledger, tenant, of, add(use_of(use, of), amounts), classes)


def refund_quota(
    ledger: QuotaLedger,
    tenant: str,
    of: CapacityClass,
    amounts: Amounts,
    priority_class: str = "",
) -> QuotaLedger:
    """The ledger after a refund to the tenant. Refunding more than was charged is a bug."""
    use = ledger.used.get(tenant, _NO_USE)
    rest, classes = subtract(use_of(use, of), amounts), use.classes
    left: Amounts = {}
    if priority_class:
        left = subtract(classes.get(priority_class, {}), amounts)
        others = {name: sums for name, sums in classes.items() if name != priority_class}
        classes = {**others, priority_class: left} if left else others
    agree(
        all(units >= 0 for units in (*rest.values(), *left.values())),
        f"tenant {tenant} was refunded more than its quota ledger holds",
    )
    return _with_use(ledger, tenant, of, rest, classes)


def leave_quota(ledger: QuotaLedger, tenant: str, amounts: Amounts, sign: int) -> QuotaLedger:
    """The ledger after committed work of the tenant was stopped for other work, or with -1 after
    it stopped. Its charge stays until it is released.
    """
    use = ledger.used.get(tenant, _NO_USE)
    leaving = (add if sign > 0 else subtract)(use.leaving, amounts)
    agree(
        all(units >= 0 for units in leaving.values()),
        f"more of tenant {tenant} has left than was stopped",
    )
    used = {**ledger.used, tenant: msgspec.structs.replace(use, leaving=leaving)}
    return msgspec.structs.replace(ledger, used=used)


def grant_refusal(
    ledger: GrantLedger, budget: str, amounts: Amounts, now: datetime, skew_ms: int
) -> Refusal | None:
    """Refuses what a region may no longer spend.

    The grant ends one clock skew early here, because the reclaimer acts one skew late. A grant
    without an expiry was never made. A resource that no budget of the grant names is not limited,
    as in a quota. A resource that only other budgets name is not granted here at all, or an empty
    recovery budget would be unlimited.
    """
    if ledger.expires is None or ledger.expires - now <= timedelta(milliseconds=skew_ms):
        expires = ledger.expires.isoformat() if ledger.expires is not None else ""
        return Refusal(
            Reason.GRANT_EXPIRED,
            "the region's grant has expired" if expires else "the region has no grant",
            {"expires": expires, "serial": str(ledger.serial)},
        )
    granted, used = ledger.budgets.get(budget, {}), ledger.used.get(budget, {})
    for resource, units in amounts.items():
        limited = any(resource in named for named in ledger.budgets.values())
        spent, most = used.get(resource, 0), granted.get(resource, 0)
        if limited and units and spent + units > most:
            whose = f"the {budget} grant"
            return _over(Reason.GRANT_EXCEEDED, whose, resource, units, spent, most)
    return None
