"""Virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.sim.check import LIVELOCK, Checker, Violation
from holdfast.sim.world import World


def test_events_come_in_order_of_time_and_ties_in_order_of_posting() -> None:
    """The order of events depends on nothing else. [N6]"""
    world, seen = World(0), []
    for at_us, name in ((5, "c"), (3, "a"), (5, "d"), (4, "b"), (5, "e")):
        world.post(at_us, lambda _n, a, _b: seen.append(a), name, None)
    world.run_until(10)
    assert "".join(seen) == "abcde"
    assert world.now_us == 10


def test_a_run_goes_on_from_where_it_stopped() -> None:
    """Running in two parts is running once. [N6]"""
    world, seen = World(0), []
    for at_us in (1, 2, 3):
        world.post(at_us, lambda _n, a, _b: seen.append(a), at_us, None)
    world.run_until(2)
    assert seen == [1, 2]
    world.run_until(9)
    assert seen == [1, 2, 3]


def test_a_world_that_spins_without_time_passing_is_stopped() -> None:
    """A machine that wakes itself at once, for ever, is a finding and not a hang. [N6]"""
    world = World(0)

    def again(_number: int, a: Any, b: Any) -> None:
        world.post(world.now_us, again, a, b)

    world.post(0, again, None, None)
    with pytest.raises(Violation) as raised:
        world.run_until(1)
    assert raised.value.invariant == LIVELOCK


def test_only_hooks_that_a_checker_overrides_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that a checker does not override costs nothing. [N6]"""
    calls: list[str] = []
    monkeypatch.setattr(Checker, "after_event", lambda *_: calls.append("after_event"))

    class Counting(Checker):
        events = 0

        def after_event(self, world: World) -> None:
            self.events += 1

    world = World(0)
    world.check(Counting(), Checker())
    world.post(1, lambda _n, _a, _b: None, None, None)
    world.post(2, lambda _n, _a, _b: None, None, None)
    world.run_until(5)
    assert world.checker(Counting).events == 2
    assert calls == []
