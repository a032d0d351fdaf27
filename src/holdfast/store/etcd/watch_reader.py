"""The reader's end of a watch on etcd: a buffer that `watch_source` fills.

`EtcdStore.watch` returns an `EtcdWatch`. Its follower, a task, starts with the first `anext` and
ends when the watch is closed, dropped or fails. Batches wait in a bounded buffer, so a reader may
cancel an `anext` at any time and loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast.model.errors import invariant
from holdfast.model.transaction import Batch

# How far a reader may be behind before its stream is closed.
BUFFER_CHANGES_MAX = 1_000
BUFFER_BYTES_MAX = 4 * 1024 * 1024
# The memory of a change besides its value.
_CHANGE_BYTES = 200

Follow = Callable[["Buffer"], Coroutine[Any, Any, None]]


class Buffer:
    """Batches on their way from the follower to the reader."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._changes = 0
        self._bytes = 0
        self._readable = asyncio.Event()
        self._drained = asyncio.Event()

    def push(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._changes += len(batch.changes)
        self._bytes += _size(batch)
        self._readable.set()
        self._drained.clear()

    def pop(self) -> Batch | None:
        if not self._batches:
            self._readable.clear()
            return None
        batch = self._batches.popleft()
        self._changes -= len(batch.changes)
        self._bytes -= _size(batch)
        if not self._batches:
            self._drained.set()
        return batch

    def is_full(self) -> bool:
        return self._changes > BUFFER_CHANGES_MAX or self._bytes > BUFFER_BYTES_MAX

    def wake(self) -> None:
        """Wake the reader, although there may be nothing."""
        self._readable.set()

    async def readable(self) -> None:
        await self._readable.wait()

    async def drained(self) -> None:
        """Wait until the reader has taken everything."""
        if self._batches:
            await self._drained.wait()


class FollowerRun:
    """A follower's task and its buffer, which the store can end without holding on to the watch."""

    def __init__(self, follow: Follow) -> None:
        self.buffer = Buffer()
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(follow(self.buffer))
        self.when_done(self.buffer.wake)

    def when_done(self, callback: Callable[[], None]) -> None:
        self._task.add_done_callback(lambda _: callback())

    def stop(self) -> None:
        self._task.cancel()

    def abandon(self) -> None:
        """Stop from the garbage collector, which may run in any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def stopped(self) -> None:
        self.stop()
        await asyncio.wait([self._task])

    def failure(self) -> BaseException | None:
        """None while the follower runs, StopAsyncIteration when it was stopped."""
        if not self._task.done():
            return None
        if self._task.cancelled():
            return StopAsyncIteration()
        return self._task.exception() or StopAsyncIteration()


class EtcdWatch:
    """What the reader iterates over."""

    def __init__(self, start: Callable[[], FollowerRun | None]) -> None:
        # Not before the first `anext`: a watch without a reader must not hold a stream.
        self._start = start
        self._run: FollowerRun | None = None
        self._closed = False
        self._is_read = False

    def __aiter__(self) -> EtcdWatch:
        return self

    async def __anext__(self) -> Batch:
        invariant(not self._is_read, "two tasks iterate over one watch")
        if self._run is None and not self._closed:
            self._run = self._start()
        run = self._run
        if run is None or self._closed:
            raise StopAsyncIteration
        self._is_read = True
        try:
            while True:
                failure = run.failure()
                if isinstance(failure, StopAsyncIteration):
                    raise failure
                batch = run.buffer.pop()
                if batch is not None:
                    return batch
                if failure is not None:
                    raise failure
                await run.buffer.readable()
        finally:
            self._is_read = False

    async def aclose(self) -> None:
        """End the watch and release its stream."""
        self._closed = True
        if self._run is not None:
            await self._run.stopped()

    def __del__(self) -> None:
        if self._run is not None:
            self._run.abandon()


def _size(batch: Batch) -> int:
    return sum(_CHANGE_BYTES + len(change.value or b"") for change in batch.changes)
