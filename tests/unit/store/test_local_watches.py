"""How watches wait together, fall behind and end."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.model.errors import Unavailable
from holdfast.model.transaction import Batch, Committed, Put, Transaction
from holdfast.store import local_watches
from holdfast.store.local_watches import LocalWatchHub
from holdfast.store.memory import Keyspace, MemoryStore


async def put(store: MemoryStore, key: str) -> int:
    outcome = await store.txn(Transaction((), (Put(key, b""),)))
    assert isinstance(outcome, Committed)
    return outcome.revision


def test_readers_of_one_prefix_share_one_batch() -> None:
    """So that it is encoded only once."""

    async def story() -> None:
        store = MemoryStore()
        watches = [store.watch("a/", after=0) for _ in range(20)]
        for watch in watches:
            assert await anext(watch) == Batch(0)
        waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
        await asyncio.sleep(0)
        await put(store, "a/1")
        batches = await asyncio.gather(*waiting)
        assert len({id(batch) for batch in batches}) == 1
        await store.close()

    asyncio.run(story())


def test_a_reader_that_does_not_read_holds_nothing() -> None:
    """Its place is a number; what it missed is read from the history when it comes back."""

    async def story() -> None:
        store = MemoryStore()
        watch = store.watch("", after=0)
        await anext(watch)
        for i in range(2_500):
            await put(store, f"k{i}")
        assert store.hub.pending == []
        sizes = []
        while sum(sizes) < 2_500:
            sizes.append(len((await anext(watch)).changes))
        assert sizes == [1_000, 1_000, 500]
        await store.close()

    asyncio.run(story())


def test_a_reader_that_listed_a_newer_revision_does_not_see_it_again() -> None:
    """A list may be ahead of what has been handed out [INV10]."""

    async def story() -> None:
        store = MemoryStore()
        early = store.watch("a", after=0)
        await anext(early)
        waiting = asyncio.ensure_future(anext(early))
        await asyncio.sleep(0)
        # With a reader waiting, the change is handed out later than it is listed.
        revision = await put(store, "a")
        assert store.hub.position < revision
        late = store.watch("a", after=revision)
        assert await anext(late) == Batch(revision)
        next_revision = await put(store, "a")
        batch = await anext(late)
        assert [c.revision for c in batch.changes] == [next_revision]
        await waiting
        await store.close()

    asyncio.run(story())


def test_a_bookmark_does_not_overtake_a_change() -> None:
    """The change is handed out first, even when both are due [INV10]."""

    async def story() -> None:
        keyspace = Keyspace()
        store = MemoryStore(keyspace)
        watch = store.watch("a", after=0)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0)
        await put(store, "a")
        store.hub.send_bookmarks()
        batch = await waiting
        assert [c.key for c in batch.changes] == ["a"]
        await store.close()

    asyncio.run(story())


def test_a_reader_far_behind_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long history without a change for it is looked through in pieces."""
    monkeypatch.setattr(local_watches, "SCAN_REVISIONS_MAX", 100)

    async def story() -> None:
        store = MemoryStore()
        for i in range(1_000):
            await put(store, f"other/{i}")
        last = await put(store, "mine")
        watch = store.watch("mine", after=0)
        assert await anext(watch) == Batch(100)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.create_task(count_turns())
        assert [c.revision for c in (await anext(watch)).changes] == [last]
        assert turns >= 8
        other.cancel()
        await store.close()

    asyncio.run(story())


def test_a_failed_store_says_so_to_every_reader() -> None:
    """Waiting or not, and again when asked again [INV11]."""

    async def story() -> None:
        async def read(_prefix: str, _after: int, upto: int) -> Batch:
            return Batch(upto)

        hub = LocalWatchHub(read, position=0)
        waiting, idle = hub.watch("a", after=0), hub.watch("a", after=0)
        await anext(waiting)
        task = asyncio.ensure_future(anext(waiting))
        await asyncio.sleep(0)
        hub.fail(Unavailable("the disk failed"))
        for awaited in (task, anext(idle), anext(waiting)):
            with pytest.raises(Unavailable, match="the disk failed"):
                await awaited

    asyncio.run(story())


@pytest.mark.parametrize("readers", [1, local_watches.FEW_READERS, local_watches.FEW_READERS + 1])
def test_only_many_readers_wait_for_more_changes(readers: int) -> None:
    """Waking a few readers costs less than the wait that it saves them."""

    async def story() -> None:
        store = MemoryStore()
        store.hub = LocalWatchHub(store.hub.read_history, position=0, wake_every_s=3_600.0)
        watches = [store.watch("", after=0) for _ in range(readers)]
        for watch in watches:
            await anext(watch)
        for turn in range(3):
            waiting = [asyncio.ensure_future(anext(watch)) for watch in watches]
            await asyncio.sleep(0)
            await put(store, "a")
            done, pending = await asyncio.wait(waiting, timeout=0.05)
            if turn == 0 or readers <= local_watches.FEW_READERS:
                assert len(done) == readers
                continue
            assert len(pending) == readers
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            break
        await store.close()

    asyncio.run(story())


def test_changes_meant_for_readers_that_left_reach_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that joins later begins at its own revision, not where others were [INV10]."""
    monkeypatch.setattr(local_watches, "FEW_READERS", 0)

    async def story() -> None:
        store = MemoryStore()
        left = store.watch("a", after=0)
        await anext(left)
        waiting = asyncio.ensure_future(anext(left))
        await asyncio.sleep(0)
        # The first hand-out is at once; the second change has to wait for the next one.
        await put(store, "a")
        await waiting
        waiting = asyncio.ensure_future(anext(left))
        await asyncio.sleep(0)
        second = await put(store, "a")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        third = await put(store, "a")
        joined = store.watch("a", after=third)
        assert await anext(joined) == Batch(third)
        fourth = await put(store, "a")
        assert [c.revision for c in (await anext(joined)).changes] == [fourth]
        assert [c.revision for c in (await anext(left)).changes] == [second, third, fourth]
        await store.close()

    asyncio.run(story())
