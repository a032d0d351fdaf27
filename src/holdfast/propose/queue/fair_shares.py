"""What each tenant holds, waits for and has used lately: the order of tenants within a priority.

`quota_usage.py` reports each charge here, including binds in flight, and the scheduler each replica
that begins or ends to wait. The rules are in `model/quota/fairness.py`.

The history of a tenant is one decayed average for each resource. It is kept in memory only. A
scheduler that starts reconstructs it from the bindings of the replicas that exist, with their
times, so what it lacks is work that was deleted before; half of that is forgotten after each
half-life. All schedulers see the replicas of all tenants, whatever their share, so they agree up to
the age of their caches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import FairnessRules
from holdfast.model.kinds.tenant import Quota
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.model.pulse import STANDINGS_MAX, TenantStanding
from holdfast.model.quantity import capacity as capacity_units
from holdfast.model.quota.fairness import (
    REMEMBERED_MAX,
    Claimant,
    OrderKey,
    Standing,
    decay,
    dominant_share,
    order_key,
    standings,
)
from holdfast.model.quota.ledger import Amounts, limits_of
from holdfast.model.time import Instant, wall_ms

# How often the capacity of the plane and the bound of what is remembered are computed again.
REFRESH_MS = 2_000
# An average that is at most this part of a half-life behind is not updated.
_STEPS_PER_HALF_LIFE = 1_000
# Work that no change of the fleet's load could place is not owed anything.
_HOPELESS = ("Never", "NotWithThisFleet")


class _Tenant(msgspec.Struct):
    """One tenant. `average` is what it held lately, as of `at_ms`.

    `held` includes `expected`, each of which is about to be proposed.
    """

    weight: int = 1
    minimum: Amounts = {}
    ceiling: Amounts = {}
    held: dict[str, int] = {}
    waiting: dict[str, int] = {}
    average: dict[str, float] = {}
    at_ms: int = 0
    # Both grow over all tenants: the smaller, the longer ago was its last charge, or its last turn
    # of the rotation.
    last_charge: int = 0
    last_rotation: int = 0
    expected: list[Amounts] = []


class FairShares:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        self._waiting: dict[str, tuple[str, Amounts]] = {}
        self._expecting: dict[str, _Tenant] = {}
        self._charges = self._rotations = 0
        self._rules = FairnessRules()
        self._now = Instant(0, 0)
        self._refresh_at_ms = 0
        # When each tenant was first owed more than the tolerance, by the monotonic clock.
        self._lapsed_since: dict[str, int] = {}
        self.capacity: Mapping[str, int] = {}
        # Tenants that came nearer to the front since the queue last asked.
        self.advanced: dict[str, None] = {}

    # Changes -------------------------------------------------------------------------------------

    def begin(self, now: Instant, rules: FairnessRules) -> None:
        """Begin a step of the scheduler: what follows happens now and by these rules."""
        self._now, self._rules = now, rules

    @property
    def is_refresh_due(self) -> bool:
        """Whether it is time, or no node was known the last time."""
        return self._now.monotonic_ms >= self._refresh_at_ms or not any(self.capacity.values())

    def refresh(self, capacity: Mapping[str, int]) -> None:
        """Set the plane's capacity, and bound what tenants remember by what they could have."""
        self._refresh_at_ms = self._now.monotonic_ms + REFRESH_MS
        self.capacity = capacity
        found, level = self.standings()
        now_ms = self._now.monotonic_ms
        self._lapsed_since = {
            name: self._lapsed_since.get(name, now_ms) for name, it in found.items() if it.is_lapsed
        }
        for name, tenant in self._tenants.items():
            most = REMEMBERED_MAX * level * tenant.weight
            self._bring_up_to_date(tenant)
            remembered = dominant_share(tenant.average, capacity)
            if remembered > most:
                scale = most / remembered
                tenant.average = {it: units * scale for it, units in tenant.average.items()}
            # All averages have decayed, each by another amount.
            self.advanced[name] = None

    def set_terms(self, tenant: str, quota: Quota | None) -> None:
        """Apply what a quota says about fairness."""
        of = self._tenant(tenant)
        of.weight = quota.spec.fairness.weight if quota is not None else 1
        of.minimum, of.ceiling = {}, {}
        if quota is not None:
            stated = quota.spec.fairness.minimum
            of.minimum = {name: capacity_units(name, value) for name, value in stated.items()}
            limits = limits_of(quota)
            of.ceiling = {
                name: most + limits.borrowing.get(name, 0) for name, most in limits.hard.items()
            }
        self.advanced[tenant] = None

    def charge(
        self, tenant: str, amounts: Amounts, sign: int, since: datetime | None = None
    ) -> None:
        """Count a charge, or one less with -1. `since` is when it began, if that was seen late."""
        of = self._tenant(tenant)
        if sign > 0:
            self._charges += 1
            of.last_charge = self._charges
        if sign > 0 and of.expected and of.expected[-1] == amounts:
            # What was expected is now assumed, and it is counted already.
            of.expected.pop()
            return
        self._bring_up_to_date(of)
        _add(of.held, amounts, sign)
        age_ms = self._now.wall_ms - wall_ms(since) if since is not None else 0
        if age_ms > 0:
            self._remember(of, amounts, age_ms, 0)
        if sign < 0:
            self.advanced[tenant] = None

    def notice(self, before: Any, after: Any) -> None:
        """Process a change of a replica: it may begin or end to wait."""
        if isinstance(before, Replica):
            same = isinstance(after, Replica) and after.metadata.uid == before.metadata.uid
            if not same:
                self._set_waiting(before.metadata.uid, None)
        if isinstance(after, Replica):
            self._set_waiting(after.metadata.uid, _waits(after))
            if before is None and after.status.state is State.RELEASED:
                self._remember_ended(after)

    def expect(self, tenant: str, replica: Replica) -> None:
        """Count what is about to be proposed, until it is charged or `forget_expected`."""
        if len(self._tenants) == 1:
            return
        of, amounts = self._tenant(tenant), demand_of(replica.spec.template).amounts
        _add(of.held, amounts, 1)
        of.expected.append(amounts)
        self._charges += 1
        of.last_charge = self._charges
        self._expecting[tenant] = of

    def forget_expected(self) -> None:
        """Forget what was expected and found no place."""
        for tenant, of in self._expecting.items():
            for amounts in of.expected:
                _add(of.held, amounts, -1)
                self.advanced[tenant] = None
            of.expected.clear()
        self._expecting.clear()

    def _tenant(self, name: str) -> _Tenant:
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = _Tenant(at_ms=self._now.monotonic_ms)
        return found

    def _set_waiting(self, uid: str, waits: tuple[str, Amounts] | None) -> None:
        was = self._waiting.get(uid)
        if was == waits:
            return
        if was is not None:
            _add(self._tenant(was[0]).waiting, was[1], -1)
            del self._waiting[uid]
        if waits is not None:
            _add(self._tenant(waits[0]).waiting, waits[1], 1)
            self._waiting[uid] = waits

    # History -------------------------------------------------------------------------------------

    @property
    def _half_life_ms(self) -> int:
        return self._rules.half_life_seconds * 1_000

    def _bring_up_to_date(self, of: _Tenant) -> None:
        elapsed_ms = self._now.monotonic_ms - of.at_ms
        if elapsed_ms * _STEPS_PER_HALF_LIFE < self._half_life_ms:
            return
        of.at_ms = self._now.monotonic_ms
        for name in dict.fromkeys((*of.held, *of.average)):
            held = of.held.get(name, 0)
            of.average[name] = decay(
                of.average.get(name, 0.0), held, elapsed_ms, self._half_life_ms
            )

    def _remember(self, of: _Tenant, amounts: Amounts, since_ms: int, until_ms: int) -> None:
        """Add what was held from `since_ms` ago until `until_ms` ago."""
        kept = decay(1.0, 0.0, until_ms, self._half_life_ms)
        part = kept - decay(1.0, 0.0, since_ms, self._half_life_ms)
        for name, units in amounts.items():
            of.average[name] = of.average.get(name, 0.0) + units * part

    def _remember_ended(self, replica: Replica) -> None:
        """Add work that had ended before this scheduler saw it."""
        binding, moves = replica.status.binding, replica.status.transitions
        if binding is None or binding.at is None or not moves:
            return
        of, now_ms = self._tenant(replica.namespace), self._now.wall_ms
        since_ms, until_ms = now_ms - wall_ms(binding.at), now_ms - wall_ms(moves[-1].at)
        if 0 <= until_ms < since_ms:
            self._bring_up_to_date(of)
            self._remember(of, binding.charge, since_ms, until_ms)

    # Questions -----------------------------------------------------------------------------------

    @property
    def is_suspended(self) -> bool:
        """Whether tenants take turns now, whatever they use."""
        stated = self._rules.suspension
        return stated is not None and (
            wall_ms(stated.since) <= self._now.wall_ms < wall_ms(stated.until)
        )

    def key(self, tenant: str) -> OrderKey:
        """The position of a tenant; the smallest is next. While fairness is suspended, the one
        whose last charge is longest ago.
        """
        of = self._tenants.get(tenant)
        if of is None:
            return True, 0.0
        if self.is_suspended:
            return True, of.last_charge
        self._bring_up_to_date(of)
        return order_key(of.held, of.average, of.weight, of.minimum, self.capacity)

    def next_in_rotation(self, tenants: Iterable[str]) -> str:
        """The one of these whose last turn of the rotation is longest ago. It takes its turn now.

        Not the one that was charged longest ago: work that runs for long is placed rarely, so it
        would get every turn of the rotation.
        """
        chosen = min(tenants, key=lambda name: self._tenant(name).last_rotation)
        self._rotations += 1
        self._tenant(chosen).last_rotation = self._rotations
        return chosen

    def standings(self) -> tuple[dict[str, Standing], float]:
        """The figures of all tenants that have or want something, and their common level."""
        claimants = {
            name: Claimant(of.held, of.waiting, of.weight, of.minimum, of.ceiling)
            for name, of in self._tenants.items()
            if of.held or of.waiting
        }
        return standings(claimants, self.capacity)

    def reports(self, takes: Callable[[str], bool]) -> tuple[TenantStanding, ...]:
        """The figures of these tenants for a pulse, the largest debts first."""
        found = [(it, name) for name, it in self.standings()[0].items() if takes(name)]
        found.sort(key=lambda each: (-each[0].debt, each[1]))
        return tuple(self._report(name, it) for it, name in found[:STANDINGS_MAX])

    def _report(self, name: str, it: Standing) -> TenantStanding:
        since_ms = self._lapsed_since.get(name) if it.is_lapsed else None
        lapsed_ms = self._now.monotonic_ms - since_ms if since_ms is not None else 0
        return TenantStanding(
            name,
            it.share,
            it.entitlement,
            self.remembered_share(name),
            lapsed_ms,
            self._settle_by_ms(lapsed_ms) if since_ms is not None else 0,
        )

    def _settle_by_ms(self, lapsed_ms: int) -> int:
        """When a lapse is settled: one window after it began, or after the suspension."""
        began_ms, stated = self._now.wall_ms - lapsed_ms, self._rules.suspension
        if stated is not None and wall_ms(stated.since) <= self._now.wall_ms:
            began_ms = max(began_ms, wall_ms(stated.until))
        return began_ms + self._rules.window_seconds * 1_000

    def remembered_share(self, tenant: str) -> float:
        """The decayed average of a tenant's use, as a share."""
        of = self._tenants.get(tenant)
        return dominant_share(of.average, self.capacity) if of is not None else 0.0


def _waits(replica: Replica) -> tuple[str, Amounts] | None:
    """The tenant and the amounts of a replica that waits for a place it could get."""
    status = replica.status
    if status.state is not State.PENDING or replica.metadata.deletion_timestamp is not None:
        return None
    if status.pending is not None and status.pending.verdict in _HOPELESS:
        return None
    return replica.namespace, demand_of(replica.spec.template).amounts


def _add(sums: dict[str, int], amounts: Amounts, sign: int) -> None:
    for name, units in amounts.items():
        left = sums.get(name, 0) + sign * units
        if left:
            sums[name] = left
        else:
            sums.pop(name, None)
