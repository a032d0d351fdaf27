"""What every store owes: the few calls that the rest of Holdfast stands on.

`commit/` decides what is written, `host/` carries it here, and one conformance suite holds memory, SQLite and etcd
to the same words. The promises:

- Revisions grow by one with each transaction that writes, and never go back, not even over a restart or restore.
- `txn` is atomic and, once it has answered Committed, durable (the memory store: as long as the process lives).
- `txn` raises Unavailable when it certainly did not happen and OutcomeUnknown when it may have. Nothing is retried
  inside: only the caller knows whether a second try is safe.
- `range` without `at` is linearizable: it sees every transaction acknowledged before the call was sent.
- `watch` delivers each change after a revision once, in order, all changes of a revision together, or raises
  Expired. It never leaves a hole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from holdfast.model.transaction import Change, Outcome, Record, Transaction

# One answer carries at most so many records; a caller pages on with `Page.more_from`.
RANGE_LIMIT_MAX = 10_000


class Page(msgspec.Struct, frozen=True):
    """Records in key order, all as of `revision`. `more_from` is the key to go on from, or None at the end."""

    revision: int
    records: tuple[Record, ...]
    more_from: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """What a watch delivers: all changes up to and including `revision` that were not delivered before.

    Without changes it is a bookmark: nothing under the prefix has changed up to `revision`.
    """

    revision: int
    changes: tuple[Change, ...] = ()


class Applied(msgspec.Struct, frozen=True, gc=False):
    """The transaction with this token took effect, at this revision."""

    revision: int


class NotApplied(msgspec.Struct, frozen=True, gc=False):
    """The transaction did not take effect and, having asked, never will."""


class Forgotten(msgspec.Struct, frozen=True, gc=False):
    """The token is older than what the store remembers. Read the objects themselves."""


Fate = Applied | NotApplied | Forgotten


class Store(Protocol):
    """A revisioned key-value store with compare-and-swap and watch."""

    async def range(
        self,
        start: str,
        end: str,
        *,
        limit: int = RANGE_LIMIT_MAX,
        at: int | None = None,
    ) -> Page:
        """Records with start <= key < end. `at` reads a past revision; Expired when that is compacted."""
        ...

    async def txn(
        self,
        transaction: Transaction,
        *,
        token: str | None = None,
        timeout_s: float = 5.0,
    ) -> Outcome:
        """Commit, or refuse with the current records. Raises Unavailable or OutcomeUnknown."""
        ...

    def new_token(self) -> str:
        """A fresh operation token for one transaction, to be passed to `txn` and, if need be, to `fate`."""
        ...

    async def fate(self, token: str) -> Fate:
        """Whether the transaction with this token took effect. The answer is final, asking makes it so."""
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        """Batches of changes under the prefix with revision > after, for ever. Expired when compacted past."""
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history before `revision`: what was current then stays readable, older is Expired."""
        ...

    async def revision(self) -> int:
        """The current revision, read linearizably."""
        ...

    async def close(self) -> None:
        """Release files, sockets and threads. Watches end; calls after this raise Unavailable."""
        ...
