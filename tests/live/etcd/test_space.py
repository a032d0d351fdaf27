"""A real etcd with little room: closed to growth in time, so that reads and deletions go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.host.server import store_space
from holdfast.host.server.store_space import StoreSpace, space_of
from holdfast.model.errors import HoldfastError
from holdfast.model.transaction import Put, Transaction
from holdfast.store.etcd import EtcdConfig, EtcdStore
from tests.etcd_cluster import EtcdCluster
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import GROUP, ApiRig

QUOTA_BYTES = 32 << 20
LARGE = "eHh4" * 150_000
SECRETS = f"{GROUP}/namespaces/acme/secrets"
ADA = {"user": "ada"}

pytestmark = pytest.mark.live


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    flags = (f"--quota-backend-bytes={QUOTA_BYTES}",)
    with EtcdCluster(tmp_path, flags=flags) as cluster:
        yield cluster


def config(etcd: EtcdCluster) -> EtcdConfig:
    return EtcdConfig(endpoints=etcd.endpoints, quota_bytes=QUOTA_BYTES)


async def until_refused(rig: ApiRig, space: StoreSpace) -> tuple[int, Any]:
    """Write large Secrets as a tenant until that is refused: how many there are, and the answer."""
    for number in range(QUOTA_BYTES // len(LARGE) + 1):
        secret = {"kind": "Secret", "metadata": {"name": f"s{number}"}, "data": {"a": LARGE}}
        answer = await rig.send("POST", SECRETS, secret, **ADA)
        if answer.code != 201:
            return number, answer
        await space.look()
    raise AssertionError("a tenant has filled etcd to its end")


async def _fill(store: EtcdStore) -> None:
    for _ in range(2 * QUOTA_BYTES // len(LARGE)):
        await store.txn(Transaction((), (Put("b", LARGE.encode()),)))


def test_a_tenant_fills_etcd_no_further_than_deletions_need(etcd: EtcdCluster) -> None:
    """Reads and deletions go on, operators write, and with room there are writes again. [B6]"""

    async def story() -> None:
        said: list[str] = []
        store = await EtcdStore.open(config(etcd))
        space = StoreSpace(store.space, said.append)
        async with ApiRig(store) as rig:
            rig.authority_server.full = space.full
            rig.authority_server.closed = space.write_refusal
            await rig.tenant()
            count, refused = await until_refused(rig, space)
            assert refused.code == 503
            assert "nearly full" in refused.body["message"]
            assert "When etcd is full" in refused.body["message"]
            assert len(said) == 1
            assert not space.write_refusal()
            assert (await rig.send("GET", f"{SECRETS}/s0", **ADA)).code == 200
            assert len((await rig.send("GET", SECRETS, **ADA)).body["items"]) == count
            await rig.tenant("another")
            for number in range(count):
                assert (await rig.send("DELETE", f"{SECRETS}/s{number}", **ADA)).code == 200
            # What is forgotten of the history is free; etcd does that in the background.
            async with asyncio.timeout(PATIENCE_S):
                while space.full():
                    await store.compact(await store.revision())
                    await asyncio.sleep(0.1)
                    await space.look()
            small = {"kind": "Secret", "metadata": {"name": "after"}}
            assert (await rig.send("POST", SECRETS, small, **ADA)).code == 201

    asyncio.run(asyncio.wait_for(story(), 4 * PATIENCE_S))


def test_an_etcd_that_is_full_all_the_same_is_opened_again_by_a_server(
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its alarm raised nothing can be written, not even a deletion: that is said at once, and
    reads go on. Then history is forgotten, free pages are given back, the alarm is taken back, and
    deletions work.
    """
    monkeypatch.setattr(store_space, "RELIEF_AFTER_S", 0.1)

    async def story() -> None:
        said: list[str] = []
        store = await EtcdStore.open(config(etcd))

        async def all_of_it(upto: int) -> int:
            return upto

        opened = asyncio.Event()

        def say(text: str) -> None:
            said.append(text)
            if "accepts writes again" in text:
                opened.set()

        space = space_of(store, say, all_of_it)
        async with ApiRig(store) as rig:
            rig.authority_server.full = space.full
            rig.authority_server.closed = space.write_refusal
            await rig.tenant()
            small = {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "eHh4"}}
            assert (await rig.send("POST", SECRETS, small, **ADA)).code == 201
            with pytest.raises(HoldfastError, match="space exceeded"):
                await _fill(store)
            await space.look()
            assert "NOSPACE" in space.write_refusal()
            assert (await rig.send("DELETE", f"{SECRETS}/s", **ADA)).code == 503
            assert (await rig.send("GET", f"{SECRETS}/s", **ADA)).code == 200
            relief = asyncio.create_task(space.look_for_ever(0.1))
            async with asyncio.timeout(PATIENCE_S):
                await opened.wait()
            assert (await rig.send("DELETE", f"{SECRETS}/s", **ADA)).code == 200
            relief.cancel()
            seen = await store.space()
            assert seen.size < QUOTA_BYTES / 2

    asyncio.run(asyncio.wait_for(story(), 4 * PATIENCE_S))


def test_an_etcd_that_is_full_of_what_is_needed_is_left_to_its_operator(
    etcd: EtcdCluster,
) -> None:
    """Nothing is gained by stopping members: it is said what to do, and no alarm taken back."""

    async def story() -> None:
        said: list[str] = []
        store = await EtcdStore.open(config(etcd))

        async def nothing(upto: int) -> int:
            return 1

        space = space_of(store, said.append, nothing)
        # The first times some pages may be free after all, and are filled, too.
        while not said or "raise the quota of its members" not in said[-1]:
            with pytest.raises(HoldfastError, match="space exceeded"):
                await _fill(store)
            await space.look()
            await space.relieve()
        assert "NOSPACE" in space.write_refusal()
        await store.close()

    asyncio.run(asyncio.wait_for(story(), 4 * PATIENCE_S))
