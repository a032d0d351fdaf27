"""The files of an embedded store: which process holds them, and whether they may be opened.

Nothing here writes to the database. A file that is not ours, is newer than this program or is
damaged is left unchanged, byte for byte, so that a program that can read it still can.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from holdfast.model.errors import Unavailable

# "HFST". SQLite keeps it at byte 68 of the file, the format at byte 60, both big-endian.
APPLICATION_ID = 0x48465354
CORRUPT = "StoreCorrupt"
_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
# A store holds Secrets and the hashes of tokens.
_PRIVATE = 0o600


def wal_of(path: Path) -> Path:
    """The write-ahead log that SQLite keeps beside a database."""
    return path.with_name(path.name + "-wal")


def shm_of(path: Path) -> Path:
    """SQLite's shared index of the write-ahead log; rebuilt whenever it is missing."""
    return path.with_name(path.name + "-shm")


def draft_of_restore(path: Path) -> Path:
    """The draft of a restored file. While it exists, the store does not open."""
    return path.with_name(path.name + ".restoring")


def make_private(path: Path) -> None:
    """Make an empty file that only this user may read, for SQLite to fill; its log gets that mode.

    An existing file keeps its contents and loses the rights of others. It is not opened: closing a
    descriptor of it would drop the locks that SQLite holds for this process.
    """
    if not path.exists():
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
    for file in (path, wal_of(path), shm_of(path)):
        with suppress(FileNotFoundError):
            file.chmod(_PRIVATE)


class FileLock:
    """Holds a store's file for one process.

    SQLite would let two processes write in turn, but each keeps an index in memory that knows
    nothing of the other's writes. The lock is a file of its own: closing any descriptor of the
    database itself would drop SQLite's own locks. The kernel releases it when the process dies.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        self._fd = -1

    def acquire(self) -> None:
        store = self._path.with_suffix("")
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        except OSError as error:
            raise Unavailable(f"cannot open a store at {store}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise Unavailable(
                f"{store} is in use by {who}: stop that process first, or use another file",
                code="StoreLocked",
            ) from None
        except OSError as error:
            os.close(fd)
            raise Unavailable(f"cannot open a store at {store}: {error.strerror}") from None
        self._fd = fd

    def release(self) -> None:
        # The file stays: removing it while another process waits for it would let two in.
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_header(path: Path, *, format_newest: int) -> bool:
    """Refuse a file that is not a store of ours, before SQLite opens it.

    Returns False when the file is missing or empty, and so may become a new store.
    """
    draft = draft_of_restore(path)
    if draft.exists():
        raise Unavailable(
            f"a restore of {path} was interrupted, as {draft.name} shows: run it again",
            code="StoreRestoring",
        )
    header = b""
    if path.exists():
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    if not header:
        wal = wal_of(path)
        if wal.exists() and wal.stat().st_size > 0:
            # SQLite would delete the log, and with it the last trace of the data.
            raise corrupt(path, f"it is missing or empty, but its log {wal.name} is not")
        return False
    if not header.startswith(_MAGIC) or len(header) < _HEADER_BYTES:
        raise Unavailable(
            f"{path} is not a Holdfast store: it is not an SQLite file. It was left unchanged.",
            code="NotAStore",
        )
    application_id = int.from_bytes(header[68:72], "big")
    found = int.from_bytes(header[60:64], "big")
    check_format(path, application_id, found, format_newest=format_newest)
    return True


def check_format(path: Path, application_id: int, found: int, *, format_newest: int) -> None:
    """Refuse another program's file, and one that a later Holdfast wrote."""
    if application_id != APPLICATION_ID:
        raise Unavailable(
            f"{path} is not a Holdfast store: it is another program's SQLite file (application id"
            f" {application_id:#x}). It was left unchanged.",
            code="NotAStore",
        )
    if found > format_newest:
        raise Unavailable(
            f"{path} has format {found}, this Holdfast knows formats up to {format_newest}: start"
            " the version that wrote it, or a later one. The file was left unchanged.",
            code="StoreTooNew",
        )


def corrupt(path: Path, what: str) -> Unavailable:
    """A damaged file: nothing is repaired by guessing."""
    return Unavailable(
        f"{path} is damaged: {what}. It was left as it is; restore a backup, see docs/stores.md.",
        code=CORRUPT,
    )
