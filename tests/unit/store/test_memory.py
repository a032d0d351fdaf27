"""The synchronous core that the simulator stands on."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Expired, OutcomeUnknown
from holdfast.model.transaction import (
    Batch,
    Committed,
    Delete,
    Forgotten,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.memory import Keyspace


def put(key: str, value: bytes = b"") -> Transaction:
    return Transaction((), (Put(key, value),))


def test_two_equal_runs_are_equal_to_the_last_token() -> None:
    """No clock and no randomness, so that a seed replays exactly [N6]."""

    def run() -> list[object]:
        keyspace = Keyspace()
        tokens = [keyspace.new_token() for _ in range(3)]
        outcomes = [keyspace.txn(put(f"k{i}"), token=t) for i, t in enumerate(tokens)]
        return [tokens, outcomes, keyspace.range("", KEY_END), keyspace.changes("", after=0)]

    assert run() == run()


def test_a_copy_goes_its_own_way() -> None:
    """What-if runs on a copy: neither sees the other's writes, tokens or compaction."""
    keyspace = Keyspace()
    token = keyspace.new_token()
    keyspace.txn(put("a", b"1"), token=token)
    twin = keyspace.copy()
    assert twin.fate(token) == TokenApplied(1)
    twin.txn(put("a", b"2"))
    twin.txn(Transaction((), (Put("b", b""), Delete("a"))))
    twin.compact(3)
    assert keyspace.revision == 1
    assert [r.value for r in keyspace.range("", KEY_END, at=1).records] == [b"1"]
    assert keyspace.new_token() == twin.new_token()
    keyspace.txn(put("c"))
    assert [r.key for r in twin.range("", KEY_END).records] == ["b"]


def test_changes_are_delivered_in_pieces_that_end_with_a_revision() -> None:
    keyspace = Keyspace()
    for i in range(5):
        keyspace.txn(Transaction((), (Put("a", b"%d" % i), Put("b", b""), Put("c/1", b""))))
    first = keyspace.changes("a", after=0, limit=2)
    assert (first.revision, [c.value for c in first.changes]) == (2, [b"0", b"1"])
    assert keyspace.changes("", after=2, limit=1).revision == 3
    assert keyspace.changes("none", after=0) == Batch(5)
    assert keyspace.changes("", after=1, upto=1) == Batch(1)
    with pytest.raises(Expired):
        keyspace.changes("", after=6)


def test_old_tokens_are_forgotten_and_said_to_be() -> None:
    """Never NotApplied for what may have been applied [N1.1]."""
    keyspace = Keyspace(tokens_max=10)
    tokens = []
    for _ in range(50):
        tokens.append(keyspace.new_token())
        assert isinstance(keyspace.txn(put("a"), token=tokens[-1]), Committed)
    fates = [keyspace.fate(token) for token in tokens]
    assert all(fate in (Forgotten(), TokenApplied(i + 1)) for i, fate in enumerate(fates))
    assert fates[0] == Forgotten()
    assert fates[-10:] == [TokenApplied(r) for r in range(41, 51)]
    with pytest.raises(OutcomeUnknown):
        keyspace.txn(put("a"), token=tokens[0])
    assert keyspace.revision == 50
