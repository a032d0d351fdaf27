"""Backup, verification and restore of an embedded store: plain functions for the command line.

A backup is one self-contained file of one moment, taken while the store is in use, by any process
that may read it. A restore makes revisions leap: a client that watched or listed before the loss
knows revisions that the backup never saw, and must not see them again with another meaning.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import msgspec

from holdfast.model.errors import HoldfastError, Invalid, Unavailable
from holdfast.store.folder_sync import sync_folder
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.database_files import (
    FileLock,
    check_format,
    check_header,
    corrupt,
    draft_of_restore,
    make_private,
    shm_of,
    sync_file,
    wal_of,
)
from holdfast.store.sqlite.loading import load
from holdfast.store.sqlite.rows import checksum
from holdfast.store.sqlite.schema import POSITION_BITS

# At 20,000 transactions a second a store makes this many in five days. The replaced file, where it
# can be read, counts as well, so this only has to cover what cannot be read any more.
REVISION_LEAP = 10_000_000_000
SESSION_LEAP = 1_000_000
# How many restored records share a revision, well below what a revision can hold.
_RECORDS_PER_REVISION = 1_000


class BackupContents(msgspec.Struct, frozen=True):
    """The contents of a store or backup file."""

    path: Path
    revision: int
    records: int
    bytes: int


class Restored(msgspec.Struct, frozen=True):
    """A successful restore: the store's new revision, and the new name of the old file."""

    revision: int
    records: int
    replaced: Path | None


def backup(path: Path, target: Path) -> BackupContents:
    """Copy a store as of one moment to a new file, while it is in use.

    The file appears complete under its final name or not at all.
    """
    if target.exists():
        raise Invalid(f"{target} exists already: choose another name for the backup")
    if not path.exists():
        raise Unavailable(f"there is no store at {path}", code="StoreMissing")
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    try:
        _copy(path, draft)
        found = verify(draft)
        sync_file(draft)
        draft.rename(target)
        sync_folder(target.parent)
    finally:
        draft.unlink(missing_ok=True)
    return msgspec.structs.replace(found, path=target)


def _copy(path: Path, draft: Path) -> None:
    # Never through a descriptor of our own: closing it would drop the locks that SQLite holds on
    # the file if the store is open in this very process.
    try:
        connection = schema.connect(path, read_only=True)
    except apsw.Error as error:
        raise Unavailable(f"cannot open the store {path}: {error}") from error
    try:
        application_id = schema.pragma(connection, "application_id")
        found = schema.pragma(connection, "user_version")
        check_format(path, application_id, found, format_newest=schema.FORMAT)
        # SQLite writes into an existing empty file, and keeps its mode.
        make_private(draft)
        connection.execute("VACUUM INTO ?", (str(draft),))
        _forget_history(draft)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise corrupt(path, f"SQLite says: {error}") from error
    except (apsw.Error, OSError) as error:
        raise Unavailable(f"the backup of {path} to {draft} failed: {error}") from error
    finally:
        connection.close()


def _forget_history(draft: Path) -> None:
    """Remove the history: a restore drops it anyway, and it may hold Secrets in plain text."""
    connection = apsw.Connection(str(draft))
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA secure_delete = ON")
        revision = load(connection, draft).index.revision
        with connection:
            connection.execute("DELETE FROM log WHERE id NOT IN (SELECT id FROM current)")
            connection.execute("UPDATE log SET previous = 0")
            connection.execute(
                "UPDATE meta SET value = ? WHERE name IN ('compacted', 'swept')", (revision,)
            )
        connection.execute("VACUUM")
    finally:
        connection.close()


def read_prefix(path: Path, start: str, end: str) -> Iterator[tuple[str, bytes]]:
    """The current records with start <= key < end of a backup, in order."""
    connection = schema.connect(path, read_only=True)
    try:
        yield from connection.execute(
            "SELECT current.key, log.value FROM current JOIN log ON log.id = current.id"
            " WHERE current.key >= ? AND current.key < ? ORDER BY current.key",
            (start, end),
        )
    except apsw.Error as error:
        raise corrupt(path, f"SQLite says: {error}") from error
    finally:
        connection.close()


def verify(path: Path) -> BackupContents:
    """Read a backup, or a store that is not in use, from end to end; raises if it is damaged."""
    if not check_header(path, format_newest=schema.FORMAT):
        raise Unavailable(f"there is no store at {path}", code="StoreMissing")
    connection = schema.connect(path, read_only=True)
    try:
        verdict = connection.execute("PRAGMA integrity_check(1)").get
        if verdict != "ok":
            raise corrupt(path, f"SQLite says: {verdict}")
        loaded = load(connection, path)
        _check_rows(connection, path)
        return BackupContents(
            path, loaded.index.revision, len(loaded.index.current), path.stat().st_size
        )
    except apsw.Error as error:
        raise corrupt(path, f"SQLite says: {error}") from error
    finally:
        connection.close()


def _check_rows(connection: apsw.Connection, path: Path) -> None:
    for row, key, expected, value in connection.execute("SELECT id, key, checksum, value FROM log"):
        if checksum(key, value) != expected:
            raise corrupt(path, f"log row {row:#x} of key {key!r} was altered")
    lost = connection.execute(
        "SELECT key FROM current WHERE id NOT IN (SELECT id FROM log WHERE value IS NOT NULL)"
    ).get
    if lost is not None:
        raise corrupt(path, f"the value of key {lost!r} is missing")


def restore(source: Path, path: Path, *, replace: bool = False) -> Restored:
    """Make a backup the store at `path`. The store must not be running.

    An existing store is kept beside it under another name, and only replaced if the caller says so.
    If the power fails halfway, the store refuses to open until the restore is run again.
    """
    if wal_of(source).exists() and wal_of(source).stat().st_size > 0:
        raise Invalid(f"{source} is a store in use, not a backup: make a backup of it first")
    verify(source)
    lock = FileLock(path)
    lock.acquire()
    try:
        exists = path.exists() and path.stat().st_size > 0
        if exists and not replace:
            raise Invalid(f"{path} exists already: state that it is to be replaced")
        restored = _draft(source, path, *(_newest_known(path) if exists else (0, 0)))
        replaced = _put_aside(path, restored.revision) if exists else None
        draft_of_restore(path).rename(path)
        sync_folder(path.parent)
        return msgspec.structs.replace(restored, replaced=replaced)
    finally:
        lock.release()


def _draft(source: Path, path: Path, revision: int, session: int) -> Restored:
    """Make the restored store, complete and synced, under another name."""
    draft = draft_of_restore(path)
    files = (draft, wal_of(draft), shm_of(draft))
    for left in files:
        left.unlink(missing_ok=True)
    try:
        make_private(draft)
        shutil.copyfile(source, draft)
        restored = _leap(draft, revision, session)
        sync_file(draft)
        sync_folder(draft.parent)
    except (OSError, apsw.Error) as error:
        # Nothing was touched yet, so the existing store may go on.
        for left in files:
            left.unlink(missing_ok=True)
        raise Unavailable(f"cannot restore {path}: {error}") from error
    return restored


def _newest_known(path: Path) -> tuple[int, int]:
    """The last revision and session of the file to be replaced, as far as it can be read."""
    try:
        connection = schema.connect(path, read_only=True)
        try:
            loaded = load(connection, path)
        finally:
            connection.close()
    except (apsw.Error, HoldfastError):
        # The file is being replaced because it is damaged. The leap alone has to be enough.
        return 0, 0
    return loaded.index.revision, loaded.meta.session


def _leap(draft: Path, revision: int, session: int) -> Restored:
    """Give every record a new revision beyond all that were ever used, and drop the history.

    Records get new revisions too, not only the store: a reader that keeps the newer of two versions
    would otherwise keep one that was lost.
    """
    connection = apsw.Connection(str(draft))
    try:
        # Nothing need be durable before the draft is synced as a whole.
        connection.execute("PRAGMA synchronous = OFF")
        schema.prepare(connection, draft)
        loaded = load(connection, draft)
        count = len(loaded.index.current)
        first = max(revision, loaded.index.revision) + REVISION_LEAP
        last = first + max(0, count - 1) // _RECORDS_PER_REVISION
        number = max(session, loaded.meta.session) + SESSION_LEAP
        with connection:
            connection.execute(_MOVE, {"first": first, "share": _RECORDS_PER_REVISION})
            connection.executemany(
                "UPDATE meta SET value = ? WHERE name = ?",
                [
                    (last, "compacted"),
                    (last, "swept"),
                    (number, "session"),
                    (number, "forgotten_session"),
                    (0, "forgotten_number"),
                ],
            )
        schema.use_log(connection)
        return Restored(last, count, None)
    finally:
        # The last connection takes the log with it.
        connection.close()


_MOVE = f"""
CREATE TEMP TABLE moved AS
    SELECT id AS old,
           (:first + n / :share) << {POSITION_BITS} | n % :share AS new
    FROM (SELECT id, row_number() OVER (ORDER BY key) - 1 AS n FROM current);
CREATE UNIQUE INDEX temp.moved_old ON moved (old);
DELETE FROM log WHERE id NOT IN (SELECT old FROM moved);
UPDATE log SET previous = 0, id = (SELECT new FROM moved WHERE old = log.id);
UPDATE current SET id = (SELECT new FROM moved WHERE old = current.id);
DELETE FROM tokens;
DROP TABLE moved;
"""


def _put_aside(path: Path, revision: int) -> Path:
    """Keep the old file under another name, with its log, which must never go with the new file.

    The old file stays under its own name as well until the draft takes its place. An earlier
    restore that was interrupted may have done a part of this already.
    """
    replaced = path.with_name(f"{path.name}.replaced-{revision}")
    while replaced.exists() and not replaced.samefile(path):
        replaced = replaced.with_name(replaced.name + "-again")
    if not replaced.exists():
        replaced.hardlink_to(path)
    log = wal_of(path)
    if log.exists() and log.stat().st_size > 0:
        log.rename(wal_of(replaced))
    log.unlink(missing_ok=True)
    shm_of(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    return replaced
