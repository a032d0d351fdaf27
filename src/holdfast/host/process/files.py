"""Files that are complete or absent, and that no other user may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import quote, unquote

from holdfast.model.errors import Invalid, invariant
from holdfast.store.folder_sync import sync_folder

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
OTHERS = 0o077
_DRAFT_BEGIN, _DRAFT_END = ".", ".new"


def private_directory(path: Path) -> Path:
    """Return a directory for this user alone; create it if needed.

    An existing empty directory of this user is closed to others. One that others may enter and that
    holds something is refused: changing its mode could lock its other users out.
    """
    path.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    found = path.stat()
    if not stat.S_IMODE(found.st_mode) & OTHERS:
        return path
    if found.st_uid == os.geteuid() and not any(path.iterdir()):
        path.chmod(PRIVATE_DIRECTORY)
        return path
    raise Invalid(
        f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):03o}) and would hold "
        f"keys and Secrets: run `chmod 700 {path}` if only Holdfast uses it, or name another one"
    )


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only this user may read. After a crash it is the old or the new one."""
    draft = path.with_name(f"{_DRAFT_BEGIN}{path.name}{_DRAFT_END}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        # The mode above applies only to a new file; a left-over draft may have another.
        os.fchmod(file.fileno(), PRIVATE_FILE)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_folder(path.parent)


def is_draft(path: Path) -> bool:
    """Return whether this is an incomplete file that a crash left."""
    return path.name.startswith(_DRAFT_BEGIN) and path.name.endswith(_DRAFT_END)


def remove(path: Path) -> None:
    """Remove a file durably, if it exists."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


# What a machine stores on its own disk through `Persist`: one small file for each key.
#
# A value is written under another name, synced, renamed over the old one, and the directory is
# synced as well (`write_private`). So after a crash at any moment there is the old value or the new
# one, never a part of it, and an acknowledged value survives a power cut.

_VALUE = ".value"
# The usual limit of file systems on one name is 255 bytes; a draft's name is a little longer.
_NAME_BYTES_MAX = 245


class PersistedFiles:
    """One directory. Every call blocks until the disk has it; the shell calls from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> dict[str, bytes]:
        """Return all stored values. Incomplete files that a crash left are removed."""
        private_directory(self._folder)
        found = {}
        for path in sorted(self._folder.iterdir()):
            if is_draft(path):
                path.unlink()
            elif path.name.endswith(_VALUE):
                found[unquote(path.name.removesuffix(_VALUE))] = path.read_bytes()
        return found

    def put(self, key: str, value: bytes | None) -> None:
        """Store a value, or remove it. An error here must stop the machine."""
        name = quote(key, safe="")
        fits = len(name) + len(_VALUE) <= _NAME_BYTES_MAX
        invariant(name and fits, f"not a key to persist: {key!r}")
        path = self._folder / (name + _VALUE)
        if value is None:
            remove(path)
        else:
            write_private(path, value)
