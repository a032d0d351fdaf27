"""Fragmentation: work goes where it takes least of the devices that other work will need.

This applies `propose/gpu` to decisions: for work that asks for devices, which node and which of its
devices; for all other work, not to take the CPU and memory without which the devices beside them
are useless. The typical demands are stated by the policy, or learned from the replicas so far. An
old snapshot only leads to a worse ranking.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol

import numpy as np

from holdfast.model.kinds.replica import DeviceShare
from holdfast.observe.node_columns import Floats, Ints, Rows
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.gpu import GpuPool, Mix, Ranking, Sparing
from holdfast.propose.gpu.policies import SCORE_MAX
from holdfast.propose.gpu.pools import Make, demand_for


class Packing:
    """A packing policy as a score. `mix` by device class is for a caller that knows it."""

    def __init__(self, make: Make, mix: Mapping[str, Mix] | None = None) -> None:
        self._make, self._mix = make, mix

    def score(self, work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
        """0 to 100: 100 where others lose nothing, or least; of several classes the worst.

        A node without such devices costs others nothing.
        """
        scores = np.full(view.columns.count, SCORE_MAX)
        for pool in view.fleet.pools.all():
            found = self._rank(pool, work, view).scores[pool.there]
            at = pool.rows[pool.there]
            scores[at] = np.minimum(scores[at], np.maximum(found, 0.0))
        return scores[rows]

    def stamp(self, work: PendingWork, view: FleetSnapshot) -> Hashable:
        return tuple(
            (pool.version, pool.weighted_sum, pool.columns.tick, self._mix_of(pool, view))
            for pool in view.fleet.pools.refresh_all()
        )

    def affects_others(self, work: PendingWork, view: FleetSnapshot, row: int) -> bool:
        pools = view.fleet.pools.all()
        return any(pool.has(row) and bool(self._mix_of(pool, view)) for pool in pools)

    def devices(
        self, work: PendingWork, view: FleetSnapshot, row: int
    ) -> tuple[DeviceShare, ...] | None:
        requests = work.demand.devices
        if len({request.device_class for request in requests}) < len(requests):
            # The assignment is a search that the model does.
            return None
        found: list[DeviceShare] = []
        for request in requests:
            pool = view.fleet.pools.get(request.device_class)
            if pool is None or not pool.has(row) or request.same_numa:
                return None
            demand = demand_for(work.demand, request.device_class)
            names = pool.devices(row, demand, self._rank(pool, work, view))
            if len(names) != request.count:
                return None
            found += [
                DeviceShare(device=name, device_class=request.device_class, milli=request.milli)
                for name in names
            ]
        return tuple(found)

    def _rank(self, pool: GpuPool, work: PendingWork, view: FleetSnapshot) -> Ranking:
        demand = demand_for(work.demand, pool.device_class)
        return pool.rank(self._make, self._mix_of(pool, view), demand)

    def _mix_of(self, pool: GpuPool, view: FleetSnapshot) -> Mix:
        if self._mix is not None:
            return self._mix.get(pool.device_class, ())
        return view.fleet.pools.mix(pool.device_class, view.policy)


FRAGMENTATION = Packing(Sparing)


def has_devices(work: PendingWork, view: FleetSnapshot) -> bool:
    return bool(view.columns.devices.count.any())


# The interface of a scorer that packs devices: it ranks all nodes together, and names devices.
#
# `NodeVerdicts` asks for its stamp, to know when all rows have to be ranked again; `placement.py`
# asks which devices of the chosen node a replica should get, and whether the next one of a batch
# needs a new evaluation.


class Packs(Protocol):
    """See the comment above."""

    def stamp(self, work: PendingWork, view: FleetSnapshot) -> Hashable:
        """A value that changes whenever the score of any node may change."""
        ...

    def affects_others(self, work: PendingWork, view: FleetSnapshot, row: int) -> bool:
        """Whether a placement on this row may change the scores of others."""
        ...

    def devices(
        self, work: PendingWork, view: FleetSnapshot, row: int
    ) -> tuple[DeviceShare, ...] | None:
        """What the work should get of this node; None leaves it to the model's own choice."""
        ...
