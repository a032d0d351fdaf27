"""A disk that remembers what was written, and what may be left of it when the power fails.

`RecordingVfs` lets SQLite work on real files and notes every write, truncation, sync, creation and
deletion. `Disk` replays the notes up to any point and then makes up a state that a power failure
at that point may leave: what was synced is there; of what was not, each 512-byte sector may be in
any of the versions written since, in any combination, so that writes are lost, torn and reordered.

The rules of the disk are those that SQLite asks for on Linux: a sync of a file makes its contents
durable; the first sync of a new log or journal also syncs the folder, and with it creations and
deletions; a write harms no byte outside its range.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Write:
    file: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: str
    size: int


@dataclass(frozen=True, slots=True)
class Find:
    """The file was there, synced, before the recording began."""

    file: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Create:
    file: str


@dataclass(frozen=True, slots=True)
class Delete:
    file: str
    is_synced: bool


@dataclass(frozen=True, slots=True)
class Sync:
    file: str


Operation = Write | Truncate | Find | Create | Delete | Sync


class RecordingVfs(apsw.VFS):
    """Passes everything on and notes what changes a disk."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trace: list[Operation] = []
        self._known: set[str] = set()
        # Called before each operation; what it raises, SQLite sees as an I/O error.
        self.before: Callable[[Operation], None] = lambda _: None
        super().__init__(name, "")

    def note(self, operation: Operation) -> None:
        self.before(operation)
        self.trace.append(operation)

    def xOpen(  # noqa: N802 - SQLite's own names, here and below.
        self, name: Any, flags: list[int]
    ) -> apsw.VFSFile:
        path = Path(name if isinstance(name, str) else name.filename())
        if not path.exists():
            self.note(Create(path.name))
        elif path.name not in self._known:
            self.note(Find(path.name, path.read_bytes()))
        self._known.add(path.name)
        return _RecordingFile(self, path.name, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.note(Delete(Path(filename).name, bool(syncdir)))
        super().xDelete(filename, syncdir)


class _RecordingFile(apsw.VFSFile):
    def __init__(self, vfs: RecordingVfs, file: str, name: Any, flags: list[int]) -> None:
        self._vfs = vfs
        self._file = file
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._vfs.note(Write(self._file, offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._vfs.note(Truncate(self._file, newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._vfs.note(Sync(self._file))
        super().xSync(flags)


@dataclass(slots=True)
class _File:
    """What a file certainly holds, and what was done to it since it was last synced."""

    durable: bytes = b""
    pending: list[Write | Truncate] = field(default_factory=list)


Image = dict[str, bytes]
# The ways in which a power failure treats what was not synced.
WAYS = ("kept", "lost", "prefix", "torn prefix", "some", "sectors")


class Disk:
    """Files as a power failure may leave them."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        # Names in the folder that are certainly there; those whose fate is open are in both.
        self._durable_names: set[str] = set()
        self._deleted: dict[str, _File] = {}

    def apply(self, operation: Operation) -> None:
        name = operation.file
        match operation:
            case Find(content=content):
                self._files[name] = _File(content)
                self._durable_names.add(name)
            case Create():
                self._files[name] = _File()
            case Delete(is_synced=is_synced):
                self._deleted[name] = self._files.pop(name)
                if is_synced:
                    self._sync_folder()
            case Sync():
                file = self._files[name]
                file.durable = _applied(file.durable, file.pending)
                file.pending = []
                if name not in self._durable_names:
                    self._sync_folder()
            case _:
                self._files[name].pending.append(operation)

    def _sync_folder(self) -> None:
        self._durable_names = set(self._files)
        self._deleted.clear()

    def open_choices(self) -> int:
        """How many operations a power failure now would decide about."""
        return sum(len(f.pending) for f in self._files.values()) + len(self._deleted)

    def after_failure(self, way: str, rng: random.Random) -> Image:
        """A state that a power failure at this point may leave."""
        image: Image = {}
        for name, file in self._files.items():
            is_certain = name in self._durable_names or way == "kept"
            if is_certain or (way != "lost" and rng.random() < 0.5):
                image[name] = _left_of(file, way, rng)
        for name, file in self._deleted.items():
            # A deletion that was not synced may not have happened.
            if name in self._durable_names and name not in image and way != "kept":
                image[name] = _left_of(file, way, rng)
        return image


def _left_of(file: _File, way: str, rng: random.Random) -> bytes:
    pending = file.pending
    match way:
        case "kept":
            return _applied(file.durable, pending)
        case "lost":
            return file.durable
        case "prefix":
            return _applied(file.durable, pending[: rng.randint(0, len(pending))])
        case "torn prefix":
            return _torn(file, rng)
        case "some":
            share = rng.random()
            return _applied(file.durable, [op for op in pending if rng.random() < share])
        case "sectors":
            return _any_sectors(file, rng)
        case _:
            raise ValueError(way)


def _applied(content: bytes, operations: list[Write | Truncate]) -> bytes:
    if not operations:
        return content
    image = bytearray(content)
    for operation in operations:
        _apply(image, operation)
    return bytes(image)


def _apply(image: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        del image[operation.size :]
        return
    end = operation.offset + len(operation.data)
    if len(image) < end:
        # What lies between the old end and a later write reads as zeros.
        image.extend(bytes(end - len(image)))
    image[operation.offset : end] = operation.data


def _torn(file: _File, rng: random.Random) -> bytes:
    """Everything up to some write, and of that write only some sectors."""
    count = rng.randint(0, len(file.pending))
    image = bytearray(_applied(file.durable, file.pending[:count]))
    if count < len(file.pending):
        last = file.pending[count]
        if isinstance(last, Write):
            for piece in _sectors(last):
                if rng.random() < 0.5:
                    _apply(image, piece)
    return bytes(image)


def _any_sectors(file: _File, rng: random.Random) -> bytes:
    """Each sector in any version that it had since the last sync, the length in any as well."""
    lengths = [len(file.durable)]
    # For each sector, the pieces written to it one upon the other.
    versions: dict[int, list[Write]] = {}
    length = lengths[0]
    for operation in file.pending:
        if isinstance(operation, Truncate):
            length = min(length, operation.size)
        else:
            length = max(length, operation.offset + len(operation.data))
            for piece in _sectors(operation):
                versions.setdefault(piece.offset // SECTOR_BYTES, []).append(piece)
        lengths.append(length)
    image = bytearray(file.durable)
    share = rng.random()
    for pieces in versions.values():
        # Mostly a whole history is kept or lost; sometimes it stops in the middle.
        kept = len(pieces) if rng.random() < share else rng.randint(0, len(pieces) - 1)
        for piece in pieces[:kept]:
            _apply(image, piece)
    # A file's length may be older than its contents, but not shorter than what was synced unless
    # it was truncated.
    size = max(rng.choice(lengths), min(lengths))
    image.extend(bytes(max(0, size - len(image))))
    return bytes(image[:size])


def _sectors(write: Write) -> list[Write]:
    """The write cut at sector boundaries."""
    pieces = []
    start, end = write.offset, write.offset + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        data = write.data[start - write.offset : stop - write.offset]
        pieces.append(Write(write.file, start, data))
        start = stop
    return pieces
