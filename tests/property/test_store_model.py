"""Random histories: each store, step by step, against a model made of dicts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.model.errors import Expired, Invalid, Unavailable
from holdfast.model.keys import after_prefix
from holdfast.model.transaction import (
    Batch,
    Committed,
    Compare,
    CompareFailed,
    Delete,
    NotApplied,
    Page,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from tests import store_factories
from tests.scale import examples
from tests.store_factories import SILENCE_MAX_S, Rig
from tests.store_model import Model

T = TypeVar("T")

# Few keys, so that histories meet; some share a prefix with others, some sort where UTF-16 and
# UTF-8 disagree.
KEYS = ("a", "a/", "a/1", "a/2", "a0", "b/1", "b/10", "z", "\uffee", "\U00010000")
PREFIXES = ("", "a", "a/", "a/1", "b/", "none/")
keys = st.sampled_from(KEYS)
values = st.sampled_from((b"", b"1", b"22", b"\xff\0"))
# Mostly puts, or there would be little to read.
changes = st.sampled_from((None, b"", b"1", b"22", b"\xff\0"))
BOUNDS = (("a", KEY_END), ("a", "z"), ("a/", "b"), ("a/1", KEY_END), ("z", "a"))
# Mostly right, or histories would not get far.
GUARDS = ("right", "right", "right", "absent", "old")
# A place in history, as a share of the revisions there are: revisions themselves differ by store.
places = st.floats(0, 1)


@pytest.fixture(scope="module", params=store_factories.params())
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from store_factories.started(request.param, tmp_path_factory.mktemp("store"))


class Reader:
    """A watch and how far it has got."""

    def __init__(self, prefix: str, after: int, batches: AsyncIterator[Batch]) -> None:
        self.prefix = prefix
        self.after = after
        self.batches = batches


class Histories(RuleBasedStateMachine):
    """What may happen to a store, and what each answer must be."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig = rig
        self.store = self.run(rig.fresh())
        self.model = Model(revision=self.run(self.store.revision()))
        self.readers: list[Reader] = []
        self.unused: list[str] = []
        self.applied: dict[str, int] = {}
        self.withdrawn: list[str] = []
        # An empty store may have a history of its own before ours, which is not ours to judge.
        self.compacted_here = False
        if rig.exact_revisions:
            assert self.model.revision == 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.rig.run(coroutine)

    def teardown(self) -> None:
        for reader in self.readers:
            self.run(self.read_up_to(reader, self.model.revision))
        self.run(self.store.close())

    # Transactions. ---------------------------------------------------------------------------

    @initialize(first=st.lists(keys, min_size=3, unique=True))
    def fill(self, first: list[str]) -> None:
        for key in first:
            self.transact_once(Transaction((), (Put(key, b"0"),)), with_token=False)

    @rule(
        several=st.lists(
            st.tuples(
                st.dictionaries(keys, st.sampled_from(GUARDS), max_size=2),
                st.dictionaries(keys, changes, max_size=4),
                st.booleans(),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def transact(self, several: list[tuple[dict[str, str], dict[str, bytes | None], bool]]) -> None:
        for guards, writes, with_token in several:
            self.transact_once(self.transaction(guards, writes), with_token)

    def transact_once(self, transaction: Transaction, with_token: bool) -> None:
        token = self.store.new_token() if with_token else None
        outcome = self.run(self.store.txn(transaction, token=token))
        if not self.model.holds(transaction):
            assert isinstance(outcome, CompareFailed)
            self.saw(outcome.revision)
            current = self.model.current
            assert outcome.current == tuple(current.get(c.key) for c in transaction.compares)
            if token is not None:
                self.unused.append(token)
            return
        assert isinstance(outcome, Committed)
        self.took_effect(transaction, outcome.revision)
        if token is not None:
            self.applied[token] = outcome.revision

    def transaction(self, guards: dict[str, str], writes: dict[str, bytes | None]) -> Transaction:
        compares = []
        for key, guard in guards.items():
            right = self.model.modified(key)
            modified = {"right": right, "absent": 0, "old": max(0, right - 1)}[guard]
            compares.append(Compare(key, modified))
        return Transaction(
            tuple(compares),
            tuple(Delete(k) if v is None else Put(k, v) for k, v in writes.items()),
        )

    def took_effect(self, transaction: Transaction, revision: int) -> None:
        if self.model.has_effect(transaction):
            assert revision > self.model.revision
            assert not self.rig.exact_revisions or revision == self.model.revision + 1
            self.model.write(transaction, revision)
        else:
            self.saw(revision)

    def saw(self, revision: int) -> None:
        """The store named its revision without having written one of our keys."""
        assert revision >= self.model.revision
        assert not self.rig.exact_revisions or revision == self.model.revision
        self.model.revision = revision

    # Tokens. ---------------------------------------------------------------------------------

    @rule()
    def issue_token(self) -> None:
        token = self.store.new_token()
        assert token not in self.unused
        assert token not in self.applied
        assert token not in self.withdrawn
        self.unused.append(token)

    @precondition(lambda self: self.unused)
    @rule(data=st.data(), key=keys, value=values)
    def use_token_later(self, data: st.DataObject, key: str, value: bytes) -> None:
        token = self.unused.pop(data.draw(st.integers(0, len(self.unused) - 1)))
        transaction = Transaction((), (Put(key, value),))
        outcome = self.run(self.store.txn(transaction, token=token))
        assert isinstance(outcome, Committed)
        self.took_effect(transaction, outcome.revision)
        self.applied[token] = outcome.revision

    @precondition(lambda self: self.applied)
    @rule(data=st.data(), key=keys, value=values)
    def use_token_again(self, data: st.DataObject, key: str, value: bytes) -> None:
        token = data.draw(st.sampled_from(sorted(self.applied)))
        transaction = Transaction((Compare(key, 0),), (Put(key, value),))
        outcome = self.run(self.store.txn(transaction, token=token))
        assert outcome == Committed(self.applied[token])
        assert self.run(self.store.fate(token)) == TokenApplied(self.applied[token])

    @precondition(lambda self: self.unused)
    @rule(data=st.data(), key=keys, value=values)
    def use_token_after_asking(self, data: st.DataObject, key: str, value: bytes) -> None:
        token = self.unused.pop(data.draw(st.integers(0, len(self.unused) - 1)))
        for _ in range(2):
            assert self.run(self.store.fate(token)) == NotApplied()
            with pytest.raises(Unavailable):
                self.run(self.store.txn(Transaction((), (Put(key, value),)), token=token))
        self.withdrawn.append(token)

    # Reads. ----------------------------------------------------------------------------------

    @rule(bounds=st.sampled_from(BOUNDS), limit=st.integers(1, 12))
    def read_now(self, bounds: tuple[str, str], limit: int) -> None:
        start, end = bounds
        page = self.run(self.store.range(start, end, limit=limit))
        self.saw(page.revision)
        self.check_page(page, start, end, limit)

    @rule(place=places, limit=st.integers(1, 4), prefix=st.sampled_from(PREFIXES))
    def page_through_the_past(self, place: float, limit: int, prefix: str) -> None:
        at = self.some_revision(place)
        start, end = prefix, after_prefix(prefix)
        while True:
            page = self.run(self.store.range(start, end, limit=limit, at=at))
            assert page.revision == at
            self.check_page(page, start, end, limit)
            if page.more_from is None:
                return
            start = page.more_from

    def check_page(self, page: Page, start: str, end: str, limit: int) -> None:
        expected = self.model.records(start, end, page.revision)
        assert page.records == expected[:limit]
        if page.more_from is None:
            assert len(expected) <= limit
        else:
            assert len(expected) > limit
            assert expected[limit - 1].key < page.more_from <= expected[limit].key

    def some_revision(self, place: float) -> int:
        """A revision that is still kept."""
        return self.model.compacted + round(place * (self.model.revision - self.model.compacted))

    @precondition(lambda self: self.compacted_here and self.model.compacted > 1)
    @rule()
    def read_compacted(self) -> None:
        with pytest.raises(Expired):
            self.run(self.store.range("a", KEY_END, at=self.model.compacted - 1))

    @rule()
    def ask_for_a_revision_never_reached(self) -> None:
        self.saw(self.run(self.store.revision()))
        # Where the store keeps books of its own, those may take the next ones.
        never = self.model.revision + (1 if self.rig.exact_revisions else 1_000)
        with pytest.raises(Expired):
            self.run(self.store.range("a", KEY_END, at=never))
        with pytest.raises(Invalid):
            self.run(self.store.compact(never))

    # History. --------------------------------------------------------------------------------

    @rule(place=places)
    def compact(self, place: float) -> None:
        revision = self.some_revision(place)
        # A reader on the edge may or may not have lost its place; those here are to be certain.
        self.readers = [r for r in self.readers if not self.is_on_the_edge(r, revision)]
        self.run(self.store.compact(revision))
        self.model.compacted = revision
        self.compacted_here = True

    @staticmethod
    def is_on_the_edge(reader: Reader, revision: int) -> bool:
        return reader.after < revision

    @precondition(lambda self: len(self.readers) < 4)
    @rule(place=places, prefix=st.sampled_from(PREFIXES))
    def open_watch(self, place: float, prefix: str) -> None:
        after = self.some_revision(place)
        reader = Reader(prefix, after, self.open(prefix, after))
        self.readers.append(reader)
        # The first batch is there at once, be it a bookmark.
        self.run(self.read_batch(reader))

    def open(self, prefix: str, after: int) -> AsyncIterator[Batch]:
        async def watch() -> AsyncIterator[Batch]:
            return self.store.watch(prefix, after=after)

        return self.run(watch())

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read_watch(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        due = self.model.between(reader.prefix, reader.after, self.model.revision)
        if due:
            self.run(self.read_up_to(reader, due[-1].revision))

    async def read_up_to(self, reader: Reader, revision: int) -> None:
        while reader.after < revision:
            await self.read_batch(reader)

    async def read_batch(self, reader: Reader) -> None:
        async with asyncio.timeout(SILENCE_MAX_S):
            batch = await anext(reader.batches)
        assert batch.revision >= reader.after
        assert batch.changes == self.model.between(reader.prefix, reader.after, batch.revision)
        reader.after = batch.revision

    @precondition(lambda self: self.compacted_here and self.model.compacted > 2)
    @rule(prefix=st.sampled_from(PREFIXES))
    def watch_compacted(self, prefix: str) -> None:
        # One revision less than the edge may still be whole in some stores; two never.
        batches = self.open(prefix, self.model.compacted - 2)
        with pytest.raises(Expired):
            self.run(self.first(batches))

    @staticmethod
    async def first(batches: AsyncIterator[Batch]) -> Batch:
        async with asyncio.timeout(SILENCE_MAX_S):
            return await anext(batches)

    @precondition(lambda self: self.rig.durable)
    @rule()
    def reopen(self) -> None:
        self.store = self.run(self.rig.reopen(self.store))
        # Whether a token of an earlier life may still be used is the store's own affair.
        self.unused.clear()
        for reader in self.readers:
            reader.batches = self.open(reader.prefix, reader.after)


def test_any_history_reads_as_the_model_says(rig: Rig) -> None:
    """Reads, pages, conflicts, tokens, watches and compaction agree with dicts [C2, C8, INV10]."""
    run_state_machine_as_test(
        lambda: Histories(rig),
        settings=settings(stateful_step_count=40, max_examples=examples(rig.histories)),
    )
