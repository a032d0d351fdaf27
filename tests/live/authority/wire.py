"""Requests between processes of a test: frames over a Unix socket, one connection for each client.

The real way is HTTP with certificates; here every process is our own, so a frame may say who sends
it. What matters is what a connection tells its user: a socket without a listener certainly took
nothing in, a connection that breaks may have.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import struct
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.host.process.peers import Peers
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import Identity
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable

_LENGTH = struct.Struct("!I")


def _frame(value: Any) -> bytes:
    body = pickle.dumps(value)
    return _LENGTH.pack(len(body)) + body


async def _read(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


async def serve(shell: Shell, path: Path) -> asyncio.Server:
    """Take in requests for a shell."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                number, sender, body, timeout_s = await _read(reader)
                future = shell.submit(sender, body, timeout_s)
                future.add_done_callback(partial(_reply, writer, number))
        writer.close()

    # A socket has its name before a process listens. It gets the one that is waited for afterwards.
    unheard = path.with_suffix(".new")
    server = await asyncio.start_unix_server(talk, unheard, backlog=256)
    unheard.rename(path)
    return server


def _reply(writer: asyncio.StreamWriter, number: int, future: asyncio.Future[Any]) -> None:
    if not writer.is_closing() and not future.cancelled():
        writer.write(_frame((number, future.result())))


class Client:
    """One connection to one server process; opened when first needed, and again when it broke."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._opening = asyncio.Lock()

    async def ask(self, sender: Identity, body: Any, timeout_s: float = 10.0) -> Any:
        """The answer. Raises Unavailable and OutcomeUnknown as they are meant."""
        answer = await self.answer(sender, body, timeout_s)
        if isinstance(answer, HoldfastError):
            raise answer.with_traceback(None)
        return answer

    async def answer(self, sender: Identity, body: Any, timeout_s: float = 10.0) -> Any:
        """The answer, with errors as values."""
        async with self._opening:
            if self._writer is None:
                try:
                    await self._open()
                except OSError as error:
                    return Unavailable(f"no server listens at {self.path.name}: {error}")
        if self._writer is None:
            return Unavailable("the connection broke before anything was sent")
        self._number += 1
        number = self._number
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._writer.write(_frame((number, sender, body, timeout_s)))
        try:
            # The server keeps the time; a paused one cannot.
            return await asyncio.wait_for(future, timeout_s + 1.0)
        except TimeoutError:
            return OutcomeUnknown(f"no answer from {self.path.name}")
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _open(self) -> None:
        reader, self._writer = await asyncio.open_unix_connection(self.path)
        self._reading = asyncio.create_task(self._listen(reader, self._writer))

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                number, body = await _read(reader)
                future = self._waiting.get(number)
                if future is not None and not future.done():
                    future.set_result(body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writer = None
            writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_result(OutcomeUnknown("the connection broke"))


class Neighbours(Peers):
    """The other servers, found by their sockets in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clients: dict[str, Client] = {}

    async def ask(self, sender: Identity, to: str, body: Any, timeout_s: float) -> Any:
        client = self._clients.setdefault(to, Client(self._folder / f"{to}.sock"))
        return await client.ask(sender, body, timeout_s)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
