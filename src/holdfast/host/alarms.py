"""Wake-ups on CLOCK_BOOTTIME, for the shell of one machine.

The event loop's own timers stand still while the computer is suspended, and would then be late by
as long as it slept. A timerfd on CLOCK_BOOTTIME is due the moment the computer wakes. Python has
one of its own only from 3.13 on, so it is called through the C library here.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import itertools
import os
from collections.abc import Callable

from holdfast.host.clock import monotonic_ms

_CLOCK_BOOTTIME = 7
_TFD_TIMER_ABSTIME = 1
_TFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class Alarms:
    """Named wake-ups. Setting one again replaces it."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._numbers = itertools.count()
        # Name -> number of the entry that counts; replaced ones stay in the heap until they are
        # due.
        self._current: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._armed_ms: int | None = None
        self._loop = asyncio.get_running_loop()
        self._fd = _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, _TFD_FLAGS))
        self._loop.add_reader(self._fd, self._due)

    def set(self, name: str, at_ms: int) -> None:
        """Ring this name at a reading of the monotonic clock, or at once when that is past."""
        number = next(self._numbers)
        self._current[name] = number
        heapq.heappush(self._heap, (at_ms, number, name))
        self._arm()

    def close(self) -> None:
        """Ring nothing any more."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._heap.clear()
        self._current.clear()

    def _due(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            # It was set again between its ringing and our reading.
            return
        self._armed_ms = None
        now_ms = monotonic_ms()
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            _, number, name = heapq.heappop(self._heap)
            if self._current.get(name) == number:
                del self._current[name]
                due.append(name)
        self._arm()
        for name in due:
            self._ring(name)

    def _arm(self) -> None:
        """Set the timer to the first entry that counts, unless it is set so already."""
        while self._heap and self._current.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        if not self._heap or self._heap[0][0] == self._armed_ms:
            return
        self._armed_ms = self._heap[0][0]
        # Zero would disarm the timer; a moment of the past rings at once.
        at_ns = max(1, self._armed_ms * 1_000_000)
        value = _Timespec(at_ns // 1_000_000_000, at_ns % 1_000_000_000)
        new = _Itimerspec(_Timespec(0, 0), value)
        _checked(_libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(new), None))
