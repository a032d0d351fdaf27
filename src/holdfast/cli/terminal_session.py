"""The terminal of `holdfast exec`: sends input to the command, and prints its output.

`inside` calls it with an open session (`host/client/exec_session`). A terminal is raw during the
session: every key, also Ctrl-C, goes to the command.
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
from contextlib import aclosing, contextmanager, suppress

from holdfast.cli.exit_codes import ExitCode, warn
from holdfast.host.client import ExecSession
from holdfast.host.client.exec_session import PIECE_BYTES, STDOUT
from holdfast.model.errors import Rejected


async def join(session: ExecSession, *, has_input: bool, has_terminal: bool) -> int:
    """Pass the streams on until the command ends, and return its exit code."""
    with _raw(has_terminal):
        loop = asyncio.get_running_loop()
        if has_terminal:
            loop.add_signal_handler(signal.SIGWINCH, lambda: loop.create_task(_resize(session)))
            await _resize(session)
        if has_input:
            # A thread, since standard input may be a file, which no event loop waits for.
            threading.Thread(target=_type, args=(loop, session), daemon=True).start()
        try:
            async with aclosing(session.output()) as output:
                async for channel, data in output:
                    out = sys.stdout if channel == STDOUT else sys.stderr
                    out.buffer.write(data)
                    out.buffer.flush()
        except Rejected as error:
            warn(f"holdfast: {error.message}")
            return ExitCode.FAILED
    return session.exit_code or ExitCode.DONE


def _type(loop: asyncio.AbstractEventLoop, session: ExecSession) -> None:
    """Send standard input piece by piece, each after the one before was sent."""
    with suppress(OSError, RuntimeError, asyncio.CancelledError):
        while piece := os.read(0, PIECE_BYTES):
            asyncio.run_coroutine_threadsafe(session.write(piece), loop).result()
        asyncio.run_coroutine_threadsafe(session.close_input(), loop).result()


async def _resize(session: ExecSession) -> None:
    size = os.get_terminal_size(0)
    await session.resize(size.columns, size.lines)


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
