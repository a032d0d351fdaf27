"""Samples what work uses of CPU and memory: the last sample, for people.

Called by `supervisor` every few seconds, in a thread. Memory comes from the control group if there
is one, without the file cache that the kernel can drop at once; else from /proc, where memory that
processes share counts for each. CPU comes from a control group of the second version, else from
/proc: a process that ended between two samples is counted by its parent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.cgroups.groups import CgroupParent, name
from holdfast.model.nodes.heartbeat import SAMPLES_MAX, NodeUse, ReplicaUse

EVERY_S = 15.0
PROC = "proc"
_PROC = Path("/proc")
_TICK_MS = 1_000 // os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# In /proc/PID/stat after the name: own and awaited children's time, and resident pages.
_TIMES, _PAGES = slice(11, 15), 21


class Sampler:
    """Remembers the CPU time of each attempt at its last sample."""

    def __init__(
        self,
        memory: CgroupParent | None,
        cpu: CgroupParent | None,
        processes: Callable[[Attempt], Iterable[int]],
        proc: Path = _PROC,
    ) -> None:
        self._memory = memory
        self._cpu = cpu if cpu is not None and cpu.version == 2 else None
        self._processes, self._proc = processes, proc
        self._before: dict[Attempt, tuple[int, int]] = {}

    @property
    def source(self) -> str:
        """Where memory is read."""
        return f"cgroup-v{self._memory.version}" if self._memory is not None else PROC

    def sample(self, attempts: Iterable[Attempt], now_ms: int) -> NodeUse:
        """What these attempts use: CPU on average since their last sample."""
        found, before, self._before = [], self._before, {}
        for attempt in attempts:
            cpu_ms, memory = self._of(attempt)
            self._before[attempt] = now_ms, cpu_ms
            at_ms, had_ms = before.get(attempt, (now_ms, cpu_ms))
            spent = max(0, cpu_ms - had_ms) * 1_000 // max(1, now_ms - at_ms)
            found.append(ReplicaUse(attempt.uid, spent, memory))
        found.sort(key=lambda it: (-it.memory_bytes, it.uid))
        return NodeUse(
            sum(it.cpu_milli for it in found),
            sum(it.memory_bytes for it in found),
            self.source,
            tuple(found[:SAMPLES_MAX]),
            max(0, len(found) - SAMPLES_MAX),
        )

    def _of(self, attempt: Attempt) -> tuple[int, int]:
        """Its CPU time in milliseconds, and its memory in bytes."""
        cpu_ms = memory = 0
        if self._cpu is None or self._memory is None:
            for pid in self._processes(attempt):
                # It may have ended.
                with suppress(OSError, ValueError, IndexError):
                    text = (self._proc / str(pid) / "stat").read_text("ascii", "replace")
                    fields = text.rpartition(")")[2].split()
                    cpu_ms += sum(map(int, fields[_TIMES])) * _TICK_MS
                    memory += int(fields[_PAGES]) * _PAGE
        if self._cpu is not None:
            stat = _table(self._cpu.folder / name(attempt) / "cpu.stat")
            cpu_ms = stat.get("usage_usec", 0) // 1_000
        if self._memory is not None:
            memory = _group_memory(self._memory, self._memory.folder / name(attempt))
        return cpu_ms, memory


def _group_memory(seat: CgroupParent, folder: Path) -> int:
    file = "memory.current" if seat.version == 2 else "memory.usage_in_bytes"
    cache = "inactive_file" if seat.version == 2 else "total_inactive_file"
    with suppress(OSError, ValueError):
        used = int((folder / file).read_text("ascii"))
        return max(0, used - _table(folder / "memory.stat").get(cache, 0))
    return 0


def _table(path: Path) -> dict[str, int]:
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in path.read_text("ascii").splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    return {}
