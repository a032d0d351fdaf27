"""controller:quota: takes back what tenants have borrowed when a lender of their cohort needs it.

It owns evictions for Reclaim and `status.reclaim` of a Quota, the notice to a borrower. A lender is
a tenant whose replicas wait because the cohort is exhausted although they would stay inside its
nominal amounts; a borrower uses more than its own.

    a lender waits for more than is being released  -> the borrowers get a notice with a deadline
    the deadline has passed                         -> Evict, the smallest loss first, never more
                                                       than the lender waits for and at most
                                                       `stopsPerMinute` of a tenant
    no lender waits any more                        -> the notice is withdrawn

The commit refuses an eviction without a notice whose deadline has passed, or of a tenant that has
borrowed nothing. What is released wakes the lender's replicas in the scheduling queue, and is
not lent again meanwhile (`lending_refusal`); where they run is up to the scheduler. Lowering a
quota alone stops nothing: only a lender that waits does.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from holdfast.correct.controller import (
    REQUESTS_PER_PLAN_MAX,
    Controller,
    ReconcilePlan,
    step_id,
)
from holdfast.correct.pacing import Cooldowns
from holdfast.correct.remembered import Remembered
from holdfast.model.allowance import (
    above_nominal,
    awaits_cohort,
    cohort_nominal,
    cohort_used,
    is_inside_nominal,
)
from holdfast.model.charging import QUOTA_NAME, hard_charge
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Quota, ReclaimNotice
from holdfast.model.ledger import Amounts, QuotaLedger, TenantUse, add, limits_of, subtract
from holdfast.model.lifecycle import ENDING, Actor, Cause, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.placement.fit import demand_of
from holdfast.model.quantity import render
from holdfast.model.requests import Evict, Request, Term, Update, target
from holdfast.model.time import Instant, sooner, timestamp, wall_ms
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# The commit acts two seconds late; with one more, this clock may be a little ahead.
LATE_MS = 3_000
MINUTE_MS = 60_000
_STOPPABLE = (State.BOUND, State.RUNNING)


def _cohort_of(quota: Quota) -> Iterable[str]:
    return (quota.spec.cohort,) if quota.spec.cohort and quota.name == QUOTA_NAME else ()


def _tenant_of(owner: Replica | Reservation) -> Iterable[str]:
    return (owner.namespace,)


def _lender_of(replica: Replica) -> Iterable[str]:
    return (replica.namespace,) if awaits_cohort(replica) else ()


BY_COHORT = Index("quotas", "cohort", _cohort_of)
BY_TENANT = Index("replicas", "tenant", _tenant_of)
BY_LENDER = Index("replicas", "lender", _lender_of)
RESERVED_BY_TENANT = Index("reservations", "tenant", _tenant_of)


class _Cohort(msgspec.Struct):
    """What a cohort looks like once all that is being released is gone.

    `short` is what lenders wait for beyond that, by resource.
    """

    ledger: QuotaLedger
    short: Amounts
    lenders: list[str]


class RecentStops(Remembered):
    """What was stopped in the last minute, by tenant and uid. A limit outlasts terms."""

    def __init__(self) -> None:
        self._stopped: dict[str, dict[str, int]] = {}

    def begin_term(self) -> None:
        """A limit outlasts terms."""

    def resync(self, view: Snapshot) -> None:
        """Forget tenants without a quota; the rest does not depend on the view."""
        known = {it.namespace for it in view.all("quotas")}
        self._stopped = {it: stops for it, stops in self._stopped.items() if it in known}

    def add(self, replica: Replica, now: Instant) -> None:
        """Record that a replica is stopped now."""
        stops = self._stopped.setdefault(replica.namespace, {})
        stops[replica.metadata.uid] = now.monotonic_ms

    def left(self, quota: Quota, replicas: list[Replica], now: Instant) -> int:
        """How many replicas of a tenant may be stopped now.

        A replica that still runs was not stopped: its request was lost or refused.
        """
        tenant, since_ms = quota.namespace, now.monotonic_ms - MINUTE_MS
        runs = {it.metadata.uid for it in replicas if it.status.state in _STOPPABLE}
        recent = {
            uid: at
            for uid, at in self._stopped.get(tenant, {}).items()
            if at > since_ms and uid not in runs
        }
        self._stopped[tenant] = recent
        return quota.spec.lending.stops_per_minute - len(recent)


class QuotaController(Controller):
    """See the module's docstring."""

    actor = Actor.QUOTA
    follows = ("quotas", "replicas", "reservations")
    indexes = (BY_COHORT, BY_TENANT, BY_LENDER, RESERVED_BY_TENANT)

    def __init__(self) -> None:
        self._stops, self._cooldowns = RecentStops(), Cooldowns()
        self.remembers = (self._stops, self._cooldowns)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A quota concerns its cohort, before and after; a replica that of its tenant."""
        if change.plural == "quotas":
            both = (it for it in (change.before, change.after) if isinstance(it, Quota))
            return [("", name) for it in both for name in _cohort_of(it)]
        quota: Quota | None = view.get("quotas", change.object.namespace, QUOTA_NAME)
        return [("", name) for name in _cohort_of(quota)] if quota is not None else ()

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        names = (name for quota in view.all("quotas") for name in _cohort_of(quota))
        return [("", name) for name in dict.fromkeys(names)]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        quotas: list[Quota] = view.found(BY_COHORT, key[1])
        waits = any(view.has(BY_LENDER, it.namespace, awaits_cohort) for it in quotas)
        if not waits:
            return ReconcilePlan(withdrawals(quotas))
        left_ms = self._cooldowns.left_ms(key, now)
        if left_ms:
            return ReconcilePlan(wake_after_ms=left_ms)
        replicas: list[Replica] = [
            it for quota in quotas for it in view.found(BY_TENANT, quota.namespace)
        ]
        self._cooldowns.rest(key, len(replicas), now)
        cohort = _cohort(view, quotas, replicas)
        if not cohort.short:
            return ReconcilePlan(withdrawals(quotas))
        return self._taken_back(cohort, quotas, replicas, term, now)

    def _taken_back(
        self,
        cohort: _Cohort,
        quotas: list[Quota],
        replicas: list[Replica],
        term: Term,
        now: Instant,
    ) -> ReconcilePlan:
        """Give notice to borrowers, and stop work of those whose deadline has passed."""
        requests: list[Request] = []
        due: dict[str, int] = {}
        wake_ms: int | None = None
        for quota in quotas:
            notice, tenant = quota.status.reclaim, quota.namespace
            over = above_nominal(cohort.ledger, tenant)
            wanted = {it: min(over[it], units) for it, units in cohort.short.items() if it in over}
            if not wanted:
                if notice is not None:
                    requests.append(_with_notice(quota, None))
            elif notice is None:
                requests.append(
                    _with_notice(quota, notice_to(quota, wanted, len(cohort.lenders), now))
                )
                wake_ms = sooner(wake_ms, quota.spec.lending.notice_seconds * 1_000 + LATE_MS)
            else:
                left_ms = wall_ms(notice.deadline) + LATE_MS - now.wall_ms
                if left_ms > 0:
                    wake_ms = sooner(wake_ms, left_ms)
                else:
                    due[tenant] = self._stops.left(quota, replicas, now)
        short, ledger = dict(cohort.short), cohort.ledger
        for replica in sorted((it for it in replicas if it.namespace in due), key=_loss):
            tenant, held = replica.namespace, hard_charge(replica)
            useful = [it for it in above_nominal(ledger, tenant) if short.get(it, 0) > 0]
            if replica.status.state not in _STOPPABLE or not any(held.get(it) for it in useful):
                continue
            if due[tenant] <= 0 or len(requests) >= REQUESTS_PER_PLAN_MAX:
                wake_ms = sooner(wake_ms, MINUTE_MS)
                continue
            due[tenant] -= 1
            self._stops.add(replica, now)
            ledger = _less(ledger, tenant, held)
            short = {it: units - held.get(it, 0) for it, units in short.items()}
            evidence = "a tenant of the cohort needs its nominal quota, which this tenant borrowed"
            operation = step_id(self.identity, replica, "stop-Reclaim")
            requests.append(Evict(target(replica), Cause.RECLAIM, evidence, term, operation))
        return ReconcilePlan(tuple(requests), wake_after_ms=wake_ms)


def _cohort(view: Snapshot, quotas: list[Quota], replicas: list[Replica]) -> _Cohort:
    limits = {it.namespace: limits_of(it) for it in quotas}
    sums: dict[str, Amounts] = {}
    reserved = (it for quota in quotas for it in view.found(RESERVED_BY_TENANT, quota.namespace))
    owners: list[Replica | Reservation] = [
        *(it for it in replicas if it.status.state not in ENDING),
        *reserved,
    ]
    for owner in owners:
        held = hard_charge(owner)
        if held:
            sums[owner.namespace] = add(sums.get(owner.namespace, {}), held)
    ledger = QuotaLedger(limits, {name: TenantUse(hard=hard) for name, hard in sums.items()})
    wanted: dict[str, Amounts] = {}
    for replica in replicas:
        if awaits_cohort(replica):
            tenant = replica.namespace
            more = add(wanted.get(tenant, {}), demand_of(replica.spec.template).amounts)
            if is_inside_nominal(ledger, tenant, more):
                wanted[tenant] = more
    total: Amounts = {}
    for amounts in wanted.values():
        total = add(total, amounts)
    short = {
        it: cohort_used(ledger, it) + units - cohort_nominal(ledger, it)
        for it, units in total.items()
        if any(it in of.hard for of in limits.values())
    }
    return _Cohort(ledger, {it: units for it, units in short.items() if units > 0}, sorted(wanted))


def _less(ledger: QuotaLedger, tenant: str, held: Amounts) -> QuotaLedger:
    """The ledger without what a replica holds."""
    use = TenantUse(hard=subtract(ledger.used[tenant].hard, held))
    return msgspec.structs.replace(ledger, used={**ledger.used, tenant: use})


def _loss(replica: Replica) -> tuple[bool, int, float, str, str]:
    """What is lost when a replica is stopped: the smallest first. Work that is not ready has lost
    nothing yet; then the less important, and what was placed last.
    """
    binding = replica.status.binding
    since = binding.at if binding is not None else None
    placed = since.timestamp() if since is not None else 0.0
    return is_available(replica), replica.spec.priority, -placed, replica.namespace, replica.name


def notice_to(quota: Quota, wanted: Amounts, lenders: int, now: Instant) -> ReclaimNotice:
    since = timestamp(now.wall_ms)
    return ReclaimNotice(
        since,
        since + timedelta(seconds=quota.spec.lending.notice_seconds),
        {it: render(it, units) for it, units in wanted.items()},
        lenders,
    )


def _with_notice(quota: Quota, notice: ReclaimNotice | None) -> Update:
    status = msgspec.structs.replace(quota.status, reclaim=notice)
    return Update(msgspec.structs.replace(quota, status=status), "status")


def withdrawals(quotas: list[Quota]) -> tuple[Update, ...]:
    """Withdraw all notices: no lender waits for anything that is not being released."""
    return tuple(_with_notice(it, None) for it in quotas if it.status.reclaim is not None)
