"""Transactions: a key has one meaning in each."""

from __future__ import annotations

import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.model.transaction import ABSENT, Compare, Delete, Put, Transaction


def test_a_key_may_be_compared_and_written_once_each() -> None:
    """That is what a bind does with every record it changes. [C2]"""
    compares = (Compare("a", ABSENT), Compare("b", 3))
    Transaction(compares=compares, writes=(Put("a", b"1"), Delete("b"), Put("c", b""))).check()
    Transaction(compares=(), writes=()).check()


@pytest.mark.parametrize(
    "transaction, part",
    [
        (Transaction((Compare("a", 1), Compare("a", 1)), ()), "compares"),
        (Transaction((Compare("a", 1), Compare("b", 1), Compare("a", 2)), ()), "compares"),
        (Transaction((), (Put("a", b"1"), Put("a", b"2"))), "writes"),
        (Transaction((), (Put("a", b"1"), Delete("a"))), "writes"),
        (Transaction((), (Delete("a"), Delete("a"))), "writes"),
    ],
)
def test_a_key_named_twice_has_no_single_meaning(transaction: Transaction, part: str) -> None:
    """Stores disagree about what it would do, so it is our own bug. [C2]"""
    with pytest.raises(InvariantBroken, match=part):
        transaction.check()
