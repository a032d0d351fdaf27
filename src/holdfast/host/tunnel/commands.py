"""Runs one command beside a replica's work for whoever asked a server for it.

Called by `attending` with an open visit. Input comes and output goes on it in numbered
channels, each no faster than the other side takes it in. The command ends with the visit,
whoever breaks it off.
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
    runtime: NodeRuntime, wanted: RunCommand, visit: aiohttp.ClientWebSocketResponse
) -> None:
    """Run it to its end, or to the visit's. Raises what the visit raises when that is broken."""
    held = await asyncio.to_thread(_held, runtime, wanted.uid)
    if held is None or held.state is None:
        message = "its work does not run on its node at the moment: there is nothing to enter"
        await visit.send_str(encode_message(StreamRefused(GONE, message)).decode())
        return
    try:
        async with enter(
            runtime.place,
            held,
            wanted.command,
            has_terminal=wanted.has_terminal,
            has_input=wanted.has_input,
        ) as command:
            await visit.send_str(encode_message(StreamOpened()).decode())
            end = await _join(command, visit)
    except Unavailable as error:
        await visit.send_str(encode_message(StreamRefused(BROKEN, error.message)).decode())
        return
    if end is not None:
        await visit.send_str(encode_message(StreamClosed(end.code, end.message)).decode())


def _held(runtime: NodeRuntime, uid: str) -> HeldAttempt | None:
    """The latest attempt, if it runs."""
    numbers = runtime.place.attempts.numbers(uid)
    return runtime.held(Attempt(uid, numbers[0])) if numbers else None


async def _join(
    command: RunningCommand, visit: aiohttp.ClientWebSocketResponse
) -> CommandEnd | None:
    """How it ended; None when the visit ended first."""
    gone = {
        asyncio.create_task(_take_input(command, visit)),
        asyncio.create_task(until_broken(visit.ping)),
    }
    unread = {
        asyncio.create_task(_tell(visit, channel, stream))
        for channel, stream in ((STDOUT, command.output), (STDERR, command.error))
        if stream is not None
    }
    ending = asyncio.create_task(command.wait_end())
    tasks = (*gone, *unread, ending)
    try:
        await asyncio.wait((*gone, ending), return_when=asyncio.FIRST_COMPLETED)
        # All that it said is sent before how it ended. Nothing holds its outputs open any more, so
        # they end as soon as they are read, and whoever reads slowly may take his time.
        while unread and ending.done() and not any(task.done() for task in gone):
            done, _ = await asyncio.wait((*unread, *gone), return_when=asyncio.FIRST_COMPLETED)
            unread -= done
        return ending.result() if ending.done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _take_input(command: RunningCommand, visit: aiohttp.ClientWebSocketResponse) -> None:
    """Until the other side is gone. A command that reads nothing holds this up, see `_join`."""
    while True:
        message = await visit.receive()
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
        # A window of no known size changes nothing.
        return
    if isinstance(columns, int) and isinstance(rows, int) and columns > 0 and rows > 0:
        command.resize(columns, rows)


async def _tell(
    visit: aiohttp.ClientWebSocketResponse, channel: int, stream: asyncio.StreamReader
) -> None:
    head = bytes((channel,))
    async for piece in pieces(stream):
        await visit.send_bytes(head + piece)
