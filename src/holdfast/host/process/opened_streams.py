"""Streams that a machine opened to others, such as its watches, until either side ends them.

A component's cache opens one for each kind. A stream delivers one item at a time and reads the next
only when the machine has taken it, so a slow machine slows its server down and does not fill our
memory. Streams are not resumed here: the machine decides what to do when one ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol

from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, Unavailable, invariant
from holdfast.model.machine import Ended, Leave, Open, Pushed


class Sources(Protocol):
    """A way to open streams to others."""

    def follow(self, sender: Identity, to: str, body: Any) -> AsyncGenerator[Any, None]:
        """Yield the bodies of `Pushed`, one after the other.

        Raises Expired when the start position is gone, Unavailable when the stream cannot be opened
        or broke.
        """
        ...


class NoSources:
    """For machines without streams: every attempt certainly fails."""

    async def follow(self, sender: Identity, to: str, body: Any) -> AsyncGenerator[Any, None]:
        raise Unavailable(f"{to} cannot be reached from here")
        yield


class OpenedStream:
    """One stream and the item that waits for its machine, if there is one."""

    def __init__(self, forget: Callable[[], object]) -> None:
        """`forget` is called when the machine gets the last item."""
        self.task: asyncio.Task[None] | None = None
        self.is_open = True
        self._forget = forget
        self._waiting: Pushed | Ended | None = None
        self._taken = asyncio.Event()

    def take(self) -> Pushed | Ended | None:
        """Return the waiting item; None when the machine has left meanwhile."""
        if not self.is_open:
            return None
        self._taken.set()
        if isinstance(self._waiting, Ended):
            # The machine may use the number again as soon as it has this item.
            self._forget()
        return self._waiting

    async def offer(self, stimulus: Pushed | Ended, post: Callable[[OpenedStream], None]) -> None:
        """Offer an item to the machine, and wait until it takes it."""
        self._waiting = stimulus
        self._taken.clear()
        post(self)
        await self._taken.wait()


class OpenedStreams:
    """Performs `Open` and `Leave` for one machine. `post` gets the stream with an item."""

    def __init__(
        self,
        identity: Identity,
        sources: Sources,
        *,
        post: Callable[[OpenedStream], None],
        fail: Callable[[BaseException], None],
        readings_max: int,
    ) -> None:
        self._identity, self._sources = identity, sources
        self._post, self._fail = post, fail
        self._readings_max = readings_max
        self._open: dict[int, OpenedStream] = {}
        # Also streams that are closing, so that a stop leaves nothing behind.
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, effect: Open) -> None:
        invariant(effect.stream not in self._open, f"stream {effect.stream} is open already")
        invariant(len(self._open) < self._readings_max, f"{self._readings_max} streams are open")
        reading = OpenedStream(lambda: self._open.pop(effect.stream))
        self._open[effect.stream] = reading
        reading.task = asyncio.create_task(self._read(reading, effect))
        self._tasks.add(reading.task)
        reading.task.add_done_callback(self._done)

    def leave(self, effect: Leave) -> None:
        reading = self._open.pop(effect.stream, None)
        # A stream that has ended by itself is gone; its machine cannot know that.
        if reading is not None:
            reading.is_open = False
            if reading.task is not None:
                reading.task.cancel()

    async def cancel(self) -> None:
        """Leave all streams."""
        for number in list(self._open):
            self.leave(Leave(number))
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _read(self, reading: OpenedStream, effect: Open) -> None:
        try:
            async with aclosing(
                self._sources.follow(self._identity, effect.to, effect.body)
            ) as bodies:
                async for body in bodies:
                    await reading.offer(Pushed(effect.stream, body), self._post)
        except HoldfastError as error:
            ending = error
        else:
            ending = Unavailable(f"{effect.to} ended the stream")
        await reading.offer(Ended(effect.stream, ending), self._post)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            bug = task.exception()
            if bug is not None:
                self._fail(bug)
