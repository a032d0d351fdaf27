"""The words of the audit: what is written down of each accepted mutation, and how the records hang
together.

`commit/objects/audit_entries.py` says in the very transaction of a group what each of its members
did (`Stamp`). `observe/audit_writer/writer.py` makes one `AuditRecord` of each mutation, in the
order of the store's revisions, and keeps in the store how far it has come (`Head`). A record holds
the hash of the one before it, so that none can be changed, taken out or put in without changing all
that follow. `model/audit/chain.py` judges a chain.

A record depends on nothing but the store's history: whoever writes it, however often, writes the
same bytes.
"""

from __future__ import annotations

import hashlib

import msgspec

# What the first record of all has in place of the hash of the one before it.
GENESIS = "0" * 64


class Mutation(
    msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True, kw_only=True
):
    """One accepted request that changed something. It never holds a value of the object itself.

    who: the authenticated name, with its groups.
    verb: the kind of request, such as Bind or Patch.
    kind: what was changed, by plural, namespace, name and uid.
    change: created or deleted; empty for everything else.
    subresource: such as status.
    fields: which fields of it are others now. They are names of the schema and never of a user's
        making: where a map begins, the path ends.
    more: what else was changed along with it, as plural/namespace/name.
    reason: cause, reason or word that the request gave.
    forced: whether the caller overrode what would have refused it.
    renewals: how often a lease was renewed until it changed hands; renewals have no records.
    operation: the caller's own id.
    source: where the request came from, of accesses that change nothing (`host/audit/accesses`).
    credential: what its sender has shown, of the same: the serial number of a certificate, or the
        name of a token.
    count: how many alike this record stands for; 0 means one.
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
    """Revisions of which nobody can say any more who did what: the store has forgotten them.

    after: the last revision that was written down before.
    upto: the last one that is missing.
    at: when that was found out, in milliseconds since 1970.
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
    """The same as the scribe reads it: what is in a record are the bytes that were committed."""

    at: int
    mutations: tuple[msgspec.Raw, ...]


class Head(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How far the chain has come, as the store knows it.

    number, hash: of the last record.
    revision: all mutations up to this one are written down.
    by: the server that writes.
    floor: the first record that is still kept; older ones were removed when their time was over.
    thinned: up to this record journals may have let go of records of tenants that wrote too many.
    ended: of servers that wrote before, the last record of each that counts.
    gap: what the next record has to say, once the store has forgotten something too early.
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
    revision: of the store; the mutations of one transaction share it, in their order.
    at: when it was decided, in milliseconds since 1970.
    previous: the hash of the record before it.
    hash: of all of this.
    said: the Mutation, as it was committed, or the Gap.
    """

    number: int
    revision: int
    at: int
    previous: str
    hash: str
    said: msgspec.Raw
    is_gap: bool = False


class ElidedRecords(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A line in place of records that were let go of to make room for others.

    elided: how many there were of each tenant; the first field, by which such a line is known.
    first, last: their numbers. previous, hash: of the first and of the last one, so that the chain
    goes on over them.
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
    """The hash that this record must have. Spaces and the end of the line keep its parts apart:
    none of them but the last has any, so that no two records look alike.
    """
    sort = "gap" if record.is_gap else "mutation"
    begin = f"{record.number} {record.revision} {record.at} {record.previous} {sort}\n"
    return hashlib.sha256(begin.encode() + bytes(record.said)).hexdigest()


def make_record(
    number: int, revision: int, at: int, previous: str, said: bytes | Gap
) -> AuditRecord:
    """The record of a mutation as it was encoded, or of a gap, after the one with this hash."""
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
    """The record as it stands in a file, without the end of its line."""
    return _ENCODER.encode(record)


def record_of(line: bytes) -> AuditRecord:
    """The record of a line. Raises msgspec.DecodeError for what is none."""
    return _RECORD.decode(line)


def is_elided(line: bytes) -> bool:
    return line.startswith(_ELIDED_BEGIN)


def elided_of(line: bytes) -> ElidedRecords:
    """What stands in place of records. Raises msgspec.DecodeError for what is none."""
    return _ELIDED.decode(line)


def mutation_of(record: AuditRecord) -> Mutation:
    """What was done. Raises msgspec.DecodeError."""
    return _MUTATION.decode(record.said)


def gap_of(record: AuditRecord) -> Gap:
    """What is missing. Raises msgspec.DecodeError."""
    return _GAP.decode(record.said)
