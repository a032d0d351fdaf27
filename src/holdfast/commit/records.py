"""Between a key's bytes in the store and the struct that decisions work on.

What is stored under a key follows from the key alone, so that a record never has to say what it
is. An object is stored without its resourceVersion, which follows from the record's own revision
and is known only once it is committed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model import keys
from holdfast.model.audit import Head, Stamp
from holdfast.model.errors import unreachable
from holdfast.model.ledger import (
    DisruptionLedger,
    GrantLedger,
    NodeLedger,
    ObjectsLedger,
    PoolsLedger,
    QuotaLedger,
)
from holdfast.model.meta import Object, Operation, Part, Timestamp
from holdfast.model.registry import KINDS
from holdfast.model.rights import AccessLedger
from holdfast.model.transaction import ABSENT
from holdfast.model.versions import object_version


class Epoch(Part, frozen=True):
    """The epoch of one lease's scope.

    It changes at a takeover only, so that transactions can compare it.
    """

    epoch: int
    holder: str


class EpochFloor(Part, frozen=True):
    """The highest epoch of all scopes whose own was forgotten: a new scope begins above it."""

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
    (f"{keys.LEDGERS}grant/", GrantLedger),
    (f"{keys.LEDGERS}pools/", PoolsLedger),
    (f"{keys.LEDGERS}access/", AccessLedger),
    (keys.EPOCHS, Epoch),
    (keys.FLOORS, EpochFloor),
    (keys.OPERATIONS, PastOperation),
    (f"{keys.AUDIT}stamp/", Stamp),
    (f"{keys.AUDIT}head/", Head),
)
_DECODERS = {prefix: msgspec.json.Decoder(struct) for prefix, struct in _TYPES}
_ENCODER = msgspec.json.Encoder()


def decode(key: str, value: bytes) -> Any:
    """The struct stored under this key. These bytes are our own, so they are not guarded again."""
    sort, _, rest = key.partition("/")
    # Objects and ledgers are told apart by two segments, everything else by one.
    prefix = f"{sort}/{rest.partition('/')[0]}/"
    decoder = _DECODERS.get(prefix) or _DECODERS.get(f"{sort}/")
    if decoder is None:
        unreachable(f"nothing is ever stored under {key!r}")
    return decoder.decode(value)


def encode(value: Any) -> bytes:
    """The bytes to store."""
    # The encoder leaves room at the end of its bytes, a quarter of them. These are kept for as long
    # as the object lives, so they are copied to what they need.
    return bytes(memoryview(_ENCODER.encode(value)))


def versioned(obj: Object, revision: int) -> Object:
    """The object as clients see it, with the resourceVersion that follows from its revision.

    One that does not exist, as after the dry run of a create, has none.
    """
    version = object_version(revision) if revision > ABSENT else ""
    metadata = msgspec.structs.replace(obj.metadata, resource_version=version)
    return msgspec.structs.replace(obj, metadata=metadata)
