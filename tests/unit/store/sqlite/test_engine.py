"""Groups, sweeping, forgetting, and what a failing disk leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.model.errors import Expired, OutcomeUnknown, Unavailable
from holdfast.model.transaction import (
    Committed,
    Compare,
    CompareFailed,
    Delete,
    Forgotten,
    NotApplied,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.operation_tokens import USABLE_S
from holdfast.store.sqlite.writes import AskFate, CommitWrite, Compact
from tests.crash_vfs import Sync
from tests.crash_vfs import Write as DiskWrite
from tests.faulty_disk import FaultyDisk


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def engine(tmp_path: Path, disk: FaultyDisk, clock: Clock) -> Iterator[SqliteEngine]:
    opened = SqliteEngine.open(tmp_path / "store.db", vfs=disk.name, clock=clock)
    yield opened
    disk.heal()
    opened.close()


def put(key: str, value: bytes = b"1", **compares: int) -> CommitWrite:
    return CommitWrite(
        Transaction(tuple(Compare(k, m) for k, m in compares.items()), (Put(key, value),))
    )


def count(engine: SqliteEngine, table: str) -> int:
    found = engine.connection.execute(f"SELECT count(*) FROM {table}").get
    assert isinstance(found, int)
    return found


def test_a_group_is_decided_one_after_another(engine: SqliteEngine) -> None:
    """Each member sees what those before it are about to write [C2]."""
    answers = engine.run([put("a", b"1", a=0), put("a", b"2", a=0), put("a", b"3", a=1)]).answers
    assert answers[0] == Committed(1)
    assert isinstance(answers[1], CompareFailed)
    assert [r and (r.value, r.modified) for r in answers[1].current] == [(b"1", 1)]
    assert answers[2] == Committed(2)


def test_a_group_is_synced_once(engine: SqliteEngine, disk: FaultyDisk) -> None:
    before = len(disk.vfs.trace)
    engine.run([put(f"k{i}") for i in range(100)])
    assert [op for op in disk.vfs.trace[before:] if isinstance(op, Sync)] != []
    # A new log costs one sync more, for its header.
    assert len([op for op in disk.vfs.trace[before:] if isinstance(op, Sync)]) <= 2
    before = len(disk.vfs.trace)
    engine.run([put(f"k{i}") for i in range(100)])
    assert len([op for op in disk.vfs.trace[before:] if isinstance(op, Sync)]) == 1


def test_reading_and_refusing_write_nothing(engine: SqliteEngine, disk: FaultyDisk) -> None:
    """Conflicts cost no sync."""
    engine.run([put("a")])
    before = len(disk.vfs.trace)
    answer = engine.run([put("a", a=7)]).answers[0]
    assert isinstance(answer, CompareFailed)
    assert len(disk.vfs.trace) == before


def test_compaction_is_swept_in_pieces_and_leaves_what_is_current(engine: SqliteEngine) -> None:
    """Rows go away a few at a time; nothing current goes."""
    for i in range(300):
        engine.run([put(f"k{i % 10}", b"%d" % i)])
    engine.run([CommitWrite(Transaction((), (Delete("k0"),)))])
    assert count(engine, "log") == 301
    engine.run([Compact(301)])
    assert engine.view.compacted == 301
    # Each further group, also an empty one, sweeps some.
    engine.run([])
    left = count(engine, "log")
    assert 301 - 2 * engine.sweep_rows_max <= left < 301
    while engine.view.has_garbage():
        engine.run([])
    assert count(engine, "log") == 9
    found = engine.view.select("", KEY_END, limit=100, at=None).found
    assert [p.key for p in found.entries] == [f"k{i}" for i in range(1, 10)]
    with pytest.raises(Expired):
        engine.view.select("", KEY_END, limit=100, at=300)


def test_sweeping_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A compaction that was cut short leaves nothing behind for ever."""
    engine = SqliteEngine.open(tmp_path / "store.db")
    for i in range(300):
        engine.run([put("k", b"%d" % i)])
    engine.run([Compact(300)])
    engine.run([])
    engine.close()
    engine = SqliteEngine.open(tmp_path / "store.db")
    assert engine.view.compacted == 300
    assert 1 < count(engine, "log") < 300
    while engine.view.has_garbage():
        engine.run([])
    assert count(engine, "log") == 1
    assert engine.view.revision == 300
    engine.close()


def test_a_revision_survives_even_if_all_of_it_was_swept(tmp_path: Path) -> None:
    """The last revision was a deletion, and nothing of it is left: it still never goes back."""
    engine = SqliteEngine.open(tmp_path / "store.db")
    engine.run([put("a"), CommitWrite(Transaction((), (Delete("a"),)))])
    engine.run([Compact(2)])
    while engine.view.has_garbage():
        engine.run([])
    assert count(engine, "log") == 0
    engine.close()
    engine = SqliteEngine.open(tmp_path / "store.db")
    assert engine.view.revision == 2
    assert engine.run([put("a")]).answers == [Committed(3)]
    engine.close()


def test_a_pinned_revision_is_not_swept(tmp_path: Path) -> None:
    """A reader on its way to the file finds its rows there [C8]."""
    engine = SqliteEngine.open(tmp_path / "store.db", cache_bytes_max=0)
    for i in range(3):
        engine.run([put("a", b"%d" % i)])
    selection = engine.view.select("a", "b", limit=1, at=2)
    assert selection.values == [None]
    engine.run([Compact(3)])
    engine.run([])
    # The row of revision 1 is gone, the one that is being read is not.
    assert count(engine, "log") == 2
    engine.view.unpin(selection.pin)
    engine.run([])
    assert count(engine, "log") == 1
    engine.close()


def test_a_failed_sync_stops_the_store_and_leaves_memory_as_it_was(
    engine: SqliteEngine, disk: FaultyDisk
) -> None:
    """What was to be written is unknown; nothing is acknowledged or shown [INV11]."""
    engine.run([put("a")])
    disk.fail_syncs()
    token = engine.tokens.issue()
    write = CommitWrite(Transaction((), (Put("b", b"2"), Delete("a"))), token)
    answers = engine.run([write, put("a", a=7), AskFate(engine.tokens.issue())])
    unknown, refused, fate = answers.answers
    assert isinstance(unknown, OutcomeUnknown)
    assert isinstance(refused, Unavailable)
    assert isinstance(fate, Unavailable)
    assert answers.changes == []
    assert engine.failure is not None
    assert "store.db has stopped: a commit failed" in engine.failure
    found = engine.view.select("", KEY_END, limit=10, at=None).found
    assert (found.revision, [p.key for p in found.entries]) == (1, ["a"])


def test_a_failed_sync_is_never_tried_again(engine: SqliteEngine, disk: FaultyDisk) -> None:
    """The kernel reports it once and forgets: a second sync would succeed and prove nothing."""
    engine.run([put("a")])
    disk.fail_syncs()
    engine.run([put("b")])
    disk.heal()
    engine.close()
    assert disk.after_fault == []


def test_after_a_failed_sync_a_restart_knows_the_fate(tmp_path: Path, disk: FaultyDisk) -> None:
    """Whatever it is, it is final and agrees with the records [INV11, N1.1]."""
    path = tmp_path / "store.db"
    engine = SqliteEngine.open(path, vfs=disk.name)
    engine.run([put("a")])
    token = engine.tokens.issue()
    disk.fail_syncs()
    answer = engine.run([CommitWrite(Transaction((), (Put("b", b""),)), token)]).answers[0]
    assert isinstance(answer, OutcomeUnknown)
    engine.close()
    disk.heal()
    engine = SqliteEngine.open(path, vfs=disk.name)
    fate = engine.run([AskFate(token)]).answers[0]
    assert fate in (TokenApplied(2), NotApplied())
    assert (engine.view.pointer("b") is not None) == (fate == TokenApplied(2))
    # What the log holds was copied and synced again when the file was opened.
    main = [op for op in disk.after_fault if isinstance(op, Sync) and op.file == "store.db"]
    assert main != []
    engine.close()


def test_a_full_disk_stops_the_store(engine: SqliteEngine, disk: FaultyDisk) -> None:
    """[INV11]"""
    engine.run([put("a")])
    disk.fail_writes()
    answer = engine.run([put("b")]).answers[0]
    assert isinstance(answer, OutcomeUnknown)
    assert engine.failure is not None
    assert "disk full" in engine.failure


def test_an_error_before_the_commit_is_certain(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a commit nothing can have happened, and the answer says so."""
    from holdfast.store.sqlite import engine as module

    def fail(*_: object) -> None:
        raise apsw.NoMemError("out of memory")

    monkeypatch.setattr(module, "insert", fail)
    answer = engine.run([put("b")]).answers[0]
    assert isinstance(answer, Unavailable)
    assert engine.failure is not None


def test_a_failed_checkpoint_stops_the_store(
    engine: SqliteEngine, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hides from no one: the log would grow until the disk is full [INV11]."""
    monkeypatch.setattr(SqliteEngine, "checkpoint_pages", 1)
    engine.run([put("a")])
    disk.fail_syncs(file="store.db")
    engine.keep_house()
    assert engine.failure is not None
    assert "a checkpoint failed" in engine.failure


class Foreigner:
    """Another program with the store's file open."""

    def __init__(self, path: Path) -> None:
        self._reader, self._checkpointer = apsw.Connection(str(path)), apsw.Connection(str(path))

    def hold_a_snapshot(self) -> None:
        self._reader.execute("BEGIN; SELECT count(*) FROM log")

    def while_it_checkpoints(self, action: Callable[[], None]) -> None:
        """A full checkpoint waits for readers with its lock held; SQLite asks us how long."""
        self._checkpointer.execute("SELECT count(*) FROM log").fetchall()
        self._checkpointer.set_busy_handler(lambda _: bool(action()))
        with pytest.raises(apsw.BusyError):
            self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)

    def while_it_writes(self, action: Callable[[], None]) -> None:
        self._checkpointer.execute("BEGIN IMMEDIATE")
        action()
        self._checkpointer.execute("ROLLBACK")

    def close(self) -> None:
        self._reader.close()
        self._checkpointer.close()


@pytest.fixture
def plain(tmp_path: Path, clock: Clock) -> Iterator[SqliteEngine]:
    """An engine on the real file system, whose locks other connections see."""
    opened = SqliteEngine.open(tmp_path / "store.db", clock=clock)
    opened.connection.set_busy_timeout(1)
    yield opened
    opened.close()


@pytest.fixture
def foreigner(plain: SqliteEngine) -> Iterator[Foreigner]:
    other = Foreigner(plain.path)
    yield other
    other.close()


def test_a_checkpoint_that_others_hold_up_is_made_later(
    plain: SqliteEngine, foreigner: Foreigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock of another program is no failed disk. [INV11]"""
    monkeypatch.setattr(SqliteEngine, "checkpoint_pages", 1)
    foreigner.hold_a_snapshot()
    plain.run([put("a")])
    looked = []

    def look() -> None:
        plain.keep_house()
        looked.append(plain.failure)

    foreigner.while_it_checkpoints(look)
    assert looked == [None]
    assert plain.run([put("b")]).answers == [Committed(2)]
    foreigner.close()
    plain.keep_house()
    assert plain.failure is None
    pages = plain.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    assert pages[0] == pages[1]


def test_a_reader_that_outlives_the_store_is_no_failure(
    plain: SqliteEngine, foreigner: Foreigner
) -> None:
    """The last checkpoint cannot empty the log under a snapshot; the log stays, and is whole."""
    foreigner.hold_a_snapshot()
    plain.run([put("a")])
    plain.close()
    assert plain.failure is None
    foreigner.close()
    again = SqliteEngine.open(plain.path)
    assert again.view.pointer("a") is not None
    again.close()


def test_a_write_that_is_locked_out_says_so_and_the_store_goes_on(
    plain: SqliteEngine, foreigner: Foreigner, clock: Clock
) -> None:
    """Nothing was written, and nothing is wrong with the disk. [INV11]"""
    token = plain.tokens.issue()
    write = CommitWrite(Transaction((), (Put("a", b"1"),)), token)
    answers: list[object] = []

    def try_it() -> None:
        answers.extend(plain.run([write]).answers)
        clock.now_s += 40
        plain.keep_house()
        clock.now_s += 2 * USABLE_S + 40
        plain.keep_house()

    foreigner.while_it_writes(try_it)
    assert isinstance(answers[0], Unavailable)
    assert answers[0].code == "StoreBusy"
    assert plain.failure is None
    assert plain.run([put("a")]).answers == [Committed(1)]
    plain.keep_house()
    assert plain.run([AskFate(token)]).answers == [Forgotten()]


def test_the_log_is_checkpointed_when_it_has_grown(
    engine: SqliteEngine, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts again instead of growing for ever."""
    monkeypatch.setattr(SqliteEngine, "checkpoint_pages", 50)
    for i in range(100):
        engine.run([put(f"k{i % 10}", b"v" * 5_000)])
        engine.keep_house()
    log = [op for op in disk.vfs.trace if isinstance(op, DiskWrite) and op.file.endswith("-wal")]
    assert max(op.offset + len(op.data) for op in log) < 60 * 4200


def test_tokens_are_forgotten_in_pieces_and_durably(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is forgotten is said to be forgotten, also after a restart."""
    from holdfast.store.sqlite import engine as module

    monkeypatch.setattr(module, "FORGET_TOKENS_MAX", 10)
    engine = SqliteEngine.open(tmp_path / "store.db", clock=clock)
    tokens = [engine.tokens.issue() for _ in range(25)]
    for token in tokens:
        engine.run([CommitWrite(Transaction((), (Put("a", b""),)), token)])
    clock.now_s += 40
    engine.keep_house()
    clock.now_s += 2 * USABLE_S + 40
    engine.keep_house()
    assert count(engine, "tokens") == 15
    assert engine.run([AskFate(tokens[9])]).answers == [Forgotten()]
    assert engine.run([AskFate(tokens[10])]).answers == [TokenApplied(11)]
    engine.keep_house()
    engine.keep_house()
    assert count(engine, "tokens") == 0
    engine.close()
    engine = SqliteEngine.open(tmp_path / "store.db", clock=clock)
    assert engine.run([AskFate(t) for t in tokens]).answers == [Forgotten()] * 25
    answer = engine.run([CommitWrite(Transaction((), (Put("a", b""),)), tokens[0])]).answers[0]
    assert isinstance(answer, OutcomeUnknown)
    engine.close()


def test_a_damaged_value_stops_the_store_instead_of_being_served(tmp_path: Path) -> None:
    """[INV11]"""
    engine = SqliteEngine.open(tmp_path / "store.db", cache_bytes_max=0)
    engine.run([put("a", b"right")])
    engine.connection.execute("UPDATE log SET value = ?", (b"wrong",))
    answer = engine.run([put("a", a=7)]).answers[0]
    assert isinstance(answer, Unavailable)
    assert engine.failure is not None
    assert "'a' was altered" in engine.failure
    engine.close()
