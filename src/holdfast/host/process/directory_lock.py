"""Who holds an agent's directory: one process at a time, and which directory it is.

`components.agent` takes it before anything else. Two agents over one directory would both believe
that its work is theirs alone; two directories under one node's name would each start what the other
one runs. The first is refused here, by a lock that the kernel frees with its holder; the second by
the servers, to whom a directory is known by the name that it was given when it was new.
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
    """A directory that this process has for itself until `let_go`, and its `installation`."""

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
            self.let_go()
            raise

    def _take(self, folder: Path, node: str) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip() or "unknown"
            raise Conflict(
                f"another agent (process {holder}) runs on {folder}; stop it first, or give node "
                f"{node} and the other one a name and a --data of their own"
            ) from None
        try:
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        except OSError:
            # A full disk keeps nobody from holding what is locked; only the sentence above suffers.
            return

    def let_go(self) -> None:
        """Let another process have it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _installation(folder: Path, lock: int) -> str:
    """The name that the directory was given when it was new.

    Beside it stands where that was. A copy, on another machine or on this one, is another directory
    and gets another name: what the first one runs, this one cannot speak for. It stands in a file
    of its own, so that the version before this one still reads the name.
    """
    path = folder / INSTALLATION
    try:
        name, here, place = _text(path), _place(lock), _text(folder / PLACE)
        if name and not _NAME.fullmatch(name):
            raise Invalid(f"{path}: {name[:40]!r}: must be 32 digits of a hexadecimal number")
        if not name or place not in ("", here):
            name = secrets.token_hex(16)
            write_private(path, f"{name}\n".encode())
        if place != here:
            # After the name: until then a copy is still known as one.
            write_private(folder / PLACE, f"{here}\n".encode())
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"{path} cannot be used: {error}") from error
    return name


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _place(lock: int) -> str:
    """This machine and the file that is locked, which is made once and never replaced."""
    machine = MACHINE_ID.read_bytes().strip() if MACHINE_ID.exists() else b""
    return sha256(b"%s %d" % (machine, os.fstat(lock).st_ino)).hexdigest()[:32]
