"""One stream of an attempt's log as a tape: its files, from the oldest on, while they rotate.

`reading` reads the two streams side by side. The shim renames `stdout` to `stdout.1` and so on at
any moment; a file is therefore known by its inode and held open, and never looked up by its name
twice. Only regular files beneath the attempt's directory are opened (`safe_paths`). At most
`FILES` + 1 are open at once, and a reader's memory does not depend on the size of the log.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from holdfast.host.runtime import safe_paths

# The records that a shim writes of its work's output, and how they are shown to people.
#
#     2026-11-16T00:29:27.123456789Z stdout F a whole line
#
# `shim_logs.c` writes them, this module finds them, `reading` merges and prints them. The head has
# a fixed width, so times compare as texts and records are sorted without parsing.

STREAMS = ("stdout", "stderr")
WHOLE, PIECE, LOST = b"F", b"P", b"L"
TIME_BYTES = 30
HEAD_BYTES = TIME_BYTES + len(" stdout F ")
# As in shim_logs.c: lines are cut at this, and a record is not longer than that and its head.
LINE_BYTES_MAX = 16 << 10
RECORD_BYTES_MAX = LINE_BYTES_MAX + HEAD_BYTES + 1
# Where a record begins in a file, with its time and its kind.
HEADS = re.compile(
    rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) std(?:out|err) ([FPL]) ", re.MULTILINE
)
# Shown to a follower when files that it had not read yet are gone.
SKIPPED = b"[holdfast: some output was removed here before it could be read]"


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of a log.

    time: as recorded, and never earlier than that of the record before it in its stream.
        Clocks may be set back; the order of a stream is that of its file.
    stream: 0 for standard output, 1 for standard error.
    """

    time: bytes
    stream: int
    kind: bytes
    text: bytes


def parse(line: bytes, stream: int, after: bytes) -> LogRecord:
    """The record in a line without its end. A line that no shim wrote is shown unchanged."""
    head = HEADS.match(line)
    if head is None:
        return LogRecord(after, stream, WHOLE, line[: RECORD_BYTES_MAX * 4])
    return LogRecord(max(head[1], after), stream, head[2], line[head.end() :])


def moment(at: datetime) -> bytes:
    """A time in the form of records."""
    text = at.astimezone(UTC).isoformat(timespec="microseconds")
    return text[: len("2026-11-16T00:29:27.123456")].encode() + b"000Z"


class LogPrinter:
    """Turns records into text for people. Lines of two streams are never mixed."""

    def __init__(self, *, has_times: bool) -> None:
        self._has_times = has_times
        # The stream whose line has not ended yet.
        self._open: int | None = None

    def text(self, of: LogRecord) -> bytes:
        """The text that this record adds."""
        gap = b""
        if self._open is not None and (self._open != of.stream or of.kind == LOST):
            gap, self._open = b"\n", None
        begins = self._open is None
        self._open = of.stream if of.kind == PIECE else None
        text = of.text
        if of.kind == LOST:
            text = b"[holdfast: " + of.text + b" bytes were lost here: they could not be written]"
        head = of.time + b" " if begins and self._has_times else b""
        return gap + head + text + (b"" if of.kind == PIECE else b"\n")


# As shim_logs.c has it.
FILES, FILE_BYTES = 3, 4 << 20
READ_BYTES = 64 << 10
# The shim rotates after megabytes; a reader that meets a rotation this often in a row stops trying
# and uses the files that it has.
SNAPSHOT_TRIES_MAX = 8


class Start(msgspec.Struct, frozen=True, gc=False):
    """Where a line begins: its time, its stream and file, and its offset."""

    time: bytes
    stream: int
    file: int
    at: int


class _File:
    __slots__ = ("at", "fd", "inode")

    def __init__(self, fd: int) -> None:
        self.fd, self.at = fd, 0
        about = os.fstat(fd)
        self.inode = (about.st_dev, about.st_ino)

    def read(self) -> bytes:
        piece = os.pread(self.fd, READ_BYTES, self.at)
        self.at += len(piece)
        return piece

    def close(self) -> None:
        os.close(self.fd)


class Tape:
    """One stream of a log. It uses the attempt's open directory as long as it lives."""

    def __init__(self, folder: int, stream: int, *, follows: bool) -> None:
        """Raises OSError for what is no file of a shim's."""
        self._folder, self._stream, self._follows = folder, stream, follows
        self._name = STREAMS[stream]
        self._files = deque(self._snapshot())
        self._rest = b""
        self._time = b""

    def close(self) -> None:
        """Let go of the files."""
        while self._files:
            self._files.popleft().close()

    def starts(self) -> Iterator[Start]:
        """Where its lines begin, the last one first. Reads lazily."""
        for number in reversed(range(len(self._files))):
            for time, at in _starts(self._files[number].fd):
                yield Start(time, self._stream, number, at)

    def begin(self, start: Start | None) -> None:
        """Begin with this line; None means at the current end."""
        skipped = start.file if start is not None else max(0, len(self._files) - 1)
        for _ in range(skipped):
            self._files.popleft().close()
        if self._files:
            first = self._files[0]
            first.at = start.at if start is not None else os.fstat(first.fd).st_size

    def records(self) -> Iterator[LogRecord]:
        """All records available now, from where the last call ended."""
        while self._files or self._go_on():
            piece = self._files[0].read()
            if piece:
                *lines, self._rest = (self._rest + piece).split(b"\n")
                if len(self._rest) > 4 * RECORD_BYTES_MAX:
                    # No shim writes such a line. It must not grow in memory for ever.
                    lines, self._rest = [*lines, self._rest], b""
                for line in lines:
                    yield self._record(line)
            elif len(self._files) > 1:
                # A newer file is being written, so this one is complete. Half a record at its end
                # is one that the disk did not accept.
                self._files.popleft().close()
                self._rest = b""
            elif not self._go_on():
                return

    def _record(self, line: bytes) -> LogRecord:
        made = parse(line, self._stream, self._time)
        self._time = made.time
        return made

    def _go_on(self) -> bool:
        """Open the files after the last one. Returns whether there are any."""
        if not self._follows:
            return False
        try:
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            # It is being rotated, or the attempt is being removed.
            return False
        last = self._files[-1].inode if self._files else None
        if (about.st_dev, about.st_ino) == last:
            return False
        fresh = self._snapshot()
        known = [number for number, file in enumerate(fresh) if file.inode == last]
        if last is not None and not known:
            self._files.append(_note(self._time, self._name))
        for file in fresh[: known[0] + 1] if known else ():
            file.close()
        self._files.extend(fresh[known[0] + 1 :] if known else fresh)
        return len(self._files) > (0 if last is None else 1)

    def _snapshot(self) -> list[_File]:
        """The files of one moment, the oldest first."""
        for _ in range(SNAPSHOT_TRIES_MAX):
            found = self._opened()
            try:
                now = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            except FileNotFoundError:
                return found
            if found and found[-1].inode == (now.st_dev, now.st_ino):
                return found
            for file in found:
                file.close()
        return self._opened()

    def _opened(self) -> list[_File]:
        # From the newest on: a file renamed meanwhile is seen twice instead of being missed.
        found: dict[tuple[int, int], _File] = {}
        for name in (self._name, *(f"{self._name}.{age}" for age in range(1, FILES))):
            try:
                file = _File(safe_paths.regular(name, self._folder))
            except FileNotFoundError:
                continue
            except BaseException:
                for other in found.values():
                    other.close()
                raise
            if found.setdefault(file.inode, file) is not file:
                file.close()
        return list(found.values())[::-1]


def _note(time: bytes, name: str) -> _File:
    """A file with a note, in place of files that were removed before they were read."""
    fd = os.memfd_create("holdfast-skipped", os.MFD_CLOEXEC)
    head = time + f" {name} ".encode() + WHOLE + b" " if time else b""
    os.write(fd, head + SKIPPED + b"\n")
    return _File(fd)


def _starts(fd: int) -> Iterator[tuple[bytes, int]]:
    """The times and offsets of the lines of a file, the last one first.

    Goes back through the last megabytes of it block by block. A list of all lines would take
    several times the memory of the file, for each of many readers.
    """
    size = os.fstat(fd).st_size
    floor = max(0, size - FILE_BYTES)
    later: tuple[bytes, bytes, int] | None = None
    for begin in reversed(range(floor, size, READ_BYTES)):
        # One byte more before the block, which tells whether it begins with a line.
        before = min(begin, 1)
        end = min(size, begin + READ_BYTES + HEAD_BYTES)
        data = os.pread(fd, end - begin + before, begin - before)
        found = [
            (head[1], head[2], begin - before + head.start())
            for head in HEADS.finditer(data, before)
            if head.start() < before + READ_BYTES
        ]
        for earlier in reversed(found):
            # What follows a piece goes on with the same line.
            if later is not None and (earlier[1] != PIECE or later[1] == LOST):
                yield later[0], later[2]
            later = earlier
    if later is not None:
        yield later[0], later[2]
