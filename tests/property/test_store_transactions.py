"""What the store's contract promises of transactions and tokens, for every kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.model.errors import Invalid, InvariantBroken, Unavailable
from holdfast.model.transaction import (
    ABSENT,
    Committed,
    Compare,
    CompareFailed,
    Delete,
    NotApplied,
    Put,
    Record,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END, Store
from tests import store_factories
from tests.property.store_stories import collect, on_fresh, put, puts
from tests.store_factories import Rig


@pytest.fixture(scope="module", params=store_factories.params())
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from store_factories.started(request.param, tmp_path_factory.mktemp("store"))


# Transactions. -----------------------------------------------------------------------------------


def test_a_stale_compare_is_refused_with_the_current_records(rig: Rig) -> None:
    """The answer names every compared key in order, so that no second read is needed [C2]."""

    async def story(store: Store) -> None:
        first = await put(store, "a", b"1")
        second = await put(store, "a", b"2")
        transaction = Transaction(
            (Compare("gone", ABSENT), Compare("a", first), Compare("b", ABSENT)),
            (Put("a", b"3"), Put("b", b"3")),
        )
        outcome = await store.txn(transaction)
        assert isinstance(outcome, CompareFailed)
        assert outcome.revision >= second
        assert outcome.current == (None, Record("a", b"2", first, second), None)
        page = await store.range("a", KEY_END)
        assert page.records == (Record("a", b"2", first, second),)

    on_fresh(rig, story)


def test_all_writes_take_effect_at_one_revision(rig: Rig) -> None:
    """All or nothing, and one revision for all [C2]."""

    async def story(store: Store) -> None:
        old = await put(store, "b", b"old")
        transaction = Transaction(
            (Compare("a", ABSENT), Compare("b", old)), (Put("a", b"1"), Delete("b"), Put("c", b"2"))
        )
        outcome = await store.txn(transaction)
        assert isinstance(outcome, Committed)
        page = await store.range("a", KEY_END)
        r = outcome.revision
        assert page.records == (Record("a", b"1", r, r), Record("c", b"2", r, r))

    on_fresh(rig, story)


def test_deleting_what_is_absent_writes_nothing(rig: Rig) -> None:
    """It commits at the current revision, and no watch hears of it."""

    async def story(store: Store) -> None:
        before = await put(store, "a", b"1")
        outcome = await store.txn(Transaction((), (Delete("b"),)))
        assert isinstance(outcome, Committed)
        assert outcome.revision >= before
        assert not rig.exact_revisions or outcome.revision == before
        after = await put(store, "a", b"2")
        changes = await collect(store.watch("", after=before), after)
        assert [c.key for c in changes] == ["a"]

    on_fresh(rig, story)


def test_created_begins_again_after_a_deletion(rig: Rig) -> None:
    """`created` tells two lives of one name apart."""

    async def story(store: Store) -> None:
        first = await put(store, "a", b"1")
        await put(store, "a", b"2")
        assert (await store.range("a", KEY_END)).records[0].created == first
        await store.txn(Transaction((), (Delete("a"),)))
        again = await put(store, "a", b"3")
        assert (await store.range("a", KEY_END)).records[0].created == again

    on_fresh(rig, story)


def test_of_many_writers_with_one_expectation_exactly_one_wins(rig: Rig) -> None:
    """Compare-and-swap under contention: no lost update, no shared revision [C2, C6.1, INV1]."""

    async def story(store: Store) -> None:
        async def increment(times: int) -> list[int]:
            won = []
            while len(won) < times:
                records = (await store.range("n", "n\0")).records
                modified, value = (
                    (records[0].modified, int(records[0].value)) if records else (ABSENT, 0)
                )
                outcome = await store.txn(puts(("n", b"%d" % (value + 1)), n=modified))
                if isinstance(outcome, Committed):
                    won.append(outcome.revision)
            return won

        results = await asyncio.gather(*(increment(5) for _ in range(8)))
        revisions = [r for won in results for r in won]
        assert len(set(revisions)) == 40
        assert (await store.range("n", "n\0")).records[0].value == b"40"

    on_fresh(rig, story)


@pytest.mark.parametrize("key", ["", "\U0010ffff", "a\ud800"], ids=["empty", "end", "surrogate"])
def test_what_is_no_key_is_refused_by_all_stores_alike(rig: Rig, key: str) -> None:
    async def story(store: Store) -> None:
        for transaction in (
            Transaction((), (Put(key, b""),)),
            Transaction((Compare(key, ABSENT),), ()),
        ):
            with pytest.raises(InvariantBroken):
                await store.txn(transaction)
        with pytest.raises(InvariantBroken):
            await store.txn(Transaction((), (Put("a", b"1"), Delete("a"))))

    on_fresh(rig, story)


# Tokens. -----------------------------------------------------------------------------------------


def test_a_token_takes_effect_once_however_often_it_is_sent(rig: Rig) -> None:
    """Repeats, also at the same moment, all answer with the first one's revision [INV3, N1.1]."""

    async def story(store: Store) -> None:
        token = store.new_token()
        same = [store.txn(puts((f"k{i}", b"")), token=token) for i in range(10)]
        outcomes = await asyncio.gather(*same)
        assert len(set(outcomes)) == 1
        assert isinstance(outcomes[0], Committed)
        page = await store.range("k", "l")
        assert [r.modified for r in page.records] == [outcomes[0].revision]
        assert await store.fate(token) == TokenApplied(outcomes[0].revision)

    on_fresh(rig, story)


def test_a_refused_transaction_leaves_its_token_unused(rig: Rig) -> None:
    async def story(store: Store) -> None:
        token = store.new_token()
        assert isinstance(await store.txn(puts(("a", b"1"), a=999), token=token), CompareFailed)
        outcome = await store.txn(puts(("a", b"1"), a=ABSENT), token=token)
        assert isinstance(outcome, Committed)
        assert await store.fate(token) == TokenApplied(outcome.revision)

    on_fresh(rig, story)


def test_a_token_without_effective_writes_is_still_remembered(rig: Rig) -> None:
    async def story(store: Store) -> None:
        await put(store, "a", b"1")
        token = store.new_token()
        outcome = await store.txn(Transaction((), (Delete("gone"),)), token=token)
        assert isinstance(outcome, Committed)
        assert await store.fate(token) == TokenApplied(outcome.revision)

    on_fresh(rig, story)


def test_asking_for_a_fate_makes_it_final(rig: Rig) -> None:
    """NotApplied is a promise: a later transaction finds its token withdrawn. [N1.1]"""

    async def story(store: Store) -> None:
        token = store.new_token()
        assert await store.fate(token) == NotApplied()
        with pytest.raises(Unavailable):
            await store.txn(puts(("a", b"1")), token=token)
        assert await store.fate(token) == NotApplied()
        assert (await store.range("a", "b")).records == ()

    on_fresh(rig, story)


def test_a_fate_asked_during_the_transaction_agrees_with_what_happened(rig: Rig) -> None:
    """Whichever comes first wins, and both get the same answer [N1.1]."""

    async def story(store: Store) -> None:
        for i in range(20):
            key, token = f"k{i}", store.new_token()
            calls = [store.txn(puts((key, b"1")), token=token), store.fate(token)]
            first, second = await asyncio.gather(
                *(calls if i % 2 else reversed(calls)), return_exceptions=True
            )
            outcome, fate = (first, second) if i % 2 else (second, first)
            written = bool((await store.range(key, key + "\0")).records)
            if isinstance(fate, TokenApplied):
                assert outcome == Committed(fate.revision)
                assert written
            else:
                assert fate == NotApplied()
                assert isinstance(outcome, Unavailable)
                assert not written

    on_fresh(rig, story)


def test_what_is_no_token_is_invalid(rig: Rig) -> None:
    async def story(store: Store) -> None:
        for text in ("", "x", "1-", "-1", "1-x", "0-0 ", "\N{SUPERSCRIPT TWO}-1"):
            with pytest.raises(Invalid):
                await store.fate(text)
            with pytest.raises(Invalid):
                await store.txn(puts(("a", b"1")), token=text)

    on_fresh(rig, story)
