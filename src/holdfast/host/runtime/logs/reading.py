"""Reads the log of one attempt for a person: merged, from a time on, or its last lines.

Called by `host.tunnel.logs`, in threads, since it waits for the disk. `batch` returns a piece of
text at a time, so that a slow reader costs no memory: nothing is read before it is asked for.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Iterator

import msgspec

from holdfast.host.runtime.logs.log_files import STREAMS, WHOLE, LogPrinter, LogRecord, Start, Tape

BATCH_BYTES = 64 << 10
# At most this many lines are read backwards to find the first one.
TAIL_MAX = 100_000


class LogQuery(msgspec.Struct, frozen=True):
    """What to read of a log.

    tail: the number of lines at the end; None is all.
    since: only lines from this time on, in the form of a record; empty is all.
    limit_bytes: at most this many bytes; None is all.
    """

    follow: bool = False
    tail: int | None = None
    since: str = ""
    limit_bytes: int | None = None
    timestamps: bool = False
    previous: bool = False


class LogReader:
    """The log in this open directory of an attempt, which stays open until `close`."""

    def __init__(self, folder: int, wish: LogQuery) -> None:
        """Raises OSError if the directory has no log."""
        # An abandoned reader may be in the middle of a batch; if its descriptors were closed then,
        # it could read another file.
        self._lock, self._is_closed = threading.Lock(), False
        self._folder = os.dup(folder)
        self._since = wish.since.encode()
        self._left = wish.limit_bytes
        # Lines written after the last lines were found do not belong to them, unless `follow`.
        self._lines_left = None if wish.follow or wish.tail is None else min(wish.tail, TAIL_MAX)
        self._printer = LogPrinter(has_times=wish.timestamps)
        self._tapes: list[Tape] = []
        self._merged: Iterator[LogRecord] | None = None
        try:
            for stream in range(len(STREAMS)):
                self._tapes.append(Tape(self._folder, stream, follows=wish.follow))
            if wish.tail is not None:
                self._begin_with(min(wish.tail, TAIL_MAX))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files. Waits for a thread that still reads."""
        with self._lock:
            self._is_closed = True
            for tape in self._tapes:
                tape.close()
            os.close(self._folder)

    @property
    def is_full(self) -> bool:
        """Whether as much was read as was asked for."""
        return self._left == 0 or self._lines_left == 0

    def batch(self) -> bytes:
        """The next piece of text; empty when there is nothing more now, or after `close`."""
        with self._lock:
            return b"" if self._is_closed else self._batch()

    def _batch(self) -> bytes:
        if self._merged is None:
            tapes = (tape.records() for tape in self._tapes)
            self._merged = heapq.merge(*tapes, key=lambda record: record.time)
        made = bytearray()
        while len(made) < BATCH_BYTES and not self.is_full:
            record = next(self._merged, None)
            if record is None:
                self._merged = None
                break
            if record.time >= self._since:
                self._add(made, self._printer.text(record))
            if self._lines_left is not None and record.kind == WHOLE:
                self._lines_left -= 1
        return bytes(made)

    def _add(self, made: bytearray, text: bytes) -> None:
        if self._left is not None:
            text = text[: self._left]
            self._left -= len(text)
        made += text

    def _begin_with(self, tail: int) -> None:
        """Begin each stream where its share of the last lines of both begins."""
        first: list[Start | None] = [None] * len(self._tapes)
        starts = [tape.starts() for tape in self._tapes]
        # Of two lines with the same time, `_batch` prints that of standard output first.
        latest = heapq.merge(*starts, key=lambda it: (it.time, it.stream), reverse=True)
        for found in itertools.islice(latest, tail):
            first[found.stream] = found
        for tape, start in zip(self._tapes, first, strict=True):
            tape.begin(start)
