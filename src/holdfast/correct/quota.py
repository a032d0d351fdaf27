"""controller:quota: takes back what tenants have borrowed when a lender of their cohort needs it.

It owns evictions for Reclaim and `status.reclaim` of a Quota, the notice to a borrower. A lender is
a tenant whose replicas wait because the cohort is exhausted although they would stay inside its
nominal amounts; a borrower uses more than its own.

    a lender waits for more than is being released  -> the borrowers get a notice with a deadline
    the deadline has passed                         -> Evict, the smallest loss first, never more
                                                       than the lender waits for and at most
                                                       `stopsPerMinute` of a tenant; a gang whole
                                                       or, below its spare members, not at all
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
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.tenant import Quota, ReclaimNotice
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import ENDING, Actor, Cause, State
from holdfast.model.placement.disruption import is_available
from holdfast.model.placement.gang import gang_record_name, is_of_gang, spare_members
from holdfast.model.quantity import render
from holdfast.model.quota.allowance import (
    above_nominal,
    awaits_cohort,
    cohort_nominal,
    cohort_used,
)
from holdfast.model.quota.charging import QUOTA_NAME, hard_charge
from holdfast.model.quota.ledger import Amounts, QuotaLedger, TenantUse, add, limits_of, subtract
from holdfast.model.quota.lenders import LenderClaims
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
    follows = ("quotas", "replicas", "reservations", "workloads")
    indexes = (BY_COHORT, BY_TENANT, BY_LENDER, RESERVED_BY_TENANT)

    def __init__(self) -> None:
        self._stops, self._cooldowns = RecentStops(), Cooldowns()
        self.remembers = (self._stops, self._cooldowns)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A quota concerns its cohort, before and after; a replica that of its tenant."""
        if change.plural == "workloads":
            # What the gangs of a tenant can spare is looked up, and changes nothing by itself.
            return ()
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
        return self._taken_back(view, cohort, quotas, replicas, term, now)

    def _taken_back(
        self,
        view: Snapshot,
        cohort: _Cohort,
        quotas: list[Quota],
        replicas: list[Replica],
        term: Term,
        now: Instant,
    ) -> ReconcilePlan:
        """Give notice to borrowers, and stop work of those whose deadline has passed."""
        requests: list[Request] = []
        due: dict[str, int] = {}
        stops_max = {it.namespace: it.spec.lending.stops_per_minute for it in quotas}
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
        borrowed = [it for it in replicas if it.namespace in due]
        short, ledger = dict(cohort.short), cohort.ledger
        for unit in sorted(_units(view, borrowed), key=lambda it: it.loss):
            tenant = unit.replicas[0].namespace
            useful = [it for it in above_nominal(ledger, tenant) if short.get(it, 0) > 0]
            count = len(unit.replicas)
            if not any(unit.held.get(it) for it in useful):
                continue
            if count > stops_max[tenant]:
                # Stopping it would break the limit whenever it happens.
                continue
            if due[tenant] < count or len(requests) + count > REQUESTS_PER_PLAN_MAX:
                wake_ms = sooner(wake_ms, MINUTE_MS)
                continue
            due[tenant] -= count
            for replica in unit.replicas:
                self._stops.add(replica, now)
                if above_nominal(ledger, tenant):
                    # The others of a gang lose it with these, and controller:repair stops them.
                    requests.append(self._evict(replica, term))
                ledger = _less(ledger, tenant, hard_charge(replica))
            short = {it: units - unit.held.get(it, 0) for it, units in short.items()}
        return ReconcilePlan(tuple(requests), wake_after_ms=wake_ms)

    def _evict(self, replica: Replica, term: Term) -> Evict:
        evidence = "a tenant of the cohort needs its nominal quota, which this tenant borrowed"
        operation = step_id(self.identity, replica, "stop-Reclaim")
        return Evict(target(replica), Cause.RECLAIM, evidence, term, operation)


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
    wanted = LenderClaims(replicas).inside_nominal(ledger)
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


_Loss = tuple[bool, int, bool, float, str, str]


class _StopUnit(msgspec.Struct, frozen=True):
    """What is stopped together, or not at all: a replica, or a gang that would end without any of
    these. `held` is their committed charge.
    """

    replicas: tuple[Replica, ...]
    held: Amounts
    loss: _Loss


def _unit(replicas: Iterable[Replica], *, is_gang: bool = False) -> _StopUnit:
    members = tuple(replicas)
    held: Amounts = {}
    for it in members:
        held = add(held, hard_charge(it))
    return _StopUnit(members, held, max(_loss(it, is_gang=is_gang) for it in members))


def _units(view: Snapshot, replicas: list[Replica]) -> list[_StopUnit]:
    """What may be stopped. Of a gang the spare members may be stopped one by one."""
    gangs: dict[tuple[str, str], list[Replica]] = {}
    found = []
    for replica in replicas:
        if replica.spec.gang:
            gangs.setdefault((replica.namespace, replica.spec.workload), []).append(replica)
        elif replica.status.state in _STOPPABLE:
            found.append(_unit((replica,)))
    for members in gangs.values():
        spare = _spare(view, members[0])
        runs = sorted((it for it in members if it.status.state in _STOPPABLE), key=_loss)
        found += [_unit((it,)) for it in runs[:spare]]
        if runs[spare:]:
            found.append(_unit(runs[spare:], is_gang=True))
    return found


def _spare(view: Snapshot, member: Replica) -> int:
    """How many members of its gang may be stopped so that it goes on; none if that is not known."""
    workload: Workload | None = view.get("workloads", member.namespace, member.spec.workload)
    name = gang_record_name(member.spec.workload)
    record: Reservation | None = view.get("reservations", member.namespace, name)
    gang = workload.spec.gang if workload is not None else None
    if gang is None or record is None or not is_of_gang(record, member.spec.workload_uid):
        return 0
    return max(0, spare_members(record, gang.min_available))


def _loss(replica: Replica, *, is_gang: bool = False) -> _Loss:
    """What is lost when a replica is stopped: the smallest first. Work that is not ready has lost
    nothing yet; then the less important, what is no whole gang, and what was placed last.
    """
    binding = replica.status.binding
    since = binding.at if binding is not None else None
    placed = since.timestamp() if since is not None else 0.0
    name = replica.namespace, replica.name
    return is_available(replica), replica.spec.priority, is_gang, -placed, *name


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
