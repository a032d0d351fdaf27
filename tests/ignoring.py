"""A parent that leaves signals ignored and blocked, as shells, `nohup` and job runners do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

IGNORED = (
    *(signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGCHLD, signal.SIGUSR1),
)
BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR2)
# Python ignores these by itself.
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


@contextmanager
def ignoring() -> Iterator[None]:
    """What this process starts meanwhile inherits it all."""
    found = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    try:
        yield
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def below(*command: str) -> list[str]:
    """The command with such a parent."""
    return [sys.executable, "-m", "tests.ignoring", *command]


def kept_from(status: str) -> set[str]:
    """Which signals a process ignores or blocks, by the text of its /proc/PID/status."""
    words = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    bits = int(words["SigIgn"], 16) | int(words["SigBlk"], 16)
    found = {it.name for it in signal.valid_signals() if bits >> (int(it) - 1) & 1}
    return found - {it.name for it in _PYTHON_IGNORES}


def kept_from_process(pid: int) -> set[str]:
    return kept_from(Path(f"/proc/{pid}/status").read_text())


if __name__ == "__main__":
    import os

    with ignoring():
        os.execvp(sys.argv[1], sys.argv[1:])
