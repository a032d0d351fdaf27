"""The clocks of a simulated computer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.sim.virtual_clock import WALL_ORIGIN_US, HostClock

ppms = st.integers(-500, 500)
times_us = st.integers(0, 10**12)


@given(ppms, times_us, st.integers(0, 10**9), st.integers(0, 10**10))
def test_a_timer_fires_at_the_first_moment_that_shows_its_reading(
    ppm: int, since_us: int, monotonic_us: int, ahead_ms: int
) -> None:
    """Never early by its own clock, and not a microsecond late. [N6]"""
    clock = HostClock(since_us, monotonic_us)
    clock.set_rate(since_us, ppm)
    at_ms = monotonic_us // 1000 + ahead_ms + 1
    true_us = clock.true_us_at(at_ms)
    assert clock.instant(true_us).monotonic_ms >= at_ms
    assert clock.instant(true_us - 1).monotonic_ms < at_ms


def test_a_fast_clock_gains_by_its_rate() -> None:
    """200 ppm are 720 ms an hour. [N6]"""
    clock = HostClock(0, 0)
    clock.set_rate(0, 200)
    assert clock.monotonic_us(3_600_000_000) == 3_600_720_000


def test_a_change_of_rate_does_not_make_the_clock_jump() -> None:
    """A monotonic clock never jumps, whatever its crystal does. [N6]"""
    clock = HostClock(0, 5_000)
    before = clock.monotonic_us(1_000_000)
    clock.set_rate(1_000_000, -200)
    assert clock.monotonic_us(1_000_000) == before


def test_a_step_of_the_wall_clock_leaves_the_monotonic_clock_alone() -> None:
    """Fencing relies on the monotonic clock for this reason. [N6]"""
    clock = HostClock(0, 0)
    before = clock.instant(1_000_000)
    clock.wall_offset_us -= 300_000_000
    after = clock.instant(1_000_000)
    assert after.monotonic_ms == before.monotonic_ms
    assert after.wall_ms == before.wall_ms - 300_000


def test_a_stopped_clock_goes_on_from_where_it_stood() -> None:
    """A frozen virtual machine does not notice the time that it lost. [N6]"""
    clock = HostClock(0, 0)
    clock.stop(1_000_000)
    assert clock.monotonic_us(9_000_000) == 1_000_000
    clock.go(9_000_000)
    assert clock.monotonic_us(10_000_000) == 2_000_000


def test_a_reboot_starts_the_monotonic_clock_at_zero_and_keeps_the_calendar() -> None:
    """Readings of different boots must not be compared. [N6]"""
    clock = HostClock(0, 77_000_000)
    clock.reboot(5_000_000)
    assert clock.instant(5_000_000).monotonic_ms == 0
    assert clock.instant(5_000_000).wall_ms == (WALL_ORIGIN_US + 5_000_000) // 1000
