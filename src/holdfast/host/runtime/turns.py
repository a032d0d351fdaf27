"""Jobs under way: one after the other for each replica, side by side for different ones.

Kept by `runtime`, which gives every effect a job here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.model.errors import invariant

JOBS_MAX = 20_000

Job = Coroutine[Any, Any, None]


class Turns:
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
