"""What tenants use of their quotas, as far as this scheduler sees, including its binds in flight.

The ledger itself belongs to the commit. It is reconstructed here from the bindings of replicas, the
open claims of reservations and what is assumed, and tested with the same function as the commit
uses, before anything is sent: work beyond the free quota waits here instead of being refused again
and again. A wrong yes costs one refused bind; a wrong no lasts until the change that corrects it,
which also wakes the replicas that wait.

Counting starts with the first quota that limits anything: a plane without quotas pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.model.allowance import ceiling, quota_refusal
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation, ReservationPhase
from holdfast.model.kinds.tenant import CapacityClass, Quota
from holdfast.model.ledger import Amounts, QuotaLedger, TenantLimits, TenantUse, limits_of
from holdfast.model.lifecycle import CHARGED
from holdfast.model.quantity import render
from holdfast.model.refusal import Refusal

_ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)
_NO_LIMITS = TenantLimits()


class QuotaCharge(msgspec.Struct, frozen=True, gc=False):
    """What an owner is charged; `is_assumed` says that it is not seen yet.

    `budget` is the priority class whose budget is charged.
    """

    tenant: str
    of: CapacityClass
    amounts: Amounts
    budget: str = ""
    is_assumed: bool = False


class QuotaUsage:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._limits: dict[str, TenantLimits] = {}
        self._cohorts: dict[str, str] = {}
        self._quota_usage: dict[str, QuotaCharge] = {}
        self._used: dict[tuple[str, CapacityClass], dict[str, int]] = {}
        # The same again, by tenant and priority class.
        self._spent: dict[str, dict[str, dict[str, int]]] = {}

    @property
    def is_counting(self) -> bool:
        """Whether any tenant is limited in anything."""
        return bool(self._limits)

    # Changes -------------------------------------------------------------------------------------

    def limit(self, tenant: str, quota: Quota | None) -> bool:
        """Set the tenant's quota. Returns whether everything has to be counted again.

        A tenant whose quota names nothing is not limited.
        """
        was_counting = self.is_counting
        limits = limits_of(quota) if quota is not None else _NO_LIMITS
        if quota is None or limits == _NO_LIMITS:
            self._limits.pop(tenant, None)
            self._cohorts.pop(tenant, None)
        else:
            self._limits[tenant] = limits
            self._cohorts[tenant] = quota.spec.cohort
        if not self.is_counting:
            self._quota_usage.clear()
            self._used.clear()
            self._spent.clear()
        return self.is_counting and not was_counting

    def recount(self, replicas: Iterable[Any], reservations: Iterable[Any]) -> None:
        """Count again from all of these."""
        for each in (*replicas, *reservations):
            self.notice(None, each)

    def notice(self, before: Any, after: Any) -> bool:
        """Apply a change of a replica or reservation. Returns whether its charge became less."""
        if not self._limits:
            return False
        if isinstance(after, Reservation) or isinstance(before, Reservation):
            old, new = _of_reservation(before), _of_reservation(after)
            lessened = [self._put(owner, None) for owner in old if owner not in new]
            lessened += [self._put(owner, due) for owner, due in new.items()]
            return any(lessened)
        uid = (after if after is not None else before).metadata.uid
        found = _of_replica(after) if isinstance(after, Replica) else None
        mine = self._quota_usage.get(uid)
        if found is None and mine is not None and mine.is_assumed:
            # The cache may be behind; the owner of the assumption ends it.
            return False
        return self._put(uid, found)

    def assume(
        self, uid: str, tenant: str, of: CapacityClass, amounts: Amounts, budget: str
    ) -> None:
        """Count a bind of ours that is in flight."""
        if self._limits:
            self._put(uid, QuotaCharge(tenant, of, amounts, budget, is_assumed=True))

    def unassume(self, uid: str) -> str | None:
        """Stop counting it, unless it was seen meanwhile. Returns the tenant that may gain room."""
        due = self._quota_usage.get(uid)
        if due is None or not due.is_assumed:
            return None
        self._put(uid, None)
        return due.tenant

    def _put(self, owner: str, due: QuotaCharge | None) -> bool:
        """Set the charge of an owner. Returns whether it was charged something else before."""
        old = self._quota_usage.get(owner)
        if old == due:
            return False
        if old is not None:
            self._add(old, -1)
            del self._quota_usage[owner]
        if due is not None:
            self._add(due, 1)
            self._quota_usage[owner] = due
        return old is not None and (due is None or not _is_same_charge(old, due))

    def _add(self, due: QuotaCharge, sign: int) -> None:
        used = self._used.setdefault((due.tenant, due.of), {})
        spent = self._spent.setdefault(due.tenant, {}).setdefault(due.budget, {})
        for resource, units in due.amounts.items():
            used[resource] = used.get(resource, 0) + sign * units
            spent[resource] = spent.get(resource, 0) + sign * units

    # Questions -----------------------------------------------------------------------------------

    def room(
        self, tenant: str, of: CapacityClass, amounts: Amounts, budget: str, most: int
    ) -> tuple[int, Refusal | None]:
        """How often this fits, up to `most`; and the refusal if it does not fit at all."""
        if tenant not in self._limits:
            return most, None
        ledger = self._ledger(tenant)

        def refusal(times: int) -> Refusal | None:
            asked = {resource: times * units for resource, units in amounts.items()}
            return quota_refusal(ledger, tenant, of, asked, budget)

        if refusal(most) is None:
            return most, None
        # More of the same is never allowed where less is not, so bisection finds the most.
        allowed, refused = 0, most
        while refused - allowed > 1:
            middle = (allowed + refused) // 2
            if refusal(middle) is None:
                allowed = middle
            else:
                refused = middle
        return allowed, refusal(1) if not allowed else None

    def state(self, tenant: str, of: CapacityClass, budget: str) -> str:
        """What is used of each limit, as text; empty where nothing is limited."""
        limits = self._limits.get(tenant)
        if limits is None:
            return ""
        named = limits.reclaimable if of is CapacityClass.RECLAIMABLE else limits.hard
        most = {resource: ceiling(limits, of, resource) or 0 for resource in named}
        spent = self._spent.get(tenant, {}).get(budget, {})
        parts = (
            _stated(of.value, self._used.get((tenant, of), {}), most),
            _stated(f"priority class {budget}", spent, limits.classes.get(budget, {})),
        )
        return "; ".join(part for part in parts if part)

    def _ledger(self, tenant: str) -> QuotaLedger:
        """The ledger of the tenant's cohort, as reconstructed here."""
        cohort = self._cohorts[tenant]
        tenants = [tenant]
        if cohort:
            tenants = [name for name, other in self._cohorts.items() if other == cohort]
        hard, reclaimable = CapacityClass.HARD, CapacityClass.RECLAIMABLE
        used = {
            name: TenantUse(
                hard=self._used.get((name, hard), {}),
                reclaimable=self._used.get((name, reclaimable), {}),
                classes=self._spent.get(name, {}),
            )
            for name in tenants
        }
        return QuotaLedger(limits={name: self._limits[name] for name in tenants}, used=used)


def _is_same_charge(one: QuotaCharge, other: QuotaCharge) -> bool:
    """Whether two charges differ only in that one is assumed."""
    return msgspec.structs.replace(one, is_assumed=other.is_assumed) == other


def _stated(whose: str, used: Amounts, most: Amounts) -> str:
    parts = [
        f"{name} {render(name, used.get(name, 0))} of {render(name, most[name])}"
        for name in sorted(most)
    ]
    return f"{whose}: {', '.join(parts)}" if parts else ""


def _of_replica(replica: Replica) -> QuotaCharge | None:
    binding = replica.status.binding
    if binding is None or replica.status.state not in CHARGED:
        return None
    of = CapacityClass(binding.capacity_class) if binding.capacity_class else CapacityClass.HARD
    return QuotaCharge(replica.metadata.namespace, of, binding.charge, binding.priority_class)


def _of_reservation(reservation: Any) -> dict[str, QuotaCharge]:
    """The open claims that are charged to the tenant, each under a name of its own."""
    if not isinstance(reservation, Reservation) or reservation.status.phase not in _ACTIVE:
        return {}
    spec, uid = reservation.spec, reservation.metadata.uid
    if not spec.quota:
        return {}
    tenant, of, budget = reservation.namespace, spec.capacity_class, spec.priority_class
    return {
        f"{uid}/{index}": QuotaCharge(tenant, of, claim.charge, budget)
        for index, claim in enumerate(reservation.status.claims)
        if not claim.consumed
    }
