"""Encoding of records: between a key's bytes in the store and the struct that decisions use.

The key alone determines what is stored under it, so a record need not state its type. An object is
stored without its resourceVersion, which follows from the record's own revision and is known only
once it is committed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.access.rights import AccessLedger
from holdfast.model.audit.audit_records import Head, Stamp
from holdfast.model.encoding.encrypted_records import unreadable_reason
from holdfast.model.encoding.resource_versions import object_version
from holdfast.model.errors import RecordUnreadable, unreachable
from holdfast.model.meta import Object, Operation, Part, Timestamp
from holdfast.model.plane import PlaneRecord
from holdfast.model.plane_format import PlaneFormat
from holdfast.model.quarantine import Quarantined
from holdfast.model.quota.ledger import (
    DisruptionLedger,
    GrantLedger,
    NodeLedger,
    ObjectsLedger,
    PlacesLedger,
    PoolsLedger,
    QuotaLedger,
)
from holdfast.model.registry import KINDS
from holdfast.model.transaction import ABSENT, Record


class Epoch(Part, frozen=True):
    """The epoch of one lease's scope.

    It changes only at a takeover, so that transactions can compare it.
    """

    epoch: int
    holder: str


class EpochFloor(Part, frozen=True):
    """The highest epoch of all forgotten scopes: a new scope begins above it."""

    epoch: int


class PastOperation(Part, frozen=True):
    """An accepted operation whose object is gone: a delete, or a create under a generated name."""

    operation: Operation
    key: str
    uid: str
    until: Timestamp


_TYPES: tuple[tuple[str, type[Any]], ...] = (
    *((keys.kind_prefix(kind), kind.struct) for kind in KINDS),
    (f"{keys.LEDGERS}node/", NodeLedger),
    (f"{keys.LEDGERS}quota/", QuotaLedger),
    (f"{keys.LEDGERS}objects/", ObjectsLedger),
    (f"{keys.LEDGERS}disruption/", DisruptionLedger),
    (f"{keys.LEDGERS}places/", PlacesLedger),
    (f"{keys.LEDGERS}grant/", GrantLedger),
    (f"{keys.LEDGERS}pools/", PoolsLedger),
    (f"{keys.LEDGERS}access/", AccessLedger),
    (keys.EPOCHS, Epoch),
    (keys.FLOORS, EpochFloor),
    (keys.OPERATIONS, PastOperation),
    (f"{keys.AUDIT}stamp/", Stamp),
    (f"{keys.AUDIT}head/", Head),
    (keys.QUARANTINE, Quarantined),
    (keys.FORMATS, PlaneFormat),
    (keys.PLANES, PlaneRecord),
)
DECODERS = {prefix: msgspec.json.Decoder(struct) for prefix, struct in _TYPES}
_ENCODER = msgspec.json.Encoder()


def decode(key: str, value: bytes) -> Any:
    """The struct stored under this key. These bytes are our own, so they are not guarded again.

    Raises RecordUnreadable for a damaged record, and for one that only a newer version can read.
    """
    decoder = _decoder(key)
    if decoder is None:
        unreachable(f"nothing is ever stored under {key!r}")
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = unreadable_reason(value) or error
        raise RecordUnreadable(f"{key} cannot be read: {why}", key) from error


def decode_or_none(record: Record) -> Any:
    """The struct of a record, or None for one that this version cannot read.

    For scans of many records: an unreadable one must not hide the others.
    """
    if _decoder(record.key) is None:
        return None
    try:
        return decode(record.key, record.value)
    except RecordUnreadable:
        return None


def struct_at(key: str) -> type[Any] | None:
    """The type of what is stored under this key; None if this version stores nothing there."""
    decoder = _decoder(key)
    return decoder.type if decoder is not None else None


def _decoder(key: str) -> msgspec.json.Decoder[Any] | None:
    sort, _, rest = key.partition("/")
    # Two key segments distinguish objects and ledgers, one segment everything else.
    prefix = f"{sort}/{rest.partition('/')[0]}/"
    return DECODERS.get(prefix) or DECODERS.get(f"{sort}/")


def encode(value: Any) -> bytes:
    """The bytes to store."""
    # The encoder leaves room at the end of its bytes, a quarter of them. These are kept as long as
    # the object exists, so they are copied to their exact size.
    return bytes(memoryview(_ENCODER.encode(value)))


def with_version(obj: Object, revision: int) -> Object:
    """The object as clients see it, with the resourceVersion that follows from its revision.

    One that does not exist, as after the dry run of a create, has none.
    """
    version = object_version(revision) if revision > ABSENT else ""
    metadata = msgspec.structs.replace(obj.metadata, resource_version=version)
    return msgspec.structs.replace(obj, metadata=metadata)
