"""What a tenant may still have: quota, cohort and grant arithmetic, each once.

The commit calls `quota_refusal` inside the transaction that charges; admission, proposal, explain
and what-if call it on what they see. Lowering a quota evicts nothing: a tenant above its limit
just gets nothing more.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from holdfast.model.errors import invariant
from holdfast.model.kinds.quota import CapacityClass
from holdfast.model.ledger import (
    Amounts,
    GrantLedger,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    add,
    subtract,
    use_of,
)
from holdfast.model.quantity import render
from holdfast.model.refusal import Reason, Refusal

_NO_LIMITS = TenantLimits()
_NO_USE = TenantUse()


def _over(reason: Reason, whose: str, resource: str, wanted: int, used: int, limit: int) -> Refusal:
    need, have, most = (render(resource, units) for units in (wanted, used, limit))
    return Refusal(
        reason,
        f"{whose} uses {have} of {most} {resource}, {need} more is asked for",
        {"resource": resource, "needed": need, "used": have, "limit": most},
    )


def cohort_nominal(ledger: QuotaLedger, resource: str) -> int:
    """What the cohort has in all of a resource: the sum of its tenants' nominal amounts."""
    return sum(limits.hard.get(resource, 0) for limits in ledger.limits.values())


def cohort_used(ledger: QuotaLedger, resource: str) -> int:
    """What the cohort's tenants use of it, of those that are limited in it at all."""
    return sum(
        use.hard.get(resource, 0)
        for tenant, use in ledger.used.items()
        if resource in ledger.limits.get(tenant, _NO_LIMITS).hard
    )


def quota_refusal(
    ledger: QuotaLedger, tenant: str, of: CapacityClass, amounts: Amounts
) -> Refusal | None:
    """Whether the tenant, and its cohort, have room for this.

    Soft capacity backs no commitment at all.
    """
    if of is CapacityClass.SOFT:
        return Refusal(Reason.QUOTA_EXCEEDED, "soft capacity cannot back a commitment")
    limits = ledger.limits.get(tenant, _NO_LIMITS)
    use = use_of(ledger.used.get(tenant, _NO_USE), of)
    nominal = limits.hard if of is CapacityClass.HARD else limits.reclaimable
    for resource, units in amounts.items():
        if resource not in nominal:
            continue
        used, limit = use.get(resource, 0), nominal[resource]
        if of is CapacityClass.HARD:
            limit += limits.borrowing.get(resource, 0)
        if used + units > limit:
            return _over(Reason.QUOTA_EXCEEDED, f"tenant {tenant}", resource, units, used, limit)
        if of is not CapacityClass.HARD:
            continue
        together, whole = cohort_used(ledger, resource), cohort_nominal(ledger, resource)
        if together + units > whole:
            return _over(Reason.COHORT_EXHAUSTED, "the cohort", resource, units, together, whole)
    return None


def never_fits(limits: TenantLimits, of: CapacityClass, amounts: Amounts) -> Refusal | None:
    """Whether this could not be had even if the tenant used nothing else. Admission asks this."""
    alone = QuotaLedger(limits={"": limits})
    whole = {
        resource: units + limits.borrowing.get(resource, 0)
        for resource, units in limits.hard.items()
    }
    # The cohort may lend, so only the tenant's own ceiling counts here.
    generous = msgspec.structs.replace(limits, hard=whole, borrowing={})
    return quota_refusal(msgspec.structs.replace(alone, limits={"": generous}), "", of, amounts)


def _with_use(ledger: QuotaLedger, tenant: str, of: CapacityClass, amounts: Amounts) -> QuotaLedger:
    use = ledger.used.get(tenant, _NO_USE)
    if of is CapacityClass.HARD:
        use = msgspec.structs.replace(use, hard=amounts)
    else:
        use = msgspec.structs.replace(use, reclaimable=amounts)
    return msgspec.structs.replace(ledger, used={**ledger.used, tenant: use})


def charged(ledger: QuotaLedger, tenant: str, of: CapacityClass, amounts: Amounts) -> QuotaLedger:
    """The ledger after the tenant took this."""
    return _with_use(ledger, tenant, of, add(use_of(ledger.used.get(tenant, _NO_USE), of), amounts))


def refunded(ledger: QuotaLedger, tenant: str, of: CapacityClass, amounts: Amounts) -> QuotaLedger:
    """The ledger after the tenant gave this back.

    Refunding what was never charged is our own bug.
    """
    rest = subtract(use_of(ledger.used.get(tenant, _NO_USE), of), amounts)
    invariant(
        all(units >= 0 for units in rest.values()),
        f"tenant {tenant} was refunded more than its quota ledger holds",
    )
    return _with_use(ledger, tenant, of, rest)


def grant_refusal(
    ledger: GrantLedger, budget: str, amounts: Amounts, now: datetime, skew_ms: int
) -> Refusal | None:
    """Whether a region may still spend this.

    It stops a skew early, since the reclaimer acts a skew late.
    """
    if ledger.expires is not None and now + timedelta(milliseconds=skew_ms) >= ledger.expires:
        return Refusal(
            Reason.GRANT_EXPIRED,
            "the region's grant has expired",
            {"expires": ledger.expires.isoformat(), "serial": str(ledger.serial)},
        )
    limits, used = ledger.budgets.get(budget, {}), ledger.used.get(budget, {})
    for resource, units in amounts.items():
        if resource in limits and used.get(resource, 0) + units > limits[resource]:
            return _over(
                Reason.GRANT_EXCEEDED,
                f"the {budget} grant",
                resource,
                units,
                used.get(resource, 0),
                limits[resource],
            )
    return None
