"""Audit records: what is recorded of each accepted mutation, and how records form a chain.

`commit/objects/audit_entries.py` writes a `Stamp` in the transaction of a group: what each of its
members did. `observe/audit_writer/audit_writer.py` makes one `AuditRecord` of each mutation, in the
order of the store's revisions, and keeps its position in the store (`Head`). A record holds the
hash of the one before it, so none can be changed, removed or inserted without changing all that
follow. `model/audit/chain.py` verifies a chain.

A record depends only on the store's history: every server that writes it writes the same bytes.
"""

from __future__ import annotations

import hashlib

import msgspec

# The previous hash of the very first record.
GENESIS = "0" * 64


class Mutation(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, kw_only=True
):
    """One accepted request that changed something. It never holds a value of the object itself.

    who: the authenticated name, with its groups.
    verb: the type of request, such as Bind or Patch.
    kind: the changed object, by plural, namespace, name and uid.
    change: created or deleted; empty otherwise.
    subresource: the subresource, such as status.
    fields: the changed fields. They are names of the schema, never chosen by a user: a path ends
        where a map begins.
    more: other objects that changed with it, as plural/namespace/name.
    reason: the cause or reason that the request states.
    forced: whether the caller overrode a check that would have refused it.
    renewals: how often a lease was renewed until its holder changed; renewals have no records.
    operation: the caller's own id.
    source: the client address, for accesses that change nothing (`host/audit/accesses.py`).
    credential: the caller's credential, for the same: the serial number of a certificate, or the
        name of a token.
    count: how many similar accesses this record stands for; 0 means one.
    """

    who: str
    groups: tuple[str, ...] = ()
    verb: str
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    change: str = ""
    subresource: str = ""
    fields: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    reason: str = ""
    forced: bool = False
    renewals: int = 0
    operation: str = ""
    source: str = ""
    credential: str = ""
    count: int = 0


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Revisions without audit records, because the store's history of them was compacted.

    after: the last recorded revision before the gap.
    upto: the last missing revision.
    at: when the gap was found, in milliseconds since 1970.
    """

    after: int
    upto: int
    at: int = 0


class Stamp(msgspec.Struct, frozen=True, gc=False):
    """All mutations of one transaction.

    at: the wall clock of the server that decided, in milliseconds.
    """

    at: int
    mutations: tuple[Mutation, ...]


class SealedStamp(msgspec.Struct, frozen=True, gc=False):
    """The same as the audit writer reads it: a record holds the bytes that were committed."""

    at: int
    mutations: tuple[msgspec.Raw, ...]


class Head(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The end of the chain, as the store keeps it.

    number, hash: of the last record.
    revision: all mutations up to this revision are recorded.
    by: the server that writes.
    floor: the first record that is still kept; older ones were removed after their retention time.
    thinned: up to this record, journals may have removed records of tenants that wrote too many.
    ended: the last valid record of each server that wrote before.
    gap: the gap that the next record must state, if history was compacted too early.
    """

    number: int = 0
    hash: str = GENESIS
    revision: int = 0
    by: str = ""
    floor: int = 1
    ended: dict[str, int] = {}
    gap: Gap | None = None
    thinned: int = 0


class AuditRecord(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One line of the chain: a mutation, or a gap.

    number: counts the records from 1.
    revision: the store revision; the mutations of one transaction share it, in their order.
    at: when the mutation was decided, in milliseconds since 1970.
    previous: the hash of the record before it.
    hash: the hash of all other fields.
    said: the Mutation as it was committed, or the Gap.
    """

    number: int
    revision: int
    at: int
    previous: str
    hash: str
    said: msgspec.Raw
    is_gap: bool = False


class ElidedRecords(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A line in place of records that a journal removed to make room.

    elided: how many records of each tenant; the first field, which identifies such a line.
    first, last: the numbers of the first and last record. previous, hash: the previous hash of the
    first and the hash of the last one, so that the chain continues.
    """

    elided: dict[str, int]
    first: int
    last: int
    previous: str
    hash: str


_ELIDED_BEGIN = b'{"elided":'
_ENCODER = msgspec.json.Encoder()
_ELIDED = msgspec.json.Decoder(ElidedRecords)
_RECORD = msgspec.json.Decoder(AuditRecord)
_MUTATION = msgspec.json.Decoder(Mutation)
_GAP = msgspec.json.Decoder(Gap)
_STAMP = msgspec.json.Decoder(SealedStamp)
_HEAD = msgspec.json.Decoder(Head)


def record_hash(record: AuditRecord) -> str:
    """The hash that this record must have.

    Spaces and a line end separate its parts. Only the last part may contain any, so that no two
    different records have the same hash input.
    """
    sort = "gap" if record.is_gap else "mutation"
    begin = f"{record.number} {record.revision} {record.at} {record.previous} {sort}\n"
    return hashlib.sha256(begin.encode() + bytes(record.said)).hexdigest()


def make_record(
    number: int, revision: int, at: int, previous: str, said: bytes | Gap
) -> AuditRecord:
    """The record of an encoded mutation, or of a gap, that follows the record with this hash."""
    is_gap = isinstance(said, Gap)
    body = encode(said) if isinstance(said, Gap) else said
    made = AuditRecord(number, revision, at, previous, "", msgspec.Raw(body), is_gap)
    return msgspec.structs.replace(made, hash=record_hash(made))


def encode(body: Mutation | Stamp | Gap | Head | ElidedRecords) -> bytes:
    return _ENCODER.encode(body)


def stamp_of(value: bytes) -> SealedStamp:
    return _STAMP.decode(value)


def head_of(value: bytes) -> Head:
    return _HEAD.decode(value)


def line_of(record: AuditRecord) -> bytes:
    """The record as a line of a file, without the line end."""
    return _ENCODER.encode(record)


def record_of(line: bytes) -> AuditRecord:
    """Decodes a line. Raises msgspec.DecodeError if it is not a record."""
    return _RECORD.decode(line)


def is_elided(line: bytes) -> bool:
    return line.startswith(_ELIDED_BEGIN)


def elided_of(line: bytes) -> ElidedRecords:
    """Decodes a line for elided records. Raises msgspec.DecodeError if it is not one."""
    return _ELIDED.decode(line)


def mutation_of(record: AuditRecord) -> Mutation:
    """The mutation of a record. Raises msgspec.DecodeError."""
    return _MUTATION.decode(record.said)


def gap_of(record: AuditRecord) -> Gap:
    """The gap of a record. Raises msgspec.DecodeError."""
    return _GAP.decode(record.said)
