"""Transactions as etcd understands them, and the limits of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import Invalid
from holdfast.model.transaction import (
    Committed,
    Compare,
    CompareFailed,
    Delete,
    Put,
    Record,
    Transaction,
)
from holdfast.store.etcd import codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.layout import Layout, after_prefix, is_bookmark

LAYOUT = Layout("/x/")
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def test_a_refusal_brings_the_compared_records_in_order() -> None:
    """The failure branch reads them, so that they are as of the very same revision [C2]."""
    transaction = Transaction((Compare("a", 3), Compare("b", 0)), (Put("a", b"1"), Delete("c")))
    request = codec.request_of(transaction, LAYOUT)
    assert [c.mod_revision for c in request.compare] == [3, 0]
    assert [op.request_range.key for op in request.failure] == [b"/x/d/a", b"/x/d/b"]
    kv = pb.KeyValue(key=b"/x/d/a", value=b"v", create_revision=2, mod_revision=4)
    answer = pb.TxnResponse(
        header=pb.ResponseHeader(revision=9),
        responses=[
            pb.ResponseOp(response_range=pb.RangeResponse(kvs=[kv])),
            pb.ResponseOp(response_range=pb.RangeResponse()),
        ],
    )
    expected = CompareFailed(9, (Record("a", b"v", 2, 4), None))
    assert codec.outcome_of(transaction, LAYOUT, answer) == expected
    done = pb.TxnResponse(header=pb.ResponseHeader(revision=9), succeeded=True)
    assert codec.outcome_of(transaction, LAYOUT, done) == Committed(9)


def test_a_transaction_that_only_compares_goes_through_the_log_as_well() -> None:
    """Otherwise a paused member could answer it from an old state [C2]."""
    request = codec.request_of(Transaction((Compare("a", 3),), ()), LAYOUT)
    assert [op.request_delete_range.key for op in request.success] == [LAYOUT.none]


@pytest.mark.parametrize(
    "transaction, name",
    [
        (Transaction((), tuple(Put(f"k{i}", b"") for i in range(127))), "--max-txn-ops"),
        (Transaction(tuple(Compare(f"k{i}", 1) for i in range(127)), ()), "--max-txn-ops"),
        (Transaction((), (Put("k", bytes(1_572_864)),)), "--max-request-bytes"),
        (Transaction((), (Put("k" * 1_572_864, b""),)), "--max-request-bytes"),
    ],
)
def test_what_is_too_large_is_refused_before_it_is_sent(
    transaction: Transaction, name: str
) -> None:
    """The error has a code, so that a group commit can halve its group."""
    limits = codec.TransactionLimits(ops=126, bytes=1_571_840)
    with pytest.raises(Invalid, match=name) as caught:
        limits.check(transaction, LAYOUT)
    assert caught.value.code == "TransactionTooLarge"
    writes = transaction.writes[:1] if "ops" in name else (Put("k", bytes(1_500_000)),)
    limits.check(Transaction(transaction.compares[:1], writes), LAYOUT)


@given(
    compares=st.dictionaries(keys, st.integers(0, 2**62), max_size=20),
    puts=st.dictionaries(keys, st.binary(max_size=300), max_size=20),
)
def test_the_reckoned_size_is_never_too_small(
    compares: dict[str, int], puts: dict[str, bytes]
) -> None:
    """A request that etcd finds too large after all would be refused, but only after sending."""
    transaction = Transaction(
        tuple(Compare(k, m) for k, m in compares.items()),
        tuple(Put(k, v) for k, v in puts.items()),
    )
    size = codec.request_of(transaction, LAYOUT).ByteSize()
    if transaction.writes:
        slack = 40 * (2 * len(compares) + len(puts))
        codec.TransactionLimits(ops=126, bytes=size + slack).check(transaction, LAYOUT)
        with pytest.raises(Invalid):
            codec.TransactionLimits(ops=126, bytes=size - 1).check(transaction, LAYOUT)


@given(prefix=st.text(st.characters(codec="utf-8"), max_size=5), key=keys)
def test_a_watch_covers_its_keys_and_its_bookmark_and_nothing_else(prefix: str, key: str) -> None:
    first, end = LAYOUT.watch_ranges(prefix)
    assert (first <= LAYOUT.record(key) < end) is key.startswith(prefix)
    assert first <= LAYOUT.bookmark(prefix) < end
    assert is_bookmark(LAYOUT.bookmark(prefix))
    assert not is_bookmark(LAYOUT.record(key))
    assert LAYOUT.key(LAYOUT.record(key)) == key


def test_the_parts_of_the_layout_do_not_overlap() -> None:
    """Sweeping a client must not reach another client, nor any record."""
    first, end = LAYOUT.slots("ab")
    assert first < LAYOUT.slot("ab", 0) < LAYOUT.slot("ab", 1023) < end
    others = [
        LAYOUT.slot("aba", 1),
        LAYOUT.slot("ac", 1),
        LAYOUT.client("ab"),
        LAYOUT.record("ab/1"),
        LAYOUT.none,
    ]
    assert not any(first <= name < end for name in others)
    assert LAYOUT.client_of(LAYOUT.client("ab")) == "ab"
    assert after_prefix(b"a/") == b"a0"
