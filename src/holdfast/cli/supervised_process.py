"""One part of the plane under the care of `holdfast up`: started, watched, started again.

A part that ends is started again after a pause that doubles while it keeps ending early. Each end
is told in a sentence with the last lines of its log, so that a crash loop explains itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from holdfast.cli.exit_codes import plain
from holdfast.host.process.files import PRIVATE_FILE
from holdfast.model.errors import Unavailable, invariant

# The log of one part that `holdfast up` runs: everything that it says, within bounds.
#
# The part writes to the file itself, at its end, so that it never waits for `up`. `up` looks at the
# size from time to time; a log that is too long is copied to NAME.log.1 and emptied. What is
# written between the copy and the cut is lost: a log that grows by megabytes a second has said it
# before.

BYTES_MAX = 5 << 20
TAIL_BYTES = 4_096


class ChildLog:
    """One log file, through all lives of its part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._life = 0

    def open(self) -> int:
        """A descriptor for a new life to write to. The caller closes it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.path, flags, PRIVATE_FILE)
        self._life = os.fstat(descriptor).st_size
        return descriptor

    def said(self) -> str:
        """What the present life has said so far, or the end of it."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(min(self._life, size), size - TAIL_BYTES))
                return plain(file.read(TAIL_BYTES).decode(errors="replace"))
        except OSError as error:
            return f"(the log cannot be read: {error.strerror})"

    def last_lines(self, count: int) -> list[str]:
        """The last lines of the present life."""
        return [line for line in self.said().splitlines() if line.strip()][-count:]

    def bound(self) -> None:
        """Cut the log if it is too long."""
        try:
            if self.path.stat().st_size <= BYTES_MAX:
                return
            shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            os.truncate(self.path, 0)
        except FileNotFoundError:
            # Somebody has removed it; the next life makes a new one.
            return
        self._life = 0


PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
# Whoever lived so long was well: its next end is not part of a crash loop.
WELL_S = 60.0
LAST_LINES = 5
LOOK_S = 0.05
CHILD = "holdfast.cli.supervised_child"

Tell = Callable[[str], None]


class SupervisedProcess:
    """One part, in all its lives."""

    def __init__(self, name: str, greeting: str, logs: Path, tell: Tell) -> None:
        """`greeting` is how the line begins with which the part says that it works."""
        self.name, self.log = name, ChildLog(logs / f"{name}.log")
        # Of the next life; whoever holds the ward may change them.
        self.arguments: tuple[str, ...] = ()
        # Before each life. Raises OSError if that cannot begin now.
        self.prepare: Callable[[], Awaitable[None]] | None = None
        self.lives = 0
        self._greeting, self._tell = greeting, tell
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._care: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Of the present life; 0 between two."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Begin the first life, and let others follow it."""
        invariant(self._care is None, f"{self.name} is started once")
        await self._spawn()
        self._care = asyncio.create_task(self._tend())

    async def greeted(self, timeout_s: float) -> str:
        """The line with which it says that it works. Raises Unavailable with what it said."""
        deadline = time.monotonic() + timeout_s
        while True:
            for line in self.log.said().splitlines():
                if line.startswith(self._greeting):
                    return line
            if self.lives > 1 or self._process is None:
                raise Unavailable(self.last_words())
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} does not say that it works: {self.last_words()}")
            await asyncio.sleep(LOOK_S)

    async def stop(self, timeout_s: float) -> None:
        """End it in order, or by force when that takes too long."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._care is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._care), timeout_s)
        except TimeoutError:
            self._tell(f"{self.name} takes too long to stop and is killed")
            self.signal(signal.SIGKILL)
            await self._care

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the present life, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_words(self) -> str:
        """The end of its log in one sentence."""
        lines = self.log.last_lines(1)
        words = lines[0].removeprefix("holdfast: ") if lines else "it said nothing"
        return f"{words} (all of it: {self.log.path})"

    async def _spawn(self) -> None:
        if self.prepare is not None:
            await self.prepare()
        descriptor = self.log.open()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Never from the current directory: it may hold anything called holdfast.
                "-P",
                "-m",
                CHILD,
                str(os.getpid()),
                *self.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                # Ctrl-C is for `up`, which stops its parts in order.
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        self.lives += 1
        if self._stopping.is_set():
            # Whoever stops all has found nobody to tell a moment ago.
            self.signal(signal.SIGTERM)

    async def _tend(self) -> None:
        pause_s = PAUSE_S
        while self._process is not None:
            began = time.monotonic()
            code = await self._process.wait()
            self._process = None
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - began
            pause_s = PAUSE_S if lived_s > WELL_S else min(pause_s * 2, PAUSE_MAX_S)
            self._tell(self._ended(code, lived_s, pause_s))
            await self._live_again(pause_s)

    async def _live_again(self, pause_s: float) -> None:
        """Begin another life after a pause, unless all is to stop."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return
            try:
                await self._spawn()
            except OSError as error:
                pause_s = PAUSE_MAX_S
                self._tell(f"{self.name} cannot be started: {error}; again in {pause_s:g} s")
            else:
                return

    def _ended(self, code: int, lived_s: float, pause_s: float) -> str:
        how = f"ended with code {code}" if code >= 0 else f"was killed by {_name(-code)}"
        text = f"{self.name} {how} after {lived_s:.0f} s; it starts again in {pause_s:g} s. "
        lines = self.log.last_lines(LAST_LINES)
        if not lines:
            return text + f"It said nothing. Log: {self.log.path}"
        return text + f"The end of its log {self.log.path}:\n    " + "\n    ".join(lines)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
