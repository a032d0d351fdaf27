"""Limits what work puts on the disk: measures it repeatedly, and has it stopped.

Called by `supervisor`. A file system with project quotas would refuse the write itself, but few
have them, and this way needs no mount option. Deleted files count while a process of the work has
them open or mapped. Between two measurements work may exceed its limit by what the disk accepts in
that time. So there is a second bound, for all work of a node: when the file system runs low, the
work that exceeds what is set aside for it by the most is ended. Logs are not counted: they have
bounds of their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path

import msgspec

from holdfast.agent.runtime_protocol import Attempt
from holdfast.host.runtime import safe_paths
from holdfast.host.runtime.attempts import TMP, WORK, AttemptFolders

LOOK_S, SPACE_LOOK_S = 5.0, 1.0
# Measuring the work of one tenant may take a quarter of the time; else it is done less often.
REST = 4
LAYER = "layer"
# The directories that the work itself writes to.
FOLDERS = (WORK, TMP, LAYER)
# A tree that takes longer to walk than this has too many files, whatever their size. No more open
# files of the work's processes are examined either.
ENTRIES_MAX = 1_000_000
# A disk is low when less than this is left, or less than that share of a smaller one.
LOW_BYTES, LOW_SHARE = 1 << 30, 0.05
# Work with no more files than this is not the reason that a disk has no inodes left.
FILES_FEW = 1_000
UNBOUNDED = 1 << 62
_BLOCK = 512
_DELETED = " (deleted)"
_MAPPED = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) .* \(deleted\)\n")
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), -1)
_KCMP_FILES = 2
_libc = ctypes.CDLL(None, use_errno=True)


class DiskShortage(Enum):
    """What a file system runs out of."""

    NOTHING = "nothing"
    BYTES = "room"
    FILES = "files"


class Use(msgspec.Struct):
    """What an attempt has on the disk. Both are UNBOUNDED when that cannot be measured."""

    bytes: int = 0
    entries: int = 0

    def add(self, about: os.stat_result) -> None:
        self.bytes += about.st_blocks * _BLOCK

    def excess(self, lack: DiskShortage, aside: int) -> int:
        """By how much it exceeds its share of what is short, with this much set aside."""
        return self.bytes - aside if lack is DiskShortage.BYTES else self.entries - FILES_FEW

    def is_beyond(self, most: int) -> bool:
        """Whether these are more bytes than the limit, or more files than any work may have."""
        return self.bytes > most or self.entries > ENTRIES_MAX


def use(folder: Path, processes: Iterable[int], enough: int = UNBOUNDED) -> Use:
    """What this attempt has on the disk; counting stops beyond `enough` bytes.

    A tree that cannot be measured, since it is too deep or too large, counts as too much.
    """
    found = Use()
    waiting = [str(folder / name) for name in FOLDERS]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found.entries += 1
                    # Files that the work removes meanwhile need no room any more.
                    with suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        found.add(about)
                        if stat.S_ISDIR(about.st_mode):
                            waiting.append(entry.path)
                    if found.is_beyond(enough):
                        return found
        except FileNotFoundError:
            continue
        except OSError:
            return Use(UNBOUNDED, UNBOUNDED)
    _add_nameless(found, folder, processes, enough)
    return found


def _add_nameless(found: Use, folder: Path, processes: Iterable[int], enough: int) -> None:
    """Add the deleted files that these processes keep on the disk."""
    try:
        own = os.stat(folder / WORK)
    except OSError:
        return
    seen: set[tuple[int, int]] = set()
    looked = 0
    for pid in processes:
        # In a container the layer has a device of its own.
        devices = {own.st_dev}
        with suppress(OSError):
            devices.add(os.stat(f"/proc/{pid}/root").st_dev)
        for path in _held_by(pid):
            looked += 1
            if looked > ENTRIES_MAX:
                found.bytes = found.entries = UNBOUNDED
            if found.is_beyond(enough):
                return
            # Only this is known without asking the file system, which the work may have mounted.
            with suppress(OSError):
                if not os.readlink(path).endswith(_DELETED):
                    continue
                about = os.stat(path)
                is_own = about.st_uid != 0 or own.st_uid == 0
                is_nameless = stat.S_ISREG(about.st_mode) and about.st_nlink == 0
                key = (about.st_dev, about.st_ino)
                if is_own and is_nameless and about.st_dev in devices and key not in seen:
                    seen.add(key)
                    found.entries += 1
                    found.add(about)


def _held_by(pid: int) -> Iterator[str]:
    """The files that a process has open, and the deleted files that it has mapped."""
    is_mapped = False
    for thread in _tables(pid):
        with suppress(OSError), os.scandir(f"/proc/{thread}/fd") as entries:
            for entry in entries:
                yield entry.path
        # All threads share one memory, but a thread that has ended shows none.
        with suppress(OSError), open(f"/proc/{thread}/maps", "rb") as maps:
            for line in maps if not is_mapped else ():
                is_mapped = True
                if found := _MAPPED.fullmatch(line):
                    at, end = int(found[1], 16), int(found[2], 16)
                    yield f"/proc/{thread}/map_files/{at:x}-{end:x}"


def _tables(pid: int) -> list[int]:
    """Threads of a process that together have all its tables of open files.

    The first thread may have ended, and any thread may have a table of its own. Usual work has at
    most two tables; with many threads some tables are read more than once.
    """
    found: list[int] = []
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return []
    for thread in threads:
        known = {found[0], found[-1]} if found else ()
        if not any(_share_files(thread, other) for other in known):
            found.append(thread)
    return found


def _share_files(thread: int, other: int) -> bool:
    """Whether two threads share one table of open files. If the kernel cannot tell, they count as
    sharing, and only the first one's table is read.
    """
    words = (thread, other, _KCMP_FILES, 0, 0)
    order: int = _libc.syscall(ctypes.c_long(_SYS_KCMP), *map(ctypes.c_long, words))
    return order <= 0


def lack(path: Path) -> DiskShortage:
    """What the file system of this directory runs out of; nothing if it cannot tell."""
    try:
        about = os.statvfs(path)
    except OSError:
        return DiskShortage.NOTHING
    size = about.f_blocks * about.f_frsize
    if about.f_bavail * about.f_frsize < min(LOW_BYTES, int(size * LOW_SHARE)):
        return DiskShortage.BYTES
    # Some file systems have no fixed number of files, and report 0.
    return (
        DiskShortage.FILES if about.f_favail < about.f_files * LOW_SHARE else DiskShortage.NOTHING
    )


def give_back(fd: int) -> None:
    """Remove the files of ended work from its attempt's open directory, except its logs."""
    for name in FOLDERS:
        with suppress(FileNotFoundError):
            safe_paths.remove(name, fd)


def give_back_before(attempts: AttemptFolders, present: Attempt) -> None:
    """Remove the files of a replica's earlier attempts: only their logs are of use."""
    for number in attempts.numbers(present.uid):
        earlier = Attempt(present.uid, number)
        if number < present.number and not attempts.look(earlier).is_alive:
            with attempts.of(earlier) as fd:
                give_back(fd)
