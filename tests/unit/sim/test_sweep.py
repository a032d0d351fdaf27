"""A fault at every point."""

from __future__ import annotations

from holdfast.sim.plan import Fault, Plan
from holdfast.sim.sweep import (
    crashes,
    crashes_after_writes,
    deliveries,
    stale_views,
    sweep,
    undisturbed,
)
from holdfast.sim.world import World
from tests.unit.sim.small_world import HEALTHY

CALM = Plan(5_500, 1_000)


def _count(world: World) -> object:
    record = world.stores["store"].keyspace.get("count")
    return None if record is None else record.value


def test_an_undisturbed_run_counts_the_points_where_a_fault_could_strike() -> None:
    """Effects, deliveries and revisions. [N6]"""
    points = undisturbed(HEALTHY, 0, CALM, _count)
    assert points.revisions == {"store": 7}
    assert points.effects == {"ticker": 14, "idle": 0}
    assert points.deliveries == {"ticker": 0, "idle": 0}
    assert points.fingerprint == b"7"
    assert len(crashes(points, down_ms=1)) == 14
    assert len(crashes_after_writes(points, down_ms=1)) == 7
    assert deliveries(points, "lose") == stale_views(points, for_ms=1) == []


def test_a_sweep_leaves_no_point_out_and_reports_each_departure() -> None:
    """A crash that loses the count is found at every single effect that it can follow. [N6]"""
    points = undisturbed(HEALTHY, 0, CALM, _count)
    departures = sweep(HEALTHY, 0, CALM, points, crashes_after_writes(points, down_ms=100), _count)
    assert {departure.fault.nth for departure in departures} >= {2, 3, 4, 5}
    assert {departure.invariant for departure in departures} <= {"BACK", "END"}


def test_faults_that_change_nothing_are_no_departures() -> None:
    """Only the end states are compared. [N6]"""
    points = undisturbed(HEALTHY, 0, CALM, _count)
    faults = [
        Fault(1_000, "crash", "idle", for_ms=100),
        Fault(900, "delay", "ticker", "*", for_ms=300, amount=50),
    ]
    assert sweep(HEALTHY, 0, CALM, points, faults, _count) == []
