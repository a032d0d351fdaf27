"""Stores: durable transactions per second, watch fan-out, opening; with the disk and raw SQLite.

The embedded store is measured on the disk that holds the temporary folder; set TMPDIR to choose
another. `bench/store_etcd.py` adds the figures of etcd to the same run where there is one.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import apsw

from bench.harness import best_of, figure, percentile
from holdfast.model.transaction import Batch, Committed, Compare, Put, Transaction
from holdfast.store.contract import KEY_END
from holdfast.store.memory import Keyspace, MemoryStore
from holdfast.store.sqlite import SqliteStore, schema
from holdfast.store.sqlite.rows import row_id

VALUE_BYTES = 1_500
SECONDS = 3.0
KEYS = 10_000
OBJECTS = 100_000
WATCHERS = 200
EVENTS_PER_S = 1_000


def key(number: int) -> str:
    return f"/registry/replicas/tenant-{number % 50:02}/replica-{number:06}"


# The embedded store beside its disk. --------------------------------------------------------------


def syncs(folder: Path) -> float:
    """Syncs per second of one page, one after another: the bound for one caller."""
    fd = os.open(folder / "syncs", os.O_CREAT | os.O_RDWR)
    page = os.urandom(4096)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0:
        os.pwrite(fd, page, count % 1_000 * 4096)
        os.fdatasync(fd)
        count += 1
    os.close(fd)
    return count / (time.perf_counter() - began)


def raw_groups(folder: Path, size: int) -> tuple[float, float]:
    """Raw SQLite: the same rows, groups of this size, no compares, no callers. Rate and p99 in ms.

    This is the bound: the difference to it is the cost of compares, threads and callers.
    """
    path = folder / f"raw-{size}.db"
    schema.create(path)
    connection = schema.connect(path)
    for setting in schema.SETTINGS:
        connection.execute(setting)
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    log = f"INSERT INTO log VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * size)}"
    pointers = (
        f"INSERT INTO current VALUES {', '.join(['(?, ?, ?)'] * size)}"
        " ON CONFLICT (key) DO UPDATE SET id = excluded.id"
    )
    rng, value, revision, samples = random.Random(1), os.urandom(VALUE_BYTES), 0, []
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        started = time.perf_counter()
        rows: list[object] = []
        moved: list[object] = []
        for number in rng.sample(range(KEYS), size):
            revision += 1
            row = row_id(revision, 0)
            rows += [row, key(number), revision, 0, zlib.crc32(value), value]
            moved += [key(number), row, revision]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(log, rows)
        connection.execute(pointers, moved)
        connection.execute("COMMIT")
        samples.append(1e3 * (time.perf_counter() - started))
    elapsed = time.perf_counter() - began
    connection.close()
    return revision / elapsed, percentile(samples, 0.99)


async def compare_and_swap(folder: Path, callers: int) -> tuple[float, float]:
    """Callers that each swap one value after another, with a token each. Rate and p99 in ms."""
    store = await SqliteStore.open(folder / f"cas-{callers}.db")
    value, samples = os.urandom(VALUE_BYTES), list[float]()
    end = time.perf_counter() + SECONDS

    async def swap(first: int) -> None:
        numbers = range(first, KEYS, callers)
        modified = dict.fromkeys(numbers, 0)
        while True:
            for number in numbers:
                started = time.perf_counter()
                if started > end:
                    return
                transaction = Transaction(
                    (Compare(key(number), modified[number]),), (Put(key(number), value),)
                )
                outcome = await store.txn(transaction, token=store.new_token())
                if not isinstance(outcome, Committed):
                    raise RuntimeError(f"an uncontended swap was refused: {outcome}")
                modified[number] = outcome.revision
                samples.append(1e3 * (time.perf_counter() - started))

    began = time.perf_counter()
    await asyncio.gather(*(swap(first) for first in range(callers)))
    elapsed = time.perf_counter() - began
    await store.close()
    return len(samples) / elapsed, percentile(samples, 0.99)


def sqlite_figures(folder: Path) -> None:
    disk = syncs(folder)
    for callers, goal in ((1, None), (16, ">= 5000"), (64, ">= 10000")):
        raw, raw_p99 = raw_groups(folder, callers)
        ours, p99 = asyncio.run(compare_and_swap(folder, callers))
        figure(
            f"store.sqlite.cas.c{callers}",
            ours,
            "1/s",
            peer=f"raw SQLite, groups of {callers}",
            peer_value=raw,
            goal=goal,
            durability="power",
            syncs_per_s=round(disk),
            value_bytes=VALUE_BYTES,
        )
        if callers == 16:
            figure(
                "store.sqlite.cas.c16.p99_ms",
                p99,
                "ms",
                peer="raw SQLite, groups of 16",
                peer_value=raw_p99,
                goal="<= 50",
                durability="power",
            )


# Memory. -----------------------------------------------------------------------------------------


def memory_figure() -> None:
    keyspace, number = Keyspace(), 0
    keys, modified, value = [key(n) for n in range(1_000)], [0] * 1_000, bytes(VALUE_BYTES)

    def swap() -> None:
        nonlocal number
        number = (number + 1) % 1_000
        name = keys[number]
        outcome = keyspace.txn(Transaction((Compare(name, modified[number]),), (Put(name, value),)))
        modified[number] = outcome.revision

    plain: dict[str, tuple[int, bytes]] = dict.fromkeys(keys, (0, value))

    def bound() -> None:
        nonlocal number
        number = (number + 1) % 1_000
        name = keys[number]
        if plain[name][0] == modified[number]:
            plain[name] = (modified[number], value)

    ours_s, dict_s = best_of(swap, number=50_000), best_of(bound, number=50_000)
    figure(
        "store.memory.txn",
        1 / ours_s,
        "1/s",
        peer="a dict without history",
        peer_value=1 / dict_s,
        goal=">= 100000",
    )


# Watches. ----------------------------------------------------------------------------------------


async def paced(write: Callable[[int], object]) -> None:
    """Call at EVENTS_PER_S for SECONDS."""
    began = time.perf_counter()
    for number in range(int(SECONDS * EVENTS_PER_S)):
        write(number)
        ahead_s = number / EVENTS_PER_S - (time.perf_counter() - began)
        await asyncio.sleep(max(0.0, ahead_s))


async def fan_out() -> float:
    """CPU for each event that all watchers receive, encoded once. In microseconds."""
    store = MemoryStore()
    encoded: tuple[Batch | None, bytes] = (None, b"")
    received = 0

    async def read() -> None:
        nonlocal encoded, received
        async for batch in store.watch("/registry/", after=0):
            if encoded[0] is not batch:
                encoded = (batch, b"".join(c.value or b"" for c in batch.changes))
            received += len(batch.changes)

    readers = [asyncio.create_task(read()) for _ in range(WATCHERS)]
    await asyncio.sleep(0)
    value, tasks = os.urandom(VALUE_BYTES), set[asyncio.Task[object]]()

    def write(number: int) -> None:
        task = asyncio.ensure_future(store.txn(Transaction((), (Put(key(number), value),))))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    began = time.process_time()
    await paced(write)
    await asyncio.sleep(0.1)
    spent = time.process_time() - began
    await store.close()
    await asyncio.gather(*readers)
    if received != WATCHERS * SECONDS * EVENTS_PER_S:
        raise RuntimeError(f"watchers received {received} changes")
    return 1e6 * spent / (SECONDS * EVENTS_PER_S)


async def queue_each() -> float:
    """The usual way: each watcher has a queue, and each event goes into all of them."""
    queues = [asyncio.Queue[bytes]() for _ in range(WATCHERS)]

    async def read(queue: asyncio.Queue[bytes]) -> None:
        while await queue.get():
            pass

    readers = [asyncio.create_task(read(queue)) for queue in queues]
    value = os.urandom(VALUE_BYTES)

    def write(_: int) -> None:
        for queue in queues:
            queue.put_nowait(value)

    began = time.process_time()
    await paced(write)
    spent = time.process_time() - began
    for queue in queues:
        queue.put_nowait(b"")
    await asyncio.gather(*readers)
    return 1e6 * spent / (SECONDS * EVENTS_PER_S)


def watch_figure() -> None:
    figure(
        "store.watch.fanout",
        asyncio.run(fan_out()),
        "us CPU/event",
        peer="an asyncio.Queue for each watcher",
        peer_value=asyncio.run(queue_each()),
        goal="<= 500",
        watchers=WATCHERS,
        events_per_s=EVENTS_PER_S,
    )


# Opening. ----------------------------------------------------------------------------------------


async def fill(path: Path) -> None:
    store = await SqliteStore.open(path)
    for first in range(0, OBJECTS, 500):
        some = range(first, first + 500)
        puts = tuple(Put(key(n), os.urandom(VALUE_BYTES)) for n in some)
        await store.txn(Transaction((), puts), timeout_s=60)
    await store.close()


async def open_and_list(path: Path) -> None:
    """Runs in its own process, so that it prints only the memory that opening takes."""
    before = resident_mb()
    began = time.perf_counter()
    store = await SqliteStore.open(path)
    opened_s = time.perf_counter() - began
    opened_mb = resident_mb()
    started, listed_s = "", list[float]()
    for _ in range(2):
        began = time.perf_counter()
        start: str | None = started
        while start is not None:
            page = await store.range(start, KEY_END)
            start = page.more_from
        listed_s.append(time.perf_counter() - began)
    print(opened_s, before, opened_mb, resident_mb(), *listed_s)
    await store.close()


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_figure(folder: Path) -> None:
    path = folder / "objects.db"
    asyncio.run(fill(path))
    run = [sys.executable, "-m", "bench.store", "open-and-list", str(path)]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
    opened_s, before, opened, listed, first_s, second_s = map(float, printed)
    connection = apsw.Connection(str(path))
    began = time.perf_counter()
    rows = connection.execute("SELECT key, id, created FROM current").fetchall()
    raw_s = time.perf_counter() - began
    connection.close()
    figure(
        "store.sqlite.open_100k_s",
        opened_s,
        "s",
        peer="raw SQLite reads the pointers only",
        peer_value=raw_s,
        goal="<= 2",
        durability="power",
        objects=len(rows),
        rss_mb=round(opened),
        rss_before_mb=round(before),
        rss_all_listed_mb=round(listed),
        first_list_s=round(first_s, 2),
        second_list_s=round(second_s, 2),
        file_mb=round(path.stat().st_size / 1e6),
    )


def etcd_figures() -> None:
    """Run it if the etcd client and its benchmark are installed; it reports what it lacks."""
    for name in ("grpc", "bench.store_etcd"):
        if importlib.util.find_spec(name) is None:
            print(f"no figures of etcd: {name} is not installed", file=sys.stderr)
            return
    importlib.import_module("bench.store_etcd").main()


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        memory_figure()
        sqlite_figures(folder)
        watch_figure()
        open_figure(folder)
    finally:
        shutil.rmtree(folder)
    etcd_figures()


if __name__ == "__main__":
    if sys.argv[1:2] == ["open-and-list"]:
        asyncio.run(open_and_list(Path(sys.argv[2])))
    else:
        main()
