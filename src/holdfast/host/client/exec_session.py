"""A command inside a replica, with its streams: the client's end of `exec`.

The server uses the channels of Kubernetes over a WebSocket (`host/api/plane/exec_routes`).
`AsyncClient.exec` runs a command to its end, `holdfast exec` joins one with a terminal.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

import aiohttp
import msgspec

from holdfast.host.client.answers import UNREADABLE
from holdfast.host.client.http_session import FAULTS
from holdfast.model.errors import OutcomeUnknown, Rejected

PROTOCOL = "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
FRAME_BYTES_MAX = 1 << 20
PIECE_BYTES = 32 << 10


class CommandOptions(msgspec.Struct, frozen=True):
    """Which command to run, and with which streams. A terminal has one output."""

    command: tuple[str, ...]
    has_input: bool = False
    has_terminal: bool = False

    @property
    def query(self) -> list[tuple[str, str]]:
        flags = {"stdin": self.has_input, "stdout": True, "stderr": not self.has_terminal}
        flags["tty"] = self.has_terminal
        named = [(name, "true") for name, is_set in flags.items() if is_set]
        return [*named, *(("command", argument) for argument in self.command)]


class ExecResult(msgspec.Struct, frozen=True):
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


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


class ExecSession:
    """A command that runs. Read `output` to its end; then `exit_code` is known."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.exit_code: int | None = None

    async def output(self) -> AsyncGenerator[tuple[int, bytes], None]:
        """Yield what the command prints, as the channel, STDOUT or STDERR, and the bytes.

        Raises Rejected if the command could not be run, and OutcomeUnknown if the connection ends
        before it.
        """
        try:
            async for message in self._socket:
                if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                    continue
                channel, data = message.data[0], message.data[1:]
                if channel == STATUS:
                    self.exit_code = _exit_code(data)
                    return
                if channel in (STDOUT, STDERR) and data:
                    yield channel, data
        except FAULTS as error:
            raise OutcomeUnknown(f"the connection to the command broke: {error}") from error
        raise OutcomeUnknown(
            "the connection ended before the command did: its exit code is unknown"
        )

    async def write(self, data: bytes) -> None:
        """Send input to the command. What it no longer reads is dropped."""
        with suppress(*FAULTS):
            for start in range(0, len(data), PIECE_BYTES):
                await self._socket.send_bytes(bytes((STDIN,)) + data[start : start + PIECE_BYTES])

    async def close_input(self) -> None:
        """Tell the command that its input has ended."""
        with suppress(*FAULTS):
            await self._socket.send_bytes(bytes((CLOSE, STDIN)))

    async def resize(self, columns: int, rows: int) -> None:
        """Tell the command the size of its terminal."""
        text = msgspec.json.encode({"Width": columns, "Height": rows})
        with suppress(*FAULTS):
            await self._socket.send_bytes(bytes((RESIZE,)) + text)


def _exit_code(data: bytes) -> int:
    """Return the exit code. Raises Rejected for a command that was never run."""
    try:
        status = msgspec.json.decode(data, type=_Status)
    except UNREADABLE as error:
        raise OutcomeUnknown(f"the end of the command cannot be decoded: {error}") from error
    if status.status == "Success":
        return 0
    for cause in status.details.causes:
        if cause.reason == "ExitCode" and cause.message.isdigit():
            return int(cause.message)
    raise Rejected(status.message or "the server does not say how the command ended")
