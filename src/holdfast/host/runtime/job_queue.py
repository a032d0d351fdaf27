"""Jobs of the runtime: in order for each replica, concurrent for different replicas.

`runtime` gives every effect a job here. Jobs whose length depends on the files of work run in
threads of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from holdfast.model.errors import invariant

JOBS_MAX = 20_000
DISK_THREADS_MAX = 3

Job = Coroutine[Any, Any, None]
_T = TypeVar("_T")


class JobQueue:
    """The jobs of one runtime. `fail` is called with bugs: jobs handle all other errors."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail
        self._jobs: set[asyncio.Task[None]] = set()
        # The last job of each replica, behind which the next one waits.
        self._last: dict[str, asyncio.Task[None]] = {}

    def begin(self, job: Job) -> asyncio.Task[None]:
        """Start a job now."""
        invariant(len(self._jobs) < JOBS_MAX, f"more than {JOBS_MAX} jobs are under way")
        task = asyncio.create_task(self._guarded(job))
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        # A job that was cancelled before it began is closed; for all others this does nothing.
        task.add_done_callback(lambda _: job.close())
        return task

    async def _guarded(self, job: Job) -> None:
        try:
            await job
        except Exception as bug:
            self._fail(bug)
            raise

    def follow(self, uid: str, job: Job) -> None:
        """Start a job when all earlier jobs of the replica are done."""
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
        """Cancel all jobs."""
        jobs = tuple(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)


class DiskThreads:
    """Threads that measure and remove the files of work, however many files it has.

    A tenant has one thread at a time, so that it delays neither others nor the agent itself.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(DISK_THREADS_MAX, thread_name_prefix="disk")
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def run(self, tenant: str, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run this in a thread when the tenant has no other there."""
        lock = self._locks.setdefault(tenant, asyncio.Lock())
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)

    def close(self) -> None:
        """Wait for what runs, which may be a start, and begin nothing more."""
        self._pool.shutdown(cancel_futures=True)
