"""From an older format to the newest."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from holdfast.model.errors import Unavailable
from holdfast.model.transaction import Put, Transaction
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.engine import SqliteEngine
from holdfast.store.sqlite.writes import CommitWrite


def planted(path: Path) -> Path:
    """A store of format 1, as its first release wrote it."""
    engine = SqliteEngine.open(path)
    for i in range(10):
        engine.run([CommitWrite(Transaction((), (Put(f"k{i}", b"%d" % i),)))])
    engine.close()
    return path


def add_size(connection: apsw.Connection) -> None:
    """A migration such as a later release may need."""
    connection.execute("ALTER TABLE current ADD COLUMN size INTEGER NOT NULL DEFAULT 0")
    connection.execute(
        "UPDATE current SET size = (SELECT length(value) FROM log WHERE log.id = current.id)"
    )


def open_with(path: Path, newest: int, migrations: dict[int, schema.Migration]) -> list[object]:
    connection = schema.connect(path)
    try:
        schema.prepare(connection, path, newest=newest, migrations=migrations)
        return [schema.pragma(connection, "user_version"), *_columns(connection)]
    finally:
        connection.close()


def _columns(connection: apsw.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info('current')")]


def test_an_older_format_is_brought_up_step_by_step(tmp_path: Path) -> None:
    """A user may skip any number of releases."""
    path = planted(tmp_path / "store.db")
    seen = []
    result = open_with(path, 3, {1: add_size, 2: lambda _: seen.append("second")})
    assert result == [3, "key", "id", "created", "size"]
    assert seen == ["second"]
    connection = schema.connect(path)
    assert connection.execute("SELECT sum(size) FROM current").get == 10
    connection.close()


def test_a_migration_that_fails_leaves_the_older_format_whole(tmp_path: Path) -> None:
    """All of a step or nothing, so that the older release still opens the file."""
    path = planted(tmp_path / "store.db")

    def fail(connection: apsw.Connection) -> None:
        add_size(connection)
        raise apsw.FullError("disk full")

    with pytest.raises(apsw.FullError):
        open_with(path, 2, {1: fail})
    engine = SqliteEngine.open(path)
    assert engine.view.revision == 10
    engine.close()


def test_a_damaged_file_is_not_migrated(tmp_path: Path) -> None:
    path = planted(tmp_path / "store.db")
    content = bytearray(path.read_bytes())
    content[2 * 4096 : 2 * 4096 + 8] = b"\xff" * 8
    path.write_bytes(content)
    with pytest.raises((Unavailable, apsw.CorruptError)):
        open_with(path, 2, {1: add_size})
    assert path.read_bytes() == content


def test_a_format_without_a_way_up_is_refused(tmp_path: Path) -> None:
    path = planted(tmp_path / "store.db")
    with pytest.raises(Unavailable, match="format 1 was never released"):
        open_with(path, 3, {2: add_size})


def test_every_format_since_the_first_has_a_way_up() -> None:
    """A gap in the list would strand a user's data."""
    assert sorted(schema.MIGRATIONS) == list(range(1, schema.FORMAT))
