"""Operation tokens: how a caller whose answer was lost learns what became of its transaction.

A token is `<session>-<number>`. A session is one life of the store that issued it, the number
counts within it; so tokens are ordered by age without a clock, and a store can tell a token that
never took effect from one that it no longer remembers. Memory and SQLite share this form; what
they remember, and how durably, is their own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable

_FORM = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})", re.ASCII)


class Token(NamedTuple):
    """Ordered by age: the older token is the smaller one."""

    session: int
    number: int

    def __str__(self) -> str:
        return f"{self.session}-{self.number}"


def parse(text: str) -> Token:
    """Read a token that `new_token` wrote."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Invalid(f"not a token of this store: {text!r}")
    return Token(int(match[1]), int(match[2]))


def withdrawn(token: Token) -> Unavailable:
    """Asking for a token's fate promised somebody that it never takes effect."""
    return Unavailable(
        f"nothing was written: token {token} was withdrawn when its fate was asked for"
    )


def forgotten(token: Token) -> OutcomeUnknown:
    """Whether an earlier transaction with this token took effect is not known any more."""
    return OutcomeUnknown(
        f"token {token} is older than what the store remembers: read the objects, take a new token"
    )
