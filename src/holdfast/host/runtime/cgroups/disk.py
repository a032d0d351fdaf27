"""Bounds what a piece of work puts on the disk: it is measured again and again, and stopped.

Called by `keeping`. A file system with project quotas would refuse the write itself, but few have
them, and no mount option of the operator's is needed for this. Files that have no name any more
count while a process of the work has them open or mapped. Between two looks work may exceed its
limit by what the disk takes in that time. So there is a second bound, for all work of a node: when
the file system runs low, who has most beyond what is set aside for it is ended. Logs are not
counted: they have bounds of their own.
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
# Looks at the work of one tenant take a quarter of the time at most, and come less often instead.
REST = 4
LAYER = "layer"
# All that the work itself writes.
FOLDERS = (WORK, TMP, LAYER)
# A tree that takes longer to walk than this has too many files, whatever their size. No more are
# looked at of what the processes of the work have open.
ENTRIES_MAX = 1_000_000
# A disk is low when less than this is left of it, or less than that share of a smaller one.
LOW_BYTES, LOW_SHARE = 1 << 30, 0.05
# Work with no more files than this is not why a disk has none left.
FILES_FEW = 1_000
UNBOUNDED = 1 << 62
_BLOCK = 512
_DELETED = " (deleted)"
_MAPPED = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) .* \(deleted\)\n")
_SYS_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), -1)
_KCMP_FILES = 2
_libc = ctypes.CDLL(None, use_errno=True)


class DiskShortage(Enum):
    """What a file system has little of."""

    NOTHING = "nothing"
    BYTES = "room"
    FILES = "files"


class Use(msgspec.Struct):
    """What a piece of work has on the disk. Both are UNBOUNDED when that cannot be measured."""

    bytes: int = 0
    entries: int = 0

    def add(self, about: os.stat_result) -> None:
        self.bytes += about.st_blocks * _BLOCK

    def excess(self, lack: DiskShortage, aside: int) -> int:
        """How much more it has of what is lacking than it should, with so many bytes set aside."""
        return self.bytes - aside if lack is DiskShortage.BYTES else self.entries - FILES_FEW

    def is_beyond(self, most: int) -> bool:
        """Whether these are more bytes, or more files than anyone may have."""
        return self.bytes > most or self.entries > ENTRIES_MAX


def use(folder: Path, processes: Iterable[int], enough: int = UNBOUNDED) -> Use:
    """What the work of this attempt has on the disk; no more is counted beyond `enough` bytes.

    A tree that cannot be measured, since it is too deep or too large, counts as too much.
    """
    found = Use()
    waiting = [str(folder / name) for name in FOLDERS]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    found.entries += 1
                    # What the work removes meanwhile needs no room any more.
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
    """Add the files without a name that these processes keep on the disk."""
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
            # Only this is told without asking the file system, which the work may have mounted.
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
    """What a process has open, and what it has mapped that has no name any more."""
    is_mapped = False
    for thread in _tables(pid):
        with suppress(OSError), os.scandir(f"/proc/{thread}/fd") as entries:
            for entry in entries:
                yield entry.path
        # All threads have the same memory, but one that has ended shows none.
        with suppress(OSError), open(f"/proc/{thread}/maps", "rb") as maps:
            for line in maps if not is_mapped else ():
                is_mapped = True
                if found := _MAPPED.fullmatch(line):
                    at, end = int(found[1], 16), int(found[2], 16)
                    yield f"/proc/{thread}/map_files/{at:x}-{end:x}"


def _tables(pid: int) -> list[int]:
    """Threads of a process, so that each of its tables of open files is one's.

    The first thread may have ended, and any may have left the others' table. Honest work has no
    more than these two; what has many is looked at more often than it needs.
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
    """Whether two threads have one table of open files. Where the kernel does not
    tell, that of the first one is all that is seen.
    """
    words = (thread, other, _KCMP_FILES, 0, 0)
    order: int = _libc.syscall(ctypes.c_long(_SYS_KCMP), *map(ctypes.c_long, words))
    return order <= 0


def lack(path: Path) -> DiskShortage:
    """What there is little left of in the file system below this; nothing if it cannot tell."""
    try:
        about = os.statvfs(path)
    except OSError:
        return DiskShortage.NOTHING
    size = about.f_blocks * about.f_frsize
    if about.f_bavail * about.f_frsize < min(LOW_BYTES, int(size * LOW_SHARE)):
        return DiskShortage.BYTES
    # Some file systems have no fixed number of files, and say 0.
    return (
        DiskShortage.FILES if about.f_favail < about.f_files * LOW_SHARE else DiskShortage.NOTHING
    )


def give_back(fd: int) -> None:
    """Remove what ended work has left in the open directory of its attempt, but not its logs."""
    for name in FOLDERS:
        with suppress(FileNotFoundError):
            safe_paths.remove(name, fd)


def give_back_before(attempts: AttemptFolders, present: Attempt) -> None:
    """Remove what the earlier attempts of a replica have left: only their logs are of use."""
    for number in attempts.numbers(present.uid):
        earlier = Attempt(present.uid, number)
        if number < present.number and not attempts.look(earlier).is_alive:
            with attempts.of(earlier) as fd:
                give_back(fd)
