"""Removes control groups that agents of earlier tests left, whose directories are gone as well.

Agents that a test kills cannot, and no other agent ever looks at their groups.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
# No test takes so long; what is younger may belong to one that runs beside this one.
AGE_MIN_S = 1_800.0


def remove() -> None:
    """A group with a process in it is never removed: the kernel sees to that."""
    for parent in (*ROOT.glob("holdfast"), *ROOT.glob("*/holdfast")):
        for folder, _, _ in os.walk(parent, topdown=False):
            with suppress(OSError):
                if folder != str(parent) and time.time() - os.stat(folder).st_mtime > AGE_MIN_S:
                    os.rmdir(folder)
