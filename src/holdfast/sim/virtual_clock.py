"""The clocks of a simulated computer.

True time is an integer of microseconds that only the simulator sees. Each computer has a monotonic
clock (CLOCK_BOOTTIME) that starts at any value and is up to some hundred parts per million wrong,
and a wall clock that is right except for steps made by faults. So a run exposes a machine that
compares its monotonic clock with another's, or trusts the wall clock.
"""

from __future__ import annotations

from holdfast.model.time import Instant

# The wall clock at true time zero unless a world sets another one: 2026-01-01T00:00:00Z.
WALL_ORIGIN_US = 1_767_225_600_000_000
_PPM = 1_000_000


class HostClock:
    """The clocks of one computer, as functions of true time."""

    __slots__ = ("_monotonic_us", "_ppm", "_since_us", "stopped", "wall_offset_us")

    def __init__(
        self, since_us: int, monotonic_us: int, wall_offset_us: int = WALL_ORIGIN_US
    ) -> None:
        # The monotonic clock read `_monotonic_us` at true time `_since_us` and has gained `_ppm`
        # since.
        self._since_us = since_us
        self._monotonic_us = monotonic_us
        self._ppm = 0
        self.stopped = False
        # The wall clock is true time plus this; time servers keep its rate right.
        self.wall_offset_us = wall_offset_us

    @property
    def ppm(self) -> int:
        return self._ppm

    def monotonic_us(self, true_us: int) -> int:
        if self.stopped:
            return self._monotonic_us
        return self._monotonic_us + (true_us - self._since_us) * (_PPM + self._ppm) // _PPM

    def instant(self, true_us: int) -> Instant:
        """The time as machines on this computer see it."""
        elapsed_us = true_us - self._since_us
        if self._ppm:
            elapsed_us = elapsed_us * (_PPM + self._ppm) // _PPM
        return Instant(
            (self._monotonic_us + elapsed_us) // 1000,
            (true_us + self.wall_offset_us) // 1000,
        )

    def true_us_at(self, monotonic_ms: int) -> int:
        """The first true time at which `instant` shows at least this reading.

        It lies in the past for a reading that has already passed.
        """
        ahead_us = monotonic_ms * 1000 - self._monotonic_us
        if self._ppm:
            # Rounded up: a timer never fires before its clock shows the reading.
            ahead_us = -(-ahead_us * _PPM // (_PPM + self._ppm))
        return self._since_us + ahead_us

    def set_rate(self, true_us: int, ppm: int) -> None:
        """Let the monotonic clock run this many parts per million fast from now on.

        Its reading does not jump. The caller must set the timers on it again.
        """
        self._monotonic_us = self.monotonic_us(true_us)
        self._since_us = true_us
        self._ppm = ppm

    def stop(self, true_us: int) -> None:
        """Stop the monotonic clock, as when a hypervisor freezes a machine without its notice."""
        self._monotonic_us = self.monotonic_us(true_us)
        self._since_us = true_us
        self.stopped = True

    def go(self, true_us: int) -> None:
        """Let a stopped clock continue from its last reading."""
        if self.stopped:
            self._since_us = true_us
            self.stopped = False

    def reboot(self, true_us: int) -> None:
        """Set the monotonic clock to zero, as a boot does. The oscillator keeps its rate."""
        self._since_us = true_us
        self._monotonic_us = 0
        self.stopped = False
