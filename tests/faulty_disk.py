"""A disk whose syncs and writes fail, or wait, when a test says so."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw

from tests.crash_vfs import Operation, RecordingVfs, Sync, Write

_numbers = itertools.count()


class FaultyDisk:
    """Real files beneath, faults on top. Use its `name` as the VFS of a store."""

    def __init__(self) -> None:
        self.name = f"faulty-{next(_numbers)}"
        self.vfs = RecordingVfs(self.name)
        self.vfs.before = self._before
        self._is_due: Callable[[Operation], bool] = lambda _: False
        self._fault: Callable[[], None] = lambda: None
        # What was asked of the disk after the first fault.
        self.after_fault: list[Operation] = []
        self._has_failed = False

    def fail_syncs(self, file: str = "") -> None:
        """Every sync of files whose name ends so fails, as when the device reports an error."""
        self._is_due = lambda op: isinstance(op, Sync) and op.file.endswith(file)
        self._fault = lambda: _raise(apsw.IOError("sync failed"), apsw.SQLITE_IOERR_FSYNC)

    def fail_writes(self) -> None:
        """Every write fails, as on a full disk."""
        self._is_due = lambda op: isinstance(op, Write)
        self._fault = lambda: _raise(apsw.FullError("disk full"), apsw.SQLITE_FULL)

    @contextmanager
    def held_sync(self) -> Iterator[threading.Event]:
        """The next sync does not return while the block runs; the event tells that it began."""
        begun, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            self._is_due = lambda _: False
            begun.set()
            go_on.wait()

        self._is_due = lambda op: isinstance(op, Sync)
        self._fault = wait
        try:
            yield begun
        finally:
            go_on.set()

    def heal(self) -> None:
        self._is_due = lambda _: False

    def _before(self, operation: Operation) -> None:
        if self._has_failed:
            self.after_fault.append(operation)
        if self._is_due(operation):
            try:
                self._fault()
            except apsw.Error:
                self._has_failed = True
                raise


def _raise(error: Exception, code: int) -> None:
    # apsw hands SQLite the code of this attribute, which its types do not mention.
    error.__dict__["extendedresult"] = code
    raise error
