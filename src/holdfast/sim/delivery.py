"""What can befall a single delivery of a watch or a stream.

The store's contract promises a watch without holes, so a machine that watches the store through it
sees only delays, bookmarks and Expired. A stream from a server passes proxies, buffers and servers
that restart: its items may be lost, repeated, or come from the past. A watch on a raw store, below
the guard that makes the contract true, suffers the same (etcd 3.4 does travel in time).
"""

from __future__ import annotations

from holdfast.sim.cell import Cell
from holdfast.sim.lives import Lives

LOSE = "lose"
REPEAT = "repeat"
# An old item once more after newer ones: a server that lags behind, or travels in time.
STALE = "stale"
KINDS = (LOSE, REPEAT, STALE)


class Deliveries:
    """Decides over each delivery to a machine."""

    def __init__(self, world: Lives) -> None:
        self._world = world
        self._rng = world.rng("delivery")

    def held_until_us(self, cell: Cell) -> int:
        """When the next delivery to this machine may take place."""
        now_us = self._world.now_us
        if cell.holds:
            for_us = cell.holds.pop(cell.delivered + 1, 0)
            cell.held_until_us = max(cell.held_until_us, now_us + for_us)
        return max(cell.held_until_us, now_us)

    def befalls(self, cell: Cell) -> str | None:
        """Count a delivery that no contract guards, and say what befalls it."""
        cell.delivered += 1
        cell.unguarded += 1
        kind = cell.delivery_faults.pop(cell.unguarded, None) if cell.delivery_faults else None
        if kind is None and cell.delivery_permille:
            kind = self._drawn(cell)
        if kind is not None:
            self._world.inject(f"delivery_{kind}")
            self._world.note(f"{cell.name} delivery {cell.unguarded}: {kind}")
        return kind

    def _drawn(self, cell: Cell) -> str | None:
        for kind, permille in cell.delivery_permille.items():
            if self._rng.random() * 1000 < permille:
                return kind
        return None
