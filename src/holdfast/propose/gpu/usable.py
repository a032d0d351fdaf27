"""How much of a node's idle GPU each typical demand could still use, before and after a placement.

A demand that fits a node uses the devices there that have room for it. Its worth is computed in two
ways: by all that such devices have free (as if only one more copy came), and by what as many copies
as CPU, memory and devices allow would take. The first alone is blind to CPU that runs out beside
idle GPUs, the second alone overrates it; `Worth` says how much each counts. A node with devices of
several types counts as if work that can use one of them could use all.

`policies` asks for the rows that changed. All arrays are [row or choice, typical demand], and whole
numbers that a float32 holds exactly (`class_columns.AMOUNT_MAX`): memory bandwidth dominates the
time. Sums of whole numbers do not depend on the order of events.
"""

from __future__ import annotations

import msgspec
import numpy as np

from holdfast.propose.gpu.class_columns import (
    WHOLE_MILLI,
    Bools,
    ClassColumns,
    Floats,
    GpuDemand,
    Ints,
    Shorts,
)
from holdfast.propose.gpu.demand_mix import Mix

# A fleet is processed this many rows at a time, which bounds the memory needed.
ROWS_AT_ONCE = 256


class Worth(msgspec.Struct, frozen=True):
    """How much the room for one copy counts, and the room for many copies beside it."""

    one: int = 1
    copies: int = 0

    @property
    def unit(self) -> int:
        """The parts of a thousandth of a device in which everything is counted."""
        return self.one + self.copies


class Usable:
    """A mix prepared for a fleet's columns. `now` and `total` are in `worth.unit`."""

    def __init__(
        self, columns: ClassColumns, mix: Mix, worth: Worth, *, counts_memory: bool = True
    ) -> None:
        self._columns = columns
        self._worth = worth
        kinds = [typical.demand for typical in mix if typical.demand.devices]
        self.kinds = len(kinds)
        self.shares: Floats = np.array(
            [typical.share for typical in mix if typical.demand.devices], np.float64
        )
        self.gpu_milli: Floats = np.array([kind.gpu_milli for kind in kinds], np.float64)
        several = np.array([kind.devices for kind in kinds], np.float64) > 1
        self._together: Shorts = np.array([max(1, kind.devices) for kind in kinds], np.float32)
        self._copy: Shorts = (worth.copies * self.gpu_milli).astype(np.float32)
        self._cpu = _Enough([kind.cpu_milli for kind in kinds])
        self._memory = _Enough([kind.memory for kind in kinds]) if counts_memory else None
        allowed = np.array([columns.allowed_builds(kind) for kind in kinds], np.float32)
        self._allowed: Shorts = allowed.reshape(self.kinds, -1).T if kinds else allowed
        # What one device with f free gives to each kind, for all f: sums over a node's devices
        # then change by two rows of these tables when one device changes.
        free = np.arange(WHOLE_MILLI + 1, dtype=np.float32)[:, None]
        each = np.array([kind.device_milli for kind in kinds], np.float32)
        room = free >= each
        copies = np.where(several, room, np.floor(free / each))
        tables = np.concatenate([np.where(room, free, 0), copies], axis=1)
        self._tables: Shorts = tables.astype(np.float32)
        self._sums: Shorts = np.zeros((columns.rows, 2 * self.kinds), np.float32)
        self.now: Shorts = np.zeros((columns.rows, self.kinds), np.float32)
        self.total: Floats = np.zeros(self.kinds, np.float64)
        self._tick = 0
        self.refresh()

    def refresh(self) -> None:
        """Process the rows that changed: `now` is per row, `total` over the fleet."""
        columns = self._columns
        if self._tick == columns.tick:
            return
        rows = np.flatnonzero(columns.changed_at > self._tick)
        self._tick = columns.tick
        for start in range(0, len(rows), ROWS_AT_ONCE):
            part = rows[start : start + ROWS_AT_ONCE]
            self._sums[part] = self._tables[columns.devices[part]].sum(axis=1)
            fresh = self._of(part, columns.cpu[part], columns.memory[part], self._sums[part])
            # A float32 would not hold the sum over a whole fleet.
            self.total += (fresh - self.now[part]).sum(axis=0, dtype=np.float64)
            self.now[part] = fresh

    def after(self, demand: GpuDemand, rows: Ints) -> tuple[Shorts, Ints, Ints]:
        """The usable amounts of feasible rows after the demand: per choice, with row and device.

        Whole devices leave no choice, and their device is -1. A fraction may go to any device
        with room, and equal devices of a node are one choice, the first.
        """
        columns = self._columns
        devices = columns.devices[rows]
        tables = self._tables
        sums = self._sums[rows]
        if demand.is_fraction:
            is_choice = columns.room(demand, rows) & columns.is_first[rows]
            at, device = np.nonzero(is_choice)
            free = devices[at, device]
            sums = sums[at] - tables[free] + tables[free - demand.device_milli]
            chosen = rows[at]
        else:
            chosen, device = rows, np.full(len(rows), -1, np.int64)
            sums = sums - demand.devices * (tables[WHOLE_MILLI] - tables[0])
        cpu = columns.cpu[chosen] - demand.cpu_milli
        memory = columns.memory[chosen] - demand.memory
        return self._of(chosen, cpu, memory, sums), chosen, device

    def _of(self, rows: Ints, cpu: Ints, memory: Ints, sums: Shorts) -> Shorts:
        free, copies = sums[:, : self.kinds], sums[:, self.kinds :]
        if len(rows) == 0 or self.kinds == 0:
            return np.zeros((len(rows), self.kinds), np.float32)
        copies = copies / self._together
        self._cpu.bound(copies, cpu)
        if self._memory is not None:
            self._memory.bound(copies, memory)
        # Only whole copies count; the minimum is whole wherever it is rounded.
        np.floor(copies, out=copies)
        fits: Bools = copies >= 1
        used: Shorts = free * np.float32(self._worth.one)
        if self._worth.copies:
            used += copies * self._copy
        used *= fits
        used *= self._allowed[self._columns.build[rows]]
        return used


class _Enough:
    """For how many copies of each kind an amount suffices; unlimited for what is not requested."""

    def __init__(self, asked: list[int]) -> None:
        self._asked: Shorts = np.array(asked, np.float32)
        is_any = self._asked == 0
        self._asked[is_any] = 1.0
        # Added to make the amount suffice for any number of copies.
        self._more: Shorts | None = None
        if is_any.any():
            self._more = np.where(is_any, np.inf, 0.0).astype(np.float32)

    def bound(self, copies: Shorts, amounts: Ints) -> None:
        """Lower the copies to what these amounts, one for each row, suffice for.

        Neither is rounded.
        """
        most = amounts.astype(np.float32)[:, None] / self._asked
        if self._more is not None:
            most += self._more
        np.minimum(copies, most, out=copies)
