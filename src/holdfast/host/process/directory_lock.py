"""Locks an agent's directory for one process, and identifies the directory.

`component/build` takes it before anything else. Two agents on one directory would both treat its
work as their own; two directories under one node name would each start the work of the other. The
first is refused here, by a lock that the kernel frees with its holder; the second by the servers,
which know a directory by the id that it got when it was created.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from hashlib import sha256
from pathlib import Path

from holdfast.host.process.files import PRIVATE_FILE, private_directory, write_private
from holdfast.model.errors import Conflict, Invalid, Unavailable

LOCK, INSTALLATION, PLACE = "lock", "installation", "place"
MACHINE_ID = Path("/etc/machine-id")
_NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)


class DirectoryLock:
    """A directory that this process holds until `release`, and its `installation` id."""

    def __init__(self, folder: Path, node: str) -> None:
        """Raises Conflict when another process has it, Unavailable when it cannot be used."""
        try:
            private_directory(folder)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        except OSError as error:
            raise Unavailable(f"{folder} cannot be used: {error.strerror}") from error
        try:
            self._take(folder, node)
            self.installation = _installation(folder, self._lock)
        except BaseException:
            self.release()
            raise

    def _take(self, folder: Path, node: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise Conflict(
                f"another agent (process {holder}) uses {folder}; stop it first, or give node "
                f"{node} and the other one separate names and --data directories"
            ) from None
        try:
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # A full disk does not prevent the lock; only the message above lacks the process id.
            return

    def release(self) -> None:
        """Release the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _installation(folder: Path, lock: int) -> str:
    """Return the id that the directory got when it was created.

    Its place is stored beside it. A copy, on another machine or on this one, is another directory
    and gets a new id: it does not hold the work of the original. The place is in a separate file,
    so that the previous version can still read the id.
    """
    path = folder / INSTALLATION
    try:
        name, here, place = _text(path), _place(lock), _text(folder / PLACE)
        if name and not _NAME.fullmatch(name):
            raise Invalid(f"{path}: {name[:40]!r}: must be 32 hexadecimal digits")
        if not name or place not in ("", here):
            name = secrets.token_hex(16)
            write_private(path, f"{name}\n".encode())
        if place != here:
            # After the id: until then a copy is still recognized as one.
            write_private(folder / PLACE, f"{here}\n".encode())
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{path} cannot be used: {error}") from error
    return name


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _place(lock: int) -> str:
    """Return a hash of this machine and the locked file, which is never replaced."""
    machine = MACHINE_ID.read_bytes().strip() if MACHINE_ID.exists() else b""
    return sha256(b"%s %d" % (machine, os.fstat(lock).st_ino)).hexdigest()[:32]
