"""Watches of a machine on its store.

A watch delivers one batch at a time and reads the next only when the machine has taken it, so a
slow machine slows the store's reader down and does not fill our memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.model.errors import HoldfastError, Unavailable, invariant
from holdfast.model.machine import Changed, Unwatch, Watch
from holdfast.model.transaction import Batch
from holdfast.store.contract import Store


class StoreWatch:
    """One watch and the batch that waits for its machine, if there is one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.task: asyncio.Task[None] | None = None
        self.is_open = True
        self._body: Any = None
        self._taken = asyncio.Event()

    def take(self) -> Changed | None:
        """Return the waiting batch; None when the watch was closed meanwhile."""
        if not self.is_open:
            return None
        self._taken.set()
        return Changed(self.number, self._body)

    async def offer(self, body: Any, post: Callable[[StoreWatch], None]) -> None:
        """Offer a batch to the machine, and wait until it takes it."""
        self._body = body
        self._taken.clear()
        post(self)
        await self._taken.wait()


class StoreWatches:
    """Performs `Watch` and `Unwatch` for one machine. `post` gets the watch with a batch."""

    def __init__(
        self,
        store: Store | None,
        *,
        post: Callable[[StoreWatch], None],
        fail: Callable[[BaseException], None],
        watches_max: int,
    ) -> None:
        self._store = store
        self._post, self._fail = post, fail
        self._watches_max = watches_max
        self._open: dict[int, StoreWatch] = {}
        # Also watches that are closing, so that a stop leaves nothing behind.
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, effect: Watch) -> None:
        invariant(self._store is not None, "a machine without a store cannot watch it")
        invariant(effect.watch not in self._open, f"watch {effect.watch} is open already")
        invariant(len(self._open) < self._watches_max, f"{self._watches_max} watches are open")
        watch = StoreWatch(effect.watch)
        self._open[effect.watch] = watch
        watch.task = asyncio.create_task(self._follow(watch, effect))
        self._tasks.add(watch.task)
        watch.task.add_done_callback(self._done)

    def unwatch(self, effect: Unwatch) -> None:
        watch = self._open.pop(effect.watch, None)
        if watch is not None:
            watch.is_open = False
            if watch.task is not None:
                watch.task.cancel()

    async def cancel(self) -> None:
        """Close all watches."""
        for number in list(self._open):
            self.unwatch(Unwatch(number))
        for task in self._tasks:
            # Also one whose last batch will not be taken any more: it is not among the open ones.
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _follow(self, watch: StoreWatch, effect: Watch) -> None:
        if self._store is None:
            return
        try:
            batches = self._store.watch(effect.prefix, after=effect.after)
            try:
                async for batch in batches:
                    await watch.offer(batch, self._post)
            finally:
                await _close(batches)
        except HoldfastError as error:
            ending: HoldfastError = error
        else:
            ending = Unavailable("the store is closed")
        # The last message; the machine may use the number again once it has it.
        await watch.offer(ending, self._last)

    def _last(self, watch: StoreWatch) -> None:
        self._open.pop(watch.number, None)
        self._post(watch)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            bug = task.exception()
            if bug is not None:
                self._fail(bug)


async def _close(batches: AsyncIterator[Batch]) -> None:
    """Close the stream at once, where the store has one, instead of with the garbage collector."""
    close = getattr(batches, "aclose", None)
    if close is not None:
        await close()
