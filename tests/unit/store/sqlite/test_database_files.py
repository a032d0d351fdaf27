"""Whose file it is: locks, strangers, newer formats and damage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from holdfast.model.errors import Unavailable
from holdfast.model.transaction import Put, Transaction
from holdfast.store.sqlite import schema, verify
from holdfast.store.sqlite.database_files import wal_of
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.writes import CommitWrite


def written(path: Path, count: int = 200) -> Path:
    """A store with some records, closed."""
    engine = SqliteEngine.open(path)
    for i in range(count):
        engine.run([CommitWrite(Transaction((), (Put(f"key-{i:04}", b"v" * 700),)))])
    engine.close()
    return path


def refused(path: Path) -> Unavailable:
    """The refusal to open a file, which must leave it as it was."""
    before = {p.name: p.read_bytes() for p in _data(path)}
    with pytest.raises(Unavailable) as caught:
        SqliteEngine.open(path)
    assert {p.name: p.read_bytes() for p in _data(path)} == before
    assert str(path) in caught.value.message
    return caught.value


def _data(path: Path) -> list[Path]:
    """The files that hold data: not the lock, not the index that SQLite rebuilds."""
    return [p for p in (path, wal_of(path)) if p.exists() and p.stat().st_size > 0]


def test_two_stores_never_share_a_file(tmp_path: Path) -> None:
    """The second one learns which process holds it, and gets it once the first is closed."""
    path = tmp_path / "store.db"
    first = SqliteEngine.open(path)
    error = refused(path)
    assert error.code == "StoreLocked"
    assert f"process {os.getpid()}" in error.message
    first.close()
    SqliteEngine.open(path).close()


def test_another_process_is_named_and_its_death_frees_the_file(tmp_path: Path) -> None:
    """A killed server leaves nothing to clean up."""
    path = tmp_path / "store.db"
    code = (
        "import sys, pathlib; from holdfast.store.sqlite.engine import SqliteEngine;"
        "engine = SqliteEngine.open(pathlib.Path(sys.argv[1])); print('open', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert f"process {process.pid}" in refused(path).message
        process.kill()
        process.wait()
    SqliteEngine.open(path).close()


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        SqliteEngine.open(tmp_path / "missing" / "store.db")
    with pytest.raises(Unavailable, match="there is no store") as caught:
        SqliteEngine.open(tmp_path / "store.db", create=False)
    assert caught.value.code == "StoreMissing"


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"SQLite format 3\0", os.urandom(9_000)],
    ids=["text", "only-its-first-words", "noise"],
)
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    assert refused(path).code == "NotAStore"


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    assert refused(path).code == "NotAStore"


def test_a_newer_format_is_refused_untouched(tmp_path: Path) -> None:
    """Also when the newer format is only in the log yet."""
    path = written(tmp_path / "store.db", 3)
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.execute(f"PRAGMA user_version = {schema.FORMAT + 1}")
    connection.close()
    assert wal_of(path).stat().st_size > 0
    error = refused(path)
    assert error.code == "StoreTooNew"
    assert f"format {schema.FORMAT + 1}" in error.message
    # Now in the file itself.
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    assert not wal_of(path).exists()
    assert refused(path).code == "StoreTooNew"


def test_a_log_without_its_database_is_kept(tmp_path: Path) -> None:
    """SQLite would delete it, and with it the last trace of the store."""
    path = tmp_path / "store.db"
    engine = SqliteEngine.open(path)
    engine.run([CommitWrite(Transaction((), (Put("a", b"1"),)))])
    engine.failure = "killed"
    engine.close()
    path.unlink()
    assert refused(path).code == "StoreCorrupt"
    path.touch()
    assert refused(path).code == "StoreCorrupt"


def test_a_truncated_database_is_refused_untouched(tmp_path: Path) -> None:
    path = written(tmp_path / "store.db")
    os.truncate(path, path.stat().st_size // 2)
    assert refused(path).code == "StoreCorrupt"


def test_damaged_pages_are_found_out_or_harmless(tmp_path: Path) -> None:
    """Wherever a page is overwritten, no wrong value is ever served [INV11]."""
    path = written(tmp_path / "store.db", 60)
    whole = path.read_bytes()
    found_out = 0
    for page in range(len(whole) // 4096):
        damaged = bytearray(whole)
        damaged[page * 4096 + 1000 : page * 4096 + 1100] = b"\xff" * 100
        path.write_bytes(damaged)
        try:
            verify(path)
        except Unavailable as error:
            assert error.code in ("StoreCorrupt", "NotAStore", "StoreTooNew")  # noqa: PT017
            assert path.read_bytes() == damaged
            found_out += 1
    # What is not found out is the unused space of a page.
    assert found_out > len(whole) // 4096 // 2


def test_a_draft_left_by_a_crash_is_replaced(tmp_path: Path) -> None:
    """A creation that was cut short leaves no store, and the next one succeeds."""
    path = tmp_path / "store.db"
    for left in (".new", ".new-wal", ".new-journal"):
        (tmp_path / f"store.db{left}").write_bytes(b"half a page")
    SqliteEngine.open(path).close()
    assert sorted(p.name for p in tmp_path.iterdir() if ".new" in p.name) == []
