"""The embedded store: the contract of `store.contract` on one SQLite file.

The event loop decides nothing: it passes requests to the writer and answers to callers. Reads are
served from memory if it has the values, otherwise by a thread that reads the file.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw

from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.model.transaction import (
    Batch,
    Committed,
    CompareFailed,
    Fate,
    Forgotten,
    NotApplied,
    Outcome,
    Page,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store import contract
from holdfast.store.contract import BOOKMARK_EVERY_S, RANGE_LIMIT_MAX, check
from holdfast.store.local_watches import LocalWatchHub
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.committed import CACHE_BYTES_MAX, record
from holdfast.store.sqlite.database_files import corrupt
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.rows import Pointer, read_values
from holdfast.store.sqlite.writer import Writer, WriterJob
from holdfast.store.sqlite.writes import Answer, Answers, AskFate, CommitWrite, Compact, Request

# A transaction is held in memory several times over; objects are at most 1 MiB each.
TRANSACTION_BYTES_MAX = 64 * 1024 * 1024

# For calls that the contract gives no time-out of their own.
TIMEOUT_S = 30.0


class SqliteStore:
    """One file, one process, one event loop. Make it with `open`."""

    def __init__(
        self,
        engine: SqliteEngine,
        reader: apsw.Connection,
        *,
        bookmark_every_s: float,
        on_failure: Callable[[str], None] | None,
    ) -> None:
        self._engine = engine
        self._view = engine.view
        self._loop = asyncio.get_running_loop()
        # What every further call raises, once the store is closed or has failed.
        self._ended: HoldfastError | None = None
        self._failure: str | None = None
        self._closing: asyncio.Task[None] | None = None
        self._on_failure = on_failure
        self._reader = reader
        # One thread: SQLite would serialize reads anyway, and one cannot starve the writer.
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="holdfast-store-read")
        self._hub = LocalWatchHub(
            self._read_history,
            position=self._view.revision,
            bookmark_every_s=bookmark_every_s,
        )
        self._writer = Writer(engine, self._deliver)

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        create: bool = True,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        bookmark_every_s: float = BOOKMARK_EVERY_S,
        on_failure: Callable[[str], None] | None = None,
        vfs: str | None = None,
    ) -> SqliteStore:
        """Open or create a store; raises Unavailable with a message for people.

        `on_failure` is called once, on this event loop, when the store has stopped because its disk
        failed: the process should then exit with that message.
        """

        def load() -> tuple[SqliteEngine, apsw.Connection]:
            engine = SqliteEngine.open(
                Path(path), create=create, cache_bytes_max=cache_bytes_max, vfs=vfs
            )
            try:
                return engine, schema.connect(engine.path, vfs=vfs, read_only=True)
            except apsw.Error as error:
                engine.close()
                raise Unavailable(f"cannot read the store {path}: {error}") from error

        engine, reader = await asyncio.to_thread(load)
        return cls(engine, reader, bookmark_every_s=bookmark_every_s, on_failure=on_failure)

    @property
    def failure(self) -> str | None:
        """Why the store has stopped, or None while it works."""
        return self._failure

    async def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        self._check_open()
        selection = self._view.select(start, end, limit=limit, at=at)
        found = selection.found
        missing = selection.missing()
        read = await self._read(missing, selection.pin) if missing else {}
        records = tuple(
            record(pointer, read[pointer.id] if value is None else value)
            for pointer, value in zip(found.entries, selection.values, strict=True)
        )
        return Page(found.revision, records, found.more_from)

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        check(transaction)
        _check_size(transaction)
        request = CommitWrite(transaction, None if token is None else contract.parse(token))
        answer = await self._ask(request, timeout_s)
        if isinstance(answer, Committed | CompareFailed):
            return answer
        raise _unexpected(answer)

    def new_token(self) -> str:
        return str(self._engine.tokens.issue())

    async def fate(self, token: str) -> Fate:
        answer = await self._ask(AskFate(contract.parse(token)), TIMEOUT_S)
        if isinstance(answer, TokenApplied | NotApplied | Forgotten):
            return answer
        raise _unexpected(answer)

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        self._check_open()
        return self._hub.watch(prefix, after=after)

    async def compact(self, revision: int) -> None:
        await self._ask(Compact(revision), TIMEOUT_S)

    @property
    def known_revision(self) -> int:
        """The current revision, known without a round trip."""
        self._check_open()
        return self._view.revision

    async def revision(self) -> int:
        return self.known_revision

    async def close(self) -> None:
        if self._ended is None:
            self._ended = Unavailable("the store is closed")
        self._hub.close()
        if self._closing is None:
            self._closing = asyncio.ensure_future(asyncio.to_thread(self._shut))
        # A caller that stops waiting must not leave the file half closed.
        await asyncio.shield(self._closing)

    def _shut(self) -> None:
        self._writer.stop()
        self._writer.join()
        self._reading.shutdown()
        self._reader.close()
        self._engine.close()

    # Writing. --------------------------------------------------------------------------------

    async def _ask(self, request: Request, timeout_s: float) -> Answer:
        self._check_open()
        future: asyncio.Future[Answer] = self._loop.create_future()
        job = WriterJob(request, future)
        self._writer.submit(job)
        timer = self._loop.call_later(timeout_s, self._time_out, job)
        try:
            answer = await future
        except asyncio.CancelledError:
            # The caller has left; a request that the writer has not taken yet is withdrawn.
            self._writer.withdraw(job)
            raise
        finally:
            timer.cancel()
        if isinstance(answer, HoldfastError):
            raise answer
        return answer

    def _time_out(self, job: WriterJob) -> None:
        if not job.future.done():
            error = self._writer.withdraw(job)
            if isinstance(job.request, AskFate):
                # The question may have had its effect; asking again has the same one.
                error = Unavailable(f"no answer in time from {self._engine.path}: ask again")
            job.future.set_result(error)

    def _deliver(self, jobs: list[WriterJob], answers: Answers, failure: str | None) -> None:
        """Called by the writer."""
        # An event loop that was closed before its store has no callers left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._receive, jobs, answers, failure)

    def _receive(self, jobs: list[WriterJob], answers: Answers, failure: str | None) -> None:
        if failure is not None and self._ended is None:
            self._fail(Unavailable(failure, code="StoreFailed"))
        if answers.changes:
            self._hub.publish(answers.revision, answers.changes)
        for job, answer in zip(jobs, answers.answers, strict=True):
            if not job.future.done():
                job.future.set_result(answer)

    def _fail(self, failure: Unavailable) -> None:
        self._ended = failure
        self._failure = failure.message
        self._hub.fail(failure)
        if self._on_failure is not None:
            self._on_failure(failure.message)

    def _check_open(self) -> None:
        if self._ended is not None:
            raise self._ended

    # Reading. --------------------------------------------------------------------------------

    async def _read(self, pointers: list[Pointer], pin: int) -> dict[int, bytes]:
        """Read values from the file, and release the pin."""
        reading = self._reading.submit(read_values, self._reader, self._engine.path, pointers)
        # Also when it was cancelled before it began.
        reading.add_done_callback(lambda _: self._view.unpin(pin))
        try:
            values = await asyncio.wrap_future(reading)
        except apsw.CorruptError as error:
            raise self._damaged(corrupt(self._engine.path, f"SQLite says: {error}")) from error
        except apsw.Error as error:
            raise Unavailable(f"cannot read {self._engine.path}: {error}") from error
        except Unavailable as damage:
            raise self._damaged(damage) from None
        self._view.remember(values)
        return values

    def _damaged(self, damage: Unavailable) -> Unavailable:
        """Stop the store: a damaged file is not written to any more."""
        if self._ended is None:
            self._fail(damage)
        return damage

    async def _read_history(self, prefix: str, after: int, upto: int) -> Batch:
        history = self._view.history(prefix, after, upto)
        missing = history.missing()
        if missing:
            history.values.update(await self._read(missing, history.pin))
        return history.batch()


def _check_size(transaction: Transaction) -> None:
    size = sum(len(write.value) for write in transaction.writes if isinstance(write, Put))
    if size > TRANSACTION_BYTES_MAX or len(transaction.writes) > schema.WRITES_MAX:
        raise Invalid(
            f"a transaction of {len(transaction.writes)} writes and {size} bytes is too large: the"
            f" limits are {schema.WRITES_MAX} writes and {TRANSACTION_BYTES_MAX} bytes"
        )


def _unexpected(answer: Answer) -> Unavailable:
    return Unavailable(f"the store gave an unexpected answer: {answer!r}")
