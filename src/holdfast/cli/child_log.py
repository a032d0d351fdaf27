"""The log of one part that `holdfast up` runs: everything that it says, within bounds.

The part writes to the file itself, at its end, so that it never waits for `up`. `up` looks at the
size from time to time; a log that is too long is copied to NAME.log.1 and emptied. What is written
between the copy and the cut is lost: a log that grows by megabytes a second has said it before.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holdfast.cli.ending import plain
from holdfast.host.files import PRIVATE_FILE

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
