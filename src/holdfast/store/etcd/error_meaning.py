"""What an error of gRPC or etcd proves about a request: it did not happen, or it may have.

`member` calls `classify` for every failed call. Only what is known counts: a text that is not in
the table means doubt, and doubt about a write is OutcomeUnknown. A wrong "certainly not" would let
a caller write twice; a wrong doubt costs one question about a token.

What is certain was read from etcd's source, 3.4 to 3.6: checks made before a request is proposed to
raft, and refusals made by every member alike while applying it. Timeouts, a stopping server and a
changed leader come after the proposal, so they are doubt. So is "database space exceeded": a member
that finds its quota exceeded while applying applies the transaction and still answers so.
"""

from __future__ import annotations

import enum

import msgspec

from holdfast.model.errors import (
    Expired,
    Forbidden,
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    Unavailable,
)


class ErrorMeaning(enum.Enum):
    """The outcome of a failed request. All but DOUBT mean that it certainly did not take effect."""

    NOT_SENT = enum.auto()
    TURNED_AWAY = enum.auto()
    LOGIN = enum.auto()
    DENIED = enum.auto()
    MALFORMED = enum.auto()
    TOO_LARGE = enum.auto()
    COMPACTED = enum.auto()
    FUTURE = enum.auto()
    DOUBT = enum.auto()


class EtcdError(msgspec.Struct, frozen=True, gc=False):
    """One row: gRPC's code and etcd's text (or how it begins), and what they prove."""

    code: str
    text: str
    kind: ErrorMeaning
    why: str
    is_beginning: bool = False


FAULTS = (
    EtcdError(
        "UNAVAILABLE",
        "failed to connect to all addresses",
        ErrorMeaning.NOT_SENT,
        "gRPC found no connection to send it on",
        is_beginning=True,
    ),
    EtcdError(
        "UNAVAILABLE",
        "DNS resolution failed",
        ErrorMeaning.NOT_SENT,
        "gRPC found no address to connect to",
        is_beginning=True,
    ),
    EtcdError(
        "UNAVAILABLE",
        "etcdserver: no leader",
        ErrorMeaning.TURNED_AWAY,
        "with `hasleader` a member checks this before it processes the request",
    ),
    EtcdError(
        "UNAVAILABLE",
        "etcdserver: not capable",
        ErrorMeaning.TURNED_AWAY,
        "checked before the request: the cluster is still starting",
    ),
    EtcdError(
        "UNAVAILABLE",
        "etcdserver: rpc not supported for learner",
        ErrorMeaning.TURNED_AWAY,
        "checked before the request: the member does not vote yet",
    ),
    EtcdError(
        "RESOURCE_EXHAUSTED",
        "etcdserver: too many requests",
        ErrorMeaning.TURNED_AWAY,
        "checked before the proposal: applying lags behind",
    ),
    EtcdError(
        "UNAUTHENTICATED",
        "etcdserver: invalid auth token",
        ErrorMeaning.LOGIN,
        "checked before the proposal",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: revision of auth store is old",
        ErrorMeaning.LOGIN,
        "refused by every member while applying: rights changed since the login",
    ),
    EtcdError(
        "PERMISSION_DENIED",
        "etcdserver: permission denied",
        ErrorMeaning.DENIED,
        "refused by every member before applying",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: user name is empty",
        ErrorMeaning.DENIED,
        "the cluster requires a login and none is configured",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: authentication failed, invalid user ID or password",
        ErrorMeaning.DENIED,
        "the login itself was refused",
    ),
    EtcdError(
        "FAILED_PRECONDITION",
        "etcdserver: authentication is not enabled",
        ErrorMeaning.DENIED,
        "a login is configured, but the cluster knows no users",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: request is too large",
        ErrorMeaning.TOO_LARGE,
        "checked before the proposal, against --max-request-bytes",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: too many operations in txn request",
        ErrorMeaning.TOO_LARGE,
        "checked before the proposal, against --max-txn-ops",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: duplicate key given in txn request",
        ErrorMeaning.MALFORMED,
        "checked before the proposal",
    ),
    EtcdError(
        "INVALID_ARGUMENT",
        "etcdserver: key is not provided",
        ErrorMeaning.MALFORMED,
        "checked before the proposal",
    ),
    EtcdError(
        "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision has been compacted",
        ErrorMeaning.COMPACTED,
        "an answer to a read or a compaction",
    ),
    EtcdError(
        "OUT_OF_RANGE",
        "etcdserver: mvcc: required revision is a future revision",
        ErrorMeaning.FUTURE,
        "an answer to a read or a compaction",
    ),
)

_EXACT = {(f.code, f.text): f.kind for f in FAULTS if not f.is_beginning}
_BEGINNINGS = tuple(f for f in FAULTS if f.is_beginning)


def classify(code: str, text: str) -> ErrorMeaning:
    """What is known of a call that failed with this gRPC code and message."""
    kind = _EXACT.get((code, text))
    if kind is not None:
        return kind
    for fault in _BEGINNINGS:
        if fault.code == code and text.startswith(fault.text):
            return fault.kind
    return ErrorMeaning.DOUBT


def is_members_fault(kind: ErrorMeaning) -> bool:
    """Whether the next call should go to another member, which may succeed."""
    return kind in {ErrorMeaning.NOT_SENT, ErrorMeaning.TURNED_AWAY, ErrorMeaning.DOUBT}


def error_for(kind: ErrorMeaning, message: str, *, writes: bool) -> HoldfastError:
    """The error to raise to the store's caller."""
    if kind is ErrorMeaning.DOUBT:
        # A failed read is never in doubt: it changed nothing.
        return OutcomeUnknown(message) if writes else Unavailable(message)
    if kind is ErrorMeaning.TOO_LARGE:
        return Invalid(message, code="TransactionTooLarge")
    if kind is ErrorMeaning.MALFORMED:
        return Invalid(message)
    if kind is ErrorMeaning.DENIED:
        return Forbidden(message)
    if kind is ErrorMeaning.COMPACTED:
        return Expired(message, code="Compacted")
    if kind is ErrorMeaning.FUTURE:
        return Expired(message, code="FutureRevision")
    return Unavailable(message)
