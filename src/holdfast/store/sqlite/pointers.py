"""Where a version's value lies: what the embedded store keeps in memory for each key."""

from __future__ import annotations

import zlib

import msgspec

from holdfast.store.sqlite.schema import POSITION_BITS


class Pointer(msgspec.Struct, frozen=True, gc=False):
    """One version of a key: its row in the log."""

    key: str
    created: int
    id: int

    @property
    def modified(self) -> int:
        return self.id >> POSITION_BITS


def row_id(revision: int, position: int) -> int:
    return revision << POSITION_BITS | position


def checksum(key: str, value: bytes | None) -> int:
    """Found wrong, the disk lied: SQLite itself does not check what a page holds."""
    return zlib.crc32(value or b"", zlib.crc32(key.encode()))
