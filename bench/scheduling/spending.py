"""Processor time of every process of a plane, so that a figure can be judged on a busy machine.

Wall time on shared cores says as much about the neighbours as about us. Processor time per replica
does not, so each figure of `bench/scheduler.py` shows both, and what the second would allow.
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
    """Seconds for which threads of a process could have computed and no core was free."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


class Spending:
    """What each of these processes, and this one, uses from now on."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = self._now()
        self._queued_s = self.queued_s()
        self._began_s = time.perf_counter()

    def _now(self) -> dict[str, float]:
        used = {name: cpu_s(pid) for name, pid in self._pids.items()}
        return used | {GENERATOR: time.process_time()}

    def queued_s(self) -> float:
        """Seconds for which all of them together waited for a core, since they began."""
        return sum(queued_s(pid) for pid in (*self._pids.values(), os.getpid()))

    def queued_share(self) -> float:
        """How much of the time some of them waited for a core, added up; 0 on an idle machine."""
        return (self.queued_s() - self._queued_s) / (time.perf_counter() - self._began_s)

    def us_each(self, count: int) -> dict[str, int]:
        """Microseconds for each of so many, by process."""
        now = self._now()
        return {name: round(1e6 * (now[name] - self._before[name]) / count) for name in now}


def allowed_per_s(us_each: Mapping[str, int]) -> float:
    """How many a second these times allow on cores that nobody else uses.

    A process of ours computes on one core at a time, and all of them share the cores.
    """
    busiest = max(us_each.values())
    return 1e6 / max(busiest, sum(us_each.values()) / cores(), 1)
