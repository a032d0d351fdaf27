from __future__ import annotations

import numpy as np
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.propose.gpu import Columns, Demand, GpuNode

SMALL = GpuNode(cpu_milli=8_000, memory=32, devices=1, model="T4")
LARGE = GpuNode(cpu_milli=96_000, memory=384, devices=4, model="G2")


def _fits(columns: Columns, demand: Demand) -> list[bool]:
    return [bool(fit) for fit in columns.fits(demand, np.arange(columns.rows))]


@pytest.mark.parametrize(
    "demand, expected",
    [
        (Demand(8_000), [True, True]),
        (Demand(8_001), [False, True]),
        (Demand(1_000, memory=33), [False, True]),
        (Demand(1_000, 500, 1), [True, True]),
        (Demand(1_000, 1_000, 2), [False, True]),
        (Demand(1_000, 500, 1, ("T4", "P100")), [True, False]),
        (Demand(1_000, 500, 1, ("A10",)), [False, False]),
    ],
)
def test_a_demand_fits_where_each_resource_and_the_model_do(
    demand: Demand, expected: list[bool]
) -> None:
    """CPU, memory, devices and model are each a reason not to fit. [F3]"""
    assert _fits(Columns([SMALL, LARGE]), demand) == expected


def test_a_fraction_needs_room_on_one_device_not_in_their_sum() -> None:
    """Four devices with 400 free each cannot take 500. [F3]"""
    columns = Columns([LARGE])
    for device in range(4):
        columns.take(0, Demand(0, 600, 1), [device])
    assert _fits(columns, Demand(0, 500, 1)) == [False]
    assert _fits(columns, Demand(0, 400, 1)) == [True]


def test_whole_devices_are_the_lowest_idle_ones() -> None:
    """A device that a fraction lives on is not idle. [F3]"""
    columns = Columns([LARGE])
    columns.take(0, Demand(0, 100, 1), [1])
    assert columns.idle_devices(Demand(0, 1_000, 2), 0) == [0, 2]


def test_what_is_given_back_can_be_taken_again() -> None:
    """Taking and giving back leaves the columns as they were, and only that row changed. [F3]"""
    columns = Columns([SMALL, LARGE])
    before = (columns.cpu.copy(), columns.memory.copy(), columns.devices.copy())
    demand = Demand(4_000, 700, 1, memory=16)
    tick = columns.tick
    columns.take(1, demand, [2])
    assert columns.devices[1].tolist() == [1_000, 1_000, 300, 1_000]
    assert np.flatnonzero(columns.changed_at > tick).tolist() == [1]
    columns.give_back(1, demand, [2])
    assert np.array_equal(before[0], columns.cpu)
    assert np.array_equal(before[1], columns.memory)
    assert np.array_equal(before[2], columns.devices)


def test_a_device_is_never_taken_beyond_what_it_has() -> None:
    """Neither twice, nor where a narrower node has none. [F3]"""
    columns = Columns([SMALL, LARGE])
    columns.take(1, Demand(0, 600, 1), [0])
    with pytest.raises(InvariantBroken):
        columns.take(1, Demand(0, 600, 1), [0])
    with pytest.raises(InvariantBroken):
        columns.take(0, Demand(0, 100, 1), [3])
    with pytest.raises(InvariantBroken):
        columns.take(1, Demand(0, 1_000, 2), [1])


@pytest.mark.parametrize(
    "cpu, milli, devices",
    [(-1, 0, 0), (0, 1_001, 1), (0, 500, 2), (0, 0, 1), (0, 500, 0), (0, 1_000, 65)],
)
def test_a_demand_that_nobody_can_mean_is_refused(cpu: int, milli: int, devices: int) -> None:
    """The error names the demand and the rule. [F3]"""
    with pytest.raises(ValueError, match="Demand"):
        Demand(cpu, milli, devices)


def test_a_fleet_without_nodes_fits_nothing() -> None:
    """An empty fleet is a fleet. [F3]"""
    assert _fits(Columns([]), Demand(1)) == []
