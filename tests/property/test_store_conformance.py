"""The contract's promises one by one, for every kind of store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from holdfast.model.errors import Expired, Invalid, InvariantBroken, Unavailable
from holdfast.model.keys import after_prefix
from holdfast.model.transaction import (
    ABSENT,
    Change,
    Committed,
    Compare,
    Delete,
    Put,
    Record,
    Refused,
    Transaction,
)
from holdfast.store.contract import KEY_END, Applied, Batch, NotApplied, Store
from tests import store_factories
from tests.store_factories import SILENCE_MAX_S, Rig

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=store_factories.params())
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from store_factories.started(request.param, tmp_path_factory.mktemp("store"))


def on_fresh(rig: Rig, story: Callable[[Store], Awaitable[None]]) -> None:
    """Play a story on an empty store."""

    async def play() -> None:
        store = await rig.fresh()
        try:
            await story(store)
        finally:
            await store.close()

    rig.run(play())


def puts(*pairs: tuple[str, bytes], **compares: int) -> Transaction:
    return Transaction(
        tuple(Compare(k, m) for k, m in compares.items()), tuple(Put(k, v) for k, v in pairs)
    )


async def put(store: Store, key: str, value: bytes) -> int:
    outcome = await store.txn(puts((key, value)))
    assert isinstance(outcome, Committed)
    return outcome.revision


async def following(batches: AsyncIterator[Batch]) -> Batch:
    async with asyncio.timeout(SILENCE_MAX_S):
        return await anext(batches)


async def collect(batches: AsyncIterator[Batch], upto: int) -> list[Change]:
    """All changes until a batch reaches the revision."""
    changes: list[Change] = []
    while True:
        batch = await following(batches)
        changes += batch.changes
        if batch.revision >= upto:
            return changes


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
        assert isinstance(outcome, Refused)
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


def test_created_begins_anew_after_a_deletion(rig: Rig) -> None:
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


# Reads. ------------------------------------------------------------------------------------------


def test_values_come_back_as_they_were(rig: Rig) -> None:
    """Empty is not absent, and every byte survives, up to the largest object [INV11]."""
    values = {
        "empty": b"",
        "every-byte": bytes(range(256)),
        "zeros": bytes(1000),
        "large": bytes(range(256)) * 4096,
    }

    async def story(store: Store) -> None:
        for key, value in values.items():
            await put(store, key, value)
        page = await store.range("a", KEY_END)
        assert {r.key: r.value for r in page.records} == values

    on_fresh(rig, story)


def test_keys_are_ordered_by_code_point(rig: Rig) -> None:
    keys = ["A", "a", "a\0", "a!", "a/b", "aa", "é", "\ud7ff", "\ue000", "\uffff", "\U00010000"]

    async def story(store: Store) -> None:
        for key in reversed(keys):
            await put(store, key, b"")
        assert [r.key for r in (await store.range("A", KEY_END)).records] == keys
        below = await store.range("a", after_prefix("a"))
        assert [r.key for r in below.records] == ["a", "a\0", "a!", "a/b", "aa"]
        assert [r.key for r in (await store.range("\ud7ff", "\ue000")).records] == ["\ud7ff"]
        assert (await store.range("b", "a")).records == ()

    on_fresh(rig, story)


def test_a_list_in_pages_shows_one_moment_while_writers_go_on(rig: Rig) -> None:
    """Pages read at the first page's revision join without a seam [C8]."""

    async def story(store: Store) -> None:
        names = [f"k{i:04}" for i in range(600)]
        for i in range(0, 600, 60):
            await store.txn(puts(*((name, b"old") for name in names[i : i + 60])))
        page = await store.range("k", "l", limit=250)
        at, seen = page.revision, list(page.records)
        while page.more_from is not None:
            name = names[len(seen)]
            await store.txn(Transaction((), (Put(name, b"new"), Put(name + "-new", b"new"))))
            await store.txn(Transaction((), (Delete(names[-1]),)))
            page = await store.range(page.more_from, "l", limit=250, at=at)
            assert page.revision == at
            seen += page.records
        assert [r.key for r in seen] == names
        assert {r.value for r in seen} == {b"old"}

    on_fresh(rig, story)


def test_a_range_needs_a_limit_of_at_least_one(rig: Rig) -> None:
    async def story(store: Store) -> None:
        with pytest.raises(Invalid):
            await store.range("a", "b", limit=0)

    on_fresh(rig, story)


def test_a_read_sees_what_was_acknowledged_before(rig: Rig) -> None:
    """Linearizable: `range` and `revision` are never behind an answer already given [C2]."""

    async def story(store: Store) -> None:
        async def write_and_read(key: str) -> None:
            for i in range(10):
                written = await put(store, key, b"%d" % i)
                page = await store.range(key, key + "\0")
                assert page.revision >= written
                assert page.records[0].value == b"%d" % i
                assert await store.revision() >= written

        await asyncio.gather(*(write_and_read(f"k{n}") for n in range(8)))

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
        assert await store.fate(token) == Applied(outcomes[0].revision)

    on_fresh(rig, story)


def test_a_refused_transaction_leaves_its_token_unused(rig: Rig) -> None:
    async def story(store: Store) -> None:
        token = store.new_token()
        assert isinstance(await store.txn(puts(("a", b"1"), a=999), token=token), Refused)
        outcome = await store.txn(puts(("a", b"1"), a=ABSENT), token=token)
        assert isinstance(outcome, Committed)
        assert await store.fate(token) == Applied(outcome.revision)

    on_fresh(rig, story)


def test_a_token_without_effective_writes_is_still_remembered(rig: Rig) -> None:
    async def story(store: Store) -> None:
        await put(store, "a", b"1")
        token = store.new_token()
        outcome = await store.txn(Transaction((), (Delete("gone"),)), token=token)
        assert isinstance(outcome, Committed)
        assert await store.fate(token) == Applied(outcome.revision)

    on_fresh(rig, story)


def test_asking_for_a_fate_makes_it_final(rig: Rig) -> None:
    """NotApplied is a promise: a transaction that arrives later finds its token withdrawn [F6]."""

    async def story(store: Store) -> None:
        token = store.new_token()
        assert await store.fate(token) == NotApplied()
        with pytest.raises(Unavailable):
            await store.txn(puts(("a", b"1")), token=token)
        assert await store.fate(token) == NotApplied()
        assert (await store.range("a", "b")).records == ()

    on_fresh(rig, story)


def test_a_fate_asked_during_the_transaction_agrees_with_what_happened(rig: Rig) -> None:
    """Whoever comes first wins, and both are told the same [F6, N1.1]."""

    async def story(store: Store) -> None:
        for i in range(20):
            key, token = f"k{i}", store.new_token()
            calls = [store.txn(puts((key, b"1")), token=token), store.fate(token)]
            first, second = await asyncio.gather(
                *(calls if i % 2 else reversed(calls)), return_exceptions=True
            )
            outcome, fate = (first, second) if i % 2 else (second, first)
            written = bool((await store.range(key, key + "\0")).records)
            if isinstance(fate, Applied):
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


# Watches. ----------------------------------------------------------------------------------------


def test_a_watch_begins_with_a_bookmark_when_there_is_nothing_to_say(rig: Rig) -> None:
    """So that its reader knows at once how far it sees [C8]."""

    async def story(store: Store) -> None:
        revision = await put(store, "other", b"")
        batches = store.watch("mine/", after=revision)
        batch = await following(batches)
        assert batch.changes == ()
        assert batch.revision >= revision

    on_fresh(rig, story)


def test_a_watch_tells_by_bookmark_that_others_moved_on(rig: Rig) -> None:
    """A quiet reader's place follows, so that compaction does not overtake it [C8]."""

    async def story(store: Store) -> None:
        batches = store.watch("mine/", after=await store.revision())
        await following(batches)
        revision = await put(store, "other", b"")
        assert await collect(batches, revision) == []

    on_fresh(rig, story)


def test_each_reader_gets_every_change_once_and_in_order(rig: Rig) -> None:
    """Readers that begin at different moments all see one and the same history [INV10, C8]."""

    async def story(store: Store) -> None:
        before = await store.revision()

        async def write(name: str) -> int:
            last = 0
            for i in range(25):
                last = await put(store, f"{name}/{i % 5}", b"%d" % i)
            return last

        async def read(prefix: str, after: int) -> list[Change]:
            changes: list[Change] = []
            async for batch in store.watch(prefix, after=after):
                changes += batch.changes
                if len([c for c in changes if c.value == b"24"]) == (4 if prefix == "" else 1):
                    return changes
            raise AssertionError("the watch ended")

        async with asyncio.timeout(SILENCE_MAX_S):
            early = [asyncio.create_task(read(p, before)) for p in ("", "", "w1/")]
            await asyncio.gather(*(write(f"w{n}") for n in range(4)))
            late = [asyncio.create_task(read(p, before)) for p in ("", "w1/")]
            everything, again, one, late_all, late_one = await asyncio.gather(*early, *late)
        assert everything == again == late_all
        assert one == late_one == [c for c in everything if c.key.startswith("w1/")]
        assert len(everything) == 100
        revisions = [c.revision for c in everything]
        assert revisions == sorted(set(revisions))
        for n in range(4):
            mine = [c.value for c in everything if c.key.startswith(f"w{n}/")]
            assert mine == [b"%d" % i for i in range(25)]

    on_fresh(rig, story)


def test_changes_of_one_revision_arrive_in_one_batch(rig: Rig) -> None:
    """A reader never sees half of a transaction [C8]."""

    async def story(store: Store) -> None:
        before = await store.revision()
        live = store.watch("", after=before)
        await following(live)
        last = 0
        for i in range(30):
            transaction = Transaction((), tuple(Put(f"k{n}", b"%d" % i) for n in range(10)))
            outcome = await store.txn(transaction)
            assert isinstance(outcome, Committed)
            last = outcome.revision
        for batches in (live, store.watch("", after=before)):
            revision = before
            while revision < last:
                batch = await following(batches)
                revision = batch.revision
                for r in {c.revision for c in batch.changes}:
                    keys = [c.key for c in batch.changes if c.revision == r]
                    assert keys == [f"k{n}" for n in range(10)]

    on_fresh(rig, story)


def test_a_deletion_is_a_change_without_value(rig: Rig) -> None:
    async def story(store: Store) -> None:
        before = await put(store, "a", b"1")
        outcome = await store.txn(Transaction((), (Delete("a"),)))
        assert isinstance(outcome, Committed)
        changes = await collect(store.watch("a", after=before), outcome.revision)
        assert changes == [Change(outcome.revision, "a", None, ABSENT)]

    on_fresh(rig, story)


def test_a_cancelled_wait_loses_nothing(rig: Rig) -> None:
    """A reader may wait with a time-out of its own and go on afterwards [INV10]."""

    async def story(store: Store) -> None:
        batches = store.watch("a", after=await store.revision())
        await following(batches)
        seen: list[bytes | None] = []
        for i in range(20):
            waiting = asyncio.ensure_future(anext(batches))
            for _ in range(i % 5):
                await asyncio.sleep(0)
            write = asyncio.create_task(put(store, "a", b"%d" % i))
            for _ in range(i % 7):
                await asyncio.sleep(0)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                seen += [c.value for c in (await waiting).changes]
            await write
        last = await store.revision()
        seen += [c.value for c in await collect(batches, last)]
        assert seen == [b"%d" % i for i in range(20)]

    on_fresh(rig, story)


def test_a_reader_overtaken_by_compaction_is_told_and_not_skipped(rig: Rig) -> None:
    """Expired, never a silent gap [INV10, C8]."""

    async def story(store: Store) -> None:
        before = await put(store, "a", b"0")
        slow = store.watch("a", after=before)
        last = before
        for i in range(10):
            last = await put(store, "a", b"%d" % i)
        await store.compact(last)
        with pytest.raises(Expired):
            await collect(slow, last)
        assert (await store.range("a", "b", at=last)).records[0].value == b"9"
        with pytest.raises(Expired):
            await store.range("a", "b", at=last - 1)
        fresh = store.watch("a", after=last)
        newest = await put(store, "a", b"10")
        assert [c.value for c in await collect(fresh, newest)] == [b"10"]

    on_fresh(rig, story)


def test_a_revision_never_reached_is_expired(rig: Rig) -> None:
    """Its owner comes from a history that was lost, and must list again [C8]."""

    async def story(store: Store) -> None:
        future = await put(store, "a", b"") + 1_000
        with pytest.raises(Expired):
            await store.range("a", "b", at=future)
        with pytest.raises(Expired):
            await following(store.watch("a", after=future))

    on_fresh(rig, story)


# Life. -------------------------------------------------------------------------------------------


def test_compaction_keeps_what_is_current(rig: Rig) -> None:
    async def story(store: Store) -> None:
        for i in range(5):
            await put(store, "a", b"%d" % i)
            await put(store, f"b{i}", b"")
        await store.txn(Transaction((), (Delete("b0"),)))
        before = await store.range("a", KEY_END)
        await store.compact(before.revision)
        after = await store.range("a", KEY_END)
        assert after.records == before.records
        await store.compact(before.revision)
        await store.compact(before.revision - 3)
        with pytest.raises(Invalid):
            await store.compact(before.revision + 1_000)
        assert (await store.range("a", KEY_END, at=before.revision)).records == before.records

    on_fresh(rig, story)


def test_a_closed_store_ends_its_watches_and_refuses_the_rest(rig: Rig) -> None:
    async def story(store: Store) -> None:
        revision = await put(store, "a", b"1")
        token = store.new_token()
        batches = store.watch("a", after=revision)
        await following(batches)

        async def read_to_the_end() -> None:
            async for _ in batches:
                pass

        reading = asyncio.create_task(read_to_the_end())
        await asyncio.sleep(0)
        await store.close()
        async with asyncio.timeout(SILENCE_MAX_S):
            await reading
        for call in (
            store.range("a", "b"),
            store.txn(puts(("a", b"2"))),
            store.fate(token),
            store.compact(revision),
            store.revision(),
        ):
            with pytest.raises(Unavailable):
                await call

    on_fresh(rig, story)


def test_a_store_opened_again_goes_on_where_it_was(rig: Rig) -> None:
    """Records, past revisions, revision and tokens survive a restart [C7.4, INV10, INV11]."""
    if not rig.durable:
        pytest.skip(f"{rig.name} keeps nothing over a restart, by design")

    async def story(store: Store) -> None:
        token, lost = store.new_token(), store.new_token()
        first = await put(store, "a", b"1")
        outcome = await store.txn(puts(("b", b"1")), token=token)
        assert isinstance(outcome, Committed)
        await store.txn(Transaction((), (Delete("b"),)))
        pages = [await store.range("a", KEY_END, at=at) for at in (first, outcome.revision)]
        now = await store.range("a", KEY_END)
        again = await rig.reopen(store)
        try:
            assert await again.revision() >= now.revision
            assert (await again.range("a", KEY_END)).records == now.records
            for page in pages:
                assert await again.range("a", KEY_END, at=page.revision) == page
            assert await again.fate(token) == Applied(outcome.revision)
            assert await again.fate(lost) == NotApplied()
            assert again.new_token() not in (token, lost)
            changes = await collect(again.watch("", after=first), now.revision)
            assert [(c.key, c.value) for c in changes] == [("b", b"1"), ("b", None)]
            assert await put(again, "c", b"") > now.revision
        finally:
            await again.close()

    on_fresh(rig, story)
