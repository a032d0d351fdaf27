"""The layout of an embedded store's file, its format, and the migration from older formats.

Each value is written once, to `log`, whose id is the revision and the position within it; `current`
points from each key to its row. So an overwrite moves a pointer instead of a value, and a past
revision stays until compaction sweeps it. ADR 0020 has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import apsw

from holdfast.model.errors import Unavailable, invariant
from holdfast.store.folder_sync import sync_folder
from holdfast.store.sqlite.database_files import (
    APPLICATION_ID,
    check_format,
    corrupt,
    make_private,
    shm_of,
    sync_file,
    wal_of,
)

FORMAT = 1

# The low bits of a log id count the writes of one revision.
POSITION_BITS = 16
WRITES_MAX = 1 << POSITION_BITS

_TABLES = """
CREATE TABLE log (
    id       INTEGER PRIMARY KEY,  -- revision << 16 | place among the revision's writes
    key      TEXT NOT NULL,
    created  INTEGER NOT NULL,     -- of a deletion: of the record that it removed
    previous INTEGER NOT NULL,     -- the id that this one replaced, 0 if the key was absent
    checksum INTEGER NOT NULL,     -- CRC-32 of key and value
    value    BLOB                  -- NULL: the key was deleted
) STRICT;
CREATE TABLE current (
    key      TEXT PRIMARY KEY,
    id       INTEGER NOT NULL,
    created  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE tokens (
    session  INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (
    name     TEXT PRIMARY KEY,
    value    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES
    ('compacted', 0),       -- history begins here
    ('swept', 0),           -- superseded rows up to this revision are gone
    ('session', 0),         -- counts the openings, for tokens
    ('forgotten_session', 0), ('forgotten_number', 0);  -- tokens up to this one
"""

# From a format to the next one. Each runs in the transaction that also raises the format, so that
# a crash leaves the older format whole. Formats are never removed from here: a user may skip
# any number of releases.
Migration = Callable[[apsw.Connection], None]
MIGRATIONS: Mapping[int, Migration] = MappingProxyType({})

# None of these writes to the file. FULL syncs the log with each commit; NORMAL would lose
# acknowledged commits when the power fails.
SETTINGS = (
    "PRAGMA synchronous = FULL",
    # We checkpoint ourselves: SQLite's automatic one hides its errors.
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 67108864",
    # 16 MB: the pointers of 200,000 keys. Values are cached elsewhere, and once.
    "PRAGMA cache_size = -16384",
    "PRAGMA cell_size_check = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA temp_store = MEMORY",
    # What is forgotten is overwritten: it may be a Secret from before it was encrypted.
    "PRAGMA secure_delete = ON",
)


def connect(path: Path, *, vfs: str | None = None, read_only: bool = False) -> apsw.Connection:
    """A connection that does not change the file by itself.

    Closing it does not checkpoint: after a failed sync nothing may be written any more.
    """
    flags = apsw.SQLITE_OPEN_READONLY if read_only else _READ_WRITE
    connection = apsw.Connection(str(path), flags=flags, vfs=vfs)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(5_000)
    return connection


_READ_WRITE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


def pragma(connection: apsw.Connection, name: str) -> int:
    value = connection.execute(f"PRAGMA {name}").get
    invariant(isinstance(value, int), f"PRAGMA {name} gave {value!r}")
    return int(value)


def create(path: Path) -> None:
    """Make an empty store where there is no file, or an empty one.

    It is made under another name and renamed when it is complete and synced: a power failure in the
    middle of SQLite's first page would leave a file that cannot be recognized as ours.
    """
    draft = path.with_name(path.name + ".new")
    for left in (draft, wal_of(draft), shm_of(draft), draft.with_name(draft.name + "-journal")):
        left.unlink(missing_ok=True)
    make_private(draft)
    connection = apsw.Connection(str(draft))
    try:
        use_log(connection)
        with connection:
            connection.execute(_TABLES)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
    finally:
        # The last connection takes the log with it.
        connection.close()
    sync_file(draft)
    draft.rename(path)
    sync_folder(path.parent)


def prepare(
    connection: apsw.Connection,
    path: Path,
    *,
    newest: int = FORMAT,
    migrations: Mapping[int, Migration] = MIGRATIONS,
) -> None:
    """Migrate an existing file to the newest format, or refuse it unchanged."""
    application_id = pragma(connection, "application_id")
    found = pragma(connection, "user_version")
    # The header in the file may be older than the one in the log, so this checks again.
    check_format(path, application_id, found, format_newest=newest)
    if found < newest:
        _migrate(connection, path, found, newest, migrations)


def use_log(connection: apsw.Connection) -> None:
    """Switch to write-ahead logging, which changes the file's header if it was not in use."""
    mode = connection.execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise Unavailable(f"the file system cannot hold a store: journal mode {mode!r}, not wal")


def _migrate(
    connection: apsw.Connection,
    path: Path,
    found: int,
    newest: int,
    migrations: Mapping[int, Migration],
) -> None:
    # Migrating a damaged file would spread the damage, so this checks first.
    verdict = connection.execute("PRAGMA quick_check").get
    if verdict != "ok":
        raise corrupt(path, f"SQLite says: {verdict}")
    missing = [number for number in range(found, newest) if number not in migrations]
    if missing:
        raise corrupt(path, f"its format {found} was never released")
    use_log(connection)
    for number in range(found, newest):
        with connection:
            migrations[number](connection)
            connection.execute(f"PRAGMA user_version = {number + 1}")
