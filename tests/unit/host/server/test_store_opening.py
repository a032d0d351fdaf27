"""What a server demands of the store that it opens, and its warnings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.server.server_process import ServerProcess
from holdfast.host.server.settings import ListenAddress, ServerSettings
from holdfast.host.server.store_opening import demand_plane, take_over_store, tls_warnings
from holdfast.model import keys
from holdfast.model.errors import Forbidden
from holdfast.model.plane import Plane, PlaneRole
from holdfast.model.transaction import Delete, Page, Put, Transaction, Write
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

EU = Plane("eu", PlaneRole.REGION, "eu-central")


@pytest.mark.parametrize(
    "endpoints, is_warned",
    [
        (("127.0.0.1:2379",), False),
        (("localhost:2379", "http://[::1]:2379"), False),
        (("https://etcd-1.example:2379",), False),
        (("etcd-1.example:2379",), True),
        (("http://10.0.0.7:2379",), True),
        (("https://10.0.0.7:2379", "10.0.0.8:2379"), True),
        (("[fd00::7]:2379",), True),
    ],
)
def test_etcd_over_a_network_without_tls_is_warned_of(
    endpoints: tuple[str, ...], is_warned: bool
) -> None:
    """All users of that network could read every Secret."""
    told = tls_warnings(endpoints)
    assert bool(told) is is_warned
    assert all("--etcd-ca-file" in it for it in told)
    # Only what is not protected is named.
    assert not any("https://" in it for it in told)


async def written(store: MemoryStore | SqliteStore, write: Write) -> None:
    await store.txn(Transaction((), (write,)))


async def started(data: Path, plane: Plane) -> None:
    """Start a server of this plane over the store in this directory, and stop it."""
    listen = ListenAddress("127.0.0.1", 0)
    server = ServerProcess(ServerSettings(data=data, listen=listen, plane=plane, name="one"))
    await server.start()
    await server.stop()


def test_a_store_keeps_the_plane_of_its_first_server(tmp_path: Path) -> None:
    """A server with another name, role or region does not start, and says what to do."""

    async def story() -> None:
        await started(tmp_path, EU)
        for other in (Plane(), Plane("eu"), Plane("eu", PlaneRole.REGION, "eu-west")):
            with pytest.raises(Forbidden, match="start it with --plane=eu --plane-role=region"):
                await started(tmp_path, other)
        await started(tmp_path, EU)

    asyncio.run(story())


def test_a_store_of_an_earlier_version_is_taken_over_by_the_next_server(tmp_path: Path) -> None:
    async def story() -> None:
        await started(tmp_path, Plane())
        store = await SqliteStore.open(tmp_path / "store.db", on_failure=lambda _text: None)
        # Earlier versions write no such record.
        await written(store, Delete(keys.plane_record()))
        await store.close()
        await started(tmp_path, EU)
        with pytest.raises(Forbidden, match="belongs to plane eu"):
            await started(tmp_path, Plane())

    asyncio.run(story())


class Remote(MemoryStore):
    """Others use the store between a read and what follows from it."""

    async def range(self, *args: Any, **options: Any) -> Page:
        page = await super().range(*args, **options)
        await asyncio.sleep(0)
        return page


def test_of_several_first_servers_with_different_planes_one_starts() -> None:
    async def story() -> None:
        store = Remote()
        planes = (Plane(), EU, Plane("us"))
        taken = (take_over_store(store, plane) for plane in planes)
        ended = await asyncio.gather(*taken, return_exceptions=True)
        (owner,) = (plane for plane, end in zip(planes, ended, strict=True) if end is None)
        assert all(isinstance(end, Forbidden) for end in ended if end is not None)
        assert await demand_plane(store, owner)
        await store.close()

    asyncio.run(story())


def test_an_unreadable_record_of_the_plane_is_not_replaced() -> None:
    async def story() -> None:
        store = MemoryStore()
        later = b'{"name":"eu","role":"star","laterField":1}'
        await written(store, Put(keys.plane_record(), later))
        with pytest.raises(Forbidden, match="install the version that the other servers have"):
            await take_over_store(store, EU)
        await store.close()

    asyncio.run(story())


def test_a_store_of_a_newer_format_is_not_taken_over() -> None:
    """Its format is compared when the record is written, as in every transaction."""

    async def story() -> None:
        store = MemoryStore()
        await written(store, Put(keys.plane_format(), b'{"format":99}'))
        with pytest.raises(Forbidden, match="format 99"):
            await take_over_store(store, EU)
        assert not await demand_plane(store, EU)
        await store.close()

    asyncio.run(story())
