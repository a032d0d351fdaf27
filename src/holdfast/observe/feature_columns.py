"""Devices, labels and images of all nodes as columns.

Devices have one row per node and one column per device, with the free share in thousandths. The
type of a device (class, model, memory) is a number, so that the model's rule whether it suits a
request is evaluated once per type.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.quantity import MILLI
from holdfast.model.quota.ledger import DeviceSlot

# No device here. Type 0 is reserved for it, so that a look-up by type needs no special case.
NOTHING = 0


class DeviceColumns:
    """See the module's docstring. `types` begins with a type that suits no request."""

    def __init__(self, rows: int) -> None:
        self.types: list[DeviceSlot | None] = [None]
        self._numbers: dict[tuple[str, str, int], int] = {}
        self.kind: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.numa: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.free: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        self.lent: npt.NDArray[np.int64] = np.zeros((rows, 0), np.int64)
        # The number of devices that each node lists.
        self.count: npt.NDArray[np.int64] = np.zeros(rows, np.int64)
        self._places: dict[int, dict[str, int]] = {}

    def copy(self) -> DeviceColumns:
        made = copy.copy(self)
        for name in ("types", "_numbers", "kind", "numa", "free", "lent", "count", "_places"):
            setattr(made, name, getattr(self, name).copy())
        return made

    def place(self, row: int, devices: Mapping[str, DeviceSlot]) -> None:
        """Set the devices that the node of this row lists."""
        if not devices and not self.count[row]:
            return
        self._widen(len(devices))
        self.kind[row] = NOTHING
        self.count[row] = len(devices)
        # In the order of names, in which the model assigns whole devices.
        self._places[row] = {name: place for place, name in enumerate(sorted(devices))}
        for name, place in self._places[row].items():
            self.kind[row, place] = self._type(devices[name])
            self.numa[row, place] = devices[name].numa
        if not devices:
            del self._places[row]
        self.clear(row)

    def clear(self, row: int) -> None:
        """Mark all devices of this row as free."""
        if self.kind.shape[1]:
            self.free[row] = np.where(self.kind[row] == NOTHING, 0, MILLI)
            self.lent[row] = 0

    def take(self, row: int, shares: Iterable[DeviceShare], sign: int) -> None:
        """Take these shares, or give them back. A device that the node does not list is skipped."""
        places = self._places.get(row, {})
        for share in shares:
            place = places.get(share.device)
            if place is not None:
                self.free[row, place] -= sign * share.milli

    def lend(self, row: int, shares: Iterable[DeviceShare], sign: int) -> None:
        """Count these shares of what was taken as only assumed."""
        places = self._places.get(row, {})
        for share in shares:
            place = places.get(share.device)
            if place is not None:
                self.lent[row, place] += sign * share.milli

    def promise(self, row: int, devices: Mapping[str, DeviceSlot]) -> None:
        """Subtract what is promised: it is free for no other work."""
        for name, place in self._places.get(row, {}).items():
            if devices[name].promised:
                self.free[row, place] = self.lent[row, place] = 0

    def name(self, row: int, place: int) -> str:
        """The id of the device in a place."""
        return next(name for name, at in self._places[row].items() if at == place)

    def totals(self) -> dict[str, int]:
        """The thousandths of all listed devices, by class."""
        found: dict[str, int] = {}
        numbers = np.bincount(self.kind.ravel(), minlength=len(self.types))
        for slot, number in zip(self.types, numbers, strict=True):
            if slot is not None:
                name = slot.device_class
                found[name] = found.get(name, 0) + int(number) * MILLI
        return found

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


# Labels of nodes and the images on them, as columns that are made on first use.
#
# A node has many labels and work asks for few of them. So a column exists for each key that some
# work asked for: the number of the node's value, or -1 where it has none. Bit sets were the
# alternative, but a key such as the host's name has as many values as there are nodes.

# The keys, and images, for which a column is kept. Others are computed again when needed.
COLUMNS_MAX = 512

NONE = -1

T = TypeVar("T")


class Labels:
    """The values of one label key on all rows."""

    __slots__ = ("column", "numbers", "values")

    def __init__(self, rows: int) -> None:
        self.column = np.full(rows, NONE, np.int64)
        self.values: list[str] = []
        self.numbers: dict[str, int] = {}

    def put(self, row: int, value: str | None) -> None:
        if value is None:
            self.column[row] = NONE
            return
        number = self.numbers.get(value)
        if number is None:
            number = self.numbers[value] = len(self.values)
            self.values.append(value)
        self.column[row] = number


class FactColumns:
    """The labels and images of all nodes. See the comment above."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._labels: list[Mapping[str, str]] = []
        self._images: list[tuple[str, ...]] = []
        self.by_key: dict[str, Labels] = {}
        self._by_image: dict[str, npt.NDArray[np.bool_]] = {}

    def copy(self) -> FactColumns:
        """The same labels and images. Their columns are built again on the next use."""
        made = FactColumns(self._rows)
        made._labels, made._images = list(self._labels), list(self._images)
        return made

    def place(self, row: int, labels: Mapping[str, str], images: tuple[str, ...]) -> None:
        """Set the labels and images of the node of this row."""
        while len(self._labels) <= row:
            self._labels.append({})
            self._images.append(())
        self._labels[row], self._images[row] = labels, images
        for key, column in self.by_key.items():
            column.put(row, labels.get(key))
        for image, there in self._by_image.items():
            there[row] = image in images

    def label(self, key: str) -> Labels:
        """The column of a label key."""
        found = self.by_key.get(key)
        if found is None:
            found = Labels(self._rows)
            for row, labels in enumerate(self._labels):
                found.put(row, labels.get(key))
            _keep(self.by_key, key, found)
        return found

    def image(self, image: str) -> npt.NDArray[np.bool_]:
        """The rows whose nodes already have an image."""
        found = self._by_image.get(image)
        if found is None:
            found = np.zeros(self._rows, np.bool_)
            for row, images in enumerate(self._images):
                found[row] = image in images
            _keep(self._by_image, image, found)
        return found

    def grow(self, rows: int) -> None:
        """Make room for more rows. Columns are built again on the next use."""
        self._rows = rows
        self.by_key.clear()
        self._by_image.clear()


def _keep(table: dict[str, T], key: str, value: T) -> None:
    if len(table) >= COLUMNS_MAX:
        del table[next(iter(table))]
    table[key] = value
