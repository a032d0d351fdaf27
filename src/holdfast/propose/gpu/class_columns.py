"""The nodes with devices of one class as columns: what is free of each, and whether a demand fits.

`pools.py` fills these from the scheduler's fleet and updates a row when something on its node was
taken or released; the other files of this package only read them. Devices are shared in
thousandths: a fraction is on one device, whole devices must be idle and are taken in the order of
their names.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.errors import invariant, unreachable
from holdfast.model.placement.fit import DeviceDemand, suits
from holdfast.model.quota.ledger import DeviceSlot

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Shorts = npt.NDArray[np.float32]

# One device, in the unit in which fractions of it are requested.
WHOLE_MILLI = 1000
# No machine has more; a row of the device column is as wide as the widest node.
DEVICES_MAX = 64
# More CPU or memory (16,777 cores, 16 TiB) counts as this, which a float32 holds exactly.
AMOUNT_MAX = 2**24 - 1
# For how many different requirements of model and memory the suitable types are kept.
SUITING_MAX = 1024

# CPU, memory, and of each device its type and its free share.
_State = tuple[int, int, tuple[tuple[int, int], ...]]


class GpuDemand(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What one replica asks of such a node, memory in MiB; `models` empty means any model."""

    cpu_milli: int
    device_milli: int = 0
    devices: int = 0
    models: tuple[str, ...] = ()
    memory: int = 0
    device_memory: int = 0

    @property
    def is_fraction(self) -> bool:
        return self.devices == 1 and self.device_milli < WHOLE_MILLI

    @property
    def is_picky(self) -> bool:
        """Whether some devices of the class do not suit."""
        return bool(self.models or self.device_memory)

    @property
    def gpu_milli(self) -> int:
        return self.devices * self.device_milli

    def __post_init__(self) -> None:
        if min(self.cpu_milli, self.device_milli, self.devices, self.memory) < 0:
            raise ValueError(f"{self}: amounts must not be negative")
        if self.device_milli > WHOLE_MILLI or self.devices > DEVICES_MAX:
            raise ValueError(
                f"{self}: at most {WHOLE_MILLI} of each of {DEVICES_MAX} devices may be requested"
            )
        if (self.device_milli == 0) != (self.devices == 0):
            raise ValueError(f"{self}: devices and device_milli must both be zero or both not")
        if self.devices > 1 and self.device_milli != WHOLE_MILLI:
            raise ValueError(f"{self}: several devices can only be requested whole")


class GpuNode(msgspec.Struct, frozen=True):
    """The current state of a node: what is free, memory in MiB, and its device types, in order.

    `kinds` are numbers of the device types of the columns; 0 is no device.
    """

    cpu_milli: int
    memory: int
    free_milli: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()

    @property
    def build(self) -> tuple[int, ...]:
        """Which types of devices it has, however many of each."""
        return tuple(sorted(set(self.kinds)))


NO_NODE = GpuNode(0, 0)


class ClassColumns:
    """What is free, by row. `changed_at[row]` is the tick of that row's last change.

    The set of builds is fixed at construction: a node of another build, or with more devices than
    all others, needs new columns. Spare rows are for new nodes.
    """

    def __init__(
        self, nodes: Sequence[GpuNode], types: Sequence[DeviceSlot | None], *, spare: int = 0
    ) -> None:
        widest = max((len(node.kinds) for node in nodes), default=0)
        if widest > DEVICES_MAX:
            raise ValueError(f"a node has {widest} devices, more than the limit of {DEVICES_MAX}")
        self.rows = len(nodes) + spare
        self._types = tuple(types)
        found = dict.fromkeys([NO_NODE.build, *(node.build for node in nodes)])
        self._builds = {build: number for number, build in enumerate(found)}
        self.kind: Ints = np.zeros((self.rows, widest), np.int64)
        self.build: Ints = np.zeros(self.rows, np.int64)
        self.cpu: Ints = np.zeros(self.rows, np.int64)
        self.memory: Ints = np.zeros(self.rows, np.int64)
        # A device that a node does not have counts as one with nothing free: no demand fits there.
        self.devices: Ints = np.zeros((self.rows, widest), np.int64)
        # Equal devices of a node are equal choices, and only the first of them is considered.
        self.is_first: Bools = np.zeros((self.rows, widest), np.bool_)
        self.tick = 1
        self.changed_at: Ints = np.full(self.rows, self.tick, np.int64)
        self._suiting: dict[tuple[tuple[str, ...], int], Bools] = {}
        # Rows with the same number are the same in everything that matters here.
        self._number: Ints = np.arange(-self.rows, 0, dtype=np.int64)
        self._states = _States()
        for row, node in enumerate(nodes):
            self.place(row, node)

    def has_room_for(self, node: GpuNode) -> bool:
        """Whether a spare row could hold this node."""
        return node.build in self._builds and len(node.kinds) <= self.kind.shape[1]

    def place(self, row: int, node: GpuNode) -> None:
        """Set the node of this row."""
        count = len(node.kinds)
        invariant(self.has_room_for(node), f"row {row} has a node that needs other columns")
        self.build[row] = self._builds[node.build]
        self.kind[row] = 0
        self.kind[row, :count] = node.kinds
        self.state(row, node.cpu_milli, node.memory, node.free_milli)

    def state(self, row: int, cpu_milli: int, memory: int, free_milli: Sequence[int]) -> None:
        """Set what is free of this row."""
        free = [0] * self.devices.shape[1]
        free[: len(free_milli)] = free_milli
        if min(cpu_milli, memory, *free) < 0 or max(free, default=0) > WHOLE_MILLI:
            unreachable(f"row {row} cannot have {cpu_milli}, {memory} and {free_milli} free")
        self.cpu[row], self.memory[row] = cpu_milli, memory
        self.devices[row] = free
        what = tuple(zip(self.kind[row].tolist(), free, strict=True))
        self._number[row] = self._states.entered(row, (cpu_milli, memory, what))
        self.is_first[row] = [each not in what[:place] for place, each in enumerate(what)]
        self.tick += 1
        self.changed_at[row] = self.tick

    # Questions -----------------------------------------------------------------------------------

    def distinct(self, rows: Ints) -> tuple[Ints, Ints]:
        """One row for each different state among these rows; and for each row, which one it is.

        Nodes are bought by the dozen, and most of a fleet that is not full is in few states.
        """
        _, first, of = np.unique(self._number[rows], return_index=True, return_inverse=True)
        found: Ints = rows[first]
        return found, found[of]

    def allowed_builds(self, demand: GpuDemand) -> Bools:
        """Per build, whether some device of it would suit."""
        suiting = self._suits(demand)
        found = [any(suiting[kind] for kind in build) for build in self._builds]
        return np.array(found, np.bool_)

    def fits(self, demand: GpuDemand, rows: Ints) -> Bools:
        """Which of these rows could take the demand now."""
        fit: Bools = (self.cpu[rows] >= demand.cpu_milli) & (self.memory[rows] >= demand.memory)
        if demand.devices:
            fit &= self.room(demand, rows).sum(axis=1) >= demand.devices
        return fit

    def room(self, demand: GpuDemand, rows: Ints) -> Bools:
        """Which devices of these rows have room for a demand of devices."""
        room: Bools = self.devices[rows] >= demand.device_milli
        if demand.is_picky:
            room &= self._suits(demand)[self.kind[rows]]
        return room

    def idle_devices(self, demand: GpuDemand, row: int) -> list[int]:
        """The first idle devices for a demand of whole devices; empty for one without devices."""
        room = np.flatnonzero(self.room(demand, np.array([row])))
        return [int(device) for device in room[: demand.devices]]

    def _suits(self, demand: GpuDemand) -> Bools:
        """Per type, whether it suits the demand, by the model's rule."""
        key = demand.models, demand.device_memory
        found = self._suiting.get(key)
        if found is None:
            if len(self._suiting) >= SUITING_MAX:
                self._suiting.clear()
            answers = [slot is not None and _suits(slot, demand) for slot in self._types]
            found = self._suiting[key] = np.array(answers, np.bool_)
        return found


class _States:
    """Numbers for the states of rows; a state that no row is in any more is dropped."""

    def __init__(self) -> None:
        self._of: dict[int, _State] = {}
        self._numbers: dict[_State, tuple[int, int]] = {}
        self._next = 0

    def entered(self, row: int, state: _State) -> int:
        """The number of the new state of this row."""
        before = self._of.get(row)
        if before is not None:
            number, rows = self._numbers[before]
            if rows > 1:
                self._numbers[before] = number, rows - 1
            else:
                del self._numbers[before]
        self._of[row] = state
        number, rows = self._numbers.get(state, (self._next, 0))
        self._next += not rows
        self._numbers[state] = number, rows + 1
        return number


def _suits(slot: DeviceSlot, demand: GpuDemand) -> bool:
    of = slot.device_class
    return suits(slot, DeviceDemand(of, 1, 1, demand.models, demand.device_memory))
