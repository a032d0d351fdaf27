"""Sends the log of one replica to a client of a server.

`agent_end` calls it with an open stream. It reads the latest attempt that is kept, or the one
before. When following, it ends after the work has ended and all of the log was sent.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import aiohttp

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.logs.reading import LogReader
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.runtime.shim_records import EXIT
from holdfast.host.tunnel.protocol import (
    BROKEN,
    NOT_BEGUN,
    ReadLog,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    encode_message,
)

# How soon a follower sees a line, and how often an idle one polls. One poll is two stat calls.
LOOK_S = 0.1
IDLE_LOOK_S = 0.5
IDLE_AFTER_LOOKS = 50
# An agent that has just started does not know all its work yet: other work may run too.
UNKNOWN_S = 10.0


async def read(
    runtime: NodeRuntime, wanted: ReadLog, stream: aiohttp.ClientWebSocketResponse
) -> None:
    """Send the wanted log. Raises what the stream raises when the other side is gone."""
    attempt, why = await asyncio.to_thread(_chosen, runtime, wanted)
    if attempt is None:
        await stream.send_str(encode_message(StreamRefused(NOT_BEGUN, why)).decode())
        return
    try:
        reader = await asyncio.to_thread(_opened, runtime, attempt, wanted)
    except OSError as error:
        message = f"the log cannot be read: {error.strerror or error}"
        await stream.send_str(encode_message(StreamRefused(BROKEN, message)).decode())
        return
    try:
        await stream.send_str(encode_message(StreamOpened()).decode())
        await _send(runtime, attempt, reader, stream, follows=wanted.wish.follow)
        await stream.send_str(encode_message(StreamClosed(0)).decode())
    finally:
        await asyncio.to_thread(reader.close)


def _chosen(runtime: NodeRuntime, wanted: ReadLog) -> tuple[Attempt | None, str]:
    """Return the attempt to read, or None and the reason."""
    numbers = runtime.place.attempts.numbers(wanted.uid) or runtime.ended_logs.numbers(wanted.uid)
    index = int(wanted.wish.previous)
    if len(numbers) > index:
        return Attempt(wanted.uid, numbers[index]), ""
    if numbers:
        return None, "it was started only once: there is no previous log"
    return None, "its work has not started on its node, or its log was removed"


def _opened(runtime: NodeRuntime, attempt: Attempt, wanted: ReadLog) -> LogReader:
    try:
        with runtime.place.attempts.of(attempt) as folder:
            return LogReader(folder, wanted.wish)
    except FileNotFoundError:
        with runtime.ended_logs.of(attempt) as folder:
            return LogReader(folder, wanted.wish)


async def _send(
    runtime: NodeRuntime,
    attempt: Attempt,
    reader: LogReader,
    stream: aiohttp.ClientWebSocketResponse,
    *,
    follows: bool,
) -> None:
    listening = asyncio.create_task(_until_gone(stream))
    ending = _Ending(runtime, attempt)
    try:
        idle = 0
        while not listening.done() and not reader.is_full:
            # Checked before the batch is read, so that the batch holds all output until the end.
            is_over = not follows or await ending.has_come()
            text = await asyncio.to_thread(reader.batch)
            if text:
                await stream.send_bytes(text)
                idle = 0
            elif is_over:
                return
            else:
                idle += 1
                pause_s = LOOK_S if idle < IDLE_AFTER_LOOKS else IDLE_LOOK_S
                await asyncio.wait((listening,), timeout=pause_s)
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening


async def _until_gone(stream: aiohttp.ClientWebSocketResponse) -> None:
    """Wait for the end of the stream: a client sends nothing to a log."""
    await stream.receive()


class _Ending:
    """Checks whether the work of an attempt has ended."""

    def __init__(self, runtime: NodeRuntime, attempt: Attempt) -> None:
        self._runtime, self._attempt = runtime, attempt
        self._unknown_since_s: float | None = None

    async def has_come(self) -> bool:
        if self._runtime.running_attempt(self._attempt) is not None:
            self._unknown_since_s = None
            return False
        if await asyncio.to_thread(self._is_recorded):
            return True
        now_s = asyncio.get_running_loop().time()
        if self._unknown_since_s is None:
            self._unknown_since_s = now_s
        return now_s - self._unknown_since_s > UNKNOWN_S

    def _is_recorded(self) -> bool:
        try:
            with self._runtime.place.attempts.of(self._attempt) as folder:
                return safe_paths.read(EXIT, folder, os.sysconf("SC_PAGE_SIZE")) is not None
        except FileNotFoundError:
            # Its directory is gone; running work would still have its own.
            return True
