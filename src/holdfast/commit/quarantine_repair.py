"""Quarantine and repair of wrong records, and the decisions that meet one.

A decision is a function of its request and of the records that it reads. So a failure inside it
fails that one request and nothing else: `authority` has the store confirm what was read, refuses
the request, decides the others of its group, and asks here to put the record into quarantine. A
failure outside of a decision is the server's own state, and stops it.

A ledger in quarantine gives nothing out, because what is left of it is unknown; refunds are still
accepted where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.objects.request_form import clip
from holdfast.commit.record_encoding import struct_at
from holdfast.commit.request_steps import ComparedRecord, PlacementStep
from holdfast.model import keys
from holdfast.model.access.identity import Identity
from holdfast.model.errors import InvariantBroken, RecordsDisagree, RecordUnreadable
from holdfast.model.lifecycle import Actor
from holdfast.model.quarantine import EVIDENCE_MAX, MESSAGE_MAX, Quarantined, RecordRevision
from holdfast.model.quota.ledger import NodeLedger, QuotaLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import QuarantineRecord, RepairAction, RepairRecord
from holdfast.model.time import Instant, timestamp
from holdfast.model.transaction import ABSENT

# The exceptions that Python raises when a record is not what the code assumes, and our own. A
# record that is nested too deeply fails to decode; nothing after that goes deeper than its type.
BROKEN = (InvariantBroken, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

# The scheduler tries another node, or waits for the tenant, whatever is wrong with the ledger.
_OF_LEDGERS = (
    (f"{keys.LEDGERS}node/", Reason.NODE_QUARANTINED),
    (f"{keys.LEDGERS}quota/", Reason.QUOTA_QUARANTINED),
)
_RATIONED = (NodeLedger, QuotaLedger)


class Doubt(msgspec.Struct, frozen=True):
    """No ruling: a record that the decision read is wrong, if the store confirms it."""

    key: str
    reason: Reason
    message: str
    reads: Mapping[str, int]

    def refusal(self) -> Refusal:
        """The answer once it is confirmed."""
        reason = next((it for prefix, it in _OF_LEDGERS if self.key.startswith(prefix)), None)
        return Refusal(
            reason or self.reason,
            f"{self.message}; {self.key or 'the record'} is put into quarantine: "
            "an operator must check `holdfast repair list`",
            {"record": self.key, "found": self.reason.value},
        )

    def request(self, identity: Identity, request: Any, now: Instant) -> QuarantineRecord | None:
        """The server's own request once it is confirmed."""
        if not self.key:
            return None
        found = list(self.reads.items())[:EVIDENCE_MAX]
        return QuarantineRecord(
            Quarantined(
                key=self.key,
                revision=max(ABSENT, self.reads.get(self.key, ABSENT)),
                reason=self.reason.value,
                message=self.message,
                request=f"{type(request).__name__} by {identity.name}"[:MESSAGE_MAX],
                since=timestamp(now.wall_ms),
                evidence=tuple(RecordRevision(key, revision) for key, revision in found),
            )
        )


def doubt_of(error: Exception, draft: Draft) -> Doubt:
    """The doubt for an exception in a decision, with the record at fault as far as it is known."""
    key = error.key if isinstance(error, RecordsDisagree) else ""
    reads = dict(draft.reads)
    if not key:
        # The first object that it read is the one that it is about.
        key = next((it for it in reads if it.startswith(keys.OBJECTS)), next(iter(reads), ""))
    message = str(error)
    if not isinstance(error, InvariantBroken):
        message = f"a decision failed with {type(error).__name__}: {message}"
    is_unreadable = isinstance(error, RecordUnreadable)
    reason = Reason.RECORD_UNREADABLE if is_unreadable else Reason.RECORDS_DISAGREE
    return Doubt(key, reason, message[:MESSAGE_MAX], reads)


def quarantine_record(draft: Draft, context: Context, request: QuarantineRecord) -> Refusal | None:
    """Put a record into quarantine. The first evidence is kept."""
    if not context.is_actor(Actor.AUTHORITY):
        return Refusal(Reason.NOT_OWNER, "only servers may put records into quarantine")
    found = request.record
    where = keys.quarantine(found.key)
    draft.load(found.key, where)
    if draft.read(where) is not None or draft.compare(found.key) != found.revision:
        # It is in quarantine already, or the record was written since.
        return None
    draft.write(where, found)
    if found.reason == Reason.RECORDS_DISAGREE.value:
        _close(draft, found.key)
    return None


def repair(draft: Draft, context: Context, request: RepairRecord) -> Refusal | None:
    """Take a record out of quarantine, and write its correct value."""
    where = keys.quarantine(request.key)
    draft.load(request.key, where)
    is_quarantined = draft.read(where) is not None
    if request.key == keys.plane_format() and not is_quarantined:
        return _mend_format(draft, request)
    counted = (keys.LEDGERS, keys.EPOCHS) if is_quarantined else (keys.LEDGERS,)
    if request.action is RepairAction.RECOUNT and not request.key.startswith(counted):
        wrong = f"key: {request.key} is neither a ledger nor an epoch in quarantine"
        return Refusal(Reason.INVALID, clip(wrong), {"field": "key"})
    # No decision detects a sum that is wrong without being impossible. It can be corrected all the
    # same: its value follows from the objects.
    if not is_quarantined and request.action is not RepairAction.RECOUNT:
        return Refusal(
            Reason.MISSING, f"{request.key} is not in quarantine", {"record": request.key}
        )
    refusal = _unseen_refusal(draft, request)
    if refusal is not None:
        return refusal
    if is_quarantined:
        draft.delete(where)
    if request.action is RepairAction.RELEASE:
        return _release(draft, request.key)
    if request.action is RepairAction.RESTORE and request.key.startswith(keys.EPOCHS):
        return Refusal(
            Reason.NOT_ALLOWED,
            f"{request.key}: an earlier epoch could let a former holder act again; recount it, "
            "which takes the epoch from its lease",
            {"record": request.key},
        )
    value = _value(request)
    if isinstance(value, Refusal):
        return value
    draft.write(request.key, value)
    return None


def _mend_format(draft: Draft, request: RepairRecord) -> Refusal | None:
    """Write the format of the plane, if it is unreadable. It is never in quarantine: without it
    nothing is written, not even a note.
    """
    try:
        draft.read(request.key)
    except RecordUnreadable:
        pass
    else:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"{request.key} is readable, so there is nothing to repair",
            {"record": request.key},
        )
    value = _value(request)
    refusal = _unseen_refusal(draft, request) or (value if isinstance(value, Refusal) else None)
    if refusal is None and request.action is not RepairAction.RESTORE:
        refusal = Refusal(Reason.NOT_ALLOWED, f"{request.key} can only be restored")
    if refusal is None:
        draft.write(request.key, value)
    return refusal


def _unseen_refusal(draft: Draft, request: RepairRecord) -> Refusal | None:
    """Refuse a repair without a reason, or based on another revision of the record."""
    if not request.word.strip():
        return Refusal(
            Reason.INVALID, "word: required: state the reason, for the audit", {"field": "word"}
        )
    now = draft.compare(request.key)
    if now == request.seen:
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"{request.key} was written since it was read; read it again",
        {"seen": str(request.seen), "revision": str(now)},
    )


def _close(draft: Draft, key: str) -> None:
    """Close a ledger that gives out capacity. An unreadable one is closed anyway."""
    try:
        ledger = draft.read(key)
    except RecordUnreadable:
        return
    if isinstance(ledger, _RATIONED):
        draft.write(key, msgspec.structs.replace(ledger, quarantined=True))


def _release(draft: Draft, key: str) -> Refusal | None:
    """Write a record unchanged, reopened if it was closed.

    Its new revision refuses a late copy of the request that put it into quarantine. An unreadable
    record is not correct as it is, and could not be written unchanged.
    """
    try:
        value = draft.read(key)
    except RecordUnreadable:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"{key} is unreadable for this version, so it cannot stay as it is: restore it, or "
            "recount it if it is a ledger",
            {"record": key},
        )
    if isinstance(value, _RATIONED):
        value = msgspec.structs.replace(value, quarantined=False)
    if value is not None:
        draft.write(key, value)
    return None


def _value(request: RepairRecord) -> Any:
    """The value to write, as the type that belongs there."""
    struct = struct_at(request.key)
    if struct is None:
        return Refusal(Reason.INVALID, clip(f"key: this version stores nothing at {request.key}"))
    try:
        return msgspec.convert(request.value, struct)
    except msgspec.ValidationError as error:
        return Refusal(Reason.INVALID, clip(f"value: {error}"), {"field": "value"})


STEPS = (
    PlacementStep(
        "put a record into quarantine",
        "server",
        "records that a decision could not use, confirmed by its transaction",
        "the record is written, or was put there already",
        "the record's revision in the transaction",
        request=QuarantineRecord,
        handler=quarantine_record,
        compares=(ComparedRecord.QUARANTINE, ComparedRecord.NODE_LEDGER),
    ),
    PlacementStep(
        "repair a record",
        "operator",
        "the record and what it should be, at one revision",
        "the record is written: then what was counted may have changed too",
        "the record's revision in the transaction",
        request=RepairRecord,
        handler=repair,
        compares=(ComparedRecord.QUARANTINE, ComparedRecord.NODE_LEDGER),
    ),
)
