"""The files of one control group: what is written there, who is in it, how all of it is killed.

Used by `cgroups`, in threads.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

from holdfast.host.runtime.limits import Write

PROCS, KILL, STATE = "cgroup.procs", "cgroup.kill", "freezer.state"
PROCS_BYTES_MAX = 1 << 20
# Below a group lie at most those that work or its container made: deeper ones are not looked for.
DEPTH_MAX = 16
# The group is gone, or has only threads, whose processes the one above it names.
_NOBODY = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)


def written(folder: Path, write: Write) -> str:
    """What kept it from being written; empty when nothing did."""
    try:
        # Never made if it is missing: a plain file would take any value and enforce nothing.
        fd = os.open(folder / write.file, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, write.value.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        return f"{write.file} cannot be set: {os.strerror(error.errno or errno.EIO).lower()}"
    return ""


def below(group: Path, depth: int = 0) -> list[Path]:
    """A group and all below it, the upper ones first."""
    found = [group]
    if depth < DEPTH_MAX:
        with suppress(FileNotFoundError):
            for entry in sorted(os.scandir(group), key=lambda it: it.name):
                if entry.is_dir(follow_symlinks=False):
                    found += below(Path(entry.path), depth + 1)
    return found


def pids(group: Path) -> list[int]:
    """Who is in a group; 0 stands for somebody whom we cannot see."""
    try:
        with open(group / PROCS, "rb") as file:
            return [int(pid) for pid in file.read(PROCS_BYTES_MAX).split()]
    except OSError as error:
        return [] if error.errno in _NOBODY else [0]


def kill(group: Path) -> None:
    """Kill everything in a group; frozen first where that is how to reach all of it."""
    if (group / KILL).exists():
        with suppress(OSError):
            (group / KILL).write_text("1", "ascii")
            return
    state = group / STATE
    with suppress(OSError):
        if state.exists():
            state.write_text("FROZEN", "ascii")
    for pid in pids(group):
        with suppress(OSError):
            fd = os.pidfd_open(pid)
            # The pid may have passed to another before that; then it is not in the group.
            try:
                if pid in pids(group):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    with suppress(OSError):
        if state.exists():
            state.write_text("THAWED", "ascii")
