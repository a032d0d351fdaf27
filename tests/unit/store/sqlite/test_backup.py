"""Backup while in use, verification, and restores that never let a revision go back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.model.errors import Expired, Invalid, Unavailable
from holdfast.model.transaction import (
    Committed,
    Compare,
    CompareFailed,
    Delete,
    Forgotten,
    Put,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.sqlite import SqliteStore, backup, restore, schema, verify
from holdfast.store.sqlite.backup import REVISION_LEAP
from holdfast.store.sqlite.database_files import draft_of_restore, wal_of
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.writes import CommitWrite, Compact


def put(key: str, value: bytes = b"1") -> CommitWrite:
    return CommitWrite(Transaction((), (Put(key, value),)))


def filled(path: Path, count: int = 20) -> SqliteEngine:
    engine = SqliteEngine.open(path)
    for i in range(count):
        engine.run([put(f"k{i:03}", b"%d" % i)])
    return engine


def contents(path: Path) -> dict[str, bytes]:
    async def read() -> dict[str, bytes]:
        store = await SqliteStore.open(path)
        try:
            return {r.key: r.value for r in (await store.range("", KEY_END)).records}
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_backup_taken_under_load_is_one_moment(tmp_path: Path) -> None:
    """Both halves of every transaction are in it or neither, and writers go on [INV10, INV11]."""

    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "store.db")
        is_over = False

        async def write(name: str) -> None:
            i = 0
            while not is_over:
                pair = (Put(f"{name}/left", b"%d" % i), Put(f"{name}/right", b"%d" % i))
                await store.txn(Transaction((), pair))
                i += 1

        writers = [asyncio.create_task(write(f"w{n}")) for n in range(4)]
        found = []
        for number in range(3):
            await store.txn(Transaction((), (Put("mark", b"%d" % number),)))
            before = await store.revision()
            target = tmp_path / f"backup-{number}.db"
            found.append(await asyncio.to_thread(backup, tmp_path / "store.db", target))
            assert before <= found[-1].revision <= await store.revision()
        is_over = True
        await asyncio.gather(*writers)
        await store.close()
        assert found[0].revision < found[1].revision < found[2].revision

    asyncio.run(story())
    for number in range(3):
        records = contents(tmp_path / f"backup-{number}.db")
        for n in range(4):
            assert records.get(f"w{n}/left") == records.get(f"w{n}/right")


def test_a_restored_store_is_beyond_every_revision_ever_shown(tmp_path: Path) -> None:
    """Revisions of the lost future are never given again, not even to single records [INV10]."""
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    engine = filled(path)
    backup(path, copy)
    # The future that is about to be lost.
    lost_token = engine.tokens.issue()
    engine.run([put("k000", b"lost"), CommitWrite(Transaction((), (Delete("k001"),)))])
    engine.run([CommitWrite(Transaction((), (Put("new", b"lost"),)), lost_token)])
    told = engine.view.revision
    engine.close()
    report = restore(copy, path, replace=True)
    assert report.revision > told + REVISION_LEAP - 1
    assert report.records == 20
    assert contents(path) == {f"k{i:03}": b"%d" % i for i in range(20)}

    async def story() -> None:
        store = await SqliteStore.open(path)
        assert await store.revision() == report.revision
        for known in (told, 5, report.revision - 1):
            with pytest.raises(Expired):
                await anext(store.watch("", after=known))
            with pytest.raises(Expired):
                await store.range("", KEY_END, at=known)
        records = (await store.range("", KEY_END)).records
        assert all(told < r.modified <= report.revision for r in records)
        assert [r.created for r in records] == list(range(1, 21))
        assert await store.fate(str(lost_token)) == Forgotten()
        # A compare from the lost future, or from before it, holds no more.
        for modified in (1, told - 2):
            transaction = Transaction((Compare("k000", modified),), (Put("k000", b""),))
            assert isinstance(await store.txn(transaction), CompareFailed)
        watch = store.watch("", after=report.revision)
        await anext(watch)
        outcome = await store.txn(Transaction((), (Put("k000", b"after"),)))
        assert outcome == Committed(report.revision + 1)
        assert [c.key for c in (await anext(watch)).changes] == ["k000"]
        assert store.new_token() != str(lost_token)
        await store.close()

    asyncio.run(story())


def test_what_was_replaced_is_kept_with_its_log(tmp_path: Path) -> None:
    """A restore by mistake can be undone."""
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    engine = filled(path)
    backup(path, copy)
    engine.run([put("later")])
    engine.failure = "killed"
    engine.close()
    assert wal_of(path).stat().st_size > 0
    report = restore(copy, path, replace=True)
    assert report.replaced is not None
    assert "later" in contents(report.replaced)
    assert "later" not in contents(path)


def test_a_damaged_store_can_be_replaced(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    filled(path).close()
    backup(path, copy)
    path.write_bytes(b"SQLite format 3\0" + bytes(5000))
    report = restore(copy, path, replace=True)
    assert report.revision >= 20 + REVISION_LEAP
    assert len(contents(path)) == 20


def test_restoring_twice_goes_on_forward(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    filled(path).close()
    backup(path, copy)
    first = restore(copy, path, replace=True)
    assert restore(copy, path, replace=True).revision >= first.revision + REVISION_LEAP


def test_a_large_restore_spreads_its_records_over_revisions(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    engine = SqliteEngine.open(path)
    many = tuple(Put(f"k{i:05}", b"") for i in range(2_500))
    engine.run([CommitWrite(Transaction((), many)), put("k00000", b"again")])
    engine.run([Compact(1)])
    engine.close()
    backup(path, copy)
    report = restore(copy, tmp_path / "fresh.db")
    assert report.replaced is None
    assert verify(tmp_path / "fresh.db").records == 2_500
    assert contents(tmp_path / "fresh.db")["k00000"] == b"again"


def test_a_restore_asks_before_it_replaces_and_never_touches_a_store_in_use(
    tmp_path: Path,
) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    engine = filled(path)
    backup(path, copy)
    with pytest.raises(Unavailable, match="in use by process"):
        restore(copy, path, replace=True)
    engine.close()
    with pytest.raises(Invalid, match="exists already"):
        restore(copy, path)
    with pytest.raises(Invalid, match="exists already"):
        backup(path, copy)
    assert len(contents(path)) == 20


def test_an_interrupted_restore_keeps_the_store_closed_until_it_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In between, the old file may stand there without its log: it must not be opened [INV11]."""
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    engine = filled(path)
    backup(path, copy)
    engine.run([put("later")])
    engine.failure = "killed"
    engine.close()

    def fail(self: Path, target: Path) -> Path:
        if target == path:
            raise KeyboardInterrupt
        return rename(self, target)

    rename = Path.rename
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(KeyboardInterrupt):
            restore(copy, path, replace=True)
    assert draft_of_restore(path).exists()
    with pytest.raises(Unavailable, match="interrupted") as caught:
        SqliteEngine.open(path)
    assert caught.value.code == "StoreRestoring"
    # Again, and interrupted again, and at last not.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(KeyboardInterrupt):
            restore(copy, path, replace=True)
    restore(copy, path, replace=True)
    assert len(contents(path)) == 20
    beside = ("-wal", "-shm", ".lock")
    kept = [p for p in tmp_path.glob("*.replaced-*") if not p.name.endswith(beside)]
    assert any("later" in contents(p) for p in kept)


def test_a_damaged_backup_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    filled(path).close()
    backup(path, copy)
    connection = schema.connect(copy)
    connection.execute("UPDATE log SET value = x'00' WHERE key = 'k003'")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(Unavailable, match="'k003' was altered"):
        restore(copy, path, replace=True)
    assert path.read_bytes() == before
    with pytest.raises(Unavailable, match="there is no store"):
        restore(tmp_path / "missing.db", path, replace=True)


def test_a_restore_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk while copying is no reason to stay closed."""
    path, copy = tmp_path / "store.db", tmp_path / "backup.db"
    filled(path).close()
    backup(path, copy)

    def fail(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(Unavailable, match="No space left"):
        restore(copy, path, replace=True)
    assert len(contents(path)) == 20


def test_a_store_with_a_log_is_not_taken_for_a_backup(tmp_path: Path) -> None:
    """Its newest transactions are in the log, and would be lost."""
    engine = filled(tmp_path / "store.db")
    with pytest.raises(Invalid, match="not a backup"):
        restore(tmp_path / "store.db", tmp_path / "other.db")
    engine.close()


def test_a_backup_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path).close()
    with pytest.raises(Unavailable):
        backup(path, tmp_path / "missing" / "backup.db")
    with pytest.raises(Unavailable, match="there is no store"):
        backup(tmp_path / "other.db", tmp_path / "backup.db")
    assert not (tmp_path / "backup.db").exists()
    assert not list(tmp_path.glob("*.part"))
