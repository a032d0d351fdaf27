"""Faults: how they strike and heal. Other test modules cover what each kind does."""

from __future__ import annotations

import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.sim.faults import MACHINE, FaultKind, Heal
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from tests.unit.sim.machines import Seen


def test_a_world_adds_kinds_of_faults_of_its_own() -> None:
    """They strike, heal, are counted and are drawn like any other. [N6]"""
    world, log = World(0), []
    world.add("m", Seen(world))

    def strike(_world: World, fault: Fault) -> Heal:
        log.append(f"on {fault.amount}")
        return lambda: log.append("off")

    world.faults.add("policy", FaultKind(MACHINE, strike))
    assert world.faults.aims()["policy"].names == ("m",)
    world.faults.schedule(Fault(10, "policy", "m", for_ms=5, amount=3))
    world.run_until(14_000)
    assert log == ["on 3"]
    world.run_until(15_000)
    assert log == ["on 3", "off"]
    assert world.injected == {"policy": 1}
    with pytest.raises(InvariantBroken, match="fault kind 'policy' exists already"):
        world.faults.add("policy", FaultKind(MACHINE, strike))


def test_an_unknown_kind_is_refused_before_the_run() -> None:
    """A typo in a plan is not a plan without faults. [N6]"""
    with pytest.raises(InvariantBroken, match="unknown fault kind 'crush'"):
        World(0).faults.schedule(Fault(0, "crush", "m"))


def test_a_name_that_is_nowhere_in_the_world_is_refused() -> None:
    """A cut between hosts that do not exist would cut nothing. [N6]"""
    world = World(0)
    world.faults.schedule(Fault(0, "partition", "atlantis", "*", for_ms=1))
    with pytest.raises(InvariantBroken, match="'atlantis' in a plan is not"):
        world.run_until(1)


def test_of_two_troubles_of_a_store_the_worse_counts_until_it_heals() -> None:
    """Overlapping faults heal one by one. [N6]"""
    world = World(0)
    store = world.add_store()
    world.faults.schedule(Fault(0, "store_slow", "store", for_ms=10, amount=900))
    world.faults.schedule(Fault(0, "store_slow", "store", for_ms=20, amount=300))
    slow_ms = []
    for at_ms in (5, 15, 25):
        world.run_until(at_ms * 1000)
        slow_ms.append(store.trouble.slow_ms if store.trouble else 0)
    assert slow_ms == [900, 300, 0]


def test_a_machine_that_is_named_stands_for_its_computer() -> None:
    """Plans may name machines for the paths between their computers. [N6]"""
    world = World(0)
    world.add("agent", Seen(world), host="node")
    world.add_host("other")
    world.faults.schedule(Fault(0, "cut", "agent", "other", for_ms=5))
    world.run_until(1)
    hosts = world.hosts
    assert world.network.path(hosts["node"], hosts["other"]).cut
    assert not world.network.path(hosts["other"], hosts["node"]).cut
