"""Ends what may be left of work whose shim died without a record, or whose directory is gone.

`end_watch` calls it in a thread, when the lock of an attempt is free and there is no exit. Where
the shim was init of a namespace, the kernel ends the tree as a part of the shim's own end, a little
after its files were closed; so its pid must be gone before anything is proven. Elsewhere the work
gets a signal when its parent dies, and what it started is found by the mark in its variables.

Nothing is killed by its pid alone: a descriptor of the process is opened first, and only then is
its start time compared, so that the pid cannot pass to another process in between.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.shim_records import ProcessIdentity, ShimState
from holdfast.host.runtime.surroundings import DIRECTORY, MARK

_PROC = Path("/proc")
_START_FIELD = 22
# The control group of an attempt, of any agent of this machine.
_GROUP = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([0-9]{1,10})", re.ASCII)
_MARKED = re.compile(MARK.encode() + rb"=([A-Za-z0-9][-A-Za-z0-9_]{0,127})/([0-9]{1,10})")
# Each round kills what the processes killed in the last one had started before they died.
ROUNDS_MAX = 20
ROUND_WAIT_MS = 500
VARIABLES_BYTES_MAX = 4 * 1024 * 1024


def start_of(pid: int) -> int | None:
    """When this process started, in ticks since the boot; None when there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # Field 2 is the program's name in parentheses, and the name may contain parentheses.
    return int(text.rpartition(")")[2].split()[_START_FIELD - 3])


def _opened(who: ProcessIdentity) -> int | None:
    """A descriptor of exactly this process; None when it is gone."""
    if who.pid <= 0:
        return None
    try:
        fd = os.pidfd_open(who.pid)
    except (ProcessLookupError, OSError):
        return None
    if start_of(who.pid) != who.start:
        os.close(fd)
        return None
    return fd


def kill(who: ProcessIdentity, wait_ms: int) -> bool:
    """Kill exactly this process and wait. True when it is gone, with the namespace it led."""
    fd = _opened(who)
    if fd is None:
        return True
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        waiter = select.poll()
        waiter.register(fd, select.POLLIN)
        return bool(waiter.poll(wait_ms))
    finally:
        os.close(fd)


def _groups(pid: int) -> set[Attempt]:
    """The attempts whose control groups hold a process. Only root can leave a group."""
    try:
        text = (_PROC / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    found = (_GROUP.fullmatch(line.rpartition("/")[2]) for line in text.splitlines())
    return {Attempt(it[1], int(it[2])) for it in found if it is not None}


def _is_forged(pid: int, attempt: Attempt) -> bool:
    """Whether this is a process of another attempt, whatever its variables say: any process can set
    those, and to end or to wait for it would give a tenant power over another tenant's work.
    """
    groups = _groups(pid)
    return bool(groups) and attempt not in groups


def _processes() -> Iterator[tuple[ProcessIdentity, list[bytes]]]:
    """All processes whose variables this agent may read."""
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        start = start_of(int(name))
        try:
            with open(_PROC / name / "environ", "rb") as file:
                variables = file.read(VARIABLES_BYTES_MAX)
        except OSError:
            # Gone meanwhile, or of another user and so not started by this agent.
            continue
        if start is not None:
            yield ProcessIdentity(int(name), start), variables.split(b"\x00")


def _marked(attempt: Attempt) -> list[ProcessIdentity]:
    """All processes that carry the mark of this attempt."""
    mark = f"{MARK}={attempt.uid}/{attempt.number}".encode()
    found = [who for who, variables in _processes() if mark in variables]
    return [who for who in found if not _is_forged(who.pid, attempt)]


def descendants(pid: int) -> list[int]:
    """A process and its descendants. Below a shim that is all of its work."""
    found = [pid]
    for one in found:
        for path in (_PROC / str(one) / "task").glob("*/children"):
            with suppress(OSError):
                found += map(int, path.read_text("ascii").split())
    return found


def attempts_below(root: Path) -> list[Attempt]:
    """The attempts of this agent's directory of which a process runs, by their variables.

    Several agents may share a machine, so the directory shows whose they are. Containers see other
    paths; they are found by their control groups.
    """
    within = b"%s=%s/" % (DIRECTORY.encode(), os.fsencode(root.absolute()))
    found: set[Attempt] = set()
    for who, variables in _processes():
        if not any(text.startswith(within) for text in variables):
            continue
        marks = filter(None, map(_MARKED.fullmatch, variables))
        named = {Attempt(mark[1].decode("ascii"), int(mark[2])) for mark in marks}
        found.update(it for it in named if not _is_forged(who.pid, it))
    return sorted(found, key=lambda it: (it.uid, it.number))


def end_unrecorded(attempt: Attempt) -> bool:
    """End all processes of an attempt without a directory that would name them.

    Its shim ends with its work. False when something still lives: then try again.
    """
    for _ in range(ROUNDS_MAX):
        left = _marked(attempt)
        if not left:
            return True
        for who in left:
            kill(who, ROUND_WAIT_MS)
    return False


def end(attempt: Attempt, state: ShimState) -> bool:
    """End all processes of this attempt. False when something still lives: then try again.

    A process that dropped its variables and left its parents is not found outside a namespace,
    unless it is in a control group; that is why the isolation is shown with the work's limits.
    """
    if not kill(state.shim, ROUND_WAIT_MS) or not kill(state.work, ROUND_WAIT_MS):
        return False
    return state.isolation != "session" or end_unrecorded(attempt)
