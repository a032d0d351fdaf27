"""Control groups of the tests' own agents: apart from all others, and none left for ever.

Agents that a test kills cannot remove theirs, and no other agent ever looks at them. Those of a
plane that really runs here lie below another parent, and nothing here touches them: an empty group
may hold a word of the kernel that an agent has not read yet.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from holdfast.host.runtime.cgroups.detect import PARENT_VARIABLE

ROOT = Path("/sys/fs/cgroup")
PARENT = "holdfast-tests"
# No test takes so long; what is younger may belong to one that runs beside this one.
AGE_MIN_S = 1_800.0


def set_apart() -> None:
    """From now on agents of this process, and of those that it starts, make theirs apart."""
    os.environ[PARENT_VARIABLE] = PARENT


def remove() -> None:
    """A group with a process in it is never removed: the kernel sees to that."""
    for parent in (*ROOT.glob(PARENT), *ROOT.glob(f"*/{PARENT}")):
        for folder, _, _ in os.walk(parent, topdown=False):
            with suppress(OSError):
                if folder != str(parent) and time.time() - os.stat(folder).st_mtime > AGE_MIN_S:
                    os.rmdir(folder)
