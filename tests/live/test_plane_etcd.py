"""Two real servers over one real etcd: either is killed, and clients go on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.commit.server import SCOPE
from holdfast.host.client import AsyncClient, Listed, Present, follow
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.workload import Workload
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess, until, workload
from tests.patience import PATIENCE_S
from tests.scale import scaled

pytestmark = pytest.mark.xdist_group("plane-etcd")
NS = "default"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def two_servers(
    folder: Path, cluster: EtcdCluster, prefix: str
) -> AsyncIterator[tuple[PlaneProcess, PlaneProcess]]:
    targets = ",".join(member.target for member in cluster.members)
    options = ("--store", f"etcd://{targets}", "--etcd-prefix", prefix, "--pki", f"{folder}/pki")
    both = tuple(PlaneProcess(folder / name, *options, "--name", name) for name in ("one", "two"))
    try:
        await asyncio.gather(*(process.start() for process in both))
        yield both
        await asyncio.gather(*(process.stop() for process in both))
    finally:
        for process in both:
            process.kill()


def test_either_server_may_die_and_nothing_acknowledged_is_lost(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """[C7.4, E5]"""
    acknowledged: dict[str, str] = {}
    told: list[tuple[int, str]] = []

    async def load(client: AsyncClient, who: int, stopped: asyncio.Event) -> None:
        number = 0
        while not stopped.is_set():
            name = f"w{who}-{number}"
            made = await client.create(workload(name), operation=f"create/{name}")
            acknowledged[name] = made.metadata.uid
            number += 1

    async def watch(client: AsyncClient, begun: asyncio.Event) -> None:
        async for news in follow(client, Workload, NS):
            if isinstance(news, Listed):
                assert not begun.is_set(), "the history is there: nothing must be listed again"
                begun.set()
            elif isinstance(news, Present):
                told.append((news.revision, news.object.name))

    async def story() -> None:
        servers = two_servers(tmp_path, cluster, "/dying/")
        async with (
            servers as (one, two),
            one.client(two) as first,
            two.client(one) as second,
        ):
            stopped = asyncio.Event()
            begun = asyncio.Event()
            watching = asyncio.create_task(watch(first, begun))
            await begun.wait()
            clients = (first, second) * 3
            tasks = [
                asyncio.create_task(load(client, who, stopped))
                for who, client in enumerate(clients)
            ]
            for victim in scaled((one, two), (one, two, one)):
                await _more(acknowledged, tasks, 40)
                victim.kill()
                await _more(acknowledged, tasks, 40)
                await victim.start()
            stopped.set()
            await asyncio.gather(*tasks)
            for client in (first, second):
                listed = (await client.list(Workload, NS)).objects
                assert {w.name: w.metadata.uid for w in listed} == acknowledged
            await until(lambda: len(told) == len(acknowledged) or watching.done(), PATIENCE_S)
            watching.cancel()
            revisions = [revision for revision, _ in told]
            assert revisions == sorted(revisions), "a watch goes forward only"
            assert sorted(name for _, name in told) == sorted(acknowledged)

    asyncio.run(story())


async def _more(known: dict[str, str], tasks: list[asyncio.Task[None]], count: int) -> None:
    """Wait until this many more were acknowledged, by tasks that all go on."""
    wanted = len(known) + count
    await until(lambda: len(known) >= wanted or any(task.done() for task in tasks), PATIENCE_S)
    assert not any(task.done() for task in tasks), tasks


def test_a_server_that_stops_in_order_gives_its_lease_back(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    async def story() -> None:
        servers = two_servers(tmp_path, cluster, "/lease/")
        async with servers as (one, two), one.client(two) as client:
            (lease,) = [it for it in (await client.list(Lease)).objects if it.spec.scope == SCOPE]
            holder, other = (one, two) if lease.spec.holder.endswith(":one") else (two, one)
            await holder.stop()
            deadline = time.monotonic() + PATIENCE_S
            while not (await _lease(other)).spec.holder.endswith(other.data.name):
                assert time.monotonic() < deadline
            await holder.start()

    async def _lease(process: PlaneProcess) -> Lease:
        async with process.client() as client:
            return (await client.list(Lease)).objects[0]

    asyncio.run(story())
