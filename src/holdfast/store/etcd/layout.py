"""The layout of keys in etcd, known only to this module.

    <prefix>d/<key>             a record; what the contract calls a key is the rest of the name
    <prefix>d/<key prefix>\\xff  a bookmark: written to prove that a watch has caught up
    <prefix>t/<client>/<slot>   the last token used in one slot of one client (ADR 0022)
    <prefix>c/<client>          the last sign of life of that client
    <prefix>none                never exists

No text has the byte 0xff in its UTF-8 form, so a bookmark lies inside the range of its watch and
can never be taken for a record.
"""

from __future__ import annotations

from holdfast.model.transaction import Record
from holdfast.store.etcd import messages as pb

_BOOKMARK = b"\xff"


class Layout:
    """The names of keys under one prefix, and back."""

    def __init__(self, prefix: str) -> None:
        root = prefix.encode()
        self._records = root + b"d/"
        self._slots = root + b"t/"
        self._clients = root + b"c/"
        # Deleting it goes through etcd's log like a write, and changes neither data nor revision.
        self.none = root + b"none"

    def record(self, key: str) -> bytes:
        return self._records + key.encode()

    def key(self, name: bytes) -> str:
        return name[len(self._records) :].decode()

    def range(self, start: str, end: str) -> tuple[bytes, bytes]:
        """The first name and the name after the last."""
        return self._records + start.encode(), self._records + end.encode()

    def watch_ranges(self, prefix: str) -> tuple[bytes, bytes]:
        """The names of all records under a prefix, and of all bookmarks for it."""
        first = self._records + prefix.encode()
        return first, after_prefix(first)

    def bookmark(self, prefix: str) -> bytes:
        return self._records + prefix.encode() + _BOOKMARK

    def slot(self, client: str, index: int) -> bytes:
        return b"%b%b/%04d" % (self._slots, client.encode(), index)

    def slots(self, client: str) -> tuple[bytes, bytes]:
        first = b"%b%b/" % (self._slots, client.encode())
        return first, after_prefix(first)

    def client(self, client: str) -> bytes:
        return self._clients + client.encode()

    def clients(self) -> tuple[bytes, bytes]:
        return self._clients, after_prefix(self._clients)

    def client_of(self, name: bytes) -> str:
        return name[len(self._clients) :].decode()


def after_prefix(prefix: bytes) -> bytes:
    """The first name after all with this prefix. Ours never end with 0xff: one step is enough."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def is_bookmark(name: bytes) -> bool:
    return name.endswith(_BOOKMARK)


def to_record(layout: Layout, kv: pb.KeyValue) -> Record:
    return Record(layout.key(kv.key), kv.value, kv.create_revision, kv.mod_revision)
