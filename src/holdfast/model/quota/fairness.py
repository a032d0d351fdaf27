"""Fairness: what each tenant has, what it is entitled to, and what it is owed.

Weighted dominant-resource fairness. A tenant's *share* is the largest part of any resource of the
plane that it holds. Its *entitlement* is the share that it would have if all tenants filled up at
the same speed per weight, each until nothing of it waits, its quota ends, or a resource that it
needs is used up; minimum shares are filled first. Its *debt* is the entitlement less the share: the
plane owes a tenant with a positive debt, and a tenant with a negative one has more than its part.

The scheduling queue orders tenants by `order_key`; the pulses of schedulers carry `standings`, and
from these come the columns of tenants, `holdfast fairness`, the metrics and the explanations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.model.quota.ledger import Amounts

# A lapse is settled within the window, which has at least this many half-lives.
HALF_LIVES_PER_WINDOW = 4
# A tenant whose debt is at most this part of its entitlement has its share.
TOLERANCE = 0.05
# What a tenant used in the past counts at most as this many times its fair share now. Otherwise a
# tenant that once had everything would wait until many others together had as much.
REMEMBERED_MAX = 2.0

_INFINITE = float("inf")
# Less than this is a rounding error of sums.
_NOTHING = 1e-9

# A tenant below its minimum goes first; then the one with the smallest weighted share.
OrderKey = tuple[bool, float]


class Claimant(msgspec.Struct, frozen=True):
    """What a tenant holds and waits for, and on which terms, in internal units.

    `ceiling` is the most that its quota allows, by resource; what is not named is not limited.
    """

    held: Mapping[str, float] = {}
    waiting: Mapping[str, float] = {}
    weight: int = 1
    minimum: Amounts = {}
    ceiling: Amounts = {}


class Standing(msgspec.Struct, frozen=True):
    """The figures of one tenant, as parts of the plane."""

    share: float
    entitlement: float

    @property
    def debt(self) -> float:
        """What the plane owes the tenant; negative if it has more than its part."""
        return self.entitlement - self.share

    @property
    def gap(self) -> float:
        """The debt as a part of the entitlement; 0 where nothing is owed."""
        return max(0.0, self.debt) / self.entitlement if self.entitlement > 0 else 0.0

    @property
    def is_lapsed(self) -> bool:
        """Whether the tenant is owed more than the tolerance."""
        return self.gap > TOLERANCE


def dominant_share(held: Mapping[str, float], capacity: Mapping[str, int]) -> float:
    """The largest part of any resource. A resource that the plane has none of does not count."""
    share = 0.0
    # Every turn of the queue comes here.
    for name, units in held.items():
        whole = capacity.get(name)
        if whole and units / whole > share:
            share = units / whole
    return share


def order_key(
    held: Mapping[str, float],
    remembered: Mapping[str, float],
    weight: int,
    minimum: Amounts,
    capacity: Mapping[str, int],
) -> OrderKey:
    """The position of a tenant among others with work of the same priority: the smallest is next.

    What it remembers beyond what it holds now counts half: a tenant that was just given back less
    than its average is next before those above theirs.
    """
    if minimum:
        parts = (held.get(name, 0) / most for name, most in minimum.items() if most)
        reached = max(parts, default=1.0)
        if reached < 1.0:
            return False, reached
    share = dominant_share(held, capacity)
    counted = (share + max(share, dominant_share(remembered, capacity))) / 2
    return True, counted / weight


def decay(average: float, held: float, elapsed_ms: float, half_life_ms: float) -> float:
    """The average use after this long at `held`: half of what was before is forgotten."""
    left: float = 2.0 ** (-elapsed_ms / half_life_ms)
    return held + (average - held) * left


def standings(
    claimants: Mapping[str, Claimant], capacity: Mapping[str, int]
) -> tuple[dict[str, Standing], float]:
    """The figures of all tenants, and the level at which the first resource is used up.

    A level is an entitlement by weight; it is infinite if everything that waits would fit.
    """
    wants = {name: _Want.of(it, capacity) for name, it in claimants.items()}
    filling = _Filling([want for want in wants.values() if want.most > 0], capacity)
    stops = iter(filling.stops)
    found = {
        name: Standing(
            dominant_share(claimants[name].held, capacity),
            want.at(next(stops)) if want.most > 0 else 0.0,
        )
        for name, want in wants.items()
    }
    return found, filling.level


class _Want(msgspec.Struct, frozen=True):
    """A tenant's demand: at level L it gets weight * L, at least `least` and at most `most`.

    `parts` is how much of each resource, as a part of the capacity, one unit of share needs.
    """

    weight: int
    least: float
    most: float
    parts: dict[str, float]

    @classmethod
    def of(cls, it: Claimant, capacity: Mapping[str, int]) -> _Want:
        demand = dict(it.held)
        for resource, units in it.waiting.items():
            demand[resource] = demand.get(resource, 0) + units
        allowed = min(
            (
                max(most, it.held.get(resource, 0)) / demand[resource]
                for resource, most in it.ceiling.items()
                if demand.get(resource, 0) > 0
            ),
            default=1.0,
        )
        whole = dominant_share(demand, capacity)
        most = whole * min(1.0, allowed)
        parts = {
            resource: units / capacity[resource] / whole
            for resource, units in demand.items()
            if whole > 0 and units > 0 and capacity.get(resource, 0) > 0
        }
        least = min(most, dominant_share(it.minimum, capacity))
        return cls(it.weight, least, most, parts)

    def at(self, level: float) -> float:
        """The tenant's share at a level."""
        return min(self.most, max(self.least, self.weight * level))


class _Filling:
    """All tenants fill up together until a resource that they need is used up.

    `stops` is the level at which each of them stops, and `level` where the first one has to.
    Between two events, at which a tenant begins or ends, each resource is used at a constant rate.
    """

    def __init__(self, wants: list[_Want], capacity: Mapping[str, int]) -> None:
        self._wants = wants
        self.stops = [_INFINITE] * len(wants)
        self.level = _INFINITE
        self._at = 0.0
        self._free = {name: 1.0 for name, units in capacity.items() if units > 0}
        self._rate = dict.fromkeys(self._free, 0.0)
        # The tenants that fill up now, in the order in which they began.
        self._filling: dict[int, None] = {}
        events: list[tuple[float, bool, int]] = []
        for number, want in enumerate(wants):
            for resource, part in want.parts.items():
                self._free[resource] -= part * want.least
            events.append((want.least / want.weight, False, number))
            events.append((want.most / want.weight, True, number))
        for level, is_end, number in sorted(events):
            self._rise(level)
            if is_end:
                self._stop(number)
            elif all(self._free[resource] > _NOTHING for resource in wants[number].parts):
                self._filling[number] = None
                self._change_rate(number, 1)
            else:
                self._end(number)

    def _rise(self, level: float) -> None:
        """Fill up to this level, and stop those whose resources end before."""
        while self._filling:
            steps = {
                name: max(0.0, self._free[name]) / rate
                for name, rate in self._rate.items()
                if rate > _NOTHING
            }
            first = min(steps, key=lambda name: steps[name], default="")
            step = min(level - self._at, steps.get(first, _INFINITE))
            for resource, rate in self._rate.items():
                self._free[resource] -= rate * step
            self._at += step
            if self._at >= level:
                break
            for number in [it for it in self._filling if first in self._wants[it].parts]:
                self._stop(number)
                self._end(number)
        self._at = level

    def _end(self, number: int) -> None:
        self.stops[number] = self._at
        self.level = min(self.level, self._at)

    def _stop(self, number: int) -> None:
        if number in self._filling:
            del self._filling[number]
            self._change_rate(number, -1)

    def _change_rate(self, number: int, sign: int) -> None:
        want = self._wants[number]
        for resource, part in want.parts.items():
            self._rate[resource] += sign * want.weight * part


def largest_gap(found: Iterable[Standing]) -> float:
    """The largest debt of a tenant, as a part of its entitlement."""
    return max((it.gap for it in found), default=0.0)
