"""Devices: whether a node has enough suitable devices left, for many nodes at once.

`resources.py` calls this after sums and ports. Requests that cannot compete with each other (each
of another class, without a constraint on topology) are decided by counting; for all others counting
only rules nodes out, and the model's own search decides on the rest.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from holdfast.model.placement.fit import DeviceDemand, choose_devices, suits
from holdfast.model.quota.ledger import DeviceSlot
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Bools, Codes, Level, Rows
from holdfast.propose.filters.value_tables import table_of
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork

# The number of different row widths: how many devices the widest node has, over time.
WIDTHS_MAX = 64


def device_codes(
    work: PendingWork,
    view: FleetSnapshot,
    rows: Rows,
    level: Level,
    codes: Codes,
    *,
    missing: int,
    taken: int,
) -> None:
    """Write a code for the rows that lack devices, of those that are still at 0."""
    requests = work.demand.devices
    columns = view.columns.devices
    kind = columns.kind[rows]
    lacking = np.zeros(len(codes), np.bool_)
    busy = np.zeros(len(codes), np.bool_)
    for index, request in enumerate(requests):
        suitable: Bools = _suiting(work, index, request, view)[kind]
        lacking |= _count(suitable) < request.count
        if level is not Level.EMPTY:
            # On an empty node everything is free.
            free = columns.free[rows]
            if level is Level.SETTLED:
                free = free + columns.lent[rows]
            busy |= _count(suitable & (free >= request.milli)) < request.count
    open_ = codes == 0
    codes[open_ & lacking] = missing
    if is_counted(requests):
        codes[open_ & busy & ~lacking] = taken
        return
    numbers = np.arange(view.columns.count)[rows]
    for place in np.flatnonzero(open_ & ~lacking).tolist():
        site = view.fleet.at(int(numbers[place]))
        if site.node is None:
            continue
        ledgers = {Level.NOW: site.ledger, Level.SETTLED: site.settled, Level.EMPTY: site.empty}
        found = choose_devices(ledgers[level], work.demand)
        if isinstance(found, Refusal):
            codes[place] = missing if found.reason is Reason.DEVICE_MISSING else taken


def _suiting(work: PendingWork, index: int, request: DeviceDemand, view: FleetSnapshot) -> Bools:
    """Whether a device of each type suits, by the model's rule."""
    types = view.columns.devices.types
    table = table_of(work, f"device-{index}", types, lambda slot: _suits(slot, request))
    return table.view(np.bool_)


def _suits(slot: DeviceSlot | None, request: DeviceDemand) -> int:
    return int(slot is not None and suits(slot, request))


def is_counted(requests: tuple[DeviceDemand, ...]) -> bool:
    """Whether counting decides: no two requests could want the same device."""
    classes = {request.device_class for request in requests}
    return len(classes) == len(requests) and not any(r.same_numa for r in requests)


def _count(there: Bools) -> npt.NDArray[np.float32]:
    """How many of each row are true. A product is several times as fast as a sum of short rows."""
    counts: npt.NDArray[np.float32] = there.astype(np.float32) @ _ones(there.shape[1])
    return counts


@lru_cache(maxsize=WIDTHS_MAX)
def _ones(width: int) -> npt.NDArray[np.float32]:
    return np.ones(width, np.float32)
