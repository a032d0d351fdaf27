"""A measure of cost that is the same on every machine: CPU time beside that of a bare loop.

No test asserts an absolute time (tools/tidy finds those that do). What must be cheap is compared
with a plain loop, measured in the same process at nearly the same moment; absolute figures belong
to bench/. Other work on the same cores makes every instruction dearer now and then and never
cheaper, so what is dear must be so each time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache

# Some 20 ms: long enough for the clock, short enough to run beside every test that needs it.
MEASURED_STEPS = 500_000
TRIES = 5
# What a patch may cost, however it is made: 50 ms where a step takes 40 ns, and four times room.
PATCH_STEPS_MAX = 5_000_000


def cpu_s(work: Callable[[], object]) -> float:
    """What a call costs this process, all of its threads together."""
    began = time.process_time()
    work()
    return time.process_time() - began


def loop_s(steps: int) -> float:
    """What a bare loop of this many steps costs here and now."""
    return cpu_s(_loop) * steps / MEASURED_STEPS


@cache
def _quick_loop_s() -> float:
    """A loop while nothing is in its way, once for each process."""
    return min(loop_s(MEASURED_STEPS) for _ in range(TRIES))


def _loop() -> None:
    for _ in range(MEASURED_STEPS):
        pass


def assert_cheap(work: Callable[[], object], steps: int) -> None:
    """Fail unless the work costs no more than a bare loop of this many steps, at least once."""
    if cpu_s(work) <= _quick_loop_s() * steps / MEASURED_STEPS:
        return
    seen = []
    for _ in range(TRIES):
        bound_s, cost_s = loop_s(steps), cpu_s(work)
        if cost_s <= bound_s:
            return
        seen.append(f"{1e3 * cost_s:.0f} ms against {1e3 * bound_s:.0f} ms")
    raise AssertionError(f"CPU beside a loop of {steps:,} steps: {'; '.join(seen)}")


class Timer:
    """A plain thread that sleeps again and again, and sees how late this machine wakes it.

    What must happen at a moment is late with the whole machine, when others compute or its host
    rests. The room that it has follows from how late the plain thread was meanwhile.
    """

    _EVERY_S = 0.02

    def __init__(self) -> None:
        self._latest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sleep, daemon=True)
        self._thread.start()

    def room_ms(self, least_ms: float = 1_000.0, factor: float = 10.0) -> float:
        """How late something else may have been; ends the thread."""
        self._ended.set()
        self._thread.join()
        return least_ms + factor * 1e3 * self._latest_s

    def _sleep(self) -> None:
        while not self._ended.is_set():
            due = time.monotonic() + self._EVERY_S
            self._ended.wait(self._EVERY_S)
            self._latest_s = max(self._latest_s, time.monotonic() - due)
