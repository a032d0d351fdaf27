"""The store in memory: a synchronous core for the simulator, and a thin asyncio shell around it.

`Keyspace` is deterministic: no clock, no randomness, no asyncio. The simulator calls it directly
under virtual time and puts its own delays, losses and partitions around it; what-if runs on a
`copy()` of it. `MemoryStore` gives the same keyspace the contract's async interface, for tests of
the layers above a store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.model.errors import Invalid, Unavailable
from holdfast.model.transaction import (
    ABSENT,
    Batch,
    Change,
    Committed,
    CompareFailed,
    Fate,
    Forgotten,
    NotApplied,
    Outcome,
    Page,
    Put,
    Record,
    TokenApplied,
    Transaction,
)
from holdfast.store import contract
from holdfast.store.contract import BOOKMARK_EVERY_S, RANGE_LIMIT_MAX, TransactionToken, check
from holdfast.store.local_watches import BATCH_CHANGES_MAX, LocalWatchHub
from holdfast.store.mvcc import KeyStep, VersionIndex

# How many of the newest tokens are remembered; a caller asks within seconds.
TOKENS_MAX = 100_000


class Keyspace:
    """Keys, records and their history. Every call is atomic and takes no time of its own."""

    __slots__ = ("_applied", "_forgotten_up_to", "_index", "_number", "_tokens_max", "_withdrawn")

    def __init__(self, *, tokens_max: int = TOKENS_MAX) -> None:
        self._index: VersionIndex[Record] = VersionIndex()
        self._tokens_max = tokens_max
        self._number = 0
        self._forgotten_up_to = 0
        self._applied: dict[int, int] = {}
        self._withdrawn: set[int] = set()

    @property
    def revision(self) -> int:
        return self._index.revision

    @property
    def compacted(self) -> int:
        """The oldest revision that can still be read."""
        return self._index.compacted

    def get(self, key: str) -> Record | None:
        """The current record of one key."""
        return self._index.current.get(key)

    def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        """As in the contract."""
        found = self._index.range(start, end, limit=limit, at=at)
        return Page(found.revision, tuple(found.entries), found.more_from)

    def txn(self, transaction: Transaction, *, token: str | None = None) -> Outcome:
        """As in the contract. Raises Unavailable or OutcomeUnknown only because of the token."""
        check(transaction)
        current = self._index.current
        number = 0
        if token is not None:
            number = self._parse(token).number
            if number in self._applied:
                return Committed(self._applied[number])
            self._check_usable(number)
        for compare in transaction.compares:
            record = current.get(compare.key)
            if (ABSENT if record is None else record.modified) != compare.modified:
                return self._refusal(transaction)
        revision = self._write(transaction)
        if token is not None:
            self._remember(number, revision)
        return Committed(revision)

    def changes(
        self, prefix: str, *, after: int, upto: int | None = None, limit: int = BATCH_CHANGES_MAX
    ) -> Batch:
        """The changes after one revision and up to another, by default the current one.

        This is what a watch delivers next. A batch ends early with the revision at which it reaches
        `limit` changes. Raises Expired.
        """
        changes: list[Change] = []
        for revision, steps in self._index.steps_after(after, upto=upto):
            changes += [_change(revision, s) for s in steps if s.key.startswith(prefix)]
            if len(changes) >= limit:
                return Batch(revision, tuple(changes))
        return Batch(self._index.revision if upto is None else upto, tuple(changes))

    def compact(self, revision: int) -> None:
        """As in the contract."""
        self._index.compact(revision)

    def new_token(self) -> str:
        """As in the contract; a counter, so that runs are reproducible."""
        self._number += 1
        return str(TransactionToken(0, self._number))

    def fate(self, token: str) -> Fate:
        """As in the contract."""
        number = self._parse(token).number
        if number in self._applied:
            return TokenApplied(self._applied[number])
        if number <= self._forgotten_up_to:
            return Forgotten()
        self._withdrawn.add(number)
        return NotApplied()

    def copy(self) -> Keyspace:
        """An independent copy of the keyspace. Records are shared, so it is cheap."""
        twin = Keyspace(tokens_max=self._tokens_max)
        twin._index = self._index.copy()
        twin._number = self._number
        twin._forgotten_up_to = self._forgotten_up_to
        twin._applied = self._applied.copy()
        twin._withdrawn = self._withdrawn.copy()
        return twin

    def _write(self, transaction: Transaction) -> int:
        index = self._index
        current = index.current
        revision = index.revision + 1
        steps = []
        for write in transaction.writes:
            key = write.key
            before = current.get(key)
            if isinstance(write, Put):
                created = revision if before is None else before.created
                steps.append(KeyStep(key, before, Record(key, write.value, created, revision)))
            elif before is not None:
                steps.append(KeyStep(key, before, None))
        if not steps:
            return index.revision
        index.apply(steps)
        return revision

    def _refusal(self, transaction: Transaction) -> CompareFailed:
        current = self._index.current
        return CompareFailed(
            self._index.revision, tuple(current.get(c.key) for c in transaction.compares)
        )

    def _parse(self, token: str) -> TransactionToken:
        parsed = contract.parse(token)
        if parsed.session != 0 or parsed.number > self._number:
            raise Invalid(f"not a token of this store: {token!r}")
        return parsed

    def _check_usable(self, number: int) -> None:
        if number in self._withdrawn:
            raise contract.withdrawn_error(TransactionToken(0, number))
        if number <= self._forgotten_up_to:
            raise contract.forgotten(TransactionToken(0, number))

    def _remember(self, number: int, revision: int) -> None:
        self._applied[number] = revision
        if self._number - self._forgotten_up_to > 2 * self._tokens_max:
            # Half of the range at once, so that forgetting costs a constant share of each token.
            self._forgotten_up_to = floor = self._number - self._tokens_max
            self._applied = {n: r for n, r in self._applied.items() if n > floor}
            self._withdrawn = {n for n in self._withdrawn if n > floor}


def _change(revision: int, step: KeyStep[Record]) -> Change:
    after = step.after
    if after is None:
        return Change(revision, step.key, None, ABSENT)
    return Change(revision, step.key, after.value, after.created)


class MemoryStore:
    """The contract on a keyspace, for one event loop. Nothing here waits except a watch."""

    def __init__(
        self, keyspace: Keyspace | None = None, *, bookmark_every_s: float = BOOKMARK_EVERY_S
    ) -> None:
        self.keyspace = Keyspace() if keyspace is None else keyspace
        self._closed = False
        self.hub = LocalWatchHub(
            self._changes, position=self.keyspace.revision, bookmark_every_s=bookmark_every_s
        )

    async def range(
        self, start: str, end: str, *, limit: int = RANGE_LIMIT_MAX, at: int | None = None
    ) -> Page:
        self._check_open()
        return self.keyspace.range(start, end, limit=limit, at=at)

    async def txn(
        self, transaction: Transaction, *, token: str | None = None, timeout_s: float = 5.0
    ) -> Outcome:
        self._check_open()
        before = self.keyspace.revision
        outcome = self.keyspace.txn(transaction, token=token)
        if self.keyspace.revision > before:
            batch = self.keyspace.changes("", after=before)
            self.hub.publish(batch.revision, batch.changes)
        return outcome

    def new_token(self) -> str:
        return self.keyspace.new_token()

    async def fate(self, token: str) -> Fate:
        self._check_open()
        return self.keyspace.fate(token)

    def watch(self, prefix: str, *, after: int) -> AsyncIterator[Batch]:
        self._check_open()
        return self.hub.watch(prefix, after=after)

    async def compact(self, revision: int) -> None:
        self._check_open()
        self.keyspace.compact(revision)

    @property
    def known_revision(self) -> int:
        """The current revision, known without a round trip."""
        self._check_open()
        return self.keyspace.revision

    async def revision(self) -> int:
        return self.known_revision

    async def close(self) -> None:
        self._closed = True
        self.hub.close()

    async def _changes(self, prefix: str, after: int, upto: int) -> Batch:
        return self.keyspace.changes(prefix, after=after, upto=upto)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the store is closed")
