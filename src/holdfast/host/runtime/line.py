"""The open line to one shim.

`runtime` keeps one for each piece of work that runs, and so needs neither signals nor polling to
hear of its end: the shim says so, or the line breaks.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from holdfast.agent.words import Attempt
from holdfast.host.runtime.attempts import Attempts
from holdfast.host.runtime.records import Identity

ANSWER_BYTES_MAX = 4_096
# A shim that takes nothing in is stopped or stuck. More words would not reach it sooner.
UNSENT_BYTES_MAX = 4_096


class Line(asyncio.Protocol):
    """What one shim says. The futures never fail: a line that breaks has ended."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        # True when the work has begun; False when the line broke before.
        self.begun: asyncio.Future[bool] = loop.create_future()
        # The errno and the step for which the shim gave up before it began anything.
        self.failure: tuple[int, str] | None = None
        self.ended: asyncio.Future[None] = loop.create_future()
        # Who the work is, by the word of a shim that was asked for its status.
        self.work: asyncio.Future[Identity | None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._text = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._hear(line.decode("ascii", "replace").split(" "))
        if len(self._text) > ANSWER_BYTES_MAX:
            self.close()

    def _hear(self, words: list[str]) -> None:
        match words:
            case ["started"]:
                self._begin(True)
            case ["failed", error, step] if error.isdigit():
                self.failure = (int(error), step)
            # A shim of another version may say more.
            case ["status", stage, who, *_]:
                pid, _, start = who.partition("/")
                is_whole = pid.isdigit() and start.isdigit()
                if not self.work.done():
                    self.work.set_result(Identity(int(pid), int(start)) if is_whole else None)
                if stage == "running":
                    self._begin(True)
            case _:
                # Answers to `extend` and `stop`, which are repeated or enforced in any case, and
                # `exited`, after which the line ends.
                return

    def _begin(self, has_begun: bool) -> None:
        if not self.begun.done():
            self.begun.set_result(has_begun)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._begin(False)
        if not self.work.done():
            self.work.set_result(None)
        if not self.ended.done():
            self.ended.set_result(None)

    def say(self, text: str) -> bool:
        """Send a request. False when the line is broken or nobody takes anything in."""
        transport = self._transport
        if transport is None or transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            return False
        transport.write(text.encode("ascii") + b"\n")
        return True

    def close(self) -> None:
        """Leave the shim alone. It goes on without us."""
        if self._transport is not None:
            self._transport.abort()


async def open_line(near: socket.socket) -> Line:
    """A line over a connected socket."""
    loop = asyncio.get_running_loop()
    _, line = await loop.create_unix_connection(Line, sock=near)
    return line


def connect(attempts: Attempts, attempt: Attempt) -> socket.socket:
    """A socket to the shim of an attempt. OSError when nobody listens there."""
    near = socket.socket(socket.AF_UNIX)
    try:
        near.setblocking(False)
        with attempts.of(attempt) as fd:
            # A path of its own would often be longer than the 107 bytes that an address may have.
            near.connect(f"/proc/self/fd/{fd}/control")
    except BaseException:
        near.close()
        raise
    return near
