"""The control groups of one agent's work: made before the work starts, removed when it has ended.

Called by `starting`, which has the work join them, and by `removal` at the end, always in a thread.
In each writable hierarchy of this machine they lie at

    PARENT/OWNER/UID-NUMBER

where OWNER belongs to one agent's directory alone, so that an agent may remove, and kill, whatever
it finds there. Each controller is detected by itself: a machine may have some of them in cgroup v1,
others in v2, and some not at all.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime.cgroups import limits
from holdfast.host.runtime.cgroups.limits import (
    CPU,
    DEVICES,
    MEMORY,
    PIDS,
    CgroupLimits,
    CgroupWrite,
)
from holdfast.model.quantity import Resource, render

# The files of one control group: what is written there, its processes, and how to kill them all.

PROCS, KILL, STATE = "cgroup.procs", "cgroup.kill", "freezer.state"
PROCS_BYTES_MAX = 1 << 20
# Groups below a group are made by work or its container; deeper ones are not searched.
DEPTH_MAX = 16
# The group is gone, or has only threads, whose processes the one above it names.
_NOBODY = (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP)


def write_value(folder: Path, write: CgroupWrite) -> str:
    """Write it. Returns the error as text; empty for success."""
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
    """The processes in a group; 0 stands for one that is not visible here."""
    try:
        with open(group / PROCS, "rb") as file:
            return [int(pid) for pid in file.read(PROCS_BYTES_MAX).split()]
    except OSError as error:
        return [] if error.errno in _NOBODY else [0]


def kill(group: Path) -> None:
    """Kill all processes in a group; freeze it first where that is needed to reach all of them."""
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
            # The pid may belong to another process by now; then that is not in the group.
            try:
                if pid in pids(group):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            finally:
                os.close(fd)
    with suppress(OSError):
        if state.exists():
            state.write_text("THAWED", "ascii")


# Which hierarchies of control groups this machine has, and what they allow this process.
#
# `Cgroups` makes groups in these; `host/component/machine_facts` reads how much of the machine this
# process may use: an agent in a container must not promise the whole machine.

MOUNTS_MAX = 10_000
_PROC = Path("/proc")
_OCTAL = re.compile(r"\\([0-7]{3})", re.ASCII)
_ENTRY = re.compile(r"\d+ \d+ \S+ (\S+) (\S+) .* - (cgroup2?) \S+ (\S+)", re.ASCII)
_UNLIMITED = 1 << 60


class Hierarchy(msgspec.Struct, frozen=True):
    """One hierarchy of control groups.

    root: where it is mounted.
    shown: the group that is visible there, as /proc/PID/cgroup names it.
    """

    version: int
    root: Path
    controllers: tuple[str, ...]
    shown: str = "/"


class Ceilings(msgspec.Struct, frozen=True, gc=False):
    """What this process and the others in its groups may use together; None is no limit."""

    cpu_milli: int | None = None
    memory_bytes: int | None = None


def mounted_hierarchies(proc: Path = _PROC) -> tuple[Hierarchy, ...]:
    """All hierarchies, each at its first mount point."""
    try:
        lines = (proc / "self/mountinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ()
    found: dict[tuple[str, ...], Hierarchy] = {}
    for line in lines[:MOUNTS_MAX]:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            continue
        shown, root, kind, said = entry.groups()
        path = Path(_plain(root))
        version = 2 if kind == "cgroup2" else 1
        options = [it for it in said.split(",") if it not in ("rw", "ro")]
        controllers = _controllers(path) if version == 2 else tuple(options)
        key = ("",) if version == 2 else controllers
        found.setdefault(key, Hierarchy(version, path, controllers, _plain(shown)))
    return tuple(found.values())


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda code: chr(int(code[1], 8)), text)


def _controllers(root: Path) -> tuple[str, ...]:
    with suppress(OSError):
        return tuple((root / "cgroup.controllers").read_text("ascii").split())
    return ()


def ceilings(proc: Path = _PROC) -> Ceilings:
    """The lowest limits of this process's groups."""
    cpu: list[int] = []
    memory: list[int] = []
    groups = _groups(proc)
    for hierarchy in mounted_hierarchies(proc):
        if hierarchy.version == 2:
            own = groups.get("")
        else:
            own = next((groups[it] for it in hierarchy.controllers if it in groups), None)
        for folder in _upwards(hierarchy, own or "/"):
            cpu += _cpu_milli(folder)
            memory += _memory_bytes(folder)
    return Ceilings(min(cpu, default=None), min(memory, default=None))


def _groups(proc: Path) -> dict[str, str]:
    """This process's group for each controller; that of cgroup v2 is under the empty name."""
    found = {}
    with suppress(OSError):
        for line in (proc / "self/cgroup").read_text("utf-8", "replace").splitlines():
            _, names, path = line.split(":", 2)
            found.update(dict.fromkeys(names.split(","), path))
    return found


def _upwards(hierarchy: Hierarchy, own: str) -> list[Path]:
    """The folders from this process's group up to the top, as far as they are visible here."""
    shown = hierarchy.shown.rstrip("/")
    inside = own.removeprefix(shown).strip("/") if (own + "/").startswith(shown + "/") else ""
    folder = hierarchy.root / inside
    above = [folder]
    while folder != hierarchy.root and ".." not in folder.parts:
        folder = folder.parent
        above.append(folder)
    return above


def _numbers(path: Path) -> list[int]:
    with suppress(OSError, ValueError):
        return [int(word) for word in path.read_text("ascii").split()]
    return []


def _cpu_milli(folder: Path) -> list[int]:
    quota = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
    # Without a limit the second version says "max", which is no number.
    pair = quota or _numbers(folder / "cpu.max")
    if len(pair) != 2 or pair[0] <= 0 or pair[1] <= 0:
        return []
    return [pair[0] * 1_000 // pair[1]]


def _memory_bytes(folder: Path) -> list[int]:
    limit = _numbers(folder / "memory.limit_in_bytes") or _numbers(folder / "memory.max")
    return [it for it in limit if 0 < it < _UNLIMITED]


# Killing takes a moment; if the processes are not gone by then, the caller tries again.
KILL_ROUNDS_MAX = 50
KILL_PAUSE_S = 0.01


class CgroupParent(msgspec.Struct, frozen=True):
    """Where the groups for one controller are made."""

    version: int
    folder: Path


class Cgroups:
    """`seats` by controller; `lacking` says for each other one why there are none."""

    def __init__(
        self,
        relative: str,
        hierarchies: Sequence[Hierarchy],
        seats: dict[str, CgroupParent],
        lacking: dict[str, str],
    ) -> None:
        self.relative = relative
        self._seats, self.lacking = seats, lacking
        # A container's runtime makes groups in all hierarchies, so all are searched at the end.
        self._folders = tuple(it.root / relative for it in hierarchies)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Which controllers work here."""
        return tuple(self._seats)

    def seat(self, controller: str) -> CgroupParent | None:
        """Where the groups for a controller are, if it works here."""
        return self._seats.get(controller)

    def path(self, attempt: Attempt) -> str:
        """The group of an attempt, as each hierarchy names it."""
        return f"/{self.relative}/{name(attempt)}"

    def _each(self, attempt: Attempt) -> list[Path]:
        found = (folder / name(attempt) for folder in self._folders)
        return [path for path in found if path.is_dir()]

    # Before the work -----------------------------------------------------------------------------

    def make(
        self, attempt: Attempt, of: CgroupLimits, denied: Sequence[str] = ()
    ) -> dict[str, str]:
        """Make an attempt's groups. Returns which limits are actually enforced and by what."""
        told = {}
        for controller in (CPU, MEMORY, PIDS):
            told[controller] = self._limit(attempt, controller, of)
        told["share"] = self._share(attempt, of)
        if denied:
            told[DEVICES] = self._deny(attempt, denied)
        for controller in self._seats:
            if controller not in (CPU, MEMORY, PIDS, DEVICES):
                self._made(attempt, controller)
        return told

    def _made(self, attempt: Attempt, controller: str) -> tuple[CgroupParent, Path]:
        seat = self._seats[controller]
        folder = seat.folder / name(attempt)
        # The parent may have been removed while there was no work.
        folder.mkdir(0o755, parents=True, exist_ok=True)
        return seat, folder

    def _limit(self, attempt: Attempt, controller: str, of: CgroupLimits) -> str:
        if controller not in self._seats:
            return f"none: {self.lacking[controller]}"
        seat, folder = self._made(attempt, controller)
        amount = limits.amount(controller, of)
        if not amount:
            return limits.UNSTATED
        first, *others = limits.writes(seat.version, controller, of)
        problem = write_value(folder, first)
        if problem:
            return f"none: {problem}"
        # Without one of these the limit is enforced all the same, but covers less.
        missing = [it.without for it in others if write_value(folder, it) and it.without]
        return ", ".join((f"cgroup-v{seat.version} {amount}", *missing))

    def _share(self, attempt: Attempt, of: CgroupLimits) -> str:
        seat = self._seats.get(CPU)
        if seat is None:
            return f"none: {self.lacking[CPU]}"
        problem = write_value(seat.folder / name(attempt), limits.share_write(seat.version, of))
        share = render(Resource.CPU, of.share_milli) if of.share_milli else "least"
        return f"none: {problem}" if problem else f"cgroup-v{seat.version} {share}"

    def _deny(self, attempt: Attempt, denied: Sequence[str]) -> str:
        """Deny it the devices that it does not own."""
        if DEVICES not in self._seats:
            return f"none: {self.lacking[DEVICES]}"
        seat, folder = self._made(attempt, DEVICES)
        for rule in denied:
            problem = write_value(folder, CgroupWrite("devices.deny", rule))
            if problem:
                return f"none: {problem}"
        return f"cgroup-v{seat.version} without {len(denied)} of others"

    def joins(self, attempt: Attempt, controllers: Sequence[str]) -> tuple[Path, ...]:
        """The files to which a process writes 0 to join the groups for these controllers."""
        seats = (self._seats[it] for it in controllers if it in self._seats)
        folders = dict.fromkeys(it.folder / name(attempt) for it in seats)
        return tuple(folder / PROCS for folder in folders)

    @contextmanager
    def entrances(self, attempt: Attempt) -> Iterator[tuple[int, ...]]:
        """The files to which a process writes 0 to join all groups of the attempt, opened."""
        with ExitStack() as opened:
            fds = []
            for path in self.joins(attempt, self.controllers):
                if path.parent.is_dir():
                    fds.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
                    opened.callback(os.close, fds[-1])
            yield tuple(fds)

    def processes(self, attempt: Attempt) -> list[int]:
        """All visible processes of an attempt, in any of its groups."""
        groups = [it for path in self._each(attempt) for it in below(path)]
        return sorted({pid for group in groups for pid in pids(group)} - {0})

    # After the work ------------------------------------------------------------------------------

    def ooms(self, attempt: Attempt) -> int:
        """How many of its processes the kernel killed for lack of memory."""
        seat = self._seats.get(MEMORY)
        if seat is None:
            return 0
        file = "memory.events" if seat.version == 2 else "memory.oom_control"
        with suppress(OSError, ValueError):
            for line in (seat.folder / name(attempt) / file).read_text("ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def is_used(self, attempt: Attempt) -> bool:
        """Whether a process is in any of its groups."""
        groups = [it for path in self._each(attempt) for it in below(path)]
        return any(pids(group) for group in groups)

    def kill(self, attempt: Attempt) -> bool:
        """Kill all processes in its groups. True when none is left."""
        for _ in range(KILL_ROUNDS_MAX):
            if not self.is_used(attempt):
                return True
            for path in self._each(attempt):
                for group in below(path):
                    kill(group)
            time.sleep(KILL_PAUSE_S)
        return False

    def remove(self, attempt: Attempt) -> bool:
        """Remove its empty groups. False when one cannot be removed; the next sweep tries again."""
        is_gone = True
        for path in self._each(attempt):
            for group in reversed(below(path)):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    is_gone = False
        return is_gone

    def retire(self) -> None:
        """Remove the folder of all groups if it is empty."""
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()

    def attempts(self) -> list[Attempt]:
        """All attempts that have groups."""
        found: set[str] = set()
        for folder in self._folders:
            with suppress(FileNotFoundError):
                found.update(it.name for it in folder.iterdir() if it.is_dir())
        cut = (text.rpartition("-") for text in sorted(found))
        return [Attempt(uid, int(number)) for uid, _, number in cut if uid and number.isdecimal()]


def name(attempt: Attempt) -> str:
    """The name of an attempt's groups."""
    return f"{attempt.uid}-{attempt.number}"
