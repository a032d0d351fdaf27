"""etcd as the store: transactions per second, each with the bare gRPC stub on the same member.

Our transactions carry a token, as the server's do; the raw ones have the same compare and the same
writes without one. The two are measured in turns, so that a busy period affects both. The cluster
runs on the disk that holds the temporary folder; set TMPDIR to choose another.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.harness import figure, percentile
from holdfast.model.transaction import Batch, Committed, Compare, Put, Transaction
from holdfast.store.etcd import EtcdConfig, EtcdStore, codec
from holdfast.store.etcd import messages as pb
from holdfast.store.etcd.member import MemberChannel
from tests.etcd_cluster import EtcdCluster, NoEtcd, call_next

VALUE = bytes(range(250)) * 6
ROUNDS = 3
SECONDS = 2.0
BATCH_OPS = 100
BATCHES_AT_ONCE = 4
WATCHED = 2_000

# Takes a caller's number and its state, and returns its next state; raises when refused.
Step = Callable[[int, int], Awaitable[int]]


async def per_second(step: Step, callers: int, latencies: list[float]) -> float:
    """Steps per second of `callers` callers over SECONDS."""
    done = 0
    until = time.perf_counter() + SECONDS

    async def call(number: int) -> None:
        nonlocal done
        known = 0
        while (began := time.perf_counter()) < until:
            known = await step(number, known)
            latencies.append(time.perf_counter() - began)
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(callers)))
    return done / (time.perf_counter() - began)


class Ours:
    """Through the store, with tokens."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._run = 0

    def begin(self) -> None:
        """Use other keys than before: every caller starts with a key that is absent."""
        self._run += 1

    async def swap(self, number: int, modified: int) -> int:
        key = f"cas/{self._run}/{number:04}"
        transaction = Transaction((Compare(key, modified),), (Put(key, VALUE),))
        outcome = await self._store.txn(transaction, token=self._store.new_token())
        if not isinstance(outcome, Committed):
            raise SystemExit(f"{key} has no other writer: {outcome}")
        return outcome.revision

    async def batch(self, number: int, _: int) -> int:
        writes = tuple(Put(f"batch/{number}/{i:03}", VALUE) for i in range(BATCH_OPS))
        outcome = await self._store.txn(
            Transaction((Compare("none", 0),), writes), token=self._store.new_token()
        )
        return outcome.revision


class Raw:
    """The bare stub of the same gRPC and the same messages, without any of the store's layers."""

    def __init__(self, member: MemberChannel) -> None:
        self._txn = member._channel.unary_unary(
            "/etcdserverpb.KV/Txn",
            request_serializer=pb.TxnRequest.SerializeToString,
            response_deserializer=pb.TxnResponse.FromString,
        )
        self._run = 0

    def begin(self) -> None:
        self._run += 1

    async def swap(self, number: int, modified: int) -> int:
        name = b"raw/%d/%04d" % (self._run, number)
        request = pb.TxnRequest(
            compare=[codec.modified_at(name, modified)],
            success=[codec.put(name, VALUE)],
            failure=[codec.read(name)],
        )
        answer = await self._txn(request, timeout=5.0)
        return int(answer.header.revision)

    async def batch(self, number: int, _: int) -> int:
        names = (b"raw-batch/%d/%03d" % (number, i) for i in range(BATCH_OPS))
        request = pb.TxnRequest(
            compare=[codec.modified_at(b"none", 0)],
            success=[codec.put(name, VALUE) for name in names],
            failure=[codec.read(b"none")],
        )
        answer = await self._txn(request, timeout=5.0)
        return int(answer.header.revision)


async def compare(
    name: str,
    ours: Ours,
    raw: Raw,
    kind: str,
    *,
    callers: int,
    writes: int = 1,
    goal: str | None,
    durability: str,
) -> None:
    """One figure: the median of a few rounds of each, in turns."""
    rates: dict[str, list[float]] = {"ours": [], "raw": []}
    latencies: dict[str, list[float]] = {"ours": [], "raw": []}
    for _ in range(ROUNDS):
        for who, side in (("raw", raw), ("ours", ours)):
            side.begin()
            step: Step = getattr(side, kind)
            rates[who].append(writes * await per_second(step, callers, latencies[who]))
    figure(
        name,
        statistics.median(rates["ours"]),
        "1/s",
        peer="the bare gRPC stub, without token",
        peer_value=statistics.median(rates["raw"]),
        goal=goal,
        durability=durability,
        callers=callers,
        p99_ms=round(1e3 * percentile(latencies["ours"], 0.99), 2),
        raw_p99_ms=round(1e3 * percentile(latencies["raw"], 0.99), 2),
    )


async def watch_latency(store: EtcdStore, ours: Ours) -> None:
    """From the acknowledgement of a write to its batch in a watch, one writer."""
    seen: dict[int, float] = {}
    batches = store.watch("cas/", after=await store.revision())
    await anext(batches)
    ready = asyncio.Event()

    async def read() -> None:
        async for batch in batches:
            note(batch)
            if len(seen) >= WATCHED:
                ready.set()

    def note(batch: Batch) -> None:
        now = time.perf_counter()
        for change in batch.changes:
            seen[change.revision] = now

    reading = asyncio.create_task(read())
    ours.begin()
    # etcd adds new watches ten times a second; this measures an established one.
    await asyncio.sleep(0.5)
    acknowledged: dict[int, float] = {}
    round_trips = []
    known = 0
    for _ in range(WATCHED):
        began = time.perf_counter()
        known = await ours.swap(0, known)
        acknowledged[known] = time.perf_counter()
        round_trips.append(acknowledged[known] - began)
    await ready.wait()
    reading.cancel()
    lags = [seen[revision] - at for revision, at in acknowledged.items()]
    figure(
        "store.etcd.watch_lag_p99_ms",
        1e3 * percentile(lags, 0.99),
        "ms",
        peer="p99 of the transaction itself",
        peer_value=1e3 * percentile(round_trips, 0.99),
        durability="power",
    )


async def measure(cluster: EtcdCluster) -> None:
    config = EtcdConfig(endpoints=cluster.endpoints)
    store = await EtcdStore.open(config)
    # Both sides use one member, also in a cluster of three.
    leader = cluster.wait_leader()
    call_next(store, leader)
    member = MemberChannel(cluster.members[leader].target, config)
    await member.connect()
    ours, raw = Ours(store), Raw(member)
    if cluster.size == 1:
        for callers, goal in ((1, None), (16, ">= 2000"), (64, None)):
            name = f"store.etcd.cas.c{callers}"
            await compare(name, ours, raw, "swap", callers=callers, goal=goal, durability="power")
        names, goals, durability = "store.etcd.batch", ">= 10000", "power"
        await watch_latency(store, ours)
    else:
        await compare(
            "store.etcd.trio.cas.c16", ours, raw, "swap", callers=16, goal=None, durability="quorum"
        )
        names, goals, durability = "store.etcd.trio.batch", None, "quorum"
    await compare(
        names,
        ours,
        raw,
        "batch",
        callers=BATCHES_AT_ONCE,
        writes=BATCH_OPS,
        goal=goals,
        durability=durability,
    )
    await member.close()
    await store.close()


def main() -> None:
    for size in (1, 3):
        folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
        try:
            with EtcdCluster(folder, size=size) as cluster:
                asyncio.run(measure(cluster))
        except NoEtcd as reason:
            print(f"no figures of etcd: {reason}", file=sys.stderr)
            return
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
