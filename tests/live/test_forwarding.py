"""Two real servers over one real etcd: one decides for both, until it is gone."""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.host.client import AsyncClient
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.server.forwarding import PATH, encode_forward
from holdfast.host.server.settings import peer_host
from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import Forward, Remove
from holdfast.observe.retry import RetryPolicy
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PATIENT, PlaneProcess, workload
from tests.live.process_plane import Pair
from tests.scale import some_of

pytestmark = pytest.mark.xdist_group("plane-etcd")
NS = "default"
# From the kill of the holder to the next write at the other server. It need not wait for the lease:
# a server that cannot reach the holder decides by itself.
TAKEOVER_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


async def connected(pair: Pair, client: AsyncClient) -> None:
    """Until what is asked of `two` is decided by `one`: its address comes with a renewal."""
    deadline = time.monotonic() + TAKEOVER_S
    number = 0
    while not (await counts(pair.one)).get("forwards_taken_total"):
        assert time.monotonic() < deadline, await counts(pair.two)
        await client.create(workload(f"early-{number}"))
        number += 1


async def counts(server: PlaneProcess) -> dict[str, float]:
    """What a server has counted, with no label or with the outcome alone."""
    _, text = await server.fetch("/metrics")
    found = re.findall(r'^holdfast_(\w+(?:\{outcome="\w+"\})?) (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_what_is_asked_of_the_other_server_is_decided_by_the_holder(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """Both views would be stale for each other; so there are no conflicts at all."""
    each = 60

    async def story(pair: Pair) -> None:
        async with pair.one.client() as at_one, pair.two.client() as at_two:
            await connected(pair, at_two)
            before = [await counts(server) for server in (pair.one, pair.two)]
            made = await asyncio.gather(
                *(at_one.create(workload(f"one-{n}")) for n in range(each)),
                *(at_two.create(workload(f"two-{n}")) for n in range(each)),
            )
            after = [await counts(server) for server in (pair.one, pair.two)]
            assert len({obj.metadata.uid for obj in made}) == 2 * each
            # A client of the other server reads there what it wrote.
            listed = (await at_two.list(Workload, NS)).objects
            assert {obj.metadata.uid for obj in made} <= {obj.metadata.uid for obj in listed}
        one, two = (_grown(*pair) for pair in zip(before, after, strict=True))
        assert one["forwards_taken_total"] == two['forwarded_total{outcome="Answered"}'] == each
        assert one['store_txns_total{outcome="committed"}'] > 0
        assert (after[0]["authority_epoch"], after[1]["authority_epoch"]) == (1, 0)
        assert one.get("store_conflicts_total", 0) == two.get("store_conflicts_total", 0) == 0

    asyncio.run(_play(story, Pair(tmp_path, cluster, "/forwarded/")))


@pytest.mark.parametrize(
    "how", some_of([signal.SIGSTOP, signal.SIGKILL], 2), ids=lambda how: how.name
)
def test_the_holder_dies_or_hangs_and_the_other_goes_on_without_losing_anything(
    tmp_path: Path, cluster: EtcdCluster, how: signal.Signals
) -> None:
    """[N1.1]"""
    acknowledged: dict[str, str] = {}
    moments: list[float] = []

    async def load(client: AsyncClient, who_: int, stopped: asyncio.Event) -> None:
        number = 0
        while not stopped.is_set():
            name = f"w{who_}-{number}"
            made = await client.create(workload(name), operation=f"create/{name}")
            acknowledged[name] = made.metadata.uid
            moments.append(time.monotonic())
            number += 1

    async def story(pair: Pair) -> None:
        async with pair.two.client(policy=_quick()) as client:
            await connected(pair, client)
            stopped = asyncio.Event()
            tasks = [asyncio.create_task(load(client, n, stopped)) for n in range(6)]
            await asyncio.sleep(1.0)
            pair.one.signal(how)
            deadline = time.monotonic() + TAKEOVER_S
            while not (await counts(pair.two))["authority_epoch"]:
                assert time.monotonic() < deadline, "no server took the lease over"
                await asyncio.sleep(0.1)
            taken = time.monotonic()
            await asyncio.sleep(0.5)
            stopped.set()
            await asyncio.gather(*tasks)
            assert max(moments) > taken
            listed = (await client.list(Workload, NS)).objects
            found = {obj.name: obj.metadata.uid for obj in listed}
            assert {name: found.get(name) for name in acknowledged} == acknowledged
            # The killed one comes back and is the one that forwards now.
            pair.one.kill()
            await pair.one.start()
            async with pair.one.client() as back:
                deadline = time.monotonic() + TAKEOVER_S
                number = 0
                while not (await counts(pair.two))["forwards_taken_total"]:
                    assert time.monotonic() < deadline, "nothing was forwarded back"
                    await back.create(workload(f"back-{number}"))
                    number += 1

    asyncio.run(_play(story, Pair(tmp_path, cluster, f"/{how.name}/")))


def test_only_a_server_may_forward(tmp_path: Path, cluster: EtcdCluster) -> None:
    body = encode_forward(
        Forward(Identity("ann", (who.ADMINS,)), Remove("tenants", "", NS, force=True))
    )

    async def story(pair: Pair) -> None:
        codes = {}
        for name, groups in (("admin", (who.ADMINS,)), ("system:node:n", ()), ("", ())):
            access = pair.two.access()
            issued = CertificateAuthority.open(pair.pki).issue(name or "nobody", groups=groups)
            certificate, key = (issued.certificate, issued.key) if name else (b"", b"")
            access = msgspec.structs.replace(access, certificate=certificate, key=key)
            async with (
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(ssl=access.context())
                ) as session,
                session.post(
                    pair.two.url + PATH, data=body, server_hostname=peer_host("two")
                ) as response,
            ):
                codes[name] = response.status
        assert codes == {"admin": 403, "system:node:n": 403, "": 401}
        assert not (await counts(pair.two))["forwards_taken_total"]

    asyncio.run(_play(story, Pair(tmp_path, cluster, "/forbidden/")))


async def _play(story: Callable[[Pair], Coroutine[Any, Any, None]], pair: Pair) -> None:
    async with pair:
        await story(pair)


def _grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0) for name, value in after.items()}


def _quick() -> RetryPolicy:
    """Asks after an unknown outcome soon, so that what is measured is the servers."""
    return msgspec.structs.replace(PATIENT, try_ms=3_000)
