"""What the event loop asks of the engine, and what it answers."""

from __future__ import annotations

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.transaction import Change, Outcome, Transaction
from holdfast.store.contract import Fate
from holdfast.store.tokens import Token


class Write(msgspec.Struct, frozen=True, gc=False):
    """Commit a transaction."""

    transaction: Transaction
    token: Token | None = None


class AskFate(msgspec.Struct, frozen=True, gc=False):
    """Make a token's fate final, and tell it."""

    token: Token


class Compact(msgspec.Struct, frozen=True, gc=False):
    """Forget the history before a revision."""

    revision: int


Request = Write | AskFate | Compact
Answer = Outcome | Fate | HoldfastError | None


class Answers(msgspec.Struct, frozen=True):
    """One answer for each request, and what watches are to be told."""

    answers: list[Answer]
    revision: int
    changes: list[Change]
