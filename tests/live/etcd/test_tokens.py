"""Tokens against a real etcd: stragglers, other clients, clients that died."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.transaction import (
    ABSENT,
    Committed,
    Compare,
    CompareFailed,
    Delete,
    Forgotten,
    NotApplied,
    Put,
    TokenApplied,
    Transaction,
)
from holdfast.store.contract import KEY_END
from holdfast.store.etcd import EtcdConfig, EtcdStore
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.at_most_once import DOUBTS_MAX
from holdfast.store.etcd.layout import Layout
from holdfast.store.etcd.slots import DEAD_AFTER_S, parse
from tests.etcd_cluster import EtcdCluster

pytestmark = pytest.mark.xdist_group("etcd-tokens")

PUT = Transaction((), (Put("a", b"1"),))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd"), size=1) as cluster:
        yield cluster


def play(
    cluster: EtcdCluster, prefix: str, story: Callable[[EtcdStore, EtcdStore], Awaitable[None]]
) -> None:
    """Two clients of one store, as two servers would be."""

    async def run() -> None:
        config = EtcdConfig(endpoints=cluster.endpoints, prefix=prefix)
        stores = [await EtcdStore.open(config) for _ in range(2)]
        try:
            await story(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


async def keys(store: EtcdStore) -> dict[str, bytes]:
    return {r.key: r.value for r in (await store.range("", KEY_END)).records}


class Wire:
    """Between a store and its cluster: loses answers, or holds requests back for later."""

    def __init__(self, store: EtcdStore) -> None:
        self._txn = store.cluster.txn
        self.mode = "pass"
        self.held: list[pb.TxnRequest] = []
        self.passed: list[pb.TxnRequest] = []
        store.cluster.txn = self.send  # type: ignore[method-assign]

    async def send(
        self, request: pb.TxnRequest, timeout_s: float, *, writes: bool = True
    ) -> pb.TxnResponse:
        if self.mode == "hold":
            self.held.append(request)
            raise OutcomeUnknown("held back")
        self.passed.append(request)
        answer = await self._txn(request, timeout_s, writes=writes)
        if self.mode == "lose-answers":
            raise OutcomeUnknown("the answer was lost")
        return answer

    def has_passed(self, name: bytes) -> bool:
        """Whether a request that would write this name has reached the cluster."""
        writes = (op for request in self.passed for op in request.success)
        return any(op.request_put.key == name for op in writes)

    async def release(self) -> list[bool]:
        """Let what was held arrive after all; whether each took effect."""
        return [(await self._txn(request, 5.0)).succeeded for request in self.held]


async def sent_under(
    wire: Wire, mode: str, store: EtcdStore, transaction: Transaction, token: str
) -> None:
    """Send a transaction whose answer does not come."""
    wire.mode = mode
    with pytest.raises(OutcomeUnknown):
        await store.txn(transaction, token=token)
    wire.mode = "pass"


def test_a_stopped_member_applies_nothing_that_was_given_up(tmp_path: Path) -> None:
    """It takes up old requests when it wakes; their slots have moved on [INV3, N1.1]."""
    with EtcdCluster(tmp_path, size=3) as cluster:

        async def story() -> None:
            leader = await asyncio.to_thread(cluster.wait_leader)
            stopped = (leader + 1) % 3
            only = EtcdConfig(endpoints=(cluster.endpoints[stopped],))
            others = tuple(e for i, e in enumerate(cluster.endpoints) if i != stopped)
            sender, asker = (
                await EtcdStore.open(only),
                await EtcdStore.open(EtcdConfig(endpoints=others)),
            )
            # Slots must exist before the member stops, as in any client that has been at work.
            await sender.txn(Transaction((), (Put("first", b""),)), token=sender.new_token())
            tokens = [sender.new_token() for _ in range(8)]
            cluster.pause(stopped)
            lost = await asyncio.gather(
                *(
                    sender.txn(Transaction((), (Put(f"k{i}", b""),)), token=t, timeout_s=0.3)
                    for i, t in enumerate(tokens)
                ),
                return_exceptions=True,
            )
            assert all(isinstance(error, OutcomeUnknown) for error in lost)
            assert [await asker.fate(t) for t in tokens] == [NotApplied()] * 8
            cluster.resume(stopped)
            await asyncio.to_thread(cluster.wait_healthy, stopped)
            # What is sent after the wake-up is answered after what lay there before.
            await sender.txn(Transaction((), (Put("last", b""),)))
            assert sorted(await keys(asker)) == ["first", "last"]
            assert [await sender.fate(t) for t in tokens] == [NotApplied()] * 8
            await sender.close()
            await asker.close()

        asyncio.run(story())


@pytest.mark.parametrize("who", ["sender", "other"])
def test_a_straggler_does_not_apply_after_its_fate_was_asked(
    cluster: EtcdCluster, who: str
) -> None:
    """NotApplied is a promise to every caller [INV3, N1.1]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        wire, token = Wire(store), store.new_token()
        await sent_under(wire, "hold", store, Transaction((), (Put("b", b""),)), token)
        asker = store if who == "sender" else other
        assert await asker.fate(token) == NotApplied()
        assert await wire.release() == [False]
        assert await keys(other) == {"a": b"1"}
        for each in (store, other):
            assert await each.fate(token) == NotApplied()
            with pytest.raises(Unavailable):
                await each.txn(Transaction((), (Put("b", b""),)), token=token)

    play(cluster, f"/straggler-{who}/", story)


def test_a_lost_answer_is_found_again_by_any_client(cluster: EtcdCluster) -> None:
    """Applied after all: the sender, another client and a second sending learn it [N1.1]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        wire, token = Wire(store), store.new_token()
        await sent_under(wire, "lose-answers", store, Transaction((), (Put("b", b"2"),)), token)
        fate = await other.fate(token)
        assert isinstance(fate, TokenApplied)
        again = await store.txn(Transaction((), (Put("b", b"3"),)), token=token)
        assert again == Committed(fate.revision)
        assert await store.fate(token) == fate
        assert await keys(store) == {"a": b"1", "b": b"2"}

    play(cluster, "/lost/", story)


def test_of_two_sendings_with_one_token_only_one_counts(cluster: EtcdCluster) -> None:
    """The second one took effect; the first one arrives an hour later [INV3]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        wire, token = Wire(store), store.new_token()
        blind = Transaction((), (Put("b", b"1"),))
        await sent_under(wire, "hold", store, blind, token)
        assert isinstance(await store.txn(blind, token=token), Committed)
        written = (await store.range("b", "c")).records
        assert await wire.release() == [False]
        assert (await store.range("b", "c")).records == written

    play(cluster, "/twice/", story)


def test_a_refusal_of_the_second_sending_rules_out_the_first(cluster: EtcdCluster) -> None:
    """A compare with absence can hold again later; a straggler must not profit [INV3]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(Transaction((), (Put("x", b""),)), token=store.new_token())
        wire, token = Wire(store), store.new_token()
        create = Transaction((Compare("a", ABSENT),), (Put("a", b"mine"),))
        await sent_under(wire, "hold", store, create, token)
        await other.txn(Transaction((), (Put("a", b"theirs"),)))
        assert isinstance(await store.txn(create, token=token), CompareFailed)
        await other.txn(Transaction((), (Delete("a"),)))
        assert await wire.release() == [False]
        assert "a" not in await keys(store)
        # The token itself is still good, as after any refusal.
        assert isinstance(await store.txn(create, token=token), Committed)

    play(cluster, "/again/", story)


def test_a_straggler_that_arrives_during_the_second_sending_is_found(cluster: EtcdCluster) -> None:
    """The second is refused by what the first one wrote: the answer is Committed [N1.1]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(Transaction((), (Put("x", b""),)), token=store.new_token())
        wire, token = Wire(store), store.new_token()
        create = Transaction((Compare("a", ABSENT),), (Put("a", b"mine"),))
        await sent_under(wire, "hold", store, create, token)
        assert await wire.release() == [True]
        outcome = await store.txn(create, token=token)
        assert outcome == Committed((await store.range("a", "b")).records[0].modified)

    play(cluster, "/during/", story)


def test_tasks_that_send_one_token_at_once_write_once(cluster: EtcdCluster) -> None:
    """Also when some of them had to wait for the slot that others already used [INV3]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        for i in range(10):
            # A client of its own each time: its first token has to wait for its slot.
            config = EtcdConfig(endpoints=cluster.endpoints, prefix=f"/at-once/{i}/")
            fresh = await EtcdStore.open(config)
            token = fresh.new_token()
            blind = [Transaction((), (Put(f"k{n}", b""),)) for n in range(20)]
            outcomes = await asyncio.gather(*(fresh.txn(t, token=token) for t in blind))
            assert len(set(outcomes)) == 1
            assert len(await keys(fresh)) == 1
            await fresh.close()

    play(cluster, "/at-once/", story)


def test_a_token_of_another_client_can_be_used_and_counts_once(cluster: EtcdCluster) -> None:
    """A server that takes over may finish what another began [K2]."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        token = store.new_token()
        outcomes = await asyncio.gather(
            *(s.txn(Transaction((), (Put("b", b""),)), token=token) for s in (store, other) * 3)
        )
        assert len(set(outcomes)) == 1
        assert await other.fate(token) == await store.fate(token)

    play(cluster, "/shared/", story)


def test_slots_of_dead_clients_are_swept_and_their_tokens_forgotten(cluster: EtcdCluster) -> None:
    """Bounded: a crash loop leaves no garbage for ever, and sweeping the living is harmless."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        layout = Layout("/swept/")
        first = store.new_token()
        outcome = await store.txn(PUT, token=first)
        assert isinstance(outcome, Committed)
        name = layout.client(first.partition("-")[0])
        long_ago = b"%d" % (time.time() - DEAD_AFTER_S - 60)
        await store.cluster.put(pb.PutRequest(key=name, value=long_ago), 5.0)
        # The next client that appears sweeps.
        await other.txn(Transaction((), (Put("c", b""),)), token=other.new_token())
        begin, end = layout.slots(first.partition("-")[0])
        left = await store.cluster.range(pb.RangeRequest(key=begin, range_end=end), 5.0)
        assert not left.kvs
        assert await other.fate(first) == Forgotten()
        with pytest.raises(OutcomeUnknown):
            await other.txn(PUT, token=first)
        # The swept client was alive after all: one refusal, then it goes on under a new name.
        with pytest.raises(Unavailable):
            await store.txn(Transaction((), (Put("d", b""),)), token=store.new_token())
        token = store.new_token()
        assert token.partition("-")[0] != first.partition("-")[0]
        assert isinstance(
            await store.txn(Transaction((), (Put("d", b""),)), token=token), Committed
        )
        assert sorted(await keys(store)) == ["a", "c", "d"]

    play(cluster, "/swept/", story)


def test_doubts_that_no_caller_asks_about_are_settled_in_passing(cluster: EtcdCluster) -> None:
    """A caller that never asks must not use up all slots."""

    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        wire = Wire(store)
        tokens = [store.new_token() for _ in range(DOUBTS_MAX + 2)]
        # Asking for the last one's fate lets etcd have all slots.
        assert await store.fate(tokens[-1]) == NotApplied()
        wire.passed.clear()
        for token in tokens[:-1]:
            await sent_under(wire, "hold", store, PUT, token)
        oldest = parse(tokens[0])
        name = Layout("/doubts/").slot(oldest.client, oldest.slot)
        assert not wire.has_passed(name)
        await store.txn(PUT, token=store.new_token())
        assert wire.has_passed(name)
        assert [await store.fate(token) for token in tokens] == [NotApplied()] * len(tokens)
        assert not any(await wire.release())

    play(cluster, "/doubts/", story)


def test_a_cancelled_transaction_is_in_doubt_and_can_be_asked_about(cluster: EtcdCluster) -> None:
    async def story(store: EtcdStore, other: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())
        for i in range(10):
            token = store.new_token()
            task = asyncio.create_task(
                store.txn(Transaction((), (Put(f"k{i}", b""),)), token=token)
            )
            for _ in range(i):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            fate = await store.fate(token)
            assert isinstance(fate, TokenApplied) is (f"k{i}" in await keys(other))

    play(cluster, "/cancelled/", story)
