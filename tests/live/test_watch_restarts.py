"""Watchers go on over restarts of their server, on both stores: none is sent back to a list."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from holdfast.host.client import AsyncClient, Departed, Listed, Present, follow
from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import ObjectMeta
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess, until

WATCHERS = 40
PATIENCE_S = 60.0
NS = "default"


def secret(name: str) -> Secret:
    """Something that is gone as soon as it is deleted."""
    return Secret(ObjectMeta(name=name, namespace=NS))


class Reader:
    """One watcher: how often it had to list, and all events since."""

    def __init__(self, client: AsyncClient, name: str = "") -> None:
        self.name = name
        self.lists = 0
        self.told: list[tuple[str, str]] = []
        self._client = client

    async def follow(self) -> None:
        fields = f"metadata.name={self.name}" if self.name else ""
        async for news in follow(self._client, Secret, NS, fields=fields):
            match news:
                case Listed():
                    self.lists += 1
                case Present(object=it):
                    self.told.append(("present", it.name))
                case Departed(object=it):
                    self.told.append(("departed", it.name))

    def has_heard(self, happened: list[tuple[str, str]]) -> bool:
        return self.told == [it for it in happened if self.name in ("", it[1])]


@contextlib.asynccontextmanager
async def readers(client: AsyncClient) -> AsyncIterator[list[Reader]]:
    """Half of them watch everything, the others one object each."""
    found = [Reader(client, f"w{n}" if n % 2 else "") for n in range(WATCHERS)]
    tasks = [asyncio.create_task(it.follow()) for it in found]
    try:
        await until(lambda: all(it.lists for it in found), PATIENCE_S)
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def story(server: PlaneProcess) -> None:
    await server.start()
    try:
        async with server.client() as client:
            await _restarted(server, client)
        await server.stop()
    finally:
        server.kill()


async def _restarted(server: PlaneProcess, client: AsyncClient) -> None:
    await client.create(secret("w1"))
    happened: list[tuple[str, str]] = []
    async with readers(client) as found:
        for number in range(2, 14, 4):
            for name in (f"w{number}", f"w{number + 1}"):
                await client.create(secret(name))
                happened.append(("present", name))
            # Some were told of these, others not yet.
            if number == 6:
                await server.stop()
            else:
                server.kill()
            await server.start()
            await client.delete(Secret, f"w{number - 1}", NS)
            happened.append(("departed", f"w{number - 1}"))
            await client.create(secret(f"w{number + 3}"))
            happened.append(("present", f"w{number + 3}"))
            await until(lambda: all(it.has_heard(happened) for it in found), PATIENCE_S)
    assert [it.lists for it in found] == [1] * WATCHERS
    _, page = await server.fetch("/metrics")
    assert "holdfast_watches_outlived 0" in page


def test_forty_watchers_go_on_over_restarts_of_an_embedded_store(tmp_path: Path) -> None:
    """However it ended, and whatever they had not been told yet. [INV10, C8]"""
    asyncio.run(story(PlaneProcess(tmp_path / "one")))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.xdist_group("plane-etcd")
def test_forty_watchers_go_on_over_restarts_of_a_server_on_etcd(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """[INV10, C8]"""
    store = ("--store", f"etcd://{cluster.members[0].target}")
    asyncio.run(story(PlaneProcess(tmp_path / "one", *store)))
