"""The records that a shim writes of what its work says, and how they read to people.

    2026-11-16T00:29:27.123456789Z stdout F a whole line

`shim_logs.c` writes them, `log_files` finds them, `log_reading` merges and prints them. The
head has a fixed width, so that times compare as texts and nothing has to be parsed to be
sorted.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

import msgspec

STREAMS = ("stdout", "stderr")
WHOLE, PIECE, LOST = b"F", b"P", b"L"
TIME_BYTES = 30
HEAD_BYTES = TIME_BYTES + len(" stdout F ")
# As shim_logs.c has it: lines are cut at this, and a record is not longer than that and its head.
LINE_BYTES_MAX = 16 << 10
RECORD_BYTES_MAX = LINE_BYTES_MAX + HEAD_BYTES + 1
# Where a record begins in a file, with its time and its kind.
HEADS = re.compile(
    rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) std(?:out|err) ([FPL]) ", re.MULTILINE
)
# What a follower is told when the files that it had not read yet are gone.
SKIPPED = b"[holdfast: some output was removed here before it could be read]"


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record.

    time: as it stands there, and never earlier than that of the record before it in its stream.
        Clocks may be set back; the order of a stream is that of its file.
    stream: 0 for standard output, 1 for standard error.
    """

    time: bytes
    stream: int
    kind: bytes
    text: bytes


def parse(line: bytes, stream: int, after: bytes) -> Record:
    """The record of a line without its end. What no shim wrote is shown as it is."""
    head = HEADS.match(line)
    if head is None:
        return Record(after, stream, WHOLE, line[: RECORD_BYTES_MAX * 4])
    return Record(max(head[1], after), stream, head[2], line[head.end() :])


def moment(at: datetime) -> bytes:
    """A time as records have it."""
    text = at.astimezone(UTC).isoformat(timespec="microseconds")
    return text[: len("2026-11-16T00:29:27.123456")].encode() + b"000Z"


class Printer:
    """Turns records into what a person reads. Lines of two streams are never run together."""

    def __init__(self, *, has_times: bool) -> None:
        self._has_times = has_times
        # The stream whose line has not ended yet.
        self._open: int | None = None

    def text(self, of: Record) -> bytes:
        """What this record adds."""
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
