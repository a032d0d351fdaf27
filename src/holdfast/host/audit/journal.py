"""A server's own part of the audit chain: appended to, synced, rotated, and removed when old.

The audit writer's shell (`keeping.py`) calls it from one thread; every call blocks until the disk
has it. Only what the store's head names counts as written. Lines after it that a crash left are
written again after the restart and found to be the same. If they are not, as after a restore of an
older store, they are set aside under another name and never deleted, for they are evidence too.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.host.audit.segments import Segment, lines_of, path_of, segments
from holdfast.host.audit.thinning import Shares
from holdfast.host.process.files import PRIVATE_FILE, private_directory
from holdfast.model.audit.audit_records import AuditRecord, Head, record_of
from holdfast.model.time import DAY_MS
from holdfast.store.folder_sync import sync_folder

_log = logging.getLogger(__name__)


class JournalLimits(msgspec.Struct, frozen=True):
    """How large a file grows, and how long files are kept: whichever limit is reached first."""

    segment_bytes: int = 64 << 20
    segment_age_ms: int = DAY_MS
    keep_bytes: int = 1 << 30
    keep_ms: int = 90 * DAY_MS
    # The most that may wait for the export: an unreachable target must not fill the disk.
    unsent_bytes: int = 1 << 30


DEFAULT_LIMITS = JournalLimits()


class JournalRetention(msgspec.Struct, frozen=True):
    """What a journal keeps: all records from `floor` on; up to `thinned` not all of them."""

    floor: int = 1
    thinned: int = 0


class Journal:
    """See the module's docstring. Raises OSError."""

    def __init__(
        self,
        folder: Path,
        limits: JournalLimits = DEFAULT_LIMITS,
        exported: Callable[[], int] | None = None,
        *,
        drops_unsent: bool = False,
    ) -> None:
        """`exported` returns the last exported record; later ones are not removed.

        When too much waits for the export, nothing more is appended; with `drops_unsent` the oldest
        records are removed unsent instead.
        """
        self._folder, self._limits, self._exported = folder, limits, exported
        self._drops_unsent = drops_unsent
        self._file: int | None = None
        self._path = folder
        self._size = 0
        self._begun_ms = 0
        self._shares = Shares()
        # Up to which record the store knows of thinning.
        self._told = 0
        # Lines that are in the file already, after what the head names.
        self._tail: deque[bytes] = deque()
        # A file whose sync failed is not written any more: its contents on disk are unknown.
        self._distrusted: Path | None = None

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
        self._tail.clear()

    def resume(self, head: Head, cut: int | None = None) -> None:
        """Prepare to continue after this head; first apply `cut` if it is given."""
        self.close()
        private_directory(self._folder)
        if cut is not None:
            self.cut(cut, head)
        last = self._last()
        place = _place_after(last, head) if last is not None else None
        if last is not None and place is not None:
            self._open(last)
            self._size, self._tail = place[0], deque(place[1])

    def append(self, lines: Sequence[bytes]) -> JournalRetention:
        """Write lines to the disk. Return what is kept from now on."""
        rest = self._without_known(lines)
        if rest:
            self._demand_room()
            self._rotate(record_of(rest[0]).number)
            self._write(b"".join(line + b"\n" for line in rest))
        if self._file is not None:
            self._sync(self._file)
        return self._kept()

    def prune(self, floor: int, thinned: int = 0) -> None:
        """Remove the files that end before this record, and thin out those that end before
        another one; never the last file.
        """
        found = segments(self._folder)
        for segment, following in pairwise(found):
            if following.first <= floor:
                segment.path.unlink(missing_ok=True)
                self._shares.forget(segment.path)
        self._told = max(self._told, thinned)
        if thinned:
            self._shares.thin(segments(self._folder), self._limits.keep_bytes, thinned)

    def cut(self, last: int, head: Head | None = None) -> None:
        """Set aside all records after this one: another server continued from there.

        Records after the head stay: they belong to the present turn.
        """
        self.close()
        for segment in reversed(_before(segments(self._folder), head)):
            lines = list(lines_of(segment.path))
            kept = [line for line in lines if (it := _read(line)) is None or it.number <= last]
            if len(kept) == len(lines):
                return
            self._keep_aside(lines[len(kept) :])
            if kept:
                os.truncate(segment.path, sum(len(line) + 1 for line in kept))
            else:
                segment.path.unlink()
            sync_folder(self._folder)

    # Writing -------------------------------------------------------------------------------------

    def _last(self) -> Path | None:
        """Return the file to continue, if there is one."""
        for segment in reversed(segments(self._folder)):
            if segment.path == self._distrusted:
                return None
            _mend(segment.path)
            if segment.path.stat().st_size:
                return segment.path
            # A crash came between its creation and its first line.
            segment.path.unlink()
        return None

    def _without_known(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        known = 0
        while known < len(lines) and self._tail and self._tail[0] == lines[known]:
            self._size += len(self._tail.popleft()) + 1
            known += 1
        if known < len(lines) and self._tail:
            self._set_aside()
        return lines[known:]

    def _set_aside(self) -> None:
        """Move lines that the store does not know beside the chain, and continue without them."""
        self._keep_aside(list(self._tail))
        self._tail.clear()
        if self._file is not None:
            os.ftruncate(self._file, self._size)

    def _keep_aside(self, lines: Sequence[bytes]) -> None:
        first, number = record_of(lines[0]).number, 0
        while (aside := self._folder / f"aside-{first:016d}-{number}.jsonl").exists():
            number += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(aside, flags, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"".join(line + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._folder)

    def _rotate(self, number: int) -> None:
        """Start a new file if there is none, or if the last one is large or old enough."""
        if self._file is not None:
            age_ms = _now_ms() - self._begun_ms
            is_full = self._size >= self._limits.segment_bytes
            if not self._size or not (is_full or age_ms >= self._limits.segment_age_ms):
                return
            self.close()
        path = path_of(self._folder, number)
        if path.exists():
            # The store does not know its first record, or the file would have been continued.
            path.rename(path.with_name(f"aside-{path.name}-{_now_ms()}"))
        self._open(path)
        self._size = 0
        sync_folder(self._folder)

    def _open(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(path, flags, PRIVATE_FILE)
        self._path, self._begun_ms = path, _begun_ms(path)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            # Usually a full disk. What was written of it does not count.
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _sync(self, file: int) -> None:
        try:
            os.fsync(file)
        except OSError:
            self._distrusted = self._path
            self.close()
            raise

    # Removing ------------------------------------------------------------------------------------

    def _kept(self) -> JournalRetention:
        """Return what is neither too old nor too much.

        If it is too much, records of tenants above their share are removed first; whole files are
        removed only if that is not enough.
        """
        found = segments(self._folder)
        sizes = [segment.path.stat().st_size for segment in found]
        total, floor, oldest_ms = sum(sizes), 1, _now_ms() - self._limits.keep_ms
        most, thinned = self._limits.keep_bytes, 0
        if total > most:
            thinned, spared = self._shares.to_thin(found, most, total - most)
            total -= spared
            if 0 < thinned <= self._told:
                # The store knows already: a crash or a full disk came before it was done.
                self._shares.thin(found, most, thinned)
        for (segment, following), size in zip(pairwise(found), sizes, strict=False):
            if total <= most and _changed_ms(segment) >= oldest_ms:
                break
            total -= size
            floor = following.first
        if self._exported is None:
            return JournalRetention(floor, thinned)
        sent = self._exported()
        if self._drops_unsent and self._unsent(sent) > self._limits.unsent_bytes:
            if floor > sent + 1:
                _log.warning("audit records %d to %d are removed unexported", sent + 1, floor - 1)
            return JournalRetention(floor, thinned)
        return JournalRetention(min(floor, sent + 1), min(thinned, sent))

    def _demand_room(self) -> None:
        """Raise OSError if too much waits for the export already."""
        if self._exported is None or self._drops_unsent:
            return
        unsent = self._unsent(self._exported())
        if unsent > self._limits.unsent_bytes:
            why = f"{unsent >> 20} MiB wait for --audit-export, whose target does not accept them"
            raise OSError(errno.EDQUOT, why)

    def _unsent(self, sent: int) -> int:
        """Return how many bytes wait to be sent, by whole files. A partly sent file does not count
        while it is written to.
        """
        found = segments(self._folder)
        waiting = [it for it, after in pairwise(found) if after.first > sent + 1]
        waiting += [it for it in found[-1:] if it.first > sent]
        return sum(it.path.stat().st_size for it in waiting)


def _place_after(path: Path, head: Head) -> tuple[int, list[bytes]] | None:
    """Return where the head's record ends in this file, and the lines after it, or None."""
    place, lines = 0, lines_of(path)
    for line in lines:
        record = _read(line)
        if record is None:
            return None
        if not place and (record.number, record.previous) == (head.number + 1, head.hash):
            return 0, [line, *lines]
        place += len(line) + 1
        if record.number == head.number:
            return (place, list(lines)) if record.hash == head.hash else None
    return None


def _before(found: list[Segment], head: Head | None) -> list[Segment]:
    """Return the files before the one that continues after the head, if there is one."""
    for place, segment in enumerate(found):
        if head is not None and segment.first == head.number + 1:
            line = next(iter(lines_of(segment.path)), b"")
            record = _read(line)
            if record is not None and record.previous == head.hash:
                return found[:place]
    return found


def _read(line: bytes) -> AuditRecord | None:
    try:
        return record_of(line)
    except msgspec.DecodeError:
        return None


def _mend(path: Path) -> None:
    """Cut off an incomplete line that a crash left."""
    with path.open("rb+") as file:
        size = whole = file.seek(0, os.SEEK_END)
        while whole > 0:
            begin = max(0, whole - 65_536)
            file.seek(begin)
            at = file.read(whole - begin).rfind(b"\n")
            if at >= 0:
                whole = begin + at + 1
                break
            whole = begin
        if whole < size:
            file.truncate(whole)


def _begun_ms(path: Path) -> int:
    """Return when the first record of a file was decided; now if it has none."""
    first = next(iter(lines_of(path)), None)
    record = _read(first) if first is not None else None
    return record.at if record is not None else _now_ms()


def _changed_ms(segment: Segment) -> int:
    return segment.path.stat().st_mtime_ns // 1_000_000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
