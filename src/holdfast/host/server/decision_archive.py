"""A server's archive of scheduling decisions: schedulers send rounds, clients read them.

`host/api/plane/decision_routes.py` calls it for requests. The archive is a file and blocks, so one
thread does all its work, and its queue is bounded: a disk that hangs loses records but delays no
other request. Lost decisions are counted, here and by the schedulers that send.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from holdfast.host.process.metrics import Metrics
from holdfast.model.errors import Unavailable
from holdfast.model.kinds.decision import DECISION_RETENTION
from holdfast.propose.decision_rounds import Case, DecisionRound
from holdfast.store.sqlite.database_files import make_private

# The file in which a server keeps rounds of decisions, beside its store.
#
# `Decisions` calls it from one thread. The archive is evidence and nothing depends on it, so a full
# disk or a broken file loses records and nothing else. Writes are atomic batches in SQLite's
# write-ahead log, which survives a kill at any moment; only a power cut may lose the last ones. A
# file that cannot be read is moved aside and a new one is started. The oldest rounds are removed
# when they are too old or the file is too large.

BYTES_MAX = 256 << 20
# A batch removes at most this many of the oldest, so that no writer waits for a large cleanup.
REMOVED_MAX = 512
# The file may be this much larger than its contents, for indexes and half-full pages.
FILE_FACTOR = 2
_PAGE_BYTES = 4_096
_PACKED_FROM = 512
_FORMAT = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS rounds (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, at_ms INTEGER NOT NULL,
    bytes INTEGER NOT NULL, head BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS cases (
    round INTEGER NOT NULL, place INTEGER NOT NULL, namespace TEXT NOT NULL,
    first INTEGER NOT NULL, members INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (round, place)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS cases_by_namespace ON cases (namespace, round);
"""
_PAGE = """
SELECT c.round, r.head, c.first, c.body FROM cases c JOIN rounds r ON r.id = c.round
WHERE (?1 = '' OR c.namespace = ?1)
    AND (c.round < ?2 OR (c.round = ?2 AND c.first + c.members > ?3))
ORDER BY c.round DESC, c.place LIMIT ?4
"""
_ROUND = msgspec.json.Decoder(DecisionRound)
_CASE = msgspec.json.Decoder(Case)
_ENCODER = msgspec.json.Encoder()


class ArchivedCase(msgspec.Struct, frozen=True):
    """One archived case: its round, and the number of its first member in the round."""

    row: int
    round: DecisionRound
    first: int
    case: Case


class DecisionArchive:
    """See the comment above. Call it from one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        age_max_ms: int = DECISION_RETENTION.kept_ms,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._path, self._age_max_ms, self._bytes_max = path, age_max_ms, bytes_max
        self._connection: apsw.Connection | None = None
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Return the size of the archived rounds as they were written."""
        return self._bytes

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Writing -------------------------------------------------------------------------------------

    def keep(self, rounds: Sequence[DecisionRound], now_ms: int) -> None:
        """Store rounds, replacing known ones. Raises Unavailable if it cannot."""
        try:
            self._keep(rounds, now_ms)
        except (apsw.CorruptError, apsw.NotADBError):
            self._begin_anew()
            self._retried(rounds, now_ms)
        except apsw.FullError:
            # The disk or the file's limit: the oldest rounds make room for the newest, if any can.
            with contextlib.suppress(apsw.Error):
                self._remove_oldest(REMOVED_MAX)
            self._retried(rounds, now_ms)
        except (apsw.Error, OSError) as error:
            raise _cannot(self._path, error) from error

    def _retried(self, rounds: Sequence[DecisionRound], now_ms: int) -> None:
        try:
            self._keep(rounds, now_ms)
        except (apsw.Error, OSError) as error:
            raise _cannot(self._path, error) from error

    def _keep(self, rounds: Sequence[DecisionRound], now_ms: int) -> None:
        connection = self._opened()
        with _whole(connection):
            added = sum(self._put(connection, decided) for decided in rounds)
        self._bytes += added
        self._clean(now_ms)

    @staticmethod
    def _put(connection: apsw.Connection, decided: DecisionRound) -> int:
        """Write one round. Return by how much the archive grew."""
        bodies = [_packed(_ENCODER.encode(case)) for case in decided.cases]
        head = _packed(_ENCODER.encode(msgspec.structs.replace(decided, cases=[])))
        size = len(head) + sum(map(len, bodies))
        name = decided.name
        known = connection.execute("SELECT id, bytes FROM rounds WHERE name = ?", (name,)).get
        if known is None:
            connection.execute(
                "INSERT INTO rounds (name, at_ms, bytes, head) VALUES (?, ?, ?, ?)",
                (name, decided.decided_ms, size, head),
            )
            row, before = connection.last_insert_rowid(), 0
        else:
            row, before = known
            connection.execute(
                "UPDATE rounds SET at_ms = ?, bytes = ?, head = ? WHERE id = ?",
                (decided.decided_ms, size, head, row),
            )
            connection.execute("DELETE FROM cases WHERE round = ?", (row,))
        first = 0
        rows = []
        for place, (case, body) in enumerate(zip(decided.cases, bodies, strict=True)):
            rows.append((row, place, case.namespace, first, len(case.replicas), body))
            first += len(case.replicas)
        connection.executemany("INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?)", rows)
        return int(size - before)

    def _clean(self, now_ms: int) -> None:
        """Remove some of what is too old or too much."""
        connection = self._opened()
        oldest_ms = connection.execute("SELECT at_ms FROM rounds ORDER BY id LIMIT 1").get
        while oldest_ms is not None and self._bytes > self._bytes_max:
            if not self._remove_oldest(REMOVED_MAX // 8):
                return
        if oldest_ms is not None and oldest_ms < now_ms - self._age_max_ms:
            self._remove_oldest(REMOVED_MAX, before_ms=now_ms - self._age_max_ms)

    def _remove_oldest(self, most: int, *, before_ms: int | None = None) -> int:
        """Remove at most this many of the oldest rounds, if given only those before a moment."""
        connection = self._opened()
        rows: list[tuple[int, int]] = list(
            connection.execute(
                "SELECT id, bytes FROM rounds WHERE ?1 IS NULL OR at_ms < ?1 ORDER BY id LIMIT ?2",
                (before_ms, most),
            )
        )
        ids = [(row,) for row, _ in rows]
        with _whole(connection):
            connection.executemany("DELETE FROM cases WHERE round = ?", ids)
            connection.executemany("DELETE FROM rounds WHERE id = ?", ids)
        self._bytes -= sum(size for _, size in rows)
        return len(rows)

    # Reading -------------------------------------------------------------------------------------

    def page(self, namespace: str, before: tuple[int, int] | None, most: int) -> list[ArchivedCase]:
        """Return at most this many cases, the newest first, of one namespace or of all.

        `before` is where to continue: the row of a round, and its first member to be shown.
        """
        row, member = before if before is not None else (1 << 62, 0)
        return self._read(_PAGE, (namespace, row, member, most))

    def round(self, name: str) -> DecisionRound | None:
        """Return one round by its name."""
        found = self._read(
            "SELECT c.round, r.head, c.first, c.body FROM cases c JOIN rounds r ON r.id = c.round"
            " WHERE r.name = ? ORDER BY c.place",
            (name,),
        )
        if not found:
            return None
        return msgspec.structs.replace(found[0].round, cases=[kept.case for kept in found])

    def _read(self, query: str, bindings: tuple[Any, ...]) -> list[ArchivedCase]:
        try:
            return list(self._kept(query, bindings))
        except (apsw.Error, OSError, zlib.error, msgspec.DecodeError) as error:
            raise _cannot(self._path, error) from error

    def _kept(self, query: str, bindings: tuple[Any, ...]) -> Iterator[ArchivedCase]:
        head_of: dict[int, DecisionRound] = {}
        for row, head, first, body in self._opened().execute(query, bindings):
            if row not in head_of:
                head_of[row] = _ROUND.decode(_unpacked(head))
            yield ArchivedCase(row, head_of[row], first, _CASE.decode(_unpacked(body)))

    # The file ------------------------------------------------------------------------------------

    def _opened(self) -> apsw.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            make_private(self._path)
            connection = apsw.Connection(str(self._path))
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _prepare(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(2_000)
        connection.pragma("auto_vacuum", 2)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "normal")
        pages = self._bytes_max * FILE_FACTOR // _PAGE_BYTES
        connection.pragma("max_page_count", max(64, pages))
        if connection.pragma("user_version") not in (0, _FORMAT):
            raise apsw.CorruptError(f"format {connection.pragma('user_version')} is not known")
        connection.execute(_SCHEMA)
        connection.pragma("user_version", _FORMAT)
        self._bytes = int(connection.execute("SELECT COALESCE(SUM(bytes), 0) FROM rounds").get)

    def _begin_anew(self) -> None:
        """Move an unreadable file aside. One such file is kept for people to inspect."""
        self.close()
        broken = self._path.with_name(self._path.name + ".broken")
        with contextlib.suppress(OSError):
            self._path.replace(broken)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink()
        self._bytes = 0


@contextlib.contextmanager
def _whole(connection: apsw.Connection) -> Iterator[None]:
    """Run a transaction. On a full disk SQLite has often rolled it back by itself."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _cannot(path: Path, error: Exception) -> Unavailable:
    return Unavailable(f"the archive of decisions ({path.name}) cannot be used: {error}")


def _packed(data: bytes) -> bytes:
    return zlib.compress(data, 1) if len(data) >= _PACKED_FROM else data


def _unpacked(data: bytes) -> bytes:
    return zlib.decompress(data) if data[:1] == b"\x78" else data


FILE = "decisions.db"
# Batches and reads that wait for the thread. A batch arrives about four times a second.
WAITING_MAX = 64

T = TypeVar("T")


class Decisions:
    """See the module's docstring."""

    def __init__(self, folder: Path, metrics: Metrics) -> None:
        self._archive = DecisionArchive(folder / FILE)
        self._thread = ThreadPoolExecutor(1, "decisions")
        self._waiting = 0
        # A replay takes a core for a while, so there is one at a time.
        self.again = asyncio.Lock()
        self._kept = metrics.counter("decisions_kept_total", "Decisions that were archived.")
        self._lost = metrics.counter(
            "decisions_lost_total", "Decisions that were not archived, here or by their sender."
        )
        metrics.gauge("decisions_bytes", "Size of the archive.", lambda: self._archive.bytes)

    async def keep(self, rounds: Sequence[DecisionRound], lost: int) -> int:
        """Store rounds and return the number of decisions; `lost` is what the sender has lost."""
        count = sum(decided.size for decided in rounds)
        self._lost.add(by=lost)
        try:
            await self._do(lambda: self._archive.keep(rounds, time.time_ns() // 1_000_000))
        except Unavailable:
            self._lost.add(by=count)
            return 0
        self._kept.add(by=count)
        return count

    async def page(
        self, namespace: str, before: tuple[int, int] | None, most: int
    ) -> list[ArchivedCase]:
        """See `DecisionArchive.page`."""
        return await self._do(lambda: self._archive.page(namespace, before, most))

    async def round(self, name: str) -> DecisionRound | None:
        """See `DecisionArchive.round`."""
        return await self._do(lambda: self._archive.round(name))

    async def _do(self, work: Callable[[], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise Unavailable(f"{WAITING_MAX} requests wait for the archive already; try again")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Close the file after its queue. A disk that hangs does not delay the caller."""
        self._thread.submit(self._archive.close)
        self._thread.shutdown(wait=False)
