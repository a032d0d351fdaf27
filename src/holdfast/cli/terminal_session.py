"""The client side of `holdfast exec`: sends input to the command, and prints its output.

`inside` calls it. The server uses the channels of Kubernetes (`host.api.plane.exec_routes`) over a
WebSocket. A terminal is raw during the session: every key, also Ctrl-C, goes to the command.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import aiohttp
import msgspec

from holdfast.cli.exit_codes import ExitCode, warn
from holdfast.host.client import Access
from holdfast.host.client.answers import REASON_HEADER, HttpAnswer
from holdfast.host.client.transport import CONNECT_S
from holdfast.model.errors import HoldfastError, Unavailable

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE_BYTES = 32 << 10
FRAME_BYTES_MAX = 1 << 20


class SessionOptions(msgspec.Struct, frozen=True):
    """Which command to run, where, and with which streams."""

    path: str
    command: tuple[str, ...]
    has_input: bool = False
    has_terminal: bool = False

    @property
    def query(self) -> list[tuple[str, str]]:
        flags = {"stdin": self.has_input, "stdout": True, "stderr": not self.has_terminal}
        flags["tty"] = self.has_terminal
        named = [(name, "true") for name, is_set in flags.items() if is_set]
        return [*named, *(("command", argument) for argument in self.command)]


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    """How the command ended, as the server reports it."""

    status: str = ""
    message: str = ""
    details: _Details = _Details()


async def enter(access: Access, wish: SessionOptions) -> int:
    """Run the command to its end and return its exit code. Raises the server's refusal."""
    connector = aiohttp.TCPConnector(ssl=access.context())
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as session,
        await _connected(session, access.servers, wish) as socket,
    ):
        with _raw(wish.has_terminal):
            return await _speak(socket, wish)


async def _connected(
    session: aiohttp.ClientSession, servers: tuple[str, ...], wish: SessionOptions
) -> aiohttp.ClientWebSocketResponse:
    failure: HoldfastError = Unavailable("the kubeconfig names no server")
    for server in servers:
        url = server.rstrip("/") + wish.path
        try:
            async with asyncio.timeout(CONNECT_S * 5):
                return await session.ws_connect(
                    url, params=wish.query, protocols=(PROTOCOL,), max_msg_size=FRAME_BYTES_MAX
                )
        except aiohttp.WSServerHandshakeError:
            raise await _refusal(session, url, wish) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = Unavailable(f"{server}: {error or 'no answer in time'}")
    raise failure


async def _refusal(session: aiohttp.ClientSession, url: str, wish: SessionOptions) -> HoldfastError:
    """Why it was refused: the WebSocket client drops the message, so the request is repeated."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Protocol": PROTOCOL,
    }
    async with session.get(url, params=wish.query, headers=headers) as response:
        reason = response.headers.get(REASON_HEADER, "")
        answer = HttpAnswer(response.status, await response.read(), reason, 0, url)
        return answer.error(may_have_happened=False)


async def _speak(socket: aiohttp.ClientWebSocketResponse, wish: SessionOptions) -> int:
    if wish.has_terminal:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_resize(socket)))
        await _resize(socket)
    if wish.has_input:
        # A thread, since standard input may be a file, which no event loop waits for.
        loop = asyncio.get_running_loop()
        threading.Thread(target=_type, args=(loop, socket), daemon=True).start()
    async for message in socket:
        if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STATUS:
            return _ending(data)
        out = sys.stdout if channel == STDOUT else sys.stderr
        out.buffer.write(data)
        out.buffer.flush()
    raise Unavailable("the connection ended before the command did: its exit code is unknown")


def _type(loop: asyncio.AbstractEventLoop, socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send standard input piece by piece, each after the one before was sent."""
    with suppress(ConnectionError, OSError, RuntimeError, asyncio.CancelledError):
        while piece := os.read(0, PIECE_BYTES):
            frame = bytes((STDIN,)) + piece
            asyncio.run_coroutine_threadsafe(socket.send_bytes(frame), loop).result()
        frame = bytes((CLOSE, STDIN))
        asyncio.run_coroutine_threadsafe(socket.send_bytes(frame), loop).result()


async def _resize(socket: aiohttp.ClientWebSocketResponse) -> None:
    size = os.get_terminal_size(0)
    text = msgspec.json.encode({"Width": size.columns, "Height": size.lines})
    with suppress(ConnectionError):
        await socket.send_bytes(bytes((RESIZE,)) + text)


def _ending(data: bytes) -> int:
    """The exit code. For a command that was never run, the server's message is printed."""
    status = msgspec.json.decode(data, type=_Status)
    if status.status == "Success":
        return ExitCode.DONE
    for cause in status.details.causes:
        if cause.reason == "ExitCode" and cause.message.isdigit():
            return int(cause.message)
    warn(f"holdfast: {status.message}")
    return ExitCode.FAILED


@contextmanager
def _raw(has_terminal: bool) -> Iterator[None]:
    """Put the terminal into raw mode for the session, and restore it afterwards."""
    if not has_terminal:
        yield
        return
    before = termios.tcgetattr(0)
    try:
        # TCSANOW keeps what was typed ahead.
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
