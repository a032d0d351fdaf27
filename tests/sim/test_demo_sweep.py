"""A fault at every single point of the demonstration world's counter."""

from __future__ import annotations

import pytest

from holdfast.sim import sweep as sweeps
from holdfast.sim.mutants import Mutant
from holdfast.sim.plan import Fault
from holdfast.sim.sweep import Points, sweep, undisturbed
from holdfast.sim.world import World
from tests.sim.demo.counter import PREFIX, Client, decode
from tests.sim.demo.mutants import MUTANTS
from tests.sim.demo.world import COUNTER, COUNTER_CALM

SEED = 1


def _outcome(world: World) -> object:
    """The total and the intents left; not revisions and times, which retries may change."""
    clients = [c.machine for c in world.cells.values() if isinstance(c.machine, Client)]
    total = decode(world.stores["store"].keyspace.get(PREFIX + "a")).total
    return total, [client.memory.todo for client in clients]


def _points() -> Points:
    return undisturbed(COUNTER, SEED, COUNTER_CALM, _outcome)


def _faults(points: Points, kind: str) -> list[Fault]:
    match kind:
        case "crash":
            return sweeps.crashes(points, down_ms=700)
        case "crash_author":
            return sweeps.crashes_after_writes(points, down_ms=700)
        case "stale":
            return sweeps.stale_views(points, for_ms=3_000)
        case _:
            return sweeps.deliveries(points, kind.removeprefix("delivery_"))


@pytest.mark.parametrize(
    "kind, least",
    [
        ("crash", 70),
        ("crash_author", 6),
        ("stale", 25),
        ("delivery_lose", 3),
        ("delivery_repeat", 3),
        ("delivery_stale", 3),
    ],
)
def test_a_fault_at_any_point_leads_to_the_undisturbed_end(kind: str, least: int) -> None:
    """Every effect, write and delivery in turn; the end state equals the undisturbed one. [N6]"""
    points = _points()
    faults = _faults(points, kind)
    assert len(faults) >= least
    assert sweep(COUNTER, SEED, COUNTER_CALM, points, faults, _outcome) == []


@pytest.mark.parametrize("name", ["number-forgotten-on-restart", "operation-not-remembered"])
def test_a_sweep_of_crashes_finds_planted_bugs_without_luck(name: str) -> None:
    """Some point of the sweep finds every bug that a crash exposes. [N6]"""
    mutant: Mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.planted():
        points = _points()
        faults = _faults(points, "crash")
        departures = sweep(COUNTER, SEED, COUNTER_CALM, points, faults, _outcome)
    assert {departure.invariant for departure in departures} == {"INV3"}
