"""Translates transactions to etcd's form, and etcd's answers to the contract's.

`store` and `at_most_once` build requests here. The failure branch reads every compared key, so that
a refusal has the current records of the same revision at which the compares failed.
"""

from __future__ import annotations

import msgspec

from holdfast.model.errors import Invalid
from holdfast.model.transaction import Committed, CompareFailed, Outcome, Put, Record, Transaction
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.layout import Layout, to_record

# A transaction with a token has two operations of our own: its slot, and now and then a sign of
# life. The same limit holds without a token, so that adding one never makes a transaction fail.
OWN_OPS = 2
# What etcd adds to a request before it compares it with --max-request-bytes: ids, user, revision.
ENVELOPE_BYTES = 1_024
# An upper bound for the tags and lengths of one operation or compare.
_PER_OP_BYTES = 32


class TransactionLimits(msgspec.Struct, frozen=True, gc=False):
    """What one transaction may hold; callers halve their groups to fit."""

    ops: int
    bytes: int

    def check(self, transaction: Transaction, layout: Layout) -> None:
        """Refuse what etcd would refuse before it is sent. The error names the limit."""
        ops = max(len(transaction.compares), len(transaction.writes))
        if ops > self.ops:
            raise Invalid(
                f"a transaction of {ops} compares or writes: this etcd accepts at most {self.ops}"
                " (--max-txn-ops, less our own)",
                code="TransactionTooLarge",
            )
        size = self._size(transaction, len(layout.record("")))
        if size > self.bytes:
            raise Invalid(
                f"a transaction of about {size} bytes: this etcd accepts at most {self.bytes}"
                " (--max-request-bytes, less our own)",
                code="TransactionTooLarge",
            )

    @staticmethod
    def _size(transaction: Transaction, root: int) -> int:
        """An upper bound for the size of the request on the wire."""
        size = 0
        for compare in transaction.compares:
            # Once to compare it, once to read it in the failure branch.
            size += 2 * (root + _PER_OP_BYTES + _utf8_length(compare.key))
        for write in transaction.writes:
            size += root + _PER_OP_BYTES + _utf8_length(write.key)
            if isinstance(write, Put):
                size += len(write.value)
        return size


def _utf8_length(key: str) -> int:
    return len(key) if key.isascii() else len(key.encode())


def request_of(transaction: Transaction, layout: Layout) -> pb.TxnRequest:
    """The request without a token."""
    record = layout.record
    compares, reads = [], []
    for compare in transaction.compares:
        name = record(compare.key)
        compares.append(modified_at(name, compare.modified))
        reads.append(read(name))
    writes = []
    for write in transaction.writes:
        if isinstance(write, Put):
            writes.append(put(record(write.key), write.value))
        else:
            writes.append(delete(record(write.key)))
    if not writes:
        # etcd serves a transaction that only reads without the log; in some versions it is stale.
        writes.append(delete(layout.none))
    return pb.TxnRequest(compare=compares, success=writes, failure=reads)


def outcome_of(transaction: Transaction, layout: Layout, answer: pb.TxnResponse) -> Outcome:
    """The answer to a request whose only compares are the transaction's own."""
    revision = answer.header.revision
    if answer.succeeded:
        return Committed(revision)
    reads = answer.responses[: len(transaction.compares)]
    return CompareFailed(revision, tuple(_one(layout, op.response_range) for op in reads))


def modified_at(name: bytes, revision: int) -> pb.Compare:
    return pb.Compare(
        result=pb.COMPARE_EQUAL, target=pb.TARGET_MOD, key=name, mod_revision=revision
    )


def put(name: bytes, value: bytes) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=name, value=value))


def delete(name: bytes, end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=name, range_end=end))


def read(name: bytes, end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=name, range_end=end))


def _one(layout: Layout, answer: pb.RangeResponse) -> Record | None:
    return to_record(layout, answer.kvs[0]) if answer.kvs else None
