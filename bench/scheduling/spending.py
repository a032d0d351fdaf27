"""Processor time of every process of a plane, so that a figure can be judged on a busy machine.

Wall time on shared cores depends on other load as much as on us. Processor time per replica does
not, so each figure of `bench/scheduler.py` shows both, and the rate that the second would permit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from bench.harness import cores

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GENERATOR = "generator"


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def queued_s(pid: int) -> float:
    """Seconds for which threads of a process were ready to run and no core was free."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


class Spending:
    """The time that each of these processes, and this one, uses from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = self._now()
        self._queued_s = self.queued_s()
        self._began_s = time.perf_counter()

    def _now(self) -> dict[str, float]:
        used = {name: cpu_s(pid) for name, pid in self._pids.items()}
        return used | {GENERATOR: time.process_time()}

    def queued_s(self) -> float:
        """Seconds for which all of them together waited for a core, since the start."""
        return sum(queued_s(pid) for pid in (*self._pids.values(), os.getpid()))

    def queued_share(self) -> float:
        """The sum of the shares of time in which they waited for a core; 0 on an idle machine."""
        return (self.queued_s() - self._queued_s) / (time.perf_counter() - self._began_s)

    def us_each(self, count: int) -> dict[str, int]:
        """Microseconds for each of `count`, by process."""
        now = self._now()
        return {name: round(1e6 * (now[name] - self._before[name]) / count) for name in now}


def allowed_per_s(us_each: Mapping[str, int]) -> float:
    """How many per second these times permit on cores without other load.

    A process of ours runs on one core at a time, and all of them share the cores.
    """
    busiest = max(us_each.values())
    return 1e6 / max(busiest, sum(us_each.values()) / cores(), 1)
