"""Streams that others opened to a machine, which pushes items until either side ends them.

The HTTP server opens one for each watch. `Taken` tells the machine that a reader has read the last
item, so that the machine itself holds, and bounds, what a slow reader leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.model.access.identity import Identity
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.machine import End, Left, Opened, Push, Taken


class ServedStream:
    """The reader's end of one stream. Reading again confirms the last item."""

    def __init__(self, number: int, streams: ServedStreams) -> None:
        self.number = number
        # The machine's last message, once there is nothing more to read.
        self.ending: Any = None
        self._streams = streams
        self._items: deque[Any] = deque()
        self._is_over = False
        self._reader: asyncio.Future[None] | None = None
        self._owes_taken = False

    async def read(self) -> Any:
        """Return the next item, or None when the stream is over."""
        if self._owes_taken and not self._items:
            self._owes_taken = False
            self._streams.taken(self.number)
        while not self._items:
            if self._is_over:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        self._owes_taken = True
        return self._items.popleft()

    def leave(self) -> None:
        """Stop reading."""
        self._streams.left(self)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._wake()

    def end(self, body: Any) -> None:
        self._is_over = True
        self.ending = body
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class ServedStreams:
    """Performs `Push` and `End` for one machine. `post` adds a stimulus to the shell's queue."""

    def __init__(self, *, post: Callable[[Any], None], streams_max: int) -> None:
        self._post = post
        self._streams_max = streams_max
        self._open: dict[int, ServedStream] = {}
        self._number = 0
        self._closed = False

    def open(self, sender: str | Identity, body: Any) -> ServedStream:
        """Open a stream. One that cannot be opened is over at once, with the reason."""
        self._number += 1
        stream = ServedStream(self._number, self)
        if self._closed:
            stream.end(Unavailable("the machine has stopped"))
        elif len(self._open) >= self._streams_max:
            stream.end(Unavailable(f"{self._streams_max} streams are open already"))
        else:
            self._open[stream.number] = stream
            self._post(Opened(stream.number, sender, body))
        return stream

    def push(self, effect: Push) -> None:
        stream = self._open.get(effect.stream)
        if stream is not None:
            stream.put(effect.body)

    def end(self, effect: End) -> None:
        stream = self._open.pop(effect.stream, None)
        if stream is not None:
            stream.end(effect.body)

    def taken(self, number: int) -> None:
        if number in self._open:
            self._post(Taken(number))

    def left(self, stream: ServedStream) -> None:
        if self._open.pop(stream.number, None) is not None and not self._closed:
            self._post(Left(stream.number))

    def drop(self) -> None:
        """End all streams: the machine is gone."""
        self._closed = True
        for stream in self._open.values():
            stream.end(OutcomeUnknown("the machine has stopped"))
        self._open.clear()
