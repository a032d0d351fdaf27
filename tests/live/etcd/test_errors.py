"""What a real etcd and a real gRPC say when things go wrong, and what we make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.model.errors import Invalid, OutcomeUnknown, Unavailable
from holdfast.model.transaction import (
    Committed,
    Compare,
    NotApplied,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.etcd import EtcdConfig, EtcdStore
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.error_meaning import ErrorMeaning
from holdfast.store.etcd.member import CallFailed
from tests.etcd_cluster import EtcdCluster, call_next
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S, STORY_S

pytestmark = pytest.mark.xdist_group("etcd-errors")

PUT = Transaction((), (Put("a", b"1"),))


def play(config: EtcdConfig, story: Callable[[EtcdStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await EtcdStore.open(config)
        try:
            async with asyncio.timeout(STORY_S):
                await story(store)
        finally:
            await store.close()

    asyncio.run(run())


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        # gRPC signals no change of a channel to us, so the test has to look.
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_an_endpoint_without_a_server_is_unavailable_and_named() -> None:
    """Within the time of one look, naming the endpoint."""
    port = free_ports(1)[0]
    with pytest.raises(Unavailable, match=str(port)):
        play(EtcdConfig(endpoints=(f"127.0.0.1:{port}",)), lambda store: asyncio.sleep(0))


def test_a_dead_cluster_certainly_did_nothing_and_a_dying_one_perhaps(tmp_path: Path) -> None:
    """Only what was given to a standing connection is in doubt [N1.1]."""
    with EtcdCluster(tmp_path) as cluster:

        async def story(store: EtcdStore) -> None:
            await store.txn(PUT, token=store.new_token())
            cluster.pause(0)
            tokens = [store.new_token() for _ in range(5)]
            sent = [
                asyncio.create_task(store.txn(PUT, token=token, timeout_s=5.0)) for token in tokens
            ]
            await asyncio.sleep(0.1)
            cluster.kill(0)
            outcomes = await asyncio.gather(*sent, return_exceptions=True)
            assert all(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
            await _until(lambda: not store.cluster.members[0].is_ready())
            for _ in range(3):
                with pytest.raises(Unavailable):
                    await store.txn(PUT, timeout_s=0.2)
                with pytest.raises(Unavailable):
                    await store.range("a", "b")
            cluster.restart(0)
            await asyncio.to_thread(cluster.wait_healthy, 0)
            # A killed process took what lay in its buffers with it.
            assert [await store.fate(token) for token in tokens] == [NotApplied()] * 5

        play(EtcdConfig(endpoints=cluster.endpoints, call_timeout_s=1.0), story)


def test_a_call_on_a_broken_channel_is_known_not_to_have_been_sent(tmp_path: Path) -> None:
    """The text by which gRPC says so is the one in our table; a new gRPC may change it."""
    with EtcdCluster(tmp_path) as cluster:

        async def story(store: EtcdStore) -> None:
            member = store.cluster.members[0]
            cluster.kill(0)
            kinds = []
            for _ in range(3):
                with pytest.raises(CallFailed) as caught:
                    await member.status(pb.StatusRequest(), 1.0, ())
                kinds.append(caught.value.kind)
            assert kinds[-1] is ErrorMeaning.NOT_SENT

        play(EtcdConfig(endpoints=cluster.endpoints), story)


def test_closing_ends_every_wait_and_reports_no_false_outcome(tmp_path: Path) -> None:
    """What was under way may have happened, and is not reported as cancelled [N1.1]."""
    with EtcdCluster(tmp_path) as cluster:

        async def story(store: EtcdStore) -> None:
            await store.txn(PUT, token=store.new_token())
            cluster.pause(0)
            sent = store.txn(PUT, token=store.new_token(), timeout_s=STORY_S)
            writing = asyncio.create_task(sent)
            reading = asyncio.create_task(store.range("a", "b"))
            await asyncio.sleep(0.1)
            async with asyncio.timeout(PATIENCE_S):
                await store.close()
                outcomes = await asyncio.gather(writing, reading, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, Unavailable]
            cluster.resume(0)

        # Neither call would end by itself within the patience above.
        play(EtcdConfig(endpoints=cluster.endpoints, call_timeout_s=STORY_S), story)


def test_limits_of_the_server_are_refused_before_and_by_the_server(tmp_path: Path) -> None:
    """A cluster with smaller limits than configured refuses for certain, with the same code."""
    flags = ["--max-txn-ops=8", "--max-request-bytes=10000"]
    with EtcdCluster(tmp_path, flags=flags) as cluster:
        many = Transaction((), tuple(Put(f"k{i}", b"") for i in range(9)))
        large = Transaction((), (Put("k", bytes(20_000)),))

        async def refused(store: EtcdStore) -> None:
            for transaction in (many, large):
                with pytest.raises(Invalid) as caught:
                    await store.txn(transaction)
                assert caught.value.code == "TransactionTooLarge"

        play(EtcdConfig(endpoints=cluster.endpoints), refused)
        told = EtcdConfig(endpoints=cluster.endpoints, max_txn_ops=8, max_request_bytes=10_000)

        async def known(store: EtcdStore) -> None:
            await refused(store)
            assert (store.max_ops, store.max_bytes) == (6, 8_976)
            fits = Transaction((), tuple(Put(f"k{i}", bytes(1_400)) for i in range(6)))
            assert isinstance(await store.txn(fits), Committed)

        play(told, known)


def test_as_much_as_is_promised_fits(tmp_path: Path) -> None:
    """The largest transaction that passes our own check passes etcd's, with a token."""
    with EtcdCluster(tmp_path) as cluster:

        async def story(store: EtcdStore) -> None:
            n = store.max_ops
            wide = Transaction(
                tuple(Compare(f"key-{i:03}", 0) for i in range(n)),
                tuple(Put(f"key-{i:03}", b"x") for i in range(n)),
            )
            first = await store.txn(wide, token=store.new_token())
            assert isinstance(first, Committed)
            again = await store.txn(wide, token=store.new_token())
            assert not isinstance(again, Committed)
            assert [r.modified for r in again.current if r] == [first.revision] * n
            size = store.max_bytes - 200
            heavy = Transaction((), (Put("heavy", bytes(size)),))
            assert isinstance(await store.txn(heavy, token=store.new_token()), Committed)

        play(EtcdConfig(endpoints=cluster.endpoints), story)


def test_a_full_database_leaves_no_lie_behind(tmp_path: Path) -> None:
    """ "Space exceeded" may come with or without effect: the token tells which [N1.1, INV11]."""
    with EtcdCluster(tmp_path, flags=["--quota-backend-bytes=3000000"]) as cluster:

        async def story(store: EtcdStore) -> None:
            applied = set()
            unknown = 0
            for i in range(1_000):
                # etcd learns its size when it syncs, ten times a second.
                if unknown == 5:
                    break
                token = store.new_token()
                transaction = Transaction((), (Put(f"k{i:03}", bytes(100_000)),))
                try:
                    await store.txn(transaction, token=token)
                    applied.add(f"k{i:03}")
                except OutcomeUnknown as error:
                    unknown += "space exceeded" in error.message
                    # The question itself writes, and so waits for space.
                    try:
                        fate = await store.fate(token)
                    except Unavailable:
                        continue
                    if isinstance(fate, TokenApplied):
                        applied.add(f"k{i:03}")
            assert unknown == 5
            page = await store.range("", KEY_END)
            assert {r.key for r in page.records} == applied

        play(EtcdConfig(endpoints=cluster.endpoints), story)


def test_a_member_that_is_down_at_the_start_is_named(tmp_path: Path) -> None:
    """The store opens with what is there, and warns of the rest and of old versions."""
    with EtcdCluster(tmp_path, size=3) as cluster:
        cluster.kill(1)

        async def story(store: EtcdStore) -> None:
            assert any(cluster.members[1].target in line for line in store.warnings)
            assert isinstance(await store.txn(PUT), Committed)

        play(EtcdConfig(endpoints=cluster.endpoints), story)


def test_a_stopped_member_is_left_although_only_it_is_connected(tmp_path: Path) -> None:
    """Its connection looks good and the others have none yet; calls go there all the same."""
    with EtcdCluster(tmp_path, size=3) as cluster:

        async def story(store: EtcdStore) -> None:
            members = store.cluster.members
            stopped = (await asyncio.to_thread(cluster.wait_leader) + 1) % 3
            for other in (i for i in range(3) if i != stopped):
                cluster.restart(other)
                await asyncio.to_thread(cluster.wait_healthy, other)
            # Let calls go to the one that will stop, until the lost connections are noticed.
            call_next(store, stopped)
            await _until(lambda: [member.is_ready() for member in members].count(True) == 1)
            cluster.pause(stopped)
            with pytest.raises(Unavailable):
                await store.range("a", "b")
            assert members[stopped].is_ready()
            # It may have been the leader; the others need a moment then.
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        await store.range("a", "b")
                    except Unavailable:
                        continue
                    break
            assert isinstance(await store.txn(PUT, timeout_s=PATIENCE_S), Committed)
            cluster.resume(stopped)

        play(EtcdConfig(endpoints=cluster.endpoints, call_timeout_s=1.0), story)


def test_endpoints_of_two_clusters_are_refused(tmp_path: Path) -> None:
    """Half of the writes would go elsewhere [INV11]."""
    with EtcdCluster(tmp_path / "a") as one, EtcdCluster(tmp_path / "b") as two:
        config = EtcdConfig(endpoints=one.endpoints + two.endpoints)
        with pytest.raises(Unavailable, match="another cluster"):
            play(config, lambda store: asyncio.sleep(0))


def test_a_member_replaced_by_another_cluster_is_not_trusted(tmp_path: Path) -> None:
    """Same address, other data: reads are refused rather than believed."""
    with EtcdCluster(tmp_path / "a") as cluster:

        async def story(store: EtcdStore) -> None:
            await store.txn(PUT)
            member = cluster.members[0]
            member.kill()
            member.command = [
                part.replace(f"--data-dir={member.folder}", f"--data-dir={tmp_path}/b").replace(
                    "cluster-token=", "cluster-token=other"
                )
                for part in member.command
            ]
            member.spawn()
            await asyncio.to_thread(cluster.wait_healthy, 0)
            with pytest.raises(Unavailable, match="another cluster"):
                await store.range("a", "b")
            with pytest.raises(OutcomeUnknown, match="another cluster"):
                await store.txn(PUT)

        play(EtcdConfig(endpoints=cluster.endpoints), story)
