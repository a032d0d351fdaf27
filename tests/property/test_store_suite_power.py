"""That the suite would notice: stores with one planted fault each, which the histories must find.

A fault lives here, never in the product.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from holdfast.model.transaction import (
    Batch,
    Committed,
    CompareFailed,
    Fate,
    NotApplied,
    Outcome,
    Page,
    Record,
    Transaction,
)
from holdfast.store.contract import Store
from holdfast.store.memory import Keyspace, MemoryStore
from holdfast.store.mvcc import EntryPage, VersionIndex
from tests.property.test_store_model import Histories
from tests.store_factories import BOOKMARK_EVERY_S, Rig


class IgnoresCompares(Keyspace):
    def txn(self, transaction: Transaction, *, token: str | None = None) -> Outcome:
        return super().txn(Transaction((), transaction.writes), token=token)


class RefusesWithoutRecords(Keyspace):
    def _refusal(self, transaction: Transaction) -> CompareFailed:
        return CompareFailed(self.revision, tuple(None for _ in transaction.compares))


class ForgetsTokens(Keyspace):
    def _remember(self, number: int, revision: int) -> None:
        pass


class LetsWithdrawnTokensIn(Keyspace):
    def fate(self, token: str) -> Fate:
        fate = super().fate(token)
        if fate == NotApplied():
            self._withdrawn.clear()
        return fate


class AppliesRepeats(Keyspace):
    def txn(self, transaction: Transaction, *, token: str | None = None) -> Outcome:
        return super().txn(transaction)


class LosesOneOfManyChanges(Keyspace):
    def changes(self, prefix: str, **options: Any) -> Batch:
        batch = super().changes(prefix, **options)
        kept = batch.changes[:-1] if len(batch.changes) == 3 else batch.changes
        return Batch(batch.revision, kept)


class RepeatsAChange(Keyspace):
    def changes(self, prefix: str, *, after: int, **options: Any) -> Batch:
        earlier = max(self.compacted, after - 1) if prefix == "a/" else after
        return super().changes(prefix, after=earlier, **options)


class MatchesPrefixesLoosely(Keyspace):
    def changes(self, prefix: str, **options: Any) -> Batch:
        return super().changes(prefix[:1], **options)


class ReadsThePastAsThePresent(Keyspace):
    def range(self, start: str, end: str, *, at: int | None = None, **options: Any) -> Page:
        page = super().range(start, end, at=at, **options)
        now = super().range(start, end, **options)
        return Page(page.revision, now.records, now.more_from)


class PagesEndEarly(Keyspace):
    def range(self, start: str, end: str, **options: Any) -> Page:
        page = super().range(start, end, **options)
        return Page(page.revision, page.records, None)


class PagesSkipARecord(Keyspace):
    def range(self, start: str, end: str, **options: Any) -> Page:
        page = super().range(start, end, **options)
        more = page.more_from and page.more_from + "0"
        return Page(page.revision, page.records, more)


class KeepsCreatedAfterDeletion(Keyspace):
    def _write(self, transaction: Transaction) -> int:
        first: dict[str, int] = self.__dict__.setdefault("first", {})
        revision = super()._write(transaction)
        for key, record in list(self._index.current.items()):
            created = first.setdefault(key, record.created)
            self._index.current[key] = Record(key, record.value, created, record.modified)
        return revision


class _ShortMemory(VersionIndex[Record]):
    """Takes the oldest revision that it has for any that is older."""

    def check_kept(self, revision: int) -> None:
        super().check_kept(max(revision, self.compacted))

    def steps_after(self, revision: int, *, upto: int | None = None) -> Any:
        return super().steps_after(max(revision, self.compacted), upto=upto)

    def _range_then(self, start: str, end: str, limit: int, at: int) -> EntryPage[Record]:
        return super()._range_then(start, end, limit, max(at, self.compacted))


class ServesCompactedRevisions(Keyspace):
    def __init__(self) -> None:
        super().__init__()
        self._index = _ShortMemory()


class SkipsARevision(Keyspace):
    def _write(self, transaction: Transaction) -> int:
        revision = super()._write(transaction)
        return revision + 1 if revision == 5 else revision


class WritesWhatItRefuses(Keyspace):
    def txn(self, transaction: Transaction, *, token: str | None = None) -> Outcome:
        outcome = super().txn(transaction, token=token)
        if isinstance(outcome, CompareFailed) and len(transaction.compares) > 1:
            super().txn(Transaction((), transaction.writes))
        return outcome


class CommitsDeletionsOfNothing(Keyspace):
    def txn(self, transaction: Transaction, *, token: str | None = None) -> Outcome:
        outcome = super().txn(transaction, token=token)
        if isinstance(outcome, Committed) and outcome.revision == self.revision:
            return Committed(outcome.revision + (not transaction.writes))
        return outcome


FAULTS = [
    IgnoresCompares,
    RefusesWithoutRecords,
    ForgetsTokens,
    LetsWithdrawnTokensIn,
    AppliesRepeats,
    LosesOneOfManyChanges,
    RepeatsAChange,
    MatchesPrefixesLoosely,
    ReadsThePastAsThePresent,
    PagesEndEarly,
    PagesSkipARecord,
    KeepsCreatedAfterDeletion,
    ServesCompactedRevisions,
    SkipsARevision,
    WritesWhatItRefuses,
    CommitsDeletionsOfNothing,
]


class FaultyRig(Rig):
    name = "faulty"
    durable = False
    kind: type[Keyspace] = Keyspace

    async def fresh(self) -> Store:
        return MemoryStore(self.kind(), bookmark_every_s=BOOKMARK_EVERY_S)


@pytest.fixture
def rig() -> Iterator[FaultyRig]:
    made = FaultyRig(Path(tempfile.gettempdir()))
    yield made
    made.stop()


SEARCH = settings(
    stateful_step_count=40,
    max_examples=60,
    # The same search each time, and no shrinking: that it is found is enough.
    derandomize=True,
    database=None,
    phases=[Phase.generate],
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_faulty_store_is_found_out(rig: FaultyRig, fault: type[Keyspace]) -> None:
    """A suite that passes whatever the store does proves nothing [C2, C8, INV10]."""
    rig.kind = fault
    with pytest.raises((AssertionError, LookupError, pytest.fail.Exception)):
        run_state_machine_as_test(lambda: Histories(rig), settings=SEARCH)


def test_a_sound_store_is_not(rig: FaultyRig) -> None:
    """The same search over the store without a fault raises no alarm."""
    run_state_machine_as_test(lambda: Histories(rig), settings=SEARCH)
