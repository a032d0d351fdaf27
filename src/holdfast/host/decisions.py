"""A server's decisions: what schedulers hand in is kept in the archive, and read from it.

`host/api/decisions.py` calls it for requests. The archive is a file and blocks, so that one thread
does all its work, and what waits for it is bounded: a disk that hangs costs records and never a
request of anybody else. What was lost is counted, here and by the schedulers that send.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from holdfast.host.archive import Archive, Kept
from holdfast.host.metrics import Metrics
from holdfast.model.errors import Unavailable
from holdfast.propose.rounds import Round

FILE = "decisions.db"
# Batches and reads that wait for the thread. A batch comes about four times a second.
WAITING_MAX = 64

T = TypeVar("T")


class Decisions:
    """See the module's docstring."""

    def __init__(self, folder: Path, metrics: Metrics) -> None:
        self._archive = Archive(folder / FILE)
        self._thread = ThreadPoolExecutor(1, "decisions")
        self._waiting = 0
        # Deciding again takes a core for a while: one at a time.
        self.again = asyncio.Lock()
        self._kept = metrics.counter("decisions_kept_total", "Decisions that were kept.")
        self._lost = metrics.counter(
            "decisions_lost_total", "Decisions that could not be kept, here or on the way."
        )
        metrics.gauge("decisions_bytes", "What is kept of decisions.", lambda: self._archive.bytes)

    async def keep(self, rounds: Sequence[Round], lost: int) -> int:
        """Keep these. How many decisions were; `lost` is what the sender has lost before."""
        count = sum(decided.size for decided in rounds)
        self._lost.add(by=lost)
        try:
            await self._do(lambda: self._archive.keep(rounds, time.time_ns() // 1_000_000))
        except Unavailable:
            self._lost.add(by=count)
            return 0
        self._kept.add(by=count)
        return count

    async def page(self, namespace: str, before: tuple[int, int] | None, most: int) -> list[Kept]:
        """See `Archive.page`."""
        return await self._do(lambda: self._archive.page(namespace, before, most))

    async def round(self, name: str) -> Round | None:
        """See `Archive.round`."""
        return await self._do(lambda: self._archive.round(name))

    async def _do(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} others wait for the file of decisions")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let go of the file, once what waits for it is done. A disk that hangs holds up nobody."""
        self._thread.submit(self._archive.close)
        self._thread.shutdown(wait=False)
