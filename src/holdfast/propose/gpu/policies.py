"""Three ways to choose among nodes with GPUs: the default, and two known ones to compare it with.

`Sparing` is what the scheduler uses. Each kind of typical demand has a stock, the idle GPU of the
fleet that it could still use. A placement costs each kind some of it, and the best node is where
the cost, relative to the stocks, is least. So what only few nodes can provide is spared for the
work that needs it: nodes of a scarce model, nodes with all devices idle, CPU beside idle GPUs. In
other words it follows the gradient of the sum of log(stock), each kind weighed by its frequency.

`Fgd` is Fragmentation Gradient Descent (Weng et al., USENIX ATC 2023) and `BestFit` the common
packing rule, both exactly as in their published simulator, on the same columns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np

from holdfast.propose.gpu.class_columns import ClassColumns, Floats, GpuDemand, Ints
from holdfast.propose.gpu.demand_mix import Mix
from holdfast.propose.gpu.usable import ROWS_AT_ONCE, Usable, Worth

SCORE_MAX = 100.0
UNFIT = -1.0
# The room for many copies counts a fifth of the room for one: ADR 0053 compares.
WORTH = Worth(one=5, copies=1)
# Where others lose this much more of a device than at the best node, the score is half.
HALF_MILLI = 100.0
# Costs that differ by less (in thousandths of a GPU) are equal. Sums of floats depend on the order
# of adding, and a tie must not.
COST_GRAIN = 1e-4
# How much of all weight has to move before the stocks are weighed again. One placement moves them
# by far less, and weighing again means all rows instead of those that changed.
WEIGHT_DRIFT = 0.01
# More than any demand can cost.
COST_MAX = 1e9
# The memory for the costs of demands; beyond it the least recently used demand is dropped.
CACHE_BYTES_MAX = 96 * 2**20


class Ranking(msgspec.Struct, frozen=True):
    """By row: the score, UNFIT where the demand does not fit, and the device for a fraction."""

    scores: Floats
    devices: Ints


class GpuPolicy(Protocol):
    """Ranks the rows for a demand."""

    def rank(self, demand: GpuDemand) -> Ranking: ...

    def reweigh(self) -> None:
        """Drop cached state that depends on more than what is free now."""
        ...


# From what a demand would cost, by choice, to how good each choice is.
_Judge = Callable[[GpuDemand, Floats], Floats]


class _Costs:
    """What a demand would cost each kind, by row, as of a tick; and how good that is."""

    def __init__(self, rows: int, kinds: int) -> None:
        self.tick = 0
        self.fits = np.zeros(rows, np.bool_)
        self.lost = np.zeros((rows, kinds), np.float32)
        self.devices = np.full(rows, -1, np.int64)
        self.good = np.zeros(rows, np.float64)
        self.weights: Floats | None = None


class _CostBook:
    """The costs of the recently used demands. Only rows that changed are computed again."""

    def __init__(
        self, columns: ClassColumns, usable: Usable, judge: _Judge, claims: Floats
    ) -> None:
        self._columns = columns
        self._usable = usable
        self._judge = judge
        # The device of a row is chosen by these. They do not change with what is taken elsewhere,
        # so the choice is the same however long ago it was made.
        self._claims = claims
        self._of: OrderedDict[GpuDemand, _Costs] = OrderedDict()
        size = max(1, columns.rows * max(1, usable.kinds) * 4)
        self._most = max(1, CACHE_BYTES_MAX // size)

    def look_up(self, demand: GpuDemand, weights: Floats) -> _Costs:
        columns = self._columns
        costs = self._of.get(demand)
        if costs is None:
            if len(self._of) >= self._most:
                self._of.popitem(last=False)
            costs = self._of[demand] = _Costs(columns.rows, self._usable.kinds)
        self._of.move_to_end(demand)
        stale = np.flatnonzero(columns.changed_at > costs.tick)
        costs.tick = columns.tick
        if len(stale):
            fits = columns.fits(demand, stale)
            costs.fits[stale] = fits
            self._fill(costs, demand, stale[fits], weights)
        if costs.weights is not weights:
            costs.good = self._judge(demand, costs.lost @ weights)
            costs.weights = weights
        return costs

    def _fill(self, costs: _Costs, demand: GpuDemand, rows: Ints, weights: Floats) -> None:
        """Compute the costs at these rows; if they are many, once for all equal rows."""
        if len(rows) <= ROWS_AT_ONCE:
            self._compute(costs, demand, rows, weights)
            return
        distinct, like = self._columns.distinct(rows)
        for start in range(0, len(distinct), ROWS_AT_ONCE):
            self._compute(costs, demand, distinct[start : start + ROWS_AT_ONCE], weights)
        costs.devices[rows] = costs.devices[like]
        costs.good[rows] = costs.good[like]
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            costs.lost[rows[part]] = costs.lost[like[part]]

    def _compute(self, costs: _Costs, demand: GpuDemand, rows: Ints, weights: Floats) -> None:
        after, chosen, device = self._usable.after(demand, rows)
        lost = self._usable.now[chosen] - after
        if demand.is_fraction:
            # The best device of each row, the first of equals: sort by row, goodness, device.
            good = self._judge(demand, lost @ self._claims)
            order = np.lexsort((device, -good, chosen))
            ordered = chosen[order]
            is_best = np.ones(len(order), np.bool_)
            is_best[1:] = ordered[1:] != ordered[:-1]
            best = order[is_best]
            chosen, device, lost = chosen[best], device[best], lost[best]
        costs.lost[chosen] = lost
        costs.devices[chosen] = device
        costs.good[chosen] = self._judge(demand, lost @ weights)


class Sparing:
    """The default: spare what is scarce for the kinds that need it."""

    def __init__(self, columns: ClassColumns, mix: Mix) -> None:
        self._usable = Usable(columns, mix, WORTH)
        size = self._usable.gpu_milli / 1000.0
        # The frequency of a kind, but less for larger ones: few nodes suit them, so they have the
        # smaller stock, and thereby already the stronger claim on it.
        self._claims = self._usable.shares / np.sqrt(size)
        self._book = _CostBook(columns, self._usable, self._good, self._claims)
        # Keeps a stock that has run out from outweighing everything: one demand's worth.
        self._last = self._usable.gpu_milli * WORTH.unit
        self.weights: Floats = np.zeros(self._usable.kinds, np.float64)

    def rank(self, demand: GpuDemand) -> Ranking:
        """0 to 100: 100 where others lose least, 50 where they lose a tenth of a device more.

        Work without devices need not cost others anything, and is measured by that.
        """
        self._usable.refresh()
        self._weigh()
        costs = self._book.look_up(demand, self.weights)
        good = costs.good
        best = float(good[costs.fits].max(initial=-np.inf)) if demand.devices else 0.0
        # If nothing fits there is no best row, nor anything to compare with it.
        more = np.maximum(max(best, -COST_MAX) - good, 0.0)
        scores = SCORE_MAX / (1.0 + more / HALF_MILLI)
        return Ranking(np.where(costs.fits, scores, UNFIT), costs.devices)

    def reweigh(self) -> None:
        self.weights = np.zeros(self._usable.kinds, np.float64)

    def _weigh(self) -> None:
        """The weight of each kind's loss; the weights add up to one thousandth of a device."""
        if not self._usable.kinds:
            return
        weights = self._claims / (self._usable.total + self._last)
        weights /= weights.sum() * WORTH.unit
        if np.abs(weights - self.weights).sum() * WORTH.unit > WEIGHT_DRIFT:
            self.weights = weights

    def _good(self, demand: GpuDemand, cost: Floats) -> Floats:
        return -_grained(cost)


class Fgd:
    """Fragmentation Gradient Descent: the integer score of the published simulator."""

    def __init__(self, columns: ClassColumns, mix: Mix) -> None:
        self._usable = Usable(columns, mix, Worth(), counts_memory=False)
        self._book = _CostBook(columns, self._usable, self._good, self._usable.shares)

    def rank(self, demand: GpuDemand) -> Ranking:
        self._usable.refresh()
        costs = self._book.look_up(demand, self._usable.shares)
        return Ranking(np.where(costs.fits, costs.good, UNFIT), costs.devices)

    def _good(self, demand: GpuDemand, cost: Floats) -> Floats:
        # Idle capacity shrinks by the demand; the part of it that was usable was no fragment.
        less: Floats = (demand.gpu_milli - _grained(cost)) / 1000.0
        return np.floor(SCORE_MAX / (1.0 + np.exp(-less)))

    def reweigh(self) -> None:
        """Do nothing: its weights never change."""


class BestFit:
    """The least left over of CPU and GPU, half each, in whole points."""

    CPU_MILLI = 128_000.0
    GPU_MILLI = 8_000.0

    def __init__(self, columns: ClassColumns) -> None:
        self._columns = columns
        self._rows = np.arange(columns.rows)

    def rank(self, demand: GpuDemand) -> Ranking:
        columns = self._columns
        fits = columns.fits(demand, self._rows)
        cpu = (columns.cpu - demand.cpu_milli) / self.CPU_MILLI
        gpu = (columns.devices.sum(axis=1) - demand.gpu_milli) / self.GPU_MILLI
        scores = np.trunc(SCORE_MAX * (1.0 - 0.5 * cpu - 0.5 * gpu))
        devices = np.full(columns.rows, -1, np.int64)
        if demand.is_fraction and columns.rows:
            room = columns.room(demand, self._rows)
            devices = np.where(room, columns.devices, 2 * 1000).argmin(axis=1)
        return Ranking(np.where(fits, scores, UNFIT), devices)

    def reweigh(self) -> None:
        """Do nothing: it keeps no state."""


def _grained(cost: Floats) -> Floats:
    rounded: Floats = np.rint(cost.astype(np.float64) / COST_GRAIN) * COST_GRAIN
    return rounded
