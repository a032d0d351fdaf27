"""What tenants use of their quotas, as far as this scheduler sees, including its binds in flight.

The ledger itself belongs to the commit. It is reconstructed here from the bindings of replicas, the
open claims of reservations and what is assumed, and tested with the same function as the commit
uses, before anything is sent: work beyond the free quota waits here instead of being refused again
and again. A wrong yes costs one refused bind; a wrong no lasts until the change that corrects it,
which also wakes the replicas that wait.

A scheduler passes `shares`, which are told of each charge, so that it counts from the start. A
hypothesis counts from the first quota on that limits anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import CapacityClass, Quota
from holdfast.model.lifecycle import CHARGED, Cause
from holdfast.model.meta import Object
from holdfast.model.quantity import render
from holdfast.model.quota.allowance import (
    above_nominal,
    ceiling,
    lending_refusal,
    quota_refusal,
)
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import (
    Amounts,
    QuotaLedger,
    TenantLimits,
    TenantUse,
    limits_of,
)
from holdfast.model.quota.lenders import LenderClaims
from holdfast.model.refusal import Refusal
from holdfast.propose.queue.fair_shares import FairShares

_NO_LIMITS = TenantLimits()


class QuotaCharge(msgspec.Struct, frozen=True, gc=False):
    """What an owner is charged; `is_assumed` says that it is not seen yet.

    `budget` is the priority class whose budget is charged, `since` when the charge began, and
    `is_leaving` says that its owner was stopped for other work.
    """

    tenant: str
    of: CapacityClass
    amounts: Amounts
    budget: str = ""
    is_assumed: bool = False
    since: datetime | None = None
    is_leaving: bool = False


class QuotaUsage:
    """See the module's docstring."""

    def __init__(self, shares: FairShares | None = None) -> None:
        self._shares = shares
        self._limits: dict[str, TenantLimits] = {}
        self._cohorts: dict[str, str] = {}
        self._members: dict[str, dict[str, None]] = {}
        # What tenants wait for because their cohort is exhausted.
        self._claims = LenderClaims()
        self._quota_usage: dict[str, QuotaCharge] = {}
        self._used: dict[tuple[str, CapacityClass], dict[str, int]] = {}
        # The same again, by tenant and priority class.
        self._spent: dict[str, dict[str, dict[str, int]]] = {}
        # What victims of preemptions still hold of committed capacity, by tenant.
        self._leaving: dict[str, dict[str, int]] = {}

    def copy(self) -> QuotaUsage:
        """The same usage, to be changed by itself."""
        made = QuotaUsage()
        made._limits, made._cohorts = dict(self._limits), dict(self._cohorts)
        made._members = {cohort: dict(members) for cohort, members in self._members.items()}
        made._claims = self._claims.copy()
        made._quota_usage = dict(self._quota_usage)
        made._leaving = {tenant: dict(of) for tenant, of in self._leaving.items()}
        made._used = {whose: dict(used) for whose, used in self._used.items()}
        made._spent = {
            tenant: {budget: dict(spent) for budget, spent in of.items()}
            for tenant, of in self._spent.items()
        }
        return made

    @property
    def is_counting(self) -> bool:
        """Whether charges are counted."""
        return bool(self._limits) or self._shares is not None

    # Changes -------------------------------------------------------------------------------------

    def limit(self, tenant: str, quota: Quota | None) -> bool:
        """Set the tenant's quota. Returns whether everything has to be counted again.

        A tenant whose quota names nothing is not limited.
        """
        was_counting = self.is_counting
        if self._shares is not None:
            self._shares.set_terms(tenant, quota)
        limits = limits_of(quota) if quota is not None else _NO_LIMITS
        self._limits.pop(tenant, None)
        self._members.get(self._cohorts.pop(tenant, ""), {}).pop(tenant, None)
        if quota is not None and limits != _NO_LIMITS:
            self._limits[tenant] = limits
            self._cohorts[tenant] = quota.spec.cohort
            self._members.setdefault(quota.spec.cohort, {})[tenant] = None
        if not self.is_counting:
            self._quota_usage.clear()
            self._used.clear()
            self._spent.clear()
            self._claims = LenderClaims()
            self._leaving.clear()
        return self.is_counting and not was_counting

    def recount(self, replicas: Iterable[Object], reservations: Iterable[Object]) -> None:
        """Count all of these."""
        for each in (*replicas, *reservations):
            self.notice(None, each)

    def notice(self, before: Any, after: Any) -> bool:
        """Apply a change of a replica or reservation. Returns whether others may have more room:
        its charge became less, or what it claimed as a lender may be lent again.
        """
        if not self.is_counting:
            return False
        if isinstance(after, Reservation) or isinstance(before, Reservation):
            old, new = _of_reservation(before), _of_reservation(after)
            lessened = [self._put(owner, None) for owner in old if owner not in new]
            lessened += [self._put(owner, due) for owner, due in new.items()]
            return any(lessened)
        uid = (after if after is not None else before).metadata.uid
        found = _of_replica(after) if isinstance(after, Replica) else None
        is_waived = self._claims.put(uid, after if isinstance(after, Replica) else None)
        mine = self._quota_usage.get(uid)
        if found is None and mine is not None and mine.is_assumed:
            # The cache may be behind; the owner of the assumption ends it.
            return is_waived
        return self._put(uid, found) or is_waived

    def assume(
        self, uid: str, tenant: str, of: CapacityClass, amounts: Amounts, budget: str
    ) -> None:
        """Count a bind of ours that is in flight."""
        if self.is_counting:
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
        is_same = old is not None and due is not None and _is_same_charge(old, due)
        if old is not None:
            del self._quota_usage[owner]
            if not is_same:
                self._add(old, -1)
        if due is not None:
            self._quota_usage[owner] = due
            if not is_same:
                self._add(due, 1, is_new=old is None)
        return old is not None and not is_same

    def _add(self, due: QuotaCharge, sign: int, *, is_new: bool = False) -> None:
        if self._shares is not None:
            self._shares.charge(due.tenant, due.amounts, sign, due.since if is_new else None)
        used = self._used.setdefault((due.tenant, due.of), {})
        spent = self._spent.setdefault(due.tenant, {}).setdefault(due.budget, {})
        if due.is_leaving and due.of is CapacityClass.HARD:
            leaving = self._leaving.setdefault(due.tenant, {})
            for resource, units in due.amounts.items():
                leaving[resource] = leaving.get(resource, 0) + sign * units
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
        ledger = self.ledger(tenant)
        claims = self._claims.inside_nominal(ledger)

        def refusal(times: int) -> Refusal | None:
            asked = {resource: times * units for resource, units in amounts.items()}
            found = quota_refusal(ledger, tenant, of, asked, budget)
            if found is not None or of is not CapacityClass.HARD or not claims:
                return found
            return lending_refusal(ledger, claims, tenant, asked)

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

    def cohort_of(self, tenant: str) -> str:
        """The cohort in which a tenant is charged; empty if it is alone."""
        return self._cohorts.get(tenant, "")

    def borrowers(self, tenant: str) -> list[str]:
        """The tenants that have borrowed from the cohort of this one."""
        if not self.cohort_of(tenant):
            return []
        ledger = self.ledger(tenant)
        return [name for name in ledger.limits if name != tenant and above_nominal(ledger, name)]

    def ledger(self, tenant: str) -> QuotaLedger:
        """The ledger of the tenant's cohort, as reconstructed here."""
        if tenant not in self._limits:
            return QuotaLedger()
        cohort = self._cohorts[tenant]
        tenants = self._members[cohort] if cohort else {tenant: None}
        hard, reclaimable = CapacityClass.HARD, CapacityClass.RECLAIMABLE
        used = {
            name: TenantUse(
                hard=self._used.get((name, hard), {}),
                reclaimable=self._used.get((name, reclaimable), {}),
                classes=self._spent.get(name, {}),
                leaving=self._leaving.get(name, {}),
            )
            for name in tenants
        }
        return QuotaLedger(limits={name: self._limits[name] for name in tenants}, used=used)


def _is_same_charge(one: QuotaCharge, other: QuotaCharge) -> bool:
    """Whether two charges differ at most in that one is assumed, and since when."""
    return (
        one.amounts == other.amounts
        and one.tenant == other.tenant
        and one.of is other.of
        and one.budget == other.budget
        and one.is_leaving == other.is_leaving
    )


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
    return QuotaCharge(
        replica.metadata.namespace,
        of,
        binding.charge,
        binding.priority_class,
        since=binding.at,
        is_leaving=replica.status.cause is Cause.PREEMPTION,
    )


def _of_reservation(reservation: Any) -> dict[str, QuotaCharge]:
    """The open claims that are charged to the tenant, each under a name of its own."""
    if not isinstance(reservation, Reservation) or not is_active(reservation):
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
