"""Jobs under way: one after the other for each replica, side by side for different ones.

Kept by `runtime`, which gives every effect a job here. What the files of work can make long has
threads of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from holdfast.model.errors import invariant

JOBS_MAX = 20_000
LANES_MAX = 3

Job = Coroutine[Any, Any, None]
_T = TypeVar("_T")


class JobQueue:
    """`fail` is told of a bug: whatever the world can do to a job is handled in it."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._jobs: set[asyncio.Task[None]] = set()
        # The last job of each replica, behind which the next one waits.
        self._last: dict[str, asyncio.Task[None]] = {}

    def begin(self, job: Job) -> asyncio.Task[None]:
        """Do this now."""
        invariant(len(self._jobs) < JOBS_MAX, f"more than {JOBS_MAX} jobs are under way")
        task = asyncio.create_task(self._guarded(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        # One that was broken off before it began is closed; for all others this does nothing.
        task.add_done_callback(lambda _: job.close())
        return task

    async def _guarded(self, job: Job) -> None:
        try:
            await job
        except Exception as bug:
            self._fail(bug)
            raise

    def follow(self, uid: str, job: Job) -> None:
        """Do this when all earlier jobs of the replica are done."""
        before = self._last.get(uid)

        async def turn() -> None:
            if before is not None:
                await asyncio.wait([before])
            await job

        self._last[uid] = task = self.begin(turn())

        def done(_: object) -> None:
            job.close()
            if self._last.get(uid) is task:
                del self._last[uid]

        task.add_done_callback(done)

    def pending(self) -> tuple[asyncio.Task[None], ...]:
        """The last job of each replica that has one."""
        return tuple(self._last.values())

    async def cancel(self) -> None:
        """Break off everything."""
        jobs = tuple(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


class DiskThreads:
    """Threads in which files of work are measured and removed, as many as it likes to have.

    A tenant has one of them at a time, so that none delays others, nor what the agent waits for.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(LANES_MAX, thread_name_prefix="disk")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, tenant: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """Do this when it is the tenant's turn."""
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Wait for what is under way, which may be a start, and begin nothing more."""
        self._pool.shutdown(cancel_futures=True)
