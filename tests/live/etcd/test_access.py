"""TLS and etcd's own users: who gets in, who does not, and logins that lapse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import Forbidden, HoldfastError, Unavailable
from holdfast.model.transaction import Committed, Put, Transaction
from holdfast.store.etcd import EtcdConfig, EtcdStore
from tests.etcd_cluster import EtcdCluster
from tests.live.etcd.certificates import make_certificates
from tests.patience import STORY_S

pytestmark = pytest.mark.xdist_group("etcd-access")

PUT = Transaction((), (Put("a", b"1"),))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A member that demands certificates and logins; logins lapse after a second without use."""
    folder = tmp_path_factory.mktemp("etcd")
    tls = make_certificates(folder / "tls")
    with EtcdCluster(folder, tls=tls, flags=["--auth-token-ttl=1"]) as cluster:
        _add_users(cluster)
        yield cluster


def _add_users(cluster: EtcdCluster) -> None:
    def post(path: str, **body: Any) -> None:
        assert cluster.post(0, f"/v3/auth/{path}", json.dumps(body)) is not None, path

    post("user/add", name="root", password="root-secret")
    post("role/add", name="root")
    post("user/grant", user="root", role="root")
    post("user/add", name="holdfast", password="holdfast-secret")
    post("role/add", name="holdfast")
    permission = {
        "permType": "READWRITE",
        "key": "L2hvbGRmYXN0Lw==",
        "range_end": "L2hvbGRmYXN0MA==",
    }
    post("role/grant", name="holdfast", perm=permission)
    post("user/grant", user="holdfast", role="holdfast")
    post("enable")


def config(cluster: EtcdCluster, who: str = "client", **others: Any) -> EtcdConfig:
    assert cluster.tls is not None
    settings = {"user": "holdfast", "password": "holdfast-secret", "call_timeout_s": 2.0, **others}
    return EtcdConfig(
        endpoints=cluster.endpoints,
        ca_file=str(cluster.tls / "ca.pem"),
        cert_file=str(cluster.tls / f"{who}.pem"),
        key_file=str(cluster.tls / f"{who}.key"),
        **settings,
    )


def play(config: EtcdConfig, story: Callable[[EtcdStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await EtcdStore.open(config, bookmark_every_s=0.3)
        try:
            async with asyncio.timeout(STORY_S):
                await story(store)
        finally:
            await store.close()

    asyncio.run(run())


def opening_fails_with(config: EtcdConfig) -> HoldfastError:
    with pytest.raises(HoldfastError) as caught:
        play(config, lambda store: asyncio.sleep(0))
    assert "secret" not in str(caught.value)
    return caught.value


def test_everything_works_over_tls_with_a_login(secured: EtcdCluster) -> None:
    async def story(store: EtcdStore) -> None:
        before = await store.revision()
        batches = store.watch("", after=before)
        await anext(batches)
        token = store.new_token()
        outcome = await store.txn(PUT, token=token)
        assert isinstance(outcome, Committed)
        assert [r.key for r in (await store.range("a", "b")).records] == ["a"]
        assert [c.key for c in (await anext(batches)).changes] == ["a"]
        await store.compact(outcome.revision)

    play(config(secured), story)


def test_a_lapsed_login_is_renewed_without_an_error(secured: EtcdCluster) -> None:
    """For calls and for new watches; the refusal is certain, so the call may be sent again."""

    async def story(store: EtcdStore) -> None:
        revision = await store.revision()
        for _ in range(2):
            await asyncio.sleep(2.5)
            outcome = await store.txn(PUT, token=store.new_token())
            assert isinstance(outcome, Committed)
            await asyncio.sleep(2.5)
            batches = store.watch("", after=revision)
            assert [c.key for c in (await anext(batches)).changes][:1] == ["a"]
            del batches

    play(config(secured), story)


def test_a_member_that_restarted_knows_no_logins(tmp_path: Path) -> None:
    """Its memory of them is gone; the next call logs in again [C7.5]."""
    tls = make_certificates(tmp_path / "tls")
    with EtcdCluster(tmp_path, tls=tls) as cluster:
        _add_users(cluster)

        async def story(store: EtcdStore) -> None:
            await store.txn(PUT)
            batches = store.watch("", after=await store.revision())
            await anext(batches)
            cluster.restart(0)
            await asyncio.to_thread(cluster.wait_healthy, 0)
            revision = 0
            while not revision:
                try:
                    outcome = await store.txn(PUT)
                except Unavailable:
                    await asyncio.sleep(0.05)
                else:
                    revision = outcome.revision
            while True:
                batch = await anext(batches)
                if batch.revision >= revision:
                    break

        play(config(cluster), story)


@pytest.mark.parametrize(
    "others, error",
    [
        ({"password": "wrong-secret"}, Forbidden),
        ({"user": "nobody"}, Forbidden),
        ({"who": "stranger"}, Unavailable),
        ({"user": None, "password": None}, Forbidden),
        ({"prefix": "/other/"}, Forbidden),
    ],
    ids=["password", "user", "certificate", "no-login", "prefix"],
)
def test_a_caller_without_permission_gets_that_answer(
    secured: EtcdCluster, others: dict[str, Any], error: type[HoldfastError]
) -> None:
    """Without a word of the password."""

    async def story(store: EtcdStore) -> None:
        await store.txn(PUT, token=store.new_token())

    with pytest.raises(error) as caught:
        play(config(secured, **others), story)
    assert "secret" not in str(caught.value)


def test_a_watch_outside_ones_rights_is_forbidden(secured: EtcdCluster) -> None:
    async def story(store: EtcdStore) -> None:
        with pytest.raises(Forbidden):
            await anext(store.watch("", after=1))

    play(config(secured, prefix="/other/"), story)


def test_plain_connections_to_a_tls_cluster_fail(secured: EtcdCluster) -> None:
    plain = EtcdConfig(endpoints=tuple(e.split("://")[1] for e in secured.endpoints))
    assert isinstance(opening_fails_with(plain), Unavailable)
