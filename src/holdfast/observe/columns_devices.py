"""Devices of all nodes: what each is and how much of it is free, in thousandths.

One row per node, one place per device. What a device is (class, model, memory) is a number, so that
whether it suits a request is asked of the model once for each type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.ledger import DeviceSlot
from holdfast.model.quantity import MILLI

# No device here. Type 0 is kept for it, so that a look-up by type needs no special case.
NOTHING = 0


class DeviceColumns:
    """See the module's docstring. `types` begins with a type that suits nobody."""

    def __init__(self, rows: int) -> None:
        self.types: list[DeviceSlot | None] = [None]
        self._numbers: dict[tuple[str, str, int], int] = {}
        self.kind: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.numa: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.free: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.lent: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        # How many devices each node lists.
        self.count: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._places: dict[int, dict[str, int]] = {}

    def place(self, row: int, devices: Mapping[str, DeviceSlot]) -> None:
        """The node of this row lists these devices."""
        if not devices and not self.count[row]:
            return
        self._widen(len(devices))
        self.kind[row] = NOTHING
        self.count[row] = len(devices)
        # In the order of names, in which the model gives whole devices away.
        self._places[row] = {name: place for place, name in enumerate(sorted(devices))}
        for name, place in self._places[row].items():
            self.kind[row, place] = self._type(devices[name])
            self.numa[row, place] = devices[name].numa
        if not devices:
            del self._places[row]
        self.clear(row)

    def clear(self, row: int) -> None:
        """Nothing of the devices of this row is taken."""
        if self.kind.shape[1]:
            self.free[row] = np.where(self.kind[row] == NOTHING, 0, MILLI)
            self.lent[row] = 0

    def take(self, row: int, shares: Iterable[DeviceShare], sign: int) -> None:
        """Somebody took these. A device that the node does not list is not there to be given."""
        places = self._places.get(row, {})
        for share in shares:
            place = places.get(share.device)
            if place is not None:
                self.free[row, place] -= sign * share.milli

    def lend(self, row: int, shares: Iterable[DeviceShare], sign: int) -> None:
        """Of what was taken, so much is only assumed."""
        places = self._places.get(row, {})
        for share in shares:
            place = places.get(share.device)
            if place is not None:
                self.lent[row, place] += sign * share.milli

    def promise(self, row: int, devices: Mapping[str, DeviceSlot]) -> None:
        """What is promised to somebody is free for nobody else."""
        for name, place in self._places.get(row, {}).items():
            if devices[name].promised:
                self.free[row, place] = self.lent[row, place] = 0

    def name(self, row: int, place: int) -> str:
        """The id of the device in a place."""
        return next(name for name, at in self._places[row].items() if at == place)

    def grow(self, rows: int) -> None:
        for name in ("kind", "numa", "free", "lent", "count"):
            column = getattr(self, name)
            more = np.zeros((rows, *column.shape[1:]), column.dtype)
            more[: len(column)] = column
            setattr(self, name, more)

    def _type(self, slot: DeviceSlot) -> int:
        what = slot.device_class, slot.model, slot.memory
        number = self._numbers.get(what)
        if number is None:
            number = self._numbers[what] = len(self.types)
            self.types.append(msgspec.structs.replace(slot, owners={}, promised="", absent=False))
        return number

    def _widen(self, places: int) -> None:
        lacking = places - self.kind.shape[1]
        if lacking > 0:
            for name in ("kind", "numa", "free", "lent"):
                column = getattr(self, name)
                more = np.zeros((len(column), lacking), column.dtype)
                setattr(self, name, np.concatenate([column, more], axis=1))
