"""The requests of the event loop to the engine, and its answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.transaction import ABSENT, Change, Fate, Outcome, Put, Transaction
from holdfast.store.contract import TransactionToken
from holdfast.store.mvcc import KeyStep
from holdfast.store.sqlite.committed import Steps, change
from holdfast.store.sqlite.rows import Pointer, checksum, row_id


class CommitWrite(msgspec.Struct, frozen=True, gc=False):
    """Commit a transaction."""

    transaction: Transaction
    token: TransactionToken | None = None


class AskFate(msgspec.Struct, frozen=True, gc=False):
    """Make a token's fate final, and answer with it."""

    token: TransactionToken


class Compact(msgspec.Struct, frozen=True, gc=False):
    """Forget the history before a revision."""

    revision: int


Request = CommitWrite | AskFate | Compact
Answer = Outcome | Fate | HoldfastError | None


class Answers(msgspec.Struct, frozen=True):
    """One answer for each request, and the changes for watches."""

    answers: list[Answer]
    revision: int
    changes: list[Change]


# Deciding a group of transactions, one after another, before any of them is written.
#
# The engine makes a group of all waiting requests, decides each transaction on the committed state
# and on what earlier members of the group are about to write, then writes and commits them all at
# once. Pure: nothing is visible outside until the engine has committed, and a group that fails is
# simply dropped.

# id, key, created, previous, checksum, value
LogRow = tuple[int, str, int, int, int, bytes | None]


class WriteGroup:
    """What a group of transactions is about to write."""

    def __init__(self, committed: Callable[[str], Pointer | None], revision: int) -> None:
        self._committed = committed
        self._first = revision + 1
        self.revision = revision
        # The future entry of each key written.
        self.pointers: dict[str, Pointer | None] = {}
        self.revisions: list[Steps] = []
        self.rows: list[LogRow] = []
        self.values: dict[int, bytes] = {}
        self.tokens: dict[TransactionToken, int] = {}

    def pointer(self, key: str) -> Pointer | None:
        if key in self.pointers:
            return self.pointers[key]
        return self._committed(key)

    def holds(self, transaction: Transaction) -> bool:
        for compare in transaction.compares:
            pointer = self.pointer(compare.key)
            if (ABSENT if pointer is None else pointer.modified) != compare.modified:
                return False
        return True

    def write(self, transaction: Transaction, token: TransactionToken | None) -> int:
        """Add a transaction whose compares hold; returns the revision it is to have."""
        revision = self.revision + 1
        steps: list[KeyStep[Pointer]] = []
        for write in transaction.writes:
            key = write.key
            before = self.pointer(key)
            value = write.value if isinstance(write, Put) else None
            if value is not None or before is not None:
                steps.append(self._step(key, before, value, row_id(revision, len(steps))))
        if steps:
            self.revision = revision
            self.revisions.append(steps)
        if token is not None:
            self.tokens[token] = self.revision
        return self.revision

    def changes(self) -> list[Change]:
        """The changes for watches, once the group is committed."""
        return [
            change(revision, step, self.values)
            for revision, steps in enumerate(self.revisions, self._first)
            for step in steps
        ]

    def _step(
        self, key: str, before: Pointer | None, value: bytes | None, row: int
    ) -> KeyStep[Pointer]:
        # A deletion keeps the `created` of what it removes, so that the step can be undone when
        # only this row is left of it.
        created = Pointer(key, 0, row).modified if before is None else before.created
        after = None if value is None else Pointer(key, created, row)
        previous = 0 if before is None else before.id
        self.rows.append((row, key, created, previous, checksum(key, value), value))
        self.pointers[key] = after
        if value is not None:
            self.values[row] = value
        return KeyStep(key, before, after)
