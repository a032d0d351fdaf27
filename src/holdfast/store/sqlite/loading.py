"""Reading a store's file into memory when it is opened.

Everything is read before anything is written, so that a damaged file is found out while it is
still as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec

from holdfast.store.contract import TransactionToken
from holdfast.store.mvcc import KeyStep, VersionIndex
from holdfast.store.sqlite.database_files import corrupt
from holdfast.store.sqlite.rows import Pointer, row_id
from holdfast.store.sqlite.schema import POSITION_BITS


class Meta(msgspec.Struct, frozen=True):
    """The few numbers that the file keeps beside its tables."""

    compacted: int
    swept: int
    session: int
    forgotten: TransactionToken


class Loaded(msgspec.Struct, frozen=True):
    """The index over all that is kept, from the last swept revision on."""

    meta: Meta
    index: VersionIndex[Pointer]


def load_meta(connection: apsw.Connection, path: Path) -> Meta:
    rows: dict[str, int] = dict(connection.execute("SELECT name, value FROM meta"))
    try:
        forgotten = TransactionToken(rows["forgotten_session"], rows["forgotten_number"])
        meta = Meta(rows["compacted"], rows["swept"], rows["session"], forgotten)
    except KeyError as missing:
        raise corrupt(path, f"its table meta lacks {missing}") from None
    if not 0 <= meta.swept <= meta.compacted:
        raise corrupt(path, f"swept to revision {meta.swept}, compacted to {meta.compacted}")
    return meta


def load(connection: apsw.Connection, path: Path) -> Loaded:
    """Read pointers and history, and check that they agree."""
    meta = load_meta(connection, path)
    current = {
        key: Pointer(key, created, row)
        for key, created, row in connection.execute("SELECT key, created, id FROM current")
    }
    steps = _load_steps(connection, path, meta.swept, current)
    index = VersionIndex.loaded(current.values(), steps, compacted=meta.swept)
    _check(index, meta, path)
    return Loaded(meta, index)


def _load_steps(
    connection: apsw.Connection, path: Path, swept: int, current: dict[str, Pointer]
) -> list[Sequence[KeyStep[Pointer]]]:
    """The steps of every revision after the swept one, from the rows that made them.

    They share the current pointers, which are most of all.
    """
    revisions: list[Sequence[KeyStep[Pointer]]] = []
    steps: list[KeyStep[Pointer]] = []
    revision = swept
    # The rows come in the order of their ids, so the steps of a revision follow each other.
    query = "SELECT id, key, created, previous, value IS NULL FROM log WHERE id >= ? ORDER BY id"
    for row, key, created, previous, is_deletion in connection.execute(
        query, (row_id(swept + 1, 0),)
    ):
        if row >> POSITION_BITS != revision:
            if row != row_id(revision + 1, 0):
                raise corrupt(path, f"after revision {revision} comes log row {row:#x}")
            revision += 1
            steps = []
            revisions.append(steps)
        elif row != row_id(revision, len(steps)):
            raise corrupt(path, f"revision {revision} lacks a row before {row:#x}")
        before = Pointer(key, created, previous) if previous else None
        after = None
        if not is_deletion:
            newest = current.get(key)
            is_newest = newest is not None and newest.id == row
            after = newest if is_newest else Pointer(key, created, row)
        steps.append(KeyStep(key, before, after))
    return revisions


def _check(index: VersionIndex[Pointer], meta: Meta, path: Path) -> None:
    """Pointers and log are written together; when they disagree, one of them was damaged."""
    if index.revision < meta.compacted:
        raise corrupt(path, f"it ends at revision {index.revision}, before {meta.compacted}")
    latest: dict[str, Pointer | None] = {}
    for _, steps in index.steps_after(index.compacted):
        latest.update((step.key, step.after) for step in steps)
    for key, pointer in latest.items():
        if index.current.get(key) != pointer:
            raise corrupt(path, f"its pointer of key {key!r} does not match its log")
    newest = max((pointer.id for pointer in index.current.values()), default=0)
    if newest >> POSITION_BITS > index.revision:
        raise corrupt(path, f"it points to row {newest:#x}, beyond revision {index.revision}")
