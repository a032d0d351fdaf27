"""Nodes and rows for the tests of packing: made by hand, taken and given back one by one."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.quota.ledger import DeviceSlot
from holdfast.propose.gpu import ClassColumns, GpuDemand, GpuNode
from holdfast.propose.gpu.class_columns import WHOLE_MILLI

MODELS = ("G2", "P100", "T4")
# As the columns of a fleet number them: 0 is no device.
TYPES = (None, *(DeviceSlot(device_class="gpu", model=model) for model in MODELS))


def gpu_node(cpu_milli: int, memory: int, devices: int, *models: str) -> GpuNode:
    """A node with nothing on it; of several models each device has the next."""
    kinds = [MODELS.index(models[place % len(models)]) + 1 for place in range(devices)]
    return GpuNode(cpu_milli, memory, (WHOLE_MILLI,) * devices, tuple(kinds))


def columns_of(nodes: Sequence[GpuNode], spare: int = 0) -> ClassColumns:
    return ClassColumns(nodes, TYPES, spare=spare)


def take(
    columns: ClassColumns, row: int, demand: GpuDemand, devices: Sequence[int], sign: int = 1
) -> None:
    """State a row with this demand on these devices, or with -1 without it."""
    free = columns.devices[row].tolist()
    for device in devices:
        free[device] -= sign * demand.device_milli
    cpu = int(columns.cpu[row]) - sign * demand.cpu_milli
    columns.state(row, cpu, int(columns.memory[row]) - sign * demand.memory, free)
