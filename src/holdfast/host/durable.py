"""What a machine keeps on its own disk through `Persist`: one small file for each key.

A value is written under another name, synced, renamed over the old one, and the directory is
synced as well (`files.write_private`). So a crash at any moment leaves the old value or the new
one, never a part of it, and what was acknowledged is still there after a power cut.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

from holdfast.host.files import is_draft, private_directory, remove, write_private
from holdfast.model.errors import invariant

_VALUE = ".value"
# The usual limit of file systems on one name is 255 bytes; a draft's name is a little longer.
_NAME_BYTES_MAX = 245


class Durable:
    """One directory. Every call blocks until the disk has it; the shell calls from a thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self) -> dict[str, bytes]:
        """All values of earlier lives. What a crash left half written is cleared away."""
        private_directory(self._folder)
        found = {}
        for path in sorted(self._folder.iterdir()):
            if is_draft(path):
                path.unlink()
            elif path.name.endswith(_VALUE):
                found[unquote(path.name.removesuffix(_VALUE))] = path.read_bytes()
        return found

    def put(self, key: str, value: bytes | None) -> None:
        """Keep a value, or remove it. An error here must stop the machine: it cannot go on."""
        name = quote(key, safe="")
        fits = len(name) + len(_VALUE) <= _NAME_BYTES_MAX
        invariant(name and fits, f"not a key to persist: {key!r}")
        path = self._folder / (name + _VALUE)
        if value is None:
            remove(path)
        else:
            write_private(path, value)
