from __future__ import annotations

import numpy as np
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.propose.gpu import ClassColumns, GpuDemand
from holdfast.propose.gpu.class_columns import NO_NODE
from tests.unit.propose.gpu.rows import columns_of, gpu_node, take

SMALL = gpu_node(8_000, 32, 1, "T4")
LARGE = gpu_node(96_000, 384, 4, "G2")


def _fits(columns: ClassColumns, demand: GpuDemand) -> list[bool]:
    return [bool(fit) for fit in columns.fits(demand, np.arange(columns.rows))]


@pytest.mark.parametrize(
    "demand, expected",
    [
        (GpuDemand(8_000), [True, True]),
        (GpuDemand(8_001), [False, True]),
        (GpuDemand(1_000, memory=33), [False, True]),
        (GpuDemand(1_000, 500, 1), [True, True]),
        (GpuDemand(1_000, 1_000, 2), [False, True]),
        (GpuDemand(1_000, 500, 1, ("T4", "P100")), [True, False]),
        (GpuDemand(1_000, 500, 1, ("A10",)), [False, False]),
    ],
)
def test_a_demand_fits_where_each_resource_and_the_model_do(
    demand: GpuDemand, expected: list[bool]
) -> None:
    """CPU, memory, devices and model are each a reason not to fit. [F3]"""
    assert _fits(columns_of([SMALL, LARGE]), demand) == expected


def test_a_fraction_needs_room_on_one_device_not_in_their_sum() -> None:
    """Four devices with 400 free each cannot take 500. [F3]"""
    columns = columns_of([LARGE])
    for device in range(4):
        take(columns, 0, GpuDemand(0, 600, 1), [device])
    assert _fits(columns, GpuDemand(0, 500, 1)) == [False]
    assert _fits(columns, GpuDemand(0, 400, 1)) == [True]


def test_whole_devices_are_the_lowest_idle_ones() -> None:
    """A device that a fraction lives on is not idle. [F3]"""
    columns = columns_of([LARGE])
    take(columns, 0, GpuDemand(0, 100, 1), [1])
    assert columns.idle_devices(GpuDemand(0, 1_000, 2), 0) == [0, 2]


def test_what_is_given_back_can_be_taken_again() -> None:
    """Taking and giving back leaves the columns as they were, and only that row changed. [F3]"""
    columns = columns_of([SMALL, LARGE])
    before = (columns.cpu.copy(), columns.memory.copy(), columns.devices.copy())
    demand = GpuDemand(4_000, 700, 1, memory=16)
    tick = columns.tick
    take(columns, 1, demand, [2])
    assert columns.devices[1].tolist() == [1_000, 1_000, 300, 1_000]
    assert np.flatnonzero(columns.changed_at > tick).tolist() == [1]
    take(columns, 1, demand, [2], -1)
    assert np.array_equal(before[0], columns.cpu)
    assert np.array_equal(before[1], columns.memory)
    assert np.array_equal(before[2], columns.devices)


def test_more_than_there_is_of_a_device_is_never_taken() -> None:
    """Neither twice, nor where a narrower node has none. [F3]"""
    columns = columns_of([SMALL, LARGE])
    take(columns, 1, GpuDemand(0, 600, 1), [0])
    with pytest.raises(InvariantBroken):
        take(columns, 1, GpuDemand(0, 600, 1), [0])
    with pytest.raises(InvariantBroken):
        take(columns, 0, GpuDemand(0, 100, 1), [3])


@pytest.mark.parametrize(
    "cpu, milli, devices",
    [(-1, 0, 0), (0, 1_001, 1), (0, 500, 2), (0, 0, 1), (0, 500, 0), (0, 1_000, 65)],
)
def test_an_impossible_demand_is_refused(cpu: int, milli: int, devices: int) -> None:
    """The error names the demand and the rule. [F3]"""
    with pytest.raises(ValueError, match="Demand"):
        GpuDemand(cpu, milli, devices)


def test_of_a_node_with_several_models_only_those_that_suit_are_given() -> None:
    """Each device by what it is itself, and its memory too. [F3]"""
    columns = columns_of([gpu_node(8_000, 32, 4, "T4", "G2")])
    assert columns.idle_devices(GpuDemand(0, 1_000, 2, ("G2",)), 0) == [1, 3]
    assert _fits(columns, GpuDemand(0, 1_000, 3, ("G2",))) == [False]
    assert _fits(columns, GpuDemand(0, 1_000, 1, device_memory=1)) == [False]
    assert columns.is_first[0].tolist() == [True, True, False, False]


def test_a_spare_row_becomes_a_node_of_a_known_build_and_no_other() -> None:
    """Another build, or one more device, needs new columns. [F3]"""
    columns = columns_of([SMALL, LARGE], spare=1)
    assert _fits(columns, GpuDemand(0)) == [True, True, True]
    assert _fits(columns, GpuDemand(1)) == [True, True, False], "a spare row has nothing to give"
    for other in (gpu_node(8_000, 32, 1, "P100"), gpu_node(8_000, 32, 5, "G2")):
        assert not columns.has_room_for(other)
        with pytest.raises(InvariantBroken):
            columns.place(2, other)
    columns.place(2, LARGE)
    assert _fits(columns, GpuDemand(0, 1_000, 4, ("G2",))) == [False, True, True]
    columns.place(2, NO_NODE)
    assert _fits(columns, GpuDemand(0, 1_000, 4)) == [False, True, False]


def test_a_fleet_without_nodes_fits_nothing() -> None:
    """An empty fleet is a fleet. [F3]"""
    assert _fits(columns_of([]), GpuDemand(1)) == []


def test_one_row_stands_for_all_that_are_in_its_state() -> None:
    """Rows are equal by what is free of them, device by device, and only while it is. [F3]"""
    columns = columns_of([LARGE, SMALL, LARGE, LARGE, SMALL])
    rows = np.arange(columns.rows)
    assert [each.tolist() for each in columns.distinct(rows)] == [[0, 1], [0, 1, 0, 0, 1]]
    for row, device in ((0, 1), (2, 1), (3, 2)):
        take(columns, row, GpuDemand(1_000, 300, 1), [device])
    distinct, like = columns.distinct(rows)
    assert sorted(distinct.tolist()) == [0, 1, 3]
    assert like.tolist() == [0, 1, 0, 3, 1]
    take(columns, 3, GpuDemand(1_000, 300, 1), [2], -1)
    take(columns, 3, GpuDemand(1_000, 300, 1), [1])
    assert columns.distinct(rows[2:])[1].tolist() == [2, 2, 4]
