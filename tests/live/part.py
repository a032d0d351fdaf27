"""A process of a plane, which may be killed and started again."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 120.0
RESTART_PAUSE_S = 0.2
LOOK_S = 0.02
# Whatever becomes of the test, no process outlives it.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
GREETING = re.compile(
    r"^(Holdfast is ready at |The .* works with |The hollow nodes are )", re.MULTILINE
)


def module(name: str) -> tuple[str, ...]:
    """The command that runs this module by the Python of the tests."""
    return sys.executable, "-m", name


HOST = module("holdfast.host")


class Part:
    """One process of a plane, in all its lives."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *arguments: str,
        program: Sequence[str] = HOST,
        wrap: Sequence[str] = (),
    ) -> None:
        """`wrap` is what to put before the command, such as a network of its own."""
        self.name, self.arguments, self._wrap = name, arguments, tuple(wrap)
        # What its next life runs.
        self.program = tuple(program)
        # What all its lives have said.
        self.log_path = folder / f"{name}.log"
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None
        self._log_from = 0

    @property
    def log(self) -> str:
        """What its last life has said."""
        if not self.lives:
            return ""
        return self.log_path.read_bytes()[self._log_from :].decode()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} does not run"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def works(self) -> bool:
        """Whether its present life has said so."""
        return self.is_alive and GREETING.search(self.log) is not None

    def spawn(self) -> subprocess.Popen[bytes]:
        """Start it, without waiting for it to work."""
        with self.log_path.open("ab") as log:
            self._log_from = log.tell()
            self._process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self._wrap, *self.program, *self.arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.lives += 1
        self._ended_at = None
        return self._process

    async def ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it says that it works."""
        deadline = time.monotonic() + timeout_s
        while not self.works:
            code = self.process.poll()
            assert code is None, f"{self.name} ended with {code}: {self.log}"
            assert time.monotonic() < deadline, f"{self.name} did not start: {self.log}"
            await asyncio.sleep(LOOK_S)

    def tend(self) -> None:
        """Start it again a little after it has ended by itself."""
        if self._process is None or self.is_alive:
            return
        now = time.monotonic()
        self._ended_at = self._ended_at or now
        if now - self._ended_at >= RESTART_PAUSE_S:
            self.spawn()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As kill -9 does: nothing is finished, nothing is said. Nobody starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def ended(self, timeout_s: float = PATIENCE_S) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, timeout_s)

    async def stop(self) -> None:
        """End it in order; it must end without an error."""
        if self._process is not None:
            self.signal(signal.SIGTERM)
            assert await self.ended() == 0, self.log
            self._process = None
