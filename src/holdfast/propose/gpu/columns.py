"""The GPU nodes as columns: what is left of each, and whether a demand fits.

The scheduler's snapshot fills one of these and tells it of every placement and release; the other
files of this room only read it. Rows are nodes in the snapshot's own order. Devices are shared by
thousandths: a fraction lives on one device, whole devices are taken idle and lowest number first.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.errors import invariant

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# One device, in the unit in which fractions of it are asked for.
WHOLE_MILLI = 1000
# No machine has more; a row of the device column is as wide as the widest node.
DEVICES_MAX = 64


class Demand(msgspec.Struct, frozen=True, order=True):
    """What one replica asks of a GPU node; `models` empty means any model."""

    cpu_milli: int
    device_milli: int = 0
    devices: int = 0
    models: tuple[str, ...] = ()
    memory: int = 0

    @property
    def is_fraction(self) -> bool:
        return self.devices == 1 and self.device_milli < WHOLE_MILLI

    @property
    def gpu_milli(self) -> int:
        return self.devices * self.device_milli

    def __post_init__(self) -> None:
        if min(self.cpu_milli, self.device_milli, self.devices, self.memory) < 0:
            raise ValueError(f"{self}: no amount may be negative")
        if self.device_milli > WHOLE_MILLI or self.devices > DEVICES_MAX:
            raise ValueError(
                f"{self}: at most {WHOLE_MILLI} of each of {DEVICES_MAX} devices can be asked for"
            )
        if (self.device_milli == 0) != (self.devices == 0):
            raise ValueError(f"{self}: devices and device_milli are both zero or neither is")
        if self.devices > 1 and self.device_milli != WHOLE_MILLI:
            raise ValueError(f"{self}: more than one device can only be asked for whole")


class GpuNode(msgspec.Struct, frozen=True):
    """A node as it is when nothing runs there."""

    cpu_milli: int
    memory: int
    devices: int
    model: str


class Columns:
    """What is free, by row. `changed_at[row]` is the tick of that row's last change."""

    def __init__(self, nodes: Sequence[GpuNode]) -> None:
        widest = max((node.devices for node in nodes), default=0)
        if widest > DEVICES_MAX:
            raise ValueError(f"a node has {widest} devices, and {DEVICES_MAX} is the limit")
        self.rows = len(nodes)
        self.models = tuple(sorted({node.model for node in nodes}))
        numbers = {model: number for number, model in enumerate(self.models)}
        self.model: Ints = np.array([numbers[node.model] for node in nodes], np.int64)
        self.cpu: Ints = np.array([node.cpu_milli for node in nodes], np.int64)
        self.memory: Ints = np.array([node.memory for node in nodes], np.int64)
        # A device that a node does not have is one with nothing free: no demand fits there.
        has = [[place < node.devices for place in range(widest)] for node in nodes]
        flags = np.array(has, np.int64).reshape(self.rows, widest)
        self.devices: Ints = flags * WHOLE_MILLI
        self.total_milli = int(self.devices.sum())
        # Equal devices of a node are equal choices, and only the first of them is looked at.
        self.is_first: Bools = np.zeros((self.rows, widest), np.bool_)
        for row in range(self.rows):
            self._note_firsts(row)
        self.tick = 1
        self.changed_at: Ints = np.full(self.rows, self.tick, np.int64)

    def allowed(self, models: tuple[str, ...]) -> Bools:
        """Per model number, whether a demand that names these models may go there."""
        return np.array([not models or model in models for model in self.models], np.bool_)

    def fits(self, demand: Demand, rows: Ints) -> Bools:
        """Which of these rows could take the demand now."""
        fit: Bools = (self.cpu[rows] >= demand.cpu_milli) & (self.memory[rows] >= demand.memory)
        if demand.devices:
            room = (self.devices[rows] >= demand.device_milli).sum(axis=1)
            fit &= room >= demand.devices
            if demand.models:
                fit &= self.allowed(demand.models)[self.model[rows]]
        return fit

    def idle_devices(self, demand: Demand, row: int) -> list[int]:
        """The lowest-numbered devices that whole devices, or none at all, are taken from."""
        room = np.flatnonzero(self.devices[row] >= demand.device_milli)
        return [int(device) for device in room[: demand.devices]]

    def take(self, row: int, demand: Demand, devices: Sequence[int]) -> None:
        """Count a placement on these devices of a row."""
        self._move(row, demand, devices, -1)

    def give_back(self, row: int, demand: Demand, devices: Sequence[int]) -> None:
        """Count what a placement held as free again."""
        self._move(row, demand, devices, 1)

    def _move(self, row: int, demand: Demand, devices: Sequence[int], sign: int) -> None:
        invariant(len(devices) == demand.devices, f"{demand} is placed on {len(devices)} devices")
        self.cpu[row] += sign * demand.cpu_milli
        self.memory[row] += sign * demand.memory
        for device in devices:
            free = int(self.devices[row, device]) + sign * demand.device_milli
            invariant(0 <= free <= WHOLE_MILLI, f"device {device} of row {row} has {free} free")
            self.devices[row, device] = free
        self._note_firsts(row)
        self.tick += 1
        self.changed_at[row] = self.tick

    def _note_firsts(self, row: int) -> None:
        seen: list[int] = []
        for place, free in enumerate(self.devices[row].tolist()):
            self.is_first[row, place] = free not in seen
            seen.append(free)
