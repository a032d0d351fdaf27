"""Machines: timers, crashes, restarts, pauses, reboots."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken, OutcomeUnknown
from holdfast.model.machine import Answered, Ask, Asked, Persist, Started, Wake, Woken
from holdfast.model.time import Instant
from holdfast.sim.check import CRASHED, Violation
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from tests.unit.sim.machines import Seen, echo, on_start


def _ticking(period_ms: int) -> Any:
    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        return (Wake("tick", now.monotonic_ms + period_ms),)

    return react


def test_a_wake_up_of_the_same_name_replaces_the_earlier_one() -> None:
    """A machine can move its own deadline. [N6]"""
    world = World(0)

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Started):
            ms = now.monotonic_ms
            return Wake("a", ms + 50), Wake("b", ms + 20), Wake("a", ms + 100)
        return ()

    seen = Seen(world, react)
    world.add("m", seen)
    world.run_until(1_000_000)
    assert [woken.name for woken in seen.of(Woken)] == ["b", "a"]
    assert 99 <= seen.times_of(Woken)[1] <= 101


def test_monotonic_clocks_of_different_computers_have_nothing_in_common() -> None:
    """A machine that compares its clock with another's fails. [N6]"""
    world = World(0)
    machines = [Seen(world) for _ in range(3)]
    for number, machine in enumerate(machines):
        world.add(f"m{number}", machine)
    world.run_until(1)
    readings = {machine.instants[0].monotonic_ms for machine in machines}
    assert len(readings) == 3
    assert len({machine.instants[0].wall_ms for machine in machines}) == 1


def test_a_crash_after_any_effect_leaves_a_prefix_and_what_was_persisted() -> None:
    """Memory, timers and later effects are lost, the disk is not. [N6]"""
    for nth in (1, 2, 3):
        world = World(0)
        effects = [Persist(key, key.encode()) for key in "abc"]

        def react(stimulus: Any, now: Instant, effects: Any = effects) -> Sequence[Any]:
            return effects if isinstance(stimulus, Started) and not stimulus.durable else ()

        seen = Seen(world, react)
        world.add("m", seen).lay_fuse(nth, "crash", 10)
        world.run_until(1_000_000)
        kept = {key: key.encode() for key in "abc"[:nth]}
        assert seen.of(Started)[1] == Started(kept, "m/1")
        assert [seat.life for seat in seen.seats] == [1, 2]


def test_a_timer_does_not_outlive_the_life_that_set_it() -> None:
    """A restarted machine is not woken by a timer of its previous life. [N6]"""
    world = World(0)

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        first = isinstance(stimulus, Started) and len(seen.seats) == 1
        return (Wake("old", now.monotonic_ms + 100),) if first else ()

    seen = Seen(world, react)
    cell = world.add("m", seen)
    world.run_until(10_000)
    world.crash(cell, 5)
    world.run_until(1_000_000)
    assert seen.of(Woken) == []
    assert len(seen.of(Started)) == 2


def test_stimuli_of_a_paused_machine_arrive_late_and_in_order() -> None:
    """A paused agent gets all stimuli when it resumes, at that time. [N6]"""
    world = World(0)
    seen = Seen(world)
    cell = world.add("m", seen)
    world.run_until(1)
    world.pause_for(cell, 500)
    for number in range(3):
        world.send(cell, number, number * 1000)
    world.run_until(400_000)
    assert seen.of(int) == []
    world.run_until(1_000_000)
    assert seen.of(int) == [0, 1, 2]
    assert seen.times_of(int) == [500.001] * 3


def test_a_pause_between_two_effects_delays_the_rest_of_them() -> None:
    """An old decision is carried out late: fencing exists for this case. [N6]"""
    world = World(0)
    performed: list[float] = []

    class Do(msgspec.Struct, frozen=True):
        pass

    world.perform(Do, lambda _cell, _effect: performed.append(world.now_us / 1000))
    world.add("m", Seen(world, on_start(Do(), Do(), Do())))
    world.cells["m"].lay_fuse(2, "pause", 800)
    world.run_until(5_000_000)
    assert performed == [0, 0, 800]


def test_a_pause_ends_with_the_life_that_it_held() -> None:
    """SIGKILL ends a stopped process, and its successor is not stopped. [N6]"""
    world = World(0)
    seen = Seen(world, _ticking(100))
    cell = world.add("m", seen)
    world.run_until(1)
    world.pause_for(cell, 60_000)
    world.crash(cell, 1_000)
    world.run_until(5_000_000)
    assert seen.times_of(Woken)[0] < 1_200


def test_the_end_of_a_pause_does_not_end_that_of_the_next_life() -> None:
    """Each pause holds the life in which it began. [N6]"""
    world = World(0)
    seen = Seen(world, _ticking(100))
    cell = world.add("m", seen)
    world.run_until(1)
    world.pause_for(cell, 5_000)
    world.crash(cell, 0)
    world.run_until(1_000_000)
    world.pause_for(cell, 60_000)
    world.run_until(50_000_000)
    assert max(seen.times_of(Woken)) < 1_001


def test_the_unfinished_effects_of_a_paused_life_are_lost_with_it() -> None:
    """A successor does not perform its predecessor's effects. [N6]"""
    world = World(0)
    seen = Seen(world, on_start(Persist("a", b"1"), Persist("b", b"2")))
    cell = world.add("m", seen)
    cell.lay_fuse(1, "pause", 60_000)
    world.run_until(1)
    seen.react = None
    world.crash(cell, 10)
    world.run_until(99_000_000)
    assert cell.durable == {"a": b"1"}


def test_a_stimulus_for_a_life_that_has_ended_is_lost() -> None:
    """The next life does not receive it. [N6]"""
    world = World(0)
    seen = Seen(world)
    cell = world.add("m", seen)
    world.run_until(1)
    world.send(cell, "exit of a child", 1_000)
    world.crash(cell, 0)
    world.run_until(1_000_000)
    assert len(seen.seats) == 2
    assert seen.of(str) == []


def test_a_planned_crash_can_strike_the_very_first_effect() -> None:
    """A sweep leaves no point out, the first included. [N6]"""
    world = World(0)
    seen = Seen(world, on_start(Persist("a", b"1"), Persist("b", b"2")))
    cell = world.add("m", seen)
    world.faults.schedule(Fault(0, "crash", "m", for_ms=60_000, nth=1))
    world.run_until(1_000_000)
    assert cell.durable == {"a": b"1"}
    assert cell.machine is None


def test_a_reboot_changes_the_boot_and_restarts_what_is_installed() -> None:
    """A computer that comes back has another boot and an empty monotonic clock. [N6]"""
    world = World(0)
    seen, powers = Seen(world, _ticking(300)), []
    world.add("m", seen)
    world.power_hooks.append(lambda host: powers.append(host.up))
    world.faults.schedule(Fault(1_000, "reboot", "m", for_ms=2_000))
    world.run_until(4_000_000)
    assert [started.boot for started in seen.of(Started)] == ["m/1", "m/2"]
    assert [at for at in seen.times_of(Woken) if 1_000 < at < 3_000] == []
    assert seen.instants[-1].monotonic_ms < 1_100
    assert powers == [False, True]


@pytest.mark.parametrize("clock_stops", [0, 1])
def test_a_frozen_computer_does_nothing_and_its_clock_may_not_notice(clock_stops: int) -> None:
    """A whole machine paused: its timers fire late, or not at all until their time. [N6]"""
    world = World(0)
    seen = Seen(world, on_start())
    cell = world.add("m", seen)
    world.run_until(1)
    world.performers[Wake](cell, Wake("due", seen.instants[0].monotonic_ms + 1_000))
    world.faults.schedule(Fault(500, "freeze", "m", for_ms=5_000, amount=clock_stops))
    world.run_until(20_000_000)
    expected_ms = 6_000 if clock_stops else 5_500
    assert seen.times_of(Woken) == [pytest.approx(expected_ms, abs=1)]


def test_an_alarm_follows_its_computers_clock_and_no_machine() -> None:
    """A deadline holds for paused and crashed machines, at any rate of the clock. [N6]"""
    world = World(0)
    cell = world.add("m", Seen(world))
    world.run_until(1)
    host, sounded = cell.host, []
    began_ms = host.clock.instant(1).monotonic_ms
    for ahead_ms in (1_000, 100_000):
        world.timers.alarm(
            host, began_ms + ahead_ms, lambda _n, _a, _b: sounded.append(world.now_us), None, None
        )
    world.crash(cell)
    world.faults.schedule(Fault(2_000, "clock_rate", "m", amount=-100_000))
    world.run_until(200_000_000)
    assert sounded[0] == pytest.approx(1_000_000, abs=1_000)
    assert sounded[1] == pytest.approx(2_000_000 + 98_000_000 / 0.9, rel=1e-4)


def test_an_alarm_waits_for_a_frozen_computer_and_is_gone_with_its_power() -> None:
    """An overdue alarm fires before any machine resumes; a reboot drops it. [N6]"""
    world = World(0)
    seen = Seen(world)
    cell = world.add("m", seen)
    world.run_until(1)
    world.post(600_000, lambda _n, _a, _b: world.hand(cell, "mail"), None, None)
    at_ms = seen.instants[0].monotonic_ms
    log: list[tuple[str, int, int]] = []
    for name, ahead_ms in (("frozen", 1_000), ("dead", 9_000)):
        world.timers.alarm(
            cell.host,
            at_ms + ahead_ms,
            lambda _n, a, _b: log.append((a, world.now_us // 1000, len(seen.of(str)))),
            name,
            None,
        )
    world.faults.schedule(Fault(500, "freeze", "m", for_ms=3_000))
    world.faults.schedule(Fault(8_000, "reboot", "m", for_ms=100))
    world.run_until(60_000_000)
    assert log == [("frozen", 3_500, 0)]
    assert seen.of(str) == ["mail"]


def test_a_change_of_rate_moves_the_timers_that_are_set() -> None:
    """A timer follows its computer's clock at any rate. [N6]"""
    world = World(0)
    seen = Seen(world)
    cell = world.add("m", seen)
    world.run_until(1)
    world.performers[Wake](cell, Wake("due", seen.instants[0].monotonic_ms + 1_000_000))
    world.faults.schedule(Fault(1, "clock_rate", "m", amount=200_000))
    world.run_until(2_000_000_000)
    assert seen.times_of(Woken)[0] == pytest.approx(1_000_000 / 1.2, rel=1e-4)


def test_a_machine_that_breaks_down_is_a_violation_with_its_name() -> None:
    """An exception in a machine is a finding, not a stack trace. [N6]"""
    world = World(0)

    def react(stimulus: Any, now: Instant) -> Sequence[Any]:
        raise InvariantBroken("two owners")

    world.add("m", Seen(world, react))
    with pytest.raises(Violation, match=r"m broke down on Started.*two owners") as raised:
        world.run_until(1)
    assert raised.value.invariant == CRASHED


def test_an_effect_without_a_performer_is_named() -> None:
    """A world that lacks a part says which. [N6]"""
    world = World(0)
    world.add("m", Seen(world, on_start(Instant(0, 0))))
    with pytest.raises(InvariantBroken, match="this world has no performer for Instant"):
        world.run_until(1)


def test_a_removed_machine_does_not_come_back() -> None:
    """The process ended; a pending restart of it must not revive it. [N6]"""
    world = World(0)
    seen = Seen(world)
    cell = world.add("m", seen)
    world.run_until(1)
    world.crash(cell, 100)
    world.remove(cell)
    other = Seen(world)
    world.add("m", other)
    world.run_until(1_000_000)
    assert len(seen.seats) == 1
    assert len(other.seats) == 1


# Work that takes time -----------------------------------------------------------------------------


def _busy(cost_us: int) -> tuple[World, Seen, Seen]:
    """A server with a cost for each request, and a client that sends five at once."""
    world = World(0)
    server, client = Seen(world, echo), Seen(world, on_start(*(_ask(n) for n in range(5))))
    world.add("server", server).burden = lambda stimulus, _: (
        cost_us if isinstance(stimulus, Asked) else 0
    )
    world.add("client", client)
    return world, server, client


def _ask(number: int) -> Ask:
    return Ask(number + 1, "server", number, timeout_ms=300)


def test_a_busy_machine_takes_one_stimulus_after_the_other() -> None:
    """Its effects are performed when its time is over; other stimuli wait in order. [N6]"""
    world, server, client = _busy(50_000)
    world.run_until(1_000_000)
    begun = server.times_of(Asked)
    assert [round(b - a) for a, b in pairwise(begun)] == [50] * 4
    answered = client.times_of(Answered)
    assert all(50 <= at - began < 54 for at, began in zip(answered, begun, strict=True))


def test_a_client_of_a_busy_machine_gives_up_in_time() -> None:
    """For the client a slow server is like a silent one. [N6]"""
    world, _, client = _busy(200_000)
    world.run_until(2_000_000)
    bodies = [it.body for it in client.of(Answered)]
    assert sum(isinstance(body, OutcomeUnknown) for body in bodies) == 4


def test_a_crash_ends_the_step_of_a_busy_machine() -> None:
    """Its next life begins with nothing to do. [N6]"""
    world, server, client = _busy(50_000)
    world.run_until(60_000)
    world.crash(world.cells["server"], 10)
    world.run_until(1_000_000)
    assert len(server.of(Asked)) == 2
    assert len(server.of(Started)) == 2
    assert len(client.of(Answered)) == 5


def test_a_pause_holds_the_step_of_a_busy_machine() -> None:
    """It finishes the step when it resumes. [N6]"""
    world, _, client = _busy(50_000)
    world.run_until(20_000)
    world.pause_for(world.cells["server"], 100)
    world.run_until(1_000_000)
    assert 120 <= client.times_of(Answered)[0] < 124
