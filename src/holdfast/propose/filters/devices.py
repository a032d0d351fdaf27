"""Devices: whether a node has enough of the right ones left, for many nodes at once.

`resources.py` calls this after sums and ports. Requests that cannot get into each other's way (each
of another class, without a demand on where devices hang) are counted; for all others counting only
rules nodes out, and the model's own search decides on those that are left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from holdfast.model.fit import DeviceDemand, choose_devices, suits
from holdfast.model.quantity import MILLI
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.columns import Bools, Codes, Level, Rows
from holdfast.propose.view import View, Work


def device_codes(
    work: Work, view: View, rows: Rows, level: Level, codes: Codes, *, missing: int, taken: int
) -> None:
    """Write down in `codes` where the devices do not do, of the rows that are still at 0."""
    requests = work.demand.devices
    columns = view.columns.devices
    kind = columns.kind[rows]
    free = _free(view, rows, level)
    lacking = np.zeros(len(codes), np.bool_)
    busy = np.zeros(len(codes), np.bool_)
    for request in requests:
        suitable: Bools = _suiting(request, view)[kind]
        lacking |= suitable.sum(axis=1) < request.count
        busy |= (suitable & (free >= request.milli)).sum(axis=1) < request.count
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


def _free(view: View, rows: Rows, level: Level) -> npt.NDArray[np.int64]:
    columns = view.columns.devices
    if level is Level.EMPTY:
        return np.where(columns.kind[rows] == 0, 0, MILLI)
    free = columns.free[rows]
    return free + columns.lent[rows] if level is Level.SETTLED else free


def _suiting(request: DeviceDemand, view: View) -> Bools:
    """Whether a device of each type suits, by the model's rule."""
    types = view.columns.devices.types
    return np.array([slot is not None and suits(slot, request) for slot in types], np.bool_)


def is_counted(requests: tuple[DeviceDemand, ...]) -> bool:
    """Whether counting decides: no two requests could want the same device."""
    classes = {request.device_class for request in requests}
    return len(classes) == len(requests) and not any(r.same_numa for r in requests)
