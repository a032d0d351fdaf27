"""The scribe of one server: its machine, the journal it writes, and what others learn of both.

`host/server/server_process.py` runs it in a shell. The journal blocks, so that one thread does all
its work; a disk that hangs holds up nobody but the scribe, and then another server writes instead.

A full disk loses nothing either: who did what is in the store, committed with what was done, and
history is not forgotten before it is written down. Only when so many bytes wait that the store
itself would suffer are mutations refused (`refusal`), or, if the operator has chosen so, is the
rest let go of and the hole written down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.host.audit.exporting import AuditExporter, ExportTarget
from holdfast.host.audit.journal import DEFAULT_LIMITS, Journal, JournalLimits
from holdfast.host.audit.standing import AuditStatus
from holdfast.host.process import clock
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Performer, Shell
from holdfast.host.server.settings import FORGET, REFUSE
from holdfast.model import keys
from holdfast.model.audit.records import head_of
from holdfast.model.errors import Unavailable
from holdfast.model.machine import Answered
from holdfast.observe.audit_writer.protocol import Append, Appended, Cut, Prune, Ready, Resume
from holdfast.observe.audit_writer.writer import AuditWriter
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.contract import Store

_log = logging.getLogger(__name__)
# So much of the store's history may wait for the scribe. etcd takes no more writes at all when its
# file has 2 GiB, unless told otherwise.
WAITING_BYTES_MAX = 1 << 30


class AuditKeeper:
    """See the module's docstring. `attach` its shell before that is started."""

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
        """`history` is what a follower of the whole store has counted."""
        self.scribe = AuditWriter(name)
        self.exporting = (
            AuditExporter(folder, export, lambda: self.scribe.head) if export is not None else None
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
        """The shell that runs the scribe."""
        self._shell = shell

    def performers(self) -> dict[type[Any], Performer]:
        """What the shell does for the scribe."""
        return {
            Resume: self._resume,
            Append: self._append,
            Prune: lambda effect: self._in_passing(
                lambda: self._journal.prune(effect.floor, effect.thinned)
            ),
            Cut: lambda effect: self._in_passing(lambda: self._journal.cut(effect.last)),
        }

    def close(self) -> None:
        """Let go of the files, once what waits for them is done. A disk that hangs is left."""
        self._thread.submit(self._journal.close)
        self._thread.shutdown(wait=False)

    # What others learn ---------------------------------------------------------------------------

    def standing(self) -> AuditStatus:
        """How it goes, for whoever asks."""
        scribe = self.scribe
        standstill_ms = scribe.standstill_ms(clock.monotonic_ms())
        return AuditStatus(
            server=scribe.name,
            head=scribe.head,
            writing=scribe.is_writing,
            lag=scribe.lag,
            standstill_ms=standstill_ms,
            failures=scribe.failures,
            error=scribe.last_error,
        )

    @property
    def waiting_bytes(self) -> int:
        """How much of the store's history is kept because the audit has not come so far."""
        return self._history.since(self.scribe.head.revision) if self.scribe.lag else 0

    def refusal(self) -> str:
        """Why nothing may be changed at the moment; empty while it may."""
        if self._when_behind == FORGET or self.waiting_bytes <= WAITING_BYTES_MAX:
            return ""
        return (
            f"changes are refused: {self.waiting_bytes >> 20} MiB of history wait for the audit, "
            f"and no server writes it: {self.scribe.last_error or 'the one that should is silent'}."
            " Mend its disk, or start it; docs/audit.md says more"
        )

    def count(self, metrics: Metrics) -> None:
        """Add all of it to what the server counts."""
        scribe = self.scribe
        gauge = metrics.gauge
        gauge("audit_records", "Number of the last audit record.", lambda: scribe.head.number)
        gauge("audit_revision", "Revision up to which it is.", lambda: scribe.head.revision)
        gauge("audit_lag_revisions", "Revisions not written down yet.", lambda: scribe.lag)
        gauge("audit_lag_bytes", "History that waits for the audit.", lambda: self.waiting_bytes)
        gauge(
            "audit_standstill_seconds",
            "Since a record was last written, while some wait.",
            lambda: scribe.standstill_ms(clock.monotonic_ms()) / 1_000,
        )
        gauge("audit_writing", "Whether this server writes.", lambda: float(scribe.is_writing))
        gauge("audit_written", "Records that this server wrote.", lambda: scribe.wrote)
        gauge("audit_failures", "How often it could not.", lambda: scribe.failures)
        gauge("audit_exported", "Last record that was exported.", self._exported)
        gauge("audit_export_failures", "How often records could not be.", self._export_failures)

    async def horizon(self, store: Store, upto: int) -> int:
        """As far as history may be forgotten, if it is to be up to this revision."""
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
        """What nobody waits for. A disk that cannot do it now is asked again by the next life."""

        def tried() -> None:
            try:
                work()
            except OSError as error:
                _log.warning("the audit's files were not tidied: %s", error)

        self._thread.submit(tried)

    def _do(self, call: int, work: Callable[[], Any], answer: Callable[[Any], Any]) -> None:
        """In the thread; its answer comes back on the loop."""
        loop = asyncio.get_running_loop()
        future = self._thread.submit(work)

        def done(ended: Future[Any]) -> None:
            # Of a server that has ended meanwhile nobody waits for the answer.
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
