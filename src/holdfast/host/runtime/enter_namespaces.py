"""Runs a person's command in the namespaces of running work: through pipes, or with a terminal.

Called by `host.tunnel.commands`. The shim program runs it (shim_enter.c): with the namespaces,
groups, user, variables and directory of the work, and nothing of the agent's own. The command is
gone when it ends, when the work ends, or when the holder of its `RunningCommand` releases it, also
by dying.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import socket
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import IO

import msgspec

from holdfast.host.runtime import beside
from holdfast.host.runtime.held import HeldAttempt
from holdfast.host.runtime.starting import StartContext
from holdfast.model.errors import Unavailable, invariant

# Added to the signal's number, as in the exit codes of shells.
BY_SIGNAL = 128
READ_BYTES = 32 * 1024
# The program ends its command when its socket closes. After this time it is stuck, and killed.
END_S = 5.0
ANSWER_BYTES_MAX = 256
SIDE_MAX = 4_096
_TERM = b"TERM=xterm"
_STEPS = {
    "exec": "the command cannot be run",
    "namespace": "the replica has ended",
    "directory": "its working directory cannot be entered",
    "terminal": "it cannot have a terminal",
}


class CommandEnd(msgspec.Struct, frozen=True):
    """How a command ended. Without a `code` it never ran, and `message` says why."""

    code: int | None
    message: str = ""


class RunningCommand:
    """A command that runs. Made by `enter`."""

    def __init__(self, child: asyncio.subprocess.Process, near: socket.socket, master: int) -> None:
        self._child, self._near, self._master = child, near, master
        self.input: asyncio.StreamWriter | None = child.stdin
        self.output: asyncio.StreamReader | None = child.stdout
        self.error: asyncio.StreamReader | None = child.stderr

    async def attach(self) -> None:
        """Read and write the terminal whose other end the command has."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), _file(self._master, "rb")
        )
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, _file(self._master, "wb")
        )
        self.input = asyncio.StreamWriter(writing, protocol, None, loop)
        self.output = reader

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal's window; the kernel notifies its programs."""
        if self._master >= 0:
            size = struct.pack("HHHH", min(rows, SIDE_MAX), min(columns, SIDE_MAX), 0, 0)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    async def write(self, data: bytes) -> None:
        """Write input at the speed at which the command reads. What it does not read is dropped."""
        if self.input is not None:
            with suppress(ConnectionError, OSError):
                self.input.write(data)
                await self.input.drain()

    def close_input(self) -> None:
        """Close the input. A terminal stays open: its user types the end."""
        if self.input is not None and self._master < 0:
            self.input.close()

    async def wait_end(self) -> CommandEnd:
        """Wait for its end, and return how it ended."""
        loop, text = asyncio.get_running_loop(), b""
        while b"\n" not in text and len(text) < ANSWER_BYTES_MAX:
            try:
                piece = await loop.sock_recv(self._near, ANSWER_BYTES_MAX)
            except ConnectionError:
                break
            if not piece:
                break
            text += piece
        return _command_end(text.decode("ascii", "replace"))

    async def let_go(self) -> None:
        """End the command if it still runs, and wait until it has ended."""
        self._near.close()
        if self.input is not None:
            self.input.close()
        try:
            async with asyncio.timeout(END_S):
                await self._child.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()
        finally:
            if self._master >= 0:
                os.close(self._master)
                self._master = -1


@asynccontextmanager
async def enter(
    place: StartContext,
    held: HeldAttempt,
    command: tuple[str, ...],
    *,
    has_terminal: bool,
    has_input: bool,
) -> AsyncIterator[RunningCommand]:
    """Run the command. Raises Unavailable when it cannot start."""
    near, far = socket.socketpair()
    near.setblocking(False)
    master = -1
    with ExitStack() as opened:
        opened.enter_context(far)
        try:
            more = (_TERM,) if has_terminal else ()
            prepared = await asyncio.to_thread(
                beside.prepare, place, held, command, opened, has_terminal=has_terminal, more=more
            )
            files = _pipes(has_input)
            if has_terminal:
                master, slave = os.openpty()
                opened.callback(os.close, slave)
                files = (slave, slave, slave)
            child = await asyncio.create_subprocess_exec(
                str(place.program.path),
                *prepared.words("enter", int(has_terminal), far.fileno()),
                env={},
                pass_fds=(*prepared.files, far.fileno()),
                stdin=files[0],
                stdout=files[1],
                stderr=files[2],
            )
        except BaseException as error:
            near.close()
            if master >= 0:
                os.close(master)
            if isinstance(error, OSError):
                why = os.strerror(error.errno or 0).lower()
                raise Unavailable(f"the command cannot be started: {why}") from error
            raise
    it = RunningCommand(child, near, master)
    try:
        if has_terminal:
            await it.attach()
        yield it
    finally:
        await it.let_go()


def _file(of: int, mode: str) -> IO[bytes]:
    """Another descriptor of the same terminal, which its reader or writer closes."""
    return open(os.dup(of), mode, 0)


def _pipes(has_input: bool) -> tuple[int, int, int]:
    pipe = asyncio.subprocess.PIPE
    return pipe if has_input else asyncio.subprocess.DEVNULL, pipe, pipe


async def pieces(of: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The output until its end. A terminal that all programs have closed answers with an error."""
    while True:
        try:
            piece = await of.read(READ_BYTES)
        except OSError as error:
            invariant(error.errno == errno.EIO, f"a terminal that fails otherwise: {error}")
            return
        if not piece:
            return
        yield piece


def _command_end(text: str) -> CommandEnd:
    match text.split():
        case ["code", code, _]:
            return CommandEnd(int(code))
        case ["signal", number, _]:
            name = signal.Signals(int(number)).name
            return CommandEnd(BY_SIGNAL + int(number), f"the command was ended by {name}")
        case ["failed", number, step] if number.isdigit():
            what = _STEPS.get(step, f"the command failed at {step}")
            return CommandEnd(None, f"{what}: {os.strerror(int(number)).lower()}")
        case _:
            return CommandEnd(
                BY_SIGNAL + signal.SIGKILL, "the replica has ended, and the command with it"
            )
