"""What lenders wait for: the claims that a cohort has to serve before it lends any more.

A lender is a tenant whose replicas wait because its cohort is exhausted although they would stay
inside its nominal amounts. Schedulers do not lend what is claimed, and controller:quota takes back
what is short; both count with `LenderClaims`, so that nothing is held back that nobody asks for.

A replica counts as far as it fits the nominal room that its tenant has left, the smallest first.
The members of a gang that has not started count together or not at all: half of them is of no use.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.placement.fit import demand_of
from holdfast.model.quota.allowance import awaits_cohort
from holdfast.model.quota.ledger import Amounts, QuotaLedger, TenantLimits, TenantUse, add
from holdfast.model.refusal import Reason

_NO_LIMITS, _NO_USE = TenantLimits(), TenantUse()

# What one claim takes, by resource.
_Shape = tuple[tuple[str, int], ...]


class _Unit(msgspec.Struct, frozen=True, order=True):
    """What is claimed together: a replica, or as many members of a gang as it needs at once.

    `gang` is the uid of the gang's workload; empty for replicas, which differ only by shape.
    """

    shape: _Shape
    gang: str


def _unit(replica: Replica) -> _Unit:
    pending = replica.status.pending
    # The report of a gang that has not started states how many have to fit at once.
    together = pending.reasons.get(Reason.COHORT_EXHAUSTED.value, 1) if pending is not None else 1
    is_whole = bool(replica.spec.gang) and together > 1
    times = together if is_whole else 1
    amounts = demand_of(replica.spec.template).amounts
    shape = tuple(sorted((name, units * times) for name, units in amounts.items()))
    return _Unit(shape, replica.spec.workload_uid if is_whole else "")


class LenderClaims:
    """The replicas that wait for their cohort, by tenant."""

    def __init__(self, replicas: Iterable[Replica] = ()) -> None:
        self._of: dict[str, tuple[str, _Unit]] = {}
        self._tenants: dict[str, dict[_Unit, dict[str, None]]] = {}
        for replica in replicas:
            self.put(replica.metadata.uid, replica)

    def copy(self) -> LenderClaims:
        """The same claims, to be changed by themselves."""
        made = LenderClaims()
        made._of = dict(self._of)
        made._tenants = {
            tenant: {unit: dict(uids) for unit, uids in units.items()}
            for tenant, units in self._tenants.items()
        }
        return made

    def put(self, uid: str, replica: Replica | None) -> bool:
        """Set what is known of a replica; None takes it out. Returns whether a claim ended."""
        old = self._of.pop(uid, None)
        if old is not None:
            tenant, unit = old
            del self._tenants[tenant][unit][uid]
            if not self._tenants[tenant][unit]:
                del self._tenants[tenant][unit]
            if not self._tenants[tenant]:
                del self._tenants[tenant]
        waits = replica is not None and awaits_cohort(replica)
        if replica is not None and waits:
            tenant, unit = self._of[uid] = replica.namespace, _unit(replica)
            self._tenants.setdefault(tenant, {}).setdefault(unit, {})[uid] = None
        return old is not None and not waits

    def inside_nominal(self, ledger: QuotaLedger) -> dict[str, Amounts]:
        """What the tenants of this ledger claim, as far as it fits inside their nominal amounts."""
        found: dict[str, Amounts] = {}
        for tenant in ledger.limits:
            units = self._tenants.get(tenant)
            if not units:
                continue
            room = _nominal_room(ledger, tenant)
            claimed: Amounts = {}
            for unit in sorted(units):
                count = 1 if unit.gang else len(units[unit])
                for resource, amount in unit.shape:
                    if amount and resource in room:
                        count = min(count, max(0, room[resource]) // amount)
                if not count:
                    continue
                taken = {resource: amount * count for resource, amount in unit.shape}
                claimed = add(claimed, taken)
                for resource in room:
                    room[resource] -= taken.get(resource, 0)
            if claimed:
                found[tenant] = claimed
        return found


def _nominal_room(ledger: QuotaLedger, tenant: str) -> dict[str, int]:
    """What a tenant may still use before it borrows, by resource."""
    nominal = ledger.limits.get(tenant, _NO_LIMITS).hard
    used = ledger.used.get(tenant, _NO_USE).hard
    return {resource: most - used.get(resource, 0) for resource, most in nominal.items()}
