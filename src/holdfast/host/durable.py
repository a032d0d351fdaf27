"""What a machine keeps on its own disk through `Persist`: one small file for each key.

A value is written under another name, synced, renamed over the old one, and the directory is
synced as well. So a crash at any moment leaves the old value or the new one, never a part of it,
and what was acknowledged is still there after a power cut.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

from holdfast.model.errors import invariant

_VALUE = ".value"
_PART = ".part"
# The usual limit of file systems on one name.
_NAME_BYTES_MAX = 255


class Durable:
    """One directory. Every call blocks until the disk has it; the shell calls from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> dict[str, bytes]:
        """All values of earlier lives. What a crash left half written is cleared away."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = {}
        for path in sorted(self._folder.iterdir()):
            if path.name.endswith(_VALUE):
                found[unquote(path.name.removesuffix(_VALUE))] = path.read_bytes()
            elif path.name.endswith(_PART):
                path.unlink()
        return found

    def put(self, key: str, value: bytes | None) -> None:
        """Keep a value, or remove it. An error here must stop the machine: it cannot go on."""
        name = quote(key, safe="")
        fits = len(name) + len(_VALUE) <= _NAME_BYTES_MAX
        invariant(name and fits, f"not a key to persist: {key!r}")
        path = self._folder / (name + _VALUE)
        if value is None:
            path.unlink(missing_ok=True)
        else:
            part = self._folder / (name + _PART)
            _write(part, value)
            part.rename(path)
        _sync_folder(self._folder)


def _write(path: Path, value: bytes) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(value)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
