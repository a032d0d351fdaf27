"""What the store's contract promises of watches, for every kind of store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from holdfast.model.errors import Expired
from holdfast.model.transaction import ABSENT, Change, Committed, Delete, Put, Transaction
from holdfast.store.contract import Store
from tests import store_factories
from tests.property.store_stories import collect, following, on_fresh, put
from tests.store_factories import SILENCE_MAX_S, Rig


@pytest.fixture(scope="module", params=store_factories.params())
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    yield from store_factories.started(request.param, tmp_path_factory.mktemp("store"))


def test_a_watch_begins_with_a_bookmark_when_there_is_nothing_to_say(rig: Rig) -> None:
    """So that its reader knows at once how far it sees [C8]."""

    async def story(store: Store) -> None:
        revision = await put(store, "other", b"")
        batches = store.watch("mine/", after=revision)
        batch = await following(batches)
        assert batch.changes == ()
        assert batch.revision >= revision

    on_fresh(rig, story)


def test_a_watch_shows_by_bookmark_that_others_moved_on(rig: Rig) -> None:
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


def test_a_reader_overtaken_by_compaction_gets_an_error_and_no_gap(rig: Rig) -> None:
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
