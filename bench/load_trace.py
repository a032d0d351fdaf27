"""Why single requests of `bench/load` were slow: which process was not running, and why.

Every 20 ms this reads what the kernel counts for a process (`/proc/PID/schedstat`): the time it ran
and the time it was ready and had to wait for a processor. The generator reports its own pauses. A
slow request is attributed to the first of these causes that was present while it was in flight:

    generator   the generator itself did not serve its sockets
    processor   the server was ready to run, and others had the processor
    computing   the server ran all the time: it computed something long, such as a collection of
                garbage or a large group
    elsewhere   the server slept: it waited for the store, its disk, or the network
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from bench.load_results import Mask, Results

EVERY_S = 0.02
# A cause counts if it lasted for this share of the time that the request was in flight.
SHARE = 0.3
_NS = 1e-9


class Slice(msgspec.Struct, frozen=True):
    """The activity of a process in one interval, in seconds."""

    begin: float
    end: float
    ran: float
    delayed: float


class Trace:
    """Samples a process from `start` to `stop`; times are of the monotonic clock."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/task/{pid}/schedstat")
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.slices: list[Slice] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _read(self) -> tuple[float, int, int]:
        # Of the main thread, on which the event loop runs.
        ran, delayed, _ = self._file.read_text(encoding="ascii").split()
        return time.monotonic(), int(ran), int(delayed)

    def _sample(self) -> None:
        before = self._read()
        while not self._done.wait(EVERY_S):
            now = self._read()
            self.slices.append(
                Slice(before[0], now[0], (now[1] - before[1]) * _NS, (now[2] - before[2]) * _NS)
            )
            before = now

    def inside(self, begin: float, end: float) -> tuple[float, float]:
        """How much of this period it ran, and waited for a processor."""
        ran = delayed = 0.0
        for it in self.slices:
            common = min(end, it.end) - max(begin, it.begin)
            if common > 0 and it.end > it.begin:
                ran += it.ran * common / (it.end - it.begin)
                delayed += it.delayed * common / (it.end - it.begin)
        return ran, delayed


def causes(seen: Results, mask: Mask, trace: Trace, slower_than_ms: float) -> dict[str, Any]:
    """How many of these requests were slow, by cause."""
    found = {"generator": 0, "processor": 0, "computing": 0, "elsewhere": 0}
    slow = mask & seen.good & (seen.latency_ms > slower_than_ms)
    for due, done in zip(seen.due[slow], seen.done[slow], strict=True):
        found[_cause(seen, trace, float(due), float(done))] += 1
    longest = sorted((it.delayed for it in trace.slices), reverse=True)[:1]
    return {
        "slower_than_ms": round(slower_than_ms, 1),
        "requests": int(mask.sum()),
        **found,
        "generator_pauses": len(seen.pauses),
        "longest_wait_for_processor_ms": round(1e3 * longest[0], 1) if longest else 0.0,
    }


def _cause(seen: Results, trace: Trace, due: float, done: float) -> str:
    took = done - due
    paused = sum(max(0.0, min(done, end) - max(due, begin)) for begin, end in seen.pauses)
    if paused >= SHARE * took:
        return "generator"
    ran, delayed = trace.inside(seen.began + due, seen.began + done)
    if delayed >= SHARE * took:
        return "processor"
    return "computing" if ran >= (1 - SHARE) * took else "elsewhere"
