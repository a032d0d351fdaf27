"""The control groups of one agent's work: made before the work starts, gone when it has ended.

Called by `starting`, which has the work join them, and by `limits_closing` at the end, always in a
thread. In each hierarchy that this machine has and lets us write, they lie at

    PARENT/OWNER/UID-NUMBER

where OWNER belongs to one agent's directory and nobody else's, so that an agent may remove, and
kill, whatever it finds there. Each controller is looked for by itself: a machine may have some of
them in the first version, others in the second, and some not at all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec

from holdfast.agent.words import Attempt
from holdfast.host.runtime import cgroups_files, limits
from holdfast.host.runtime.cgroups_mounted import Hierarchy
from holdfast.host.runtime.limits import CPU, DEVICES, MEMORY, PIDS, Limits, Write
from holdfast.model.quantity import Resource, render

# Killing takes a moment; a tree that has not gone by then is tried again by whoever asked.
KILL_ROUNDS_MAX = 50
KILL_PAUSE_S = 0.01


class Seat(msgspec.Struct, frozen=True):
    """Where the groups for one controller are made."""

    version: int
    folder: Path


class Cgroups:
    """`seats` by controller; `lacking` says for each other one why there are none."""

    def __init__(
        self,
        relative: str,
        hierarchies: Sequence[Hierarchy],
        seats: dict[str, Seat],
        lacking: dict[str, str],
    ) -> None:
        self.relative = relative
        self._seats, self._lacking = seats, lacking
        # A container's runtime makes groups in all hierarchies, so the end is looked for in all.
        self._folders = tuple(it.root / relative for it in hierarchies)

    @property
    def controllers(self) -> tuple[str, ...]:
        """Which controllers work here."""
        return tuple(self._seats)

    def path(self, attempt: Attempt) -> str:
        """The group of an attempt, as each hierarchy names it."""
        return f"/{self.relative}/{name(attempt)}"

    def _each(self, attempt: Attempt) -> list[Path]:
        found = (folder / name(attempt) for folder in self._folders)
        return [path for path in found if path.is_dir()]

    # Before the work -----------------------------------------------------------------------------

    def make(self, attempt: Attempt, of: Limits, denied: Sequence[str] = ()) -> dict[str, str]:
        """Make its groups, and tell which limits are really enforced and by what."""
        told = {}
        for controller in (CPU, MEMORY, PIDS):
            told[controller] = self._limit(attempt, controller, of)
        if of.share_milli:
            told["share"] = self._share(attempt, of)
        if denied:
            told[DEVICES] = self._deny(attempt, denied)
        for controller in self._seats:
            if controller not in (CPU, MEMORY, PIDS, DEVICES):
                self._made(attempt, controller)
        return told

    def _made(self, attempt: Attempt, controller: str) -> tuple[Seat, Path]:
        seat = self._seats[controller]
        folder = seat.folder / name(attempt)
        # Somebody may have tidied up above it while there was no work.
        folder.mkdir(0o755, parents=True, exist_ok=True)
        return seat, folder

    def _limit(self, attempt: Attempt, controller: str, of: Limits) -> str:
        if controller not in self._seats:
            return f"none: {self._lacking[controller]}"
        seat, folder = self._made(attempt, controller)
        amount = limits.amount(controller, of)
        if not amount:
            return limits.UNSTATED
        first, *others = limits.writes(seat.version, controller, of)
        problem = cgroups_files.written(folder, first)
        if problem:
            return f"none: {problem}"
        # Without one of these the limit holds all the same, only for less than one might think.
        missing = [it.without for it in others if cgroups_files.written(folder, it) and it.without]
        return ", ".join((f"cgroup-v{seat.version} {amount}", *missing))

    def _share(self, attempt: Attempt, of: Limits) -> str:
        seat = self._seats.get(CPU)
        write = limits.share_write(seat.version, of) if seat is not None else None
        if seat is None or write is None:
            return f"none: {self._lacking.get(CPU, 'nothing is set aside')}"
        problem = cgroups_files.written(seat.folder / name(attempt), write)
        share = render(Resource.CPU, of.share_milli)
        return f"none: {problem}" if problem else f"cgroup-v{seat.version} {share}"

    def _deny(self, attempt: Attempt, denied: Sequence[str]) -> str:
        """Keep it from the devices that it does not own."""
        if DEVICES not in self._seats:
            return f"none: {self._lacking[DEVICES]}"
        seat, folder = self._made(attempt, DEVICES)
        for rule in denied:
            problem = cgroups_files.written(folder, Write("devices.deny", rule))
            if problem:
                return f"none: {problem}"
        return f"cgroup-v{seat.version} without {len(denied)} of others"

    def joins(self, attempt: Attempt, controllers: Sequence[str]) -> tuple[Path, ...]:
        """What a process writes 0 to in order to be in the groups for these controllers."""
        seats = (self._seats[it] for it in controllers if it in self._seats)
        folders = dict.fromkeys(it.folder / name(attempt) for it in seats)
        return tuple(folder / cgroups_files.PROCS for folder in folders)

    @contextmanager
    def entrances(self, attempt: Attempt) -> Iterator[tuple[int, ...]]:
        """What a process writes 0 to in order to be in all its groups, as open files."""
        with ExitStack() as opened:
            fds = []
            for path in self.joins(attempt, self.controllers):
                if path.parent.is_dir():
                    fds.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
                    opened.callback(os.close, fds[-1])
            yield tuple(fds)

    def processes(self, attempt: Attempt) -> list[int]:
        """All processes of an attempt that we can see, in whichever of its groups."""
        groups = [it for path in self._each(attempt) for it in cgroups_files.below(path)]
        return sorted({pid for group in groups for pid in cgroups_files.pids(group)} - {0})

    # After the work ------------------------------------------------------------------------------

    def ooms(self, attempt: Attempt) -> int:
        """How many processes of it the kernel killed for want of memory."""
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
        groups = [it for path in self._each(attempt) for it in cgroups_files.below(path)]
        return any(cgroups_files.pids(group) for group in groups)

    def kill(self, attempt: Attempt) -> bool:
        """Kill whatever is in its groups. True when nothing is left in any."""
        for _ in range(KILL_ROUNDS_MAX):
            if not self.is_used(attempt):
                return True
            for path in self._each(attempt):
                for group in cgroups_files.below(path):
                    cgroups_files.kill(group)
            time.sleep(KILL_PAUSE_S)
        return False

    def remove(self, attempt: Attempt) -> bool:
        """Remove its groups, which are empty. False when one could not be, for the next sweep."""
        is_gone = True
        for path in self._each(attempt):
            for group in reversed(cgroups_files.below(path)):
                try:
                    group.rmdir()
                except FileNotFoundError:
                    continue
                except OSError:
                    is_gone = False
        return is_gone

    def retire(self) -> None:
        """Remove the folder of all groups, unless there are some."""
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
    """How the groups of an attempt are called."""
    return f"{attempt.uid}-{attempt.number}"
