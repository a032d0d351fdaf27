"""The embedded store without threads: opens a file, commits groups, checkpoints and sweeps.

The writer thread owns an engine and calls `run` with all waiting requests. The crash tests call the
same engine directly, so that a recorded history is reproducible. ADR 0020 says what is durable
when, and why a failure is final.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import apsw

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable, invariant
from holdfast.model.transaction import (
    Committed,
    CompareFailed,
    Fate,
    Forgotten,
    NotApplied,
    Outcome,
    TokenApplied,
)
from holdfast.store.contract import TransactionToken
from holdfast.store.folder_sync import sync_folder
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.committed import CACHE_BYTES_MAX, CommittedState, record
from holdfast.store.sqlite.database_files import (
    CORRUPT,
    FileLock,
    check_header,
    corrupt,
    make_private,
)
from holdfast.store.sqlite.loading import Loaded, load
from holdfast.store.sqlite.operation_tokens import TokenBook
from holdfast.store.sqlite.rows import Pointer, insert, integer, powers_of_two, read_values
from holdfast.store.sqlite.writes import Answer, Answers, AskFate, CommitWrite, Request, WriteGroup

FORGET_TOKENS_MAX = 2_000


class SqliteEngine:
    """One open file. Not thread-safe, except for `view` and `tokens.issue`."""

    # A larger log makes fewer and longer pauses; 16 MB are copied in about 10 ms.
    checkpoint_pages: ClassVar[int] = 4_000
    # How many superseded rows are deleted along with each group.
    sweep_rows_max: ClassVar[int] = 64

    def __init__(
        self,
        path: Path,
        lock: FileLock,
        connection: apsw.Connection,
        loaded: Loaded,
        *,
        cache_bytes_max: int,
        clock: Callable[[], float],
    ) -> None:
        self.path = path
        # Why the store has stopped, as a message; None while it works.
        self.failure: str | None = None
        self._lock = lock
        self.connection = connection
        self._wal_pages = 0
        self._compacted = loaded.meta.compacted
        self.view = CommittedState(loaded.index, cache_bytes_max=cache_bytes_max)
        self.view.compact(self._compacted)
        self.tokens = TokenBook(loaded.meta.session + 1, loaded.meta.forgotten, clock)
        connection.set_wal_hook(self._note_wal_pages)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        create: bool = True,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        vfs: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Open or create a file; raises Unavailable with a message for people."""
        lock = FileLock(path)
        lock.acquire()
        connection: apsw.Connection | None = None
        try:
            if not check_header(path, format_newest=schema.FORMAT):
                if not create:
                    raise Unavailable(f"there is no store at {path}", code="StoreMissing")
                schema.create(path)
            make_private(path)
            connection = schema.connect(path, vfs=vfs)
            for setting in schema.SETTINGS:
                connection.execute(setting)
            schema.prepare(connection, path)
            loaded = load(connection, path)
            schema.use_log(connection)
            engine = cls(
                path, lock, connection, loaded, cache_bytes_max=cache_bytes_max, clock=clock
            )
            engine._begin_session()
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.release()
            if isinstance(error, apsw.Error):
                raise _cannot_open(path, error) from error
            raise
        return engine

    def run(self, requests: list[Request]) -> Answers:
        """Decide, write and commit a group. Without requests it only sweeps.

        Never raises for a failed disk: the answers say so, `failure` is set, and the engine must
        not be used any more.
        """
        invariant(self.failure is None, "a failed engine was used again")
        group = WriteGroup(self.view.pointer, self.view.revision)
        try:
            answers = [self._decide(request, group) for request in requests]
            has_written = self._write(group)
        except apsw.Error as error:
            if self._is_locked_out(error):
                return self._locked_out(requests)
            return self._failed(requests, self._describe("a write", error))
        except Unavailable as damage:
            return self._failed(requests, damage.message)
        try:
            if has_written:
                self._commit()
        except apsw.Error as error:
            failure = self._describe("a commit", error)
            return self._failed(requests, failure, [_is_effect(a) for a in answers])
        self.view.publish(group.revisions, group.values)
        self.view.compact(self._compacted)
        return Answers(answers, group.revision, group.changes())

    def keep_house(self) -> None:
        """Checkpoint when the log has grown, and forget old tokens. To be called after answering.

        Sets `failure` like `run` does. A program that copies or checkpoints the same file can block
        both for a while. Nothing is lost by that: the next call tries again.
        """
        try:
            line = self.tokens.due()
            if line is not None:
                self._forget_tokens(line)
            if self._wal_pages >= self.checkpoint_pages:
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error as error:
            if not self._is_locked_out(error):
                self.failure = self._describe("a checkpoint", error)

    def close(self) -> None:
        """Release the file. After a failure the file is not touched any more."""
        try:
            if self.failure is None:
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            # Everything acknowledged is in the log, which stays, so nothing is lost.
            if not self._is_locked_out(error):
                self.failure = self._describe("the last checkpoint", error)
        finally:
            self.connection.close()
            self._lock.release()

    # Deciding. -------------------------------------------------------------------------------

    def _decide(self, request: Request, group: WriteGroup) -> Answer:
        try:
            if isinstance(request, CommitWrite):
                return self._decide_write(request, group)
            if isinstance(request, AskFate):
                return self._decide_fate(request.token, group)
            self.view.check_compactable(request.revision)
            self._compacted = max(self._compacted, request.revision)
        except HoldfastError as refusal:
            if refusal.code == CORRUPT:
                raise
            return refusal
        return None

    def _decide_write(self, request: CommitWrite, group: WriteGroup) -> Outcome:
        transaction, token = request.transaction, request.token
        if token is not None:
            revision = self._used_at(token, group)
            if revision is not None:
                return Committed(revision)
            self.tokens.check_usable(token)
        if not group.holds(transaction):
            pointers = [group.pointer(c.key) for c in transaction.compares]
            values = self._values(pointers, group)
            return CompareFailed(
                group.revision,
                tuple(None if p is None else record(p, values[p.id]) for p in pointers),
            )
        return Committed(group.write(transaction, token))

    def _decide_fate(self, token: TransactionToken, group: WriteGroup) -> Fate:
        revision = self._used_at(token, group)
        if revision is not None:
            return TokenApplied(revision)
        if token <= self.tokens.forgotten:
            return Forgotten()
        self.tokens.withdraw(token)
        return NotApplied()

    def _used_at(self, token: TransactionToken, group: WriteGroup) -> int | None:
        self.tokens.check_form(token)
        if token in group.tokens:
            return group.tokens[token]
        if self.tokens.is_first_seen(token):
            return None
        found = self.connection.execute(
            "SELECT revision FROM tokens WHERE session = ? AND number = ?", token
        ).get
        return None if found is None else integer(found)

    def _values(self, pointers: list[Pointer | None], group: WriteGroup) -> dict[int, bytes]:
        """The values of these pointers: about to be written, cached, or from the file."""
        values: dict[int, bytes] = {}
        missing = []
        for pointer in pointers:
            if pointer is not None:
                value = group.values.get(pointer.id)
                if value is None:
                    value = self.view.cached(pointer.id)
                if value is None:
                    missing.append(pointer)
                else:
                    values[pointer.id] = value
        if missing:
            values |= read_values(self.connection, self.path, missing)
        return values

    # Writing. --------------------------------------------------------------------------------

    def _write(self, group: WriteGroup) -> bool:
        """Write all that is due; returns whether there is anything to commit."""
        is_compaction = self._compacted > self.view.compacted
        if not (group.rows or group.tokens or is_compaction or self.view.has_garbage()):
            return False
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        insert(execute, "log", 6, list[tuple[Any, ...]](group.rows))
        moved = [(p.key, p.id, p.created) for p in group.pointers.values() if p is not None]
        insert(execute, "current", 3, moved, _MOVE_POINTER)
        gone = [key for key, pointer in group.pointers.items() if pointer is None]
        for count, keys in powers_of_two(gone):
            execute(f"DELETE FROM current WHERE key IN ({', '.join('?' * count)})", keys)
        insert(execute, "tokens", 3, [(*token, r) for token, r in group.tokens.items()])
        if is_compaction:
            self._set("compacted", self._compacted)
        self._sweep()
        return True

    def _sweep(self) -> None:
        """Delete superseded rows. The index has dropped them already, so this is not urgent."""
        garbage = self.view.take_garbage(self.sweep_rows_max)
        if garbage:
            rows = [row for revision in garbage for row in revision.rows]
            self.connection.execute(
                "DELETE FROM log WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(rows),)
            )
            self._set("swept", garbage[-1].revision)

    def _forget_tokens(self, line: TransactionToken) -> None:
        """Delete the rows of tokens up to the line, a bounded number at once."""
        execute = self.connection.execute
        nearer = execute(
            "SELECT session, number FROM tokens WHERE (session, number) <= (?, ?)"
            " ORDER BY session, number LIMIT 1 OFFSET ?",
            (*line, FORGET_TOKENS_MAX - 1),
        ).fetchone()
        if nearer is not None:
            line = TransactionToken(integer(nearer[0]), integer(nearer[1]))
        execute("BEGIN IMMEDIATE")
        execute("DELETE FROM tokens WHERE (session, number) <= (?, ?)", line)
        self._set("forgotten_session", line.session)
        self._set("forgotten_number", line.number)
        self._commit()
        self.tokens.forgotten = line

    def _set(self, name: str, value: int) -> None:
        self.connection.execute("UPDATE meta SET value = ? WHERE name = ?", (value, name))

    def _commit(self) -> None:
        """The moment at which a group becomes durable."""
        self.connection.execute("COMMIT")

    def _begin_session(self) -> None:
        """Write for the first time, so that a file that cannot be written fails at the start.

        The checkpoint copies the log into the file again. If a sync failed in an earlier process,
        the log may exist in the kernel's memory only; what is copied now is synced now.
        """
        self.connection.execute("BEGIN IMMEDIATE")
        self._set("session", self.tokens.session)
        self._commit()
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        sync_folder(self.path.parent)

    def _note_wal_pages(self, _: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    # Failing. --------------------------------------------------------------------------------

    def _failed(
        self, requests: list[Request], failure: str, may_have_happened: list[bool] | None = None
    ) -> Answers:
        """Answer a failed group. Nothing was published; nothing is acknowledged any more."""
        self.failure = failure
        unknown = may_have_happened or [False] * len(requests)
        answers: list[Answer] = [
            OutcomeUnknown(f"{failure} The transaction may have happened: ask after a restart.")
            if maybe
            else Unavailable(failure, code="StoreFailed")
            for maybe in unknown
        ]
        return Answers(answers, self.view.revision, [])

    def _is_locked_out(self, error: apsw.Error) -> bool:
        """Whether another program's lock prevented the group before anything was done.

        Inside a transaction it is a failure like any other: a part of the group is done already.
        """
        return isinstance(error, apsw.BusyError) and not self.connection.in_transaction

    def _locked_out(self, requests: list[Request]) -> Answers:
        """Answer a group that was locked out: nothing was written, and the next one may succeed."""
        why = (
            f"another program holds a lock on {self.path}: nothing was written. Find and stop the "
            "program that writes to the store's file; see docs/stores.md."
        )
        answers: list[Answer] = [Unavailable(why, code="StoreBusy") for _ in requests]
        return Answers(answers, self.view.revision, [])

    def _describe(self, what: str, error: apsw.Error) -> str:
        system = self.connection.system_errno if isinstance(error, _SYSTEM_ERRORS) else 0
        cause = f"{os.strerror(system)}, SQLite: {error}" if system else str(error)
        return (
            f"The store {self.path} has stopped: {what} failed ({cause})."
            " Nothing is acknowledged any more; see docs/stores.md."
        )


_SYSTEM_ERRORS = (apsw.IOError, apsw.FullError, apsw.CantOpenError)
_MOVE_POINTER = "ON CONFLICT (key) DO UPDATE SET id = excluded.id, created = excluded.created"


def _is_effect(answer: Answer) -> bool:
    return isinstance(answer, Committed)


def _cannot_open(path: Path, error: apsw.Error) -> Unavailable:
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return corrupt(path, f"SQLite says: {error}")
    if isinstance(error, apsw.BusyError):
        return Unavailable(f"{path} is in use by another program: {error}", code="StoreLocked")
    return Unavailable(f"cannot open the store {path}: {error}", code="StoreFailed")
