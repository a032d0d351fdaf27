"""One part of the plane as a child process of `holdfast up`: started, watched, restarted.

A part that exits is restarted after a pause that doubles while it keeps exiting early. Each exit is
reported with the last lines of the part's log, so that a crash loop explains itself.
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

# The log of one part that `holdfast up` runs: all of its output, within bounds.
#
# The part appends to the file itself, so that it never waits for `up`. `up` checks the size from
# time to time; a log that is too long is copied to NAME.log.1 and emptied. Lines that are written
# between the copy and the cut are lost: a log that grows by megabytes a second repeats itself.

BYTES_MAX = 5 << 20
TAIL_BYTES = 4_096


class ChildLog:
    """The log file of one part, across all its restarts."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._life = 0

    def open(self) -> int:
        """A descriptor to which a new process writes. The caller closes it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.path, flags, PRIVATE_FILE)
        self._life = os.fstat(descriptor).st_size
        return descriptor

    def output(self) -> str:
        """The end of what the present process has written so far."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(min(self._life, size), size - TAIL_BYTES))
                return plain(file.read(TAIL_BYTES).decode(errors="replace"))
        except OSError as error:
            return f"(cannot read the log: {error.strerror})"

    def last_lines(self, count: int) -> list[str]:
        """The last lines of the present process."""
        return [line for line in self.output().splitlines() if line.strip()][-count:]

    def bound(self) -> None:
        """Cut the log if it is too long."""
        try:
            if self.path.stat().st_size <= BYTES_MAX:
                return
            shutil.copyfile(self.path, self.path.with_name(f"{self.path.name}.1"))
            os.truncate(self.path, 0)
        except FileNotFoundError:
            # The file was removed; the next process creates a new one.
            return
        self._life = 0


PAUSE_S, PAUSE_MAX_S = 0.5, 30.0
# A process that ran for this long was healthy: its next exit is not part of a crash loop.
WELL_S = 60.0
LAST_LINES = 5
LOOK_S = 0.05
CHILD = "holdfast.cli.processes.supervised_child"

Report = Callable[[str], None]


class SupervisedProcess:
    """One part, across all its restarts."""

    def __init__(self, name: str, greeting: str, logs: Path, report: Report) -> None:
        """`greeting` is the prefix of the line that the part prints when it is ready."""
        self.name, self.log = name, ChildLog(logs / f"{name}.log")
        # The arguments of the next process; the owner may change them.
        self.arguments: tuple[str, ...] = ()
        # Runs before each start. Raises OSError if the process cannot start now.
        self.prepare: Callable[[], Awaitable[None]] | None = None
        self.starts = 0
        self._greeting, self._report = greeting, report
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()
        self._supervision: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The pid of the present process; 0 while none runs."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Start the process, and restart it whenever it exits."""
        invariant(self._supervision is None, f"{self.name} is started once")
        await self._spawn()
        self._supervision = asyncio.create_task(self._supervise())

    async def wait_ready(self, timeout_s: float) -> str:
        """The line with which the part says that it is ready. Raises Unavailable with its log."""
        deadline = time.monotonic() + timeout_s
        while True:
            for line in self.log.output().splitlines():
                if line.startswith(self._greeting):
                    return line
            if self.starts > 1 or self._process is None:
                raise Unavailable(self.last_log_line())
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.name} did not become ready: {self.last_log_line()}")
            await asyncio.sleep(LOOK_S)

    async def stop(self, timeout_s: float) -> None:
        """Stop the process: with SIGTERM, and with SIGKILL when that takes too long."""
        self._stopping.set()
        self.signal(signal.SIGTERM)
        if self._supervision is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._supervision), timeout_s)
        except TimeoutError:
            self._report(f"{self.name} takes too long to stop and is killed")
            self.signal(signal.SIGKILL)
            await self._supervision

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the present process, if one runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def last_log_line(self) -> str:
        """The last line of the log, with the path of the whole log."""
        lines = self.log.last_lines(1)
        line = lines[0].removeprefix("holdfast: ") if lines else "its log is empty"
        return f"{line} (log: {self.log.path})"

    async def _spawn(self) -> None:
        if self.prepare is not None:
            await self.prepare()
        descriptor = self.log.open()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                # Never import from the current directory: it may contain anything named holdfast.
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
        self.starts += 1
        if self._stopping.is_set():
            # `stop` was called a moment ago, when there was no process to signal.
            self.signal(signal.SIGTERM)

    async def _supervise(self) -> None:
        pause_s = PAUSE_S
        while self._process is not None:
            began = time.monotonic()
            code = await self._process.wait()
            self._process = None
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - began
            pause_s = PAUSE_S if lived_s > WELL_S else min(pause_s * 2, PAUSE_MAX_S)
            self._report(self._exit_message(code, lived_s, pause_s))
            await self._restart(pause_s)

    async def _restart(self, pause_s: float) -> None:
        """Start the process again after a pause, unless it is to stop."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
                return
            try:
                await self._spawn()
            except OSError as error:
                pause_s = PAUSE_MAX_S
                self._report(f"cannot start {self.name}: {error}; next try in {pause_s:g} s")
            else:
                return

    def _exit_message(self, code: int, lived_s: float, pause_s: float) -> str:
        how = f"exited with code {code}" if code >= 0 else f"was killed by {_name(-code)}"
        text = f"{self.name} {how} after {lived_s:.0f} s; restart in {pause_s:g} s. "
        lines = self.log.last_lines(LAST_LINES)
        if not lines:
            return text + f"It wrote nothing to its log {self.log.path}"
        return text + f"The end of its log {self.log.path}:\n    " + "\n    ".join(lines)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
