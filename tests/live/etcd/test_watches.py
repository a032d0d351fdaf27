"""Watches against a real etcd: slow readers, compaction, members that die, processes that stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import Expired, Unavailable
from holdfast.model.transaction import Batch, Change, Committed, Put, Transaction
from holdfast.store.etcd import EtcdConfig, EtcdStore, member, watch_reader, watch_source
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.watch_reader import BUFFER_CHANGES_MAX
from tests.etcd_cluster import EtcdCluster, call_next
from tests.patience import PATIENCE_S, STORY_S

pytestmark = pytest.mark.xdist_group("etcd-watches")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), size=1) as cluster:
        yield cluster


def play(
    cluster: EtcdCluster,
    prefix: str,
    story: Callable[[EtcdStore], Awaitable[None]],
    *,
    bookmark_every_s: float = 0.5,
) -> None:
    async def run() -> None:
        config = EtcdConfig(endpoints=cluster.endpoints, prefix=prefix, call_timeout_s=1.0)
        store = await EtcdStore.open(config, bookmark_every_s=bookmark_every_s)
        try:
            async with asyncio.timeout(STORY_S):
                await story(store)
        finally:
            await store.close()

    asyncio.run(run())


async def write(store: EtcdStore, count: int, *, size: int = 10, per_txn: int = 100) -> int:
    """Write this many keys, many in one transaction. Returns the last revision."""
    revision = 0
    for first in range(0, count, per_txn):
        puts = (Put(f"k{i:06}", bytes(size)) for i in range(first, min(first + per_txn, count)))
        outcome = await store.txn(Transaction((), tuple(puts)))
        assert isinstance(outcome, Committed)
        revision = outcome.revision
    return revision


class CountedBuffer(watch_reader.Buffer):
    """A buffer that counts the changes that its follower pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.pushed = 0

    def push(self, batch: Batch) -> None:
        super().push(batch)
        self.pushed += len(batch.changes)


async def read_to(batches: AsyncIterator[Batch], revision: int) -> list[Change]:
    changes: list[Change] = []
    async for batch in batches:
        changes += batch.changes
        if batch.revision >= revision:
            return changes
    raise AssertionError("the watch ended")


def test_a_slow_reader_gets_everything_in_the_end(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It falls behind, its stream is closed, and it goes on where it was [INV10, C8]."""
    buffers: list[CountedBuffer] = []

    def new_buffer() -> CountedBuffer:
        buffers.append(CountedBuffer())
        return buffers[-1]

    monkeypatch.setattr(watch_reader, "Buffer", new_buffer)

    async def story(store: EtcdStore) -> None:
        batches = store.watch("", after=await store.revision())
        await anext(batches)
        last = await write(store, 12 * BUFFER_CHANGES_MAX, size=1_000)
        (buffer,) = buffers
        async with asyncio.timeout(PATIENCE_S):
            # No event signals it, so the test has to poll.
            while not buffer.is_full():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        # There is no reader: the follower stops within one answer of two megabytes after its bound.
        await asyncio.sleep(0.2)
        assert buffer.is_full()
        assert buffer.pushed < 6 * BUFFER_CHANGES_MAX
        changes = await read_to(batches, last)
        assert [c.key for c in changes] == [f"k{i:06}" for i in range(12 * BUFFER_CHANGES_MAX)]

    play(cluster, "/slow/", story)


def test_compaction_overtakes_a_slow_reader(cluster: EtcdCluster) -> None:
    """Some versions skip what a slow stream missed; the reader gets Expired [INV10, C8]."""

    async def story(store: EtcdStore) -> None:
        batches = store.watch("", after=await store.revision())
        await anext(batches)
        last = await write(store, 5 * BUFFER_CHANGES_MAX)
        await store.compact(last)
        seen: list[Change] = []

        async def read_on() -> None:
            async for batch in batches:
                seen.extend(batch.changes)

        with pytest.raises(Expired) as caught:
            await read_on()
        assert caught.value.code == "Compacted"
        # What came before is whole, without a gap.
        assert [c.key for c in seen] == [f"k{i:06}" for i in range(len(seen))]
        assert len(seen) < 5 * BUFFER_CHANGES_MAX

    play(cluster, "/overtaken/", story)


def test_a_watch_at_the_compacted_revision_goes_on(cluster: EtcdCluster) -> None:
    """One place before it is Expired, since deletions at the edge may be gone [INV10]."""

    async def story(store: EtcdStore) -> None:
        edge = await write(store, 10, per_txn=1)
        after = await write(store, 3, per_txn=1)
        await store.compact(edge)
        assert len(await read_to(store.watch("", after=edge), after)) == 3
        for place in (edge - 1, edge - 5, 0):
            with pytest.raises(Expired):
                await anext(store.watch("", after=place))

    play(cluster, "/edge/", story)


def test_large_transactions_come_whole(cluster: EtcdCluster) -> None:
    """Answers above two megabytes come in fragments; a revision is never cut [C8]."""

    async def story(store: EtcdStore) -> None:
        before = await store.revision()
        last = 0
        for _ in range(6):
            last = await write(store, 100, size=14_000)
        for batches in (store.watch("", after=before), store.watch("k00001", after=before)):
            per_revision: dict[int, int] = {}
            places: list[int] = []
            async for batch in batches:
                assert not {c.revision for c in batch.changes} & per_revision.keys()
                for change in batch.changes:
                    per_revision[change.revision] = per_revision.get(change.revision, 0) + 1
                places.append(batch.revision)
                if batch.revision >= last:
                    break
            assert set(per_revision.values()) in ({100}, {10})
            assert len(per_revision) == 6

    play(cluster, "/large/", story)


def test_a_process_that_was_stopped_opens_its_streams_again(
    cluster: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile etcd may have dropped what it could not send [INV10]."""
    monkeypatch.setattr(watch_source, "STALL_MAX_S", 0.3)
    opened: list[int] = []
    watch = member.MemberChannel.watch

    def counted(self: member.MemberChannel, metadata: member.Metadata) -> member.WatchStream:
        opened.append(1)
        return watch(self, metadata)

    monkeypatch.setattr(member.MemberChannel, "watch", counted)

    async def story(store: EtcdStore) -> None:
        batches = store.watch("", after=await store.revision())
        await anext(batches)
        await asyncio.sleep(0.05)
        assert len(opened) == 1
        time.sleep(0.5 + 0.5)  # noqa: ASYNC251
        last = await write(store, 5)
        assert len(await read_to(batches, last)) == 5
        assert len(opened) == 2

    play(cluster, "/stopped/", story)


def test_a_quiet_watch_does_not_keep_the_store_busy(cluster: EtcdCluster) -> None:
    """When nothing changes at all, bookmarks cost reads but no writes [INV10, C8]."""

    async def story(store: EtcdStore) -> None:
        await write(store, 1)
        revision = await store.revision()
        batches = [store.watch("", after=revision) for _ in range(3)]
        for _ in range(4):
            for watch in batches:
                assert await anext(watch) == Batch(revision)
        assert await store.revision() == revision

    play(cluster, "/quiet/", story, bookmark_every_s=0.1)


def test_readers_of_one_prefix_share_their_bookmarks(cluster: EtcdCluster) -> None:
    """Writes elsewhere move all of them with about one bookmark, not one each."""

    async def story(store: EtcdStore) -> None:
        before = await store.revision()
        batches = [store.watch("mine/", after=before) for _ in range(6)]
        for watch in batches:
            await anext(watch)
        target = await write(store, 1)
        await asyncio.gather(*(read_to(watch, target) for watch in batches))
        assert await store.revision() - target <= 3

    play(cluster, "/shared-bookmarks/", story, bookmark_every_s=1.0)


def test_the_streams_member_dies_and_another_takes_over(tmp_path: Path) -> None:
    """The place is kept, nothing is repeated, nothing lost [INV10, C7.5]."""
    with EtcdCluster(tmp_path, size=3) as cluster:

        async def story(store: EtcdStore) -> None:
            batches = store.watch("", after=await store.revision())
            await anext(batches)
            expected, seen = 0, []
            for _ in range(3):
                last = await write(store, 20, per_txn=1)
                expected += 20
                seen += await read_to(batches, last)
                used = await store.cluster.ready(PATIENCE_S)
                index = [m.target for m in cluster.members].index(used.target)
                cluster.kill(index)
                await _until_writable(store)
                cluster.restart(index)
                await asyncio.to_thread(cluster.wait_healthy, index)
            assert len(seen) == expected

        play(cluster, "/", story)


def test_a_stream_of_a_stopped_member_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection looks alive for a long time; a missing bookmark tells sooner [C7.6]."""
    lively = (("grpc.keepalive_time_ms", 3_600_000),)
    others = tuple(it for it in member.OPTIONS if it[0] != lively[0][0])
    monkeypatch.setattr(member, "OPTIONS", others + lively)
    with EtcdCluster(tmp_path, size=3) as cluster:

        async def story(store: EtcdStore) -> None:
            writer = await EtcdStore.open(EtcdConfig(endpoints=cluster.endpoints, prefix="/"))
            stopped = (await asyncio.to_thread(cluster.wait_leader) + 1) % 3
            call_next(store, stopped)
            call_next(writer, (stopped + 1) % 3)
            batches = store.watch("", after=await store.revision())
            await read_to(batches, await write(writer, 1))
            cluster.pause(stopped)
            last = await write(writer, 10)
            assert len(await read_to(batches, last)) == 10
            cluster.resume(stopped)
            await writer.close()

        play(cluster, "/", story)


async def _until_writable(store: EtcdStore) -> None:
    while True:
        try:
            await store.revision()
        except Unavailable:
            await asyncio.sleep(0.05)
        else:
            return


def test_a_reader_gets_an_error_when_etcd_stays_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unavailable, with the place to go on from [C7.6]."""
    monkeypatch.setattr(watch_source, "PATIENCE_S", 1.0)
    with EtcdCluster(tmp_path, size=1) as cluster:

        async def story(store: EtcdStore) -> None:
            revision = await write(store, 1)
            batches = store.watch("", after=revision)
            await anext(batches)
            cluster.kill(0)
            with pytest.raises(Unavailable, match=f"after revision {revision}"):
                await read_to(batches, revision + 1)
            cluster.restart(0)
            await asyncio.to_thread(cluster.wait_healthy, 0)
            again = store.watch("", after=revision)
            last = await write(store, 3)
            assert len(await read_to(again, last)) == 3

        play(cluster, "/", story)


def test_a_lost_history_is_expired(tmp_path: Path) -> None:
    """A new cluster is not taken for the old one [INV10]."""
    with EtcdCluster(tmp_path / "old", size=1) as old:
        revisions: list[int] = []

        async def before(store: EtcdStore) -> None:
            revisions.append(await write(store, 500, per_txn=1))

        play(old, "/", before)
    with EtcdCluster(tmp_path / "new", size=1) as new:

        async def after(store: EtcdStore) -> None:
            with pytest.raises(Expired) as caught:
                await anext(store.watch("", after=revisions[0]))
            assert caught.value.code == "FutureRevision"
            with pytest.raises(Expired):
                await store.range("a", "z", at=revisions[0])

        play(new, "/", after)


def test_bookmarks_are_not_records(cluster: EtcdCluster) -> None:
    """Reading and paging skip them, also when a page would end on one."""

    async def story(store: EtcdStore) -> None:
        await write(store, 10)
        layout = Layout("/bookmarks/")
        for prefix in ("", "k", "k00000", "k000003"):
            name = layout.bookmark(prefix)
            await store.cluster.put(pb.PutRequest(key=name), 5.0)
        for limit in (1, 2, 3, 9, 10, 11):
            seen, start = [], ""
            while True:
                page = await store.range(start, "z", limit=limit)
                seen += [r.key for r in page.records]
                assert len(page.records) == limit or page.more_from is None
                if page.more_from is None:
                    break
                start = page.more_from
            assert seen == [f"k{i:06}" for i in range(10)]

    play(cluster, "/bookmarks/", story)
