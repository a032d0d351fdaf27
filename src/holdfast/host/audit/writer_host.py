"""The audit writer of one server: its machine, its journal, and the status of both.

`host/server/server_process.py` runs it in a shell. The journal blocks, so one thread does all its
work; a disk that hangs delays only the audit writer, and another server writes instead.

A full disk loses nothing either: the store has who did what, committed with each change, and its
history is not compacted before it is written to the audit. Only when the bytes that wait would
harm the store itself are changes refused (`refusal`), or, if the operator has chosen so, is the
rest dropped and the gap recorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, assert_never, get_args

from holdfast.host.audit.export import AuditExporter, ExportTarget
from holdfast.host.audit.journal import DEFAULT_LIMITS, Journal, JournalLimits
from holdfast.host.audit.status_route import AuditStatus
from holdfast.host.process import clock
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Performer, Shell
from holdfast.host.server.settings import FORGET, REFUSE
from holdfast.model import keys
from holdfast.model.audit.audit_records import head_of
from holdfast.model.audit.journal_protocol import (
    Append,
    Appended,
    Cut,
    JournalEffect,
    Prune,
    Ready,
    Resume,
)
from holdfast.model.errors import Unavailable
from holdfast.model.machine import Answered
from holdfast.observe.audit_writer.audit_writer import AuditWriter
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.contract import Store

_log = logging.getLogger(__name__)
# The most of the store's history that may wait for the audit writer. etcd's default quota, at which
# it stops all writes, is 2 GiB.
WAITING_BYTES_MAX = 1 << 30


class AuditKeeper:
    """See the module's docstring. Call `attach` with its shell before that is started."""

    def __init__(
        self,
        name: str,
        folder: Path,
        history: HistoryBytes,
        *,
        when_behind: str = REFUSE,
        limits: JournalLimits = DEFAULT_LIMITS,
        export: ExportTarget | None = None,
    ) -> None:
        """`history` holds the bytes that a watch of the whole store has counted."""
        self.writer = AuditWriter(name)
        self.exporting = (
            AuditExporter(folder, export, lambda: self.writer.head) if export is not None else None
        )
        self._history = history
        self._journal = Journal(
            folder,
            limits,
            self._exported if export is not None else None,
            drops_unsent=when_behind == FORGET,
        )
        self._folder, self._when_behind = folder, when_behind
        self._thread = ThreadPoolExecutor(1, "audit")
        self._shell: Shell | None = None

    def _exported(self) -> int:
        return self.exporting.sent if self.exporting is not None else 0

    def _export_failures(self) -> int:
        return self.exporting.failures if self.exporting is not None else 0

    def attach(self, shell: Shell) -> None:
        """Set the shell that runs the audit writer."""
        self._shell = shell

    def performers(self) -> dict[type[Any], Performer]:
        """Return the performers of the audit writer's effects."""
        return dict.fromkeys(get_args(JournalEffect), self._perform)

    def _perform(self, effect: JournalEffect) -> None:
        match effect:
            case Resume():
                self._resume(effect)
            case Append():
                self._append(effect)
            case Prune(floor=floor, thinned=thinned):
                self._in_passing(lambda: self._journal.prune(floor, thinned))
            case Cut(last=last):
                self._in_passing(lambda: self._journal.cut(last))
            case _:
                assert_never(effect)

    def close(self) -> None:
        """Close the files after their queue. A disk that hangs is left behind."""
        self._thread.submit(self._journal.close)
        self._thread.shutdown(wait=False)

    # Status --------------------------------------------------------------------------------------

    def standing(self) -> AuditStatus:
        """Return the status of the audit."""
        writer = self.writer
        standstill_ms = writer.standstill_ms(clock.monotonic_ms())
        return AuditStatus(
            server=writer.name,
            head=writer.head,
            writing=writer.is_writing,
            lag=writer.lag,
            standstill_ms=standstill_ms,
            failures=writer.failures,
            error=writer.last_error,
        )

    @property
    def waiting_bytes(self) -> int:
        """Return how much of the store's history is kept because the audit is behind."""
        return self._history.since(self.writer.head.revision) if self.writer.lag else 0

    def refusal(self) -> str:
        """Return why nothing may be changed at the moment; empty while changes are possible."""
        if self._when_behind == FORGET or self.waiting_bytes <= WAITING_BYTES_MAX:
            return ""
        return (
            f"changes are refused: {self.waiting_bytes >> 20} MiB of history wait for the audit, "
            f"and no server writes it: {self.writer.last_error or 'its server is silent'}."
            " Repair its disk, or start it; see docs/audit.md"
        )

    def count(self, metrics: Metrics) -> None:
        """Add these metrics to the server's."""
        writer = self.writer
        gauge = metrics.gauge
        gauge("audit_records", "Number of the last audit record.", lambda: writer.head.number)
        gauge("audit_revision", "Revision up to which the audit is.", lambda: writer.head.revision)
        gauge("audit_lag_revisions", "Revisions not in the audit yet.", lambda: writer.lag)
        gauge("audit_lag_bytes", "History that waits for the audit.", lambda: self.waiting_bytes)
        gauge(
            "audit_standstill_seconds",
            "Since a record was last written, while some wait.",
            lambda: writer.standstill_ms(clock.monotonic_ms()) / 1_000,
        )
        gauge("audit_writing", "Whether this server writes.", lambda: float(writer.is_writing))
        gauge("audit_written", "Records that this server wrote.", lambda: writer.wrote)
        gauge("audit_failures", "Times that a write failed.", lambda: writer.failures)
        gauge("audit_exported", "Last record that was exported.", self._exported)
        gauge("audit_export_failures", "Times that an export failed.", self._export_failures)

    async def horizon(self, store: Store, upto: int) -> int:
        """Return how far history may be compacted, at most to this revision."""
        key = keys.audit_head()
        page = await store.range(key, f"{key}\0", limit=1)
        written = head_of(page.records[0].value).revision if page.records else 0
        if self._when_behind == FORGET:
            kept_from = self._history.revision_before(WAITING_BYTES_MAX)
            written = max(written, min(page.revision, kept_from))
        return min(upto, written)

    # Performing ----------------------------------------------------------------------------------

    def _resume(self, effect: Resume) -> None:
        head, cut = effect.head, effect.cut
        self._do(effect.call, lambda: self._journal.resume(head, cut), lambda _: Ready())

    def _append(self, effect: Append) -> None:
        self._do(
            effect.call,
            lambda: self._journal.append(effect.lines),
            lambda kept: Appended(kept.floor, kept.thinned),
        )

    def _in_passing(self, work: Callable[[], None]) -> None:
        """Do what nothing waits for. If the disk cannot, the next start does it."""

        def tried() -> None:
            try:
                work()
            except OSError as error:
                _log.warning("old audit files were not removed: %s", error)

        self._thread.submit(tried)

    def _do(self, call: int, work: Callable[[], Any], answer: Callable[[Any], Any]) -> None:
        """Run work in the thread; its answer is posted on the loop."""
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work)

        def done(ended: Future[Any]) -> None:
            # After the server has ended, nothing waits for the answer.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer, call, ended, answer)

        future.add_done_callback(done)

    def _answer(self, call: int, ended: Future[Any], answer: Callable[[Any], Any]) -> None:
        shell = self._shell
        if shell is None or ended.cancelled():
            return
        error = ended.exception()
        if error is None:
            shell.post(Answered(call, answer(ended.result())))
        elif isinstance(error, OSError):
            why = error.strerror or str(error)
            shell.post(Answered(call, Unavailable(f"{self._folder} cannot be written: {why}")))
        else:
            shell.fail(error)
