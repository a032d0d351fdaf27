"""The contract of every store: the few calls that the rest of Holdfast depends on.

`commit/` decides what is written, `host/` passes it here, and one conformance suite checks memory,
SQLite and etcd against the same promises:

- Revisions grow with each transaction that has an effective write, and never go back, not even over
  a restart or restore. Memory and SQLite grow by exactly one; a store that writes records of its
  own (etcd: tokens) may skip some.
- `txn` is atomic and, once it has answered Committed, durable (in the memory store for as long as
  the process lives).
- `txn` raises Unavailable when it certainly did not happen and OutcomeUnknown when it may have.
  Nothing is retried inside: only the caller knows whether a second try is safe.
- A token takes effect at most once. `txn` with a token that already took effect answers Committed
  with the revision of that time and writes nothing; with a token that `fate` called NotApplied it
  raises Unavailable; with one that is Forgotten it raises OutcomeUnknown. A transaction whose
  compares fail leaves its token unused.
- `range` without `at` is linearizable: it sees every transaction acknowledged before the call was
  sent.
- `watch` delivers each change after a revision once, in order, all changes of a revision together,
  or raises Expired. It never leaves a hole. Once it has caught up it sends a bookmark if it has
  sent nothing yet, and another at least every BOOKMARK_EVERY_S while nothing changes under the
  prefix. A cancelled `anext` loses nothing: the next one goes on from the same place. A deletion's
  Change has `created` ABSENT.
- A revision that the store has not reached raises Expired, in `range` and `watch`: it belongs to a
  history that was lost, and only a new list brings the caller back.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

import msgspec

from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable, invariant
from holdfast.model.keys import END
from holdfast.model.transaction import Batch, Fate, Outcome, Page, Transaction

# One answer has at most this many records; a caller goes on with `Page.more_from`. A larger limit
# means this one, a limit below one is Invalid.
RANGE_LIMIT_MAX = 10_000

# A watch with nothing to report sends a bookmark this often, so that its reader knows how old its
# view is.
BOOKMARK_EVERY_S = 5.0

# All keys are before this one: the `end` of a range over everything.
KEY_END = END


def check(transaction: Transaction) -> None:
    """Refuse keys that stores would treat differently.

    Names are validated at the API, so a bad key here is our own bug.
    """
    if len(transaction.compares) > 1 or len(transaction.writes) > 1:
        transaction.check()
    for part in (transaction.compares, transaction.writes):
        for item in part:
            key = item.key
            if not (key and key.isascii()):
                invariant(key and key < KEY_END and _is_text(key), f"not a key: {key!r}")


def _is_text(key: str) -> bool:
    """Whether it has a UTF-8 form: lone surrogates have none, and etcd and SQLite refuse them."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


class Space(msgspec.Struct, frozen=True, gc=False):
    """How full a store with a bound of its own is, in bytes.

    `in_use` is what it holds, history included, `size` the size of its files, `most` the size at
    which it accepts no more writes. `is_closed` says that it has reached that.
    """

    in_use: int
    size: int
    most: int
    is_closed: bool = False


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
        """Records with start <= key < end.

        `at` reads a past revision; Expired when that is compacted.
        """
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
        """A new token for one transaction, for `txn` and, if necessary, for `fate`."""
        ...

    async def fate(self, token: str) -> Fate:
        """Whether the transaction with this token took effect.

        The answer is final: asking makes it so. A string that is not a token of such a store is
        Invalid.
        """
        ...

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        """Batches of changes under the prefix with revision > after, for ever.

        Expired when compacted past. It ends (StopAsyncIteration) when the store is closed, and
        raises Unavailable when the store has failed or was unreachable for long; watching again
        after the last revision loses nothing.
        """
        ...

    async def compact(self, revision: int) -> None:
        """Forget the history before `revision`.

        What was current then stays readable, older is Expired. A watch whose `after` is before
        `revision` has lost its place too. Compacting again to an older revision does nothing;
        compacting to a revision not yet reached raises Invalid.
        """
        ...

    async def revision(self) -> int:
        """The current revision, read linearizably."""
        ...

    async def close(self) -> None:
        """Release files, sockets and threads.

        Watches end; calls after this raise Unavailable.
        """
        ...


# Operation tokens: how a caller whose answer was lost learns the outcome of its transaction.
#
# A token is `<session>-<number>`. A session is one run of the store that issued it, the number
# counts within it; so tokens are ordered by age without a clock, and a store can tell a token that
# never took effect from one that it no longer remembers. Memory and SQLite share this form, but
# differ in what they remember and how durably.

_FORM = re.compile(r"(0|[1-9][0-9]{0,18})-([1-9][0-9]{0,18})", re.ASCII)


class TransactionToken(NamedTuple):
    """Ordered by age: the older token is the smaller one."""

    session: int
    number: int

    def __str__(self) -> str:
        return f"{self.session}-{self.number}"


def parse(text: str) -> TransactionToken:
    """Parse a token that `new_token` returned. Raises Invalid."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise Invalid(f"not a token of this store: {text!r}")
    return TransactionToken(int(match[1]), int(match[2]))


def withdrawn_error(token: TransactionToken) -> Unavailable:
    """The error for a token whose fate was asked for: that promised that it never takes effect."""
    return Unavailable(
        f"nothing was written: token {token} was withdrawn when its fate was asked for"
    )


def forgotten(token: TransactionToken) -> OutcomeUnknown:
    """The error for a token of which it is no longer known whether it took effect."""
    return OutcomeUnknown(
        f"token {token} is older than the store's memory: read the objects and use a new token"
    )
