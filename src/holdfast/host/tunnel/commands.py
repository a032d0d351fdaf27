"""Runs one command beside a replica's work for a client of a server.

`agent_end` calls it with an open stream. Input and output use numbered channels, each no faster
than the other side reads. The command ends with the stream, whichever side ends it.
"""

from __future__ import annotations

import asyncio
import json

import aiohttp

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.enter_namespaces import CommandEnd, RunningCommand, enter, pieces
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.tunnel.protocol import (
    BROKEN,
    CLOSE,
    GONE,
    RESIZE,
    STDERR,
    STDIN,
    STDOUT,
    RunCommand,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    encode_message,
    until_broken,
)
from holdfast.model.errors import Unavailable


async def run(
    runtime: NodeRuntime, wanted: RunCommand, stream: aiohttp.ClientWebSocketResponse
) -> None:
    """Run the command until it or the stream ends. Raises what a broken stream raises."""
    held = await asyncio.to_thread(_held, runtime, wanted.uid)
    if held is None or held.state is None:
        message = "its work is not running on its node: a command cannot be started"
        await stream.send_str(encode_message(StreamRefused(GONE, message)).decode())
        return
    try:
        async with enter(
            runtime.place,
            held,
            wanted.command,
            has_terminal=wanted.has_terminal,
            has_input=wanted.has_input,
        ) as command:
            await stream.send_str(encode_message(StreamOpened()).decode())
            end = await _join(command, stream)
    except Unavailable as error:
        await stream.send_str(encode_message(StreamRefused(BROKEN, error.message)).decode())
        return
    if end is not None:
        await stream.send_str(encode_message(StreamClosed(end.code, end.message)).decode())


def _held(runtime: NodeRuntime, uid: str) -> HeldAttempt | None:
    """Return the latest attempt, if it runs."""
    numbers = runtime.place.attempts.numbers(uid)
    return runtime.running_attempt(Attempt(uid, numbers[0])) if numbers else None


async def _join(
    command: RunningCommand, stream: aiohttp.ClientWebSocketResponse
) -> CommandEnd | None:
    """Return how it ended; None when the stream ended first."""
    gone = {
        asyncio.create_task(_take_input(command, stream)),
        asyncio.create_task(until_broken(stream.ping)),
    }
    unread = {
        asyncio.create_task(_tell(stream, channel, output))
        for channel, output in ((STDOUT, command.output), (STDERR, command.error))
        if output is not None
    }
    ending = asyncio.create_task(command.wait_end())
    tasks = (*gone, *unread, ending)
    try:
        await asyncio.wait((*gone, ending), return_when=asyncio.FIRST_COMPLETED)
        # All output is sent before the exit code. No process holds the outputs open any more, so
        # they end as soon as they are read, however slowly the client reads.
        while unread and ending.done() and not any(task.done() for task in gone):
            done, _ = await asyncio.wait((*unread, *gone), return_when=asyncio.FIRST_COMPLETED)
            unread -= done
        return ending.result() if ending.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take_input(command: RunningCommand, stream: aiohttp.ClientWebSocketResponse) -> None:
    """Pass on input until the client leaves. A command may not read it; see `_join`."""
    while True:
        message = await stream.receive()
        if message.type is not aiohttp.WSMsgType.BINARY:
            return
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN:
            await command.write(data)
        elif channel == CLOSE:
            command.close_input()
        elif channel == RESIZE:
            _resize(command, data)


def _resize(command: RunningCommand, data: bytes) -> None:
    try:
        size = json.loads(data)
        columns, rows = size["Width"], size["Height"]
    except (ValueError, KeyError, TypeError):
        # A window of unknown size changes nothing.
        return
    if isinstance(columns, int) and isinstance(rows, int) and columns > 0 and rows > 0:
        command.resize(columns, rows)


async def _tell(
    stream: aiohttp.ClientWebSocketResponse, channel: int, output: asyncio.StreamReader
) -> None:
    head = bytes((channel,))
    async for piece in pieces(output):
        await stream.send_bytes(head + piece)
