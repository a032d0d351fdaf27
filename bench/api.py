"""The performance of one API server over TLS: reads, writes, batches, binds, watches, memory.

One server process on SQLite with a sync for each commit, and the generator next to it on the same
cores. Each figure has a bound from the same run: a bare aiohttp server over TLS with the same body
for reads, the bare store in this process for writes. For limits on time or memory, the bound is the
same work without load.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from pathlib import Path

from bench.api_binds import BIND_NODES, BINDS, ROW, Binder, binds_on_etcd, register
from bench.api_reads import lists, reads
from bench.api_rig import BATCH, TENANT_WORKLOADS, Rig
from bench.api_watches import NODES, watches
from bench.api_writes import WRITES, fill, writes
from bench.bare_store import bare_store
from bench.harness import figure
from bench.http_load import Connection, request
from holdfast.store.contract import Store
from holdfast.store.sqlite import SqliteStore

OBJECTS = 100_000


async def measure(folder: Path) -> None:
    store = await SqliteStore.open(folder / "bare.db")
    async with Rig(folder) as rig:
        empty_mb = rig.rss_mb()
        (line,) = await rig.lines(1)
        space = await rig.tenant(line, "acme")
        await reads(rig, space)
        await writes(rig, space, store)
        await _batches(rig, line, store)
        binder = Binder(rig, await register(rig, NODES))
        binds = await binder.prepare(line, space, BINDS + NODES)
        took = await binder.perform(binds[:BINDS])
        bound, _ = await bare_store(store, ROW, 3 * BINDS, 3, 128)
        figure(
            "api.bind.batch",
            BINDS / took,
            "binds/s",
            peer="bare SQLite, three rows for each",
            peer_value=bound / 3,
            goal=">= 3500",
            durability="power",
            nodes=BIND_NODES,
        )
        await binder.perform(binds[BINDS:])
        objects = WRITES + len(binds) + NODES + TENANT_WORKLOADS
        for n in itertools.count(1):
            if objects >= OBJECTS:
                break
            await fill(rig, await rig.tenant(line, f"full-{n}"), TENANT_WORKLOADS)
            objects += TENANT_WORKLOADS
        await watches(rig, binds[BINDS:])
        figure(
            "api.rss_mb",
            rig.rss_mb(),
            "MB",
            peer="the same server at its start",
            peer_value=empty_mb,
            goal="<= 1000",
            objects=objects,
        )
    await store.close()
    await binds_on_etcd(folder)


async def _batches(rig: Rig, line: Connection, store: Store) -> None:
    space = await rig.tenant(line, "full-0")
    took = await fill(rig, space, TENANT_WORKLOADS)
    _, body = await line.ask(request("GET", f"{space}/workloads/b0"))
    bound, _ = await bare_store(store, body, TENANT_WORKLOADS, 100, 1)
    figure(
        "api.create.batch",
        TENANT_WORKLOADS / took,
        "objects/s",
        peer="bare SQLite in transactions of 100",
        peer_value=bound,
        goal=">= 4000",
        durability="power",
        batch=BATCH,
    )
    await lists(rig, space)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        asyncio.run(measure(Path(name)))


if __name__ == "__main__":
    main()
