"""How long tokens may be used and are remembered."""

from __future__ import annotations

import pytest

from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.store.contract import TransactionToken
from holdfast.store.sqlite import operation_tokens
from holdfast.store.sqlite.operation_tokens import TOKENS_MAX, USABLE_S, TokenBook


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_used_token_is_remembered_for_ten_minutes_at_least() -> None:
    """Whenever it was used: it may be used for ten minutes, and is forgotten after twenty."""
    clock = Clock()
    book = TokenBook(5, TransactionToken(0, 0), clock)
    token = book.issue()
    issued_s = clock.now_s
    last_usable_s = 0.0
    for _ in range(100):
        line = book.due()
        if line is not None:
            if token <= line:
                break
            book.forgotten = line
        try:
            book.check_usable(token)
            last_usable_s = clock.now_s
        except Unavailable:
            pass
        clock.now_s += 30
    assert last_usable_s - issued_s >= USABLE_S - 60
    assert clock.now_s - last_usable_s >= USABLE_S


def test_tokens_of_earlier_sessions_are_known_but_not_used() -> None:
    """A restart ends what was in flight."""
    clock = Clock()
    book = TokenBook(5, TransactionToken(3, 17), clock)
    with pytest.raises(OutcomeUnknown):
        book.check_usable(TransactionToken(3, 17))
    with pytest.raises(Unavailable):
        book.check_usable(TransactionToken(4, 1))
    with pytest.raises(Invalid):
        book.check_form(TransactionToken(5, 1))
    assert book.issue() == TransactionToken(5, 1)
    book.check_form(TransactionToken(5, 1))
    book.check_usable(TransactionToken(5, 1))
    clock.now_s += 2 * USABLE_S
    assert book.due() == TransactionToken(5, 0)


def test_a_flood_of_tokens_is_bounded() -> None:
    """Beyond the bound the oldest are forgotten early, in large steps."""
    book = TokenBook(1, TransactionToken(0, 0), Clock())
    book.issued = TOKENS_MAX + operation_tokens.STEP_TOKENS - 1
    assert book.due() is None
    book.issued += 1
    line = book.due()
    assert line == TransactionToken(1, operation_tokens.STEP_TOKENS)
    book.forgotten = line
    assert book.due() is None
    with pytest.raises(OutcomeUnknown):
        book.check_usable(line)
