"""Certificates that live for seconds: a plane that outlives many of them, and who does not.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, plays it with two servers on etcd as well.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from cryptography import x509

from holdfast.host.client import Access, AsyncClient
from holdfast.host.client.api_client import ApiClient
from holdfast.host.pki.bearer_tokens import create_bearer
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import CertificateRenewal
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.node_join import NodeFiles, join_or_load, renew_certificate
from holdfast.model.access.identity import ADMINS, agent
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import Node, NodePhase, NodeSpec
from holdfast.model.kinds.tenant import Tenant
from holdfast.model.meta import ObjectMeta
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.requests import RegisterNode
from holdfast.observe.retry import RetryPolicy
from holdfast.observe.watch_events import SERVERS, Follow
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PlaneProcess
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import PLACE, WholePlane
from tests.live.witness import beats, processes
from tests.patience import STORY_S

LIFE_S = 30
# No kill and restart on a busy machine takes so long; a node that could not renew would show.
FENCE = ("--self-stop-after", "40", "--stop-grace", "1")
# This many certificates a node has had when the first one has surely ended.
LIVES = 3
PATIENCE_S = 240.0
only_long = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_RUN_LONG"), reason="needs etcd: make run-long runs it"
)


def play(story: Any) -> None:
    asyncio.run(asyncio.wait_for(story, STORY_S))


def shown(plane: WholePlane) -> bytes:
    """The certificate that the first server shows to a new connection."""
    url = plane.parts[plane.servers[0]].arguments
    host, _, port = url[url.index("--listen") + 1].rpartition(":")
    return ssl.get_server_certificate((host, int(port))).encode()


def ends(pem: bytes) -> float:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()


async def outlive(plane: WholePlane) -> None:
    """Live for several lives of a certificate, with an agent and a server killed on the way."""
    await plane.apply(1)
    (before,) = await plane.ready(1)
    files = NodeFiles(plane.folder / "n1" / "pki")
    oldest = files.certificate.read_bytes()
    seen, killed, first = {oldest}, 0, shown(plane)
    deadline = time.monotonic() + PATIENCE_S
    while len(seen) < LIVES or killed < 2 or max(ends(oldest), ends(first)) > time.time():
        assert time.monotonic() < deadline, await plane.snapshot()
        seen.add(files.certificate.read_bytes())
        assert ends(files.certificate.read_bytes()) > time.time()
        if killed < 2 and len(seen) > 1 + killed:
            # Just after a renewal, which must not be lost with the process that made it.
            victim = ("n1", plane.servers[0])[killed]
            plane.parts[victim].signal(signal.SIGKILL)
            killed += 1
        await asyncio.sleep(0.1)
    (after,) = await plane.ready(1)
    # No renewal of the node came so late that its work had to stop or its node was doubted.
    assert after.status.process.id == before.status.process.id
    assert len(processes(beats(plane.witness), PLACE)) == 1
    node = await plane.client.get(Node, "n1")
    assert (node.status.phase, node.status.incarnation) == (NodePhase.READY, 1)
    # The server has another one, too, and what is new works with it: another node joins.
    assert shown(plane) != first
    assert ends(shown(plane)) > time.time()
    await plane.scale(2)
    await plane.ready(2)


@pytest.mark.long
def test_a_plane_outlives_the_certificates_of_its_nodes_and_servers(tmp_path: Path) -> None:
    """An agent and a server are killed in between."""

    async def story() -> None:
        life = ("--certificate-life", f"{LIFE_S}s")
        agent = ("--capacity", "cpu=4")
        async with WholePlane(
            tmp_path, ("n1",), fence=FENCE, serve=life, agent=agent, joins=True
        ) as plane:
            await outlive(plane)

    play(story())


class Stream:
    """A steady stream of requests by all identities, and each that failed."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.failures: list[tuple[str, Any]] = []

    @property
    def is_busy(self) -> bool:
        """Whether each asked often enough that a replacement would have been noticed."""
        return all(self.counts.get(it, 0) > 50 for it in ("node asks", "kept", "writes", "new"))

    async def go(self, name: str, ask: Callable[[], Awaitable[Any]]) -> None:
        while True:
            try:
                answer = await ask()
                if isinstance(answer, Refusal | HoldfastError):
                    self.failures.append((name, answer))
            except Exception as error:  # noqa: BLE001 - whatever it is, it failed
                self.failures.append((name, error))
            self.counts[name] = self.counts.get(name, 0) + 1
            await asyncio.sleep(0.02)


def requests(
    plane: PlaneProcess, remote: ApiClient, kept: AsyncClient, new: aiohttp.ClientSession
) -> dict[str, Callable[[], Awaitable[Any]]]:
    """What a node, and people on kept and on new connections, ask all the time."""
    node = agent("n1")

    async def connects() -> None:
        async with new.get(f"{plane.url}/apis/holdfast.dev/v1/nodes") as answer:
            assert answer.status == 200, await answer.text()

    async def writes() -> Any:
        label = {"metadata": {"labels": {"at": f"{time.monotonic_ns()}"}}}
        return await kept.patch(Tenant, "default", "", label)

    async def follows() -> None:
        # Until the stream ends, which with the certificate it was opened under it may.
        async for _ in remote.follow(node, SERVERS, Follow("nodes")):
            pass

    return {
        "node asks": lambda: remote.ask(node, SERVERS, Get("nodes", "n1"), 5.0),
        "kept": lambda: kept.get(Tenant, "default"),
        "writes": writes,
        "new": connects,
        "follows": follows,
    }


async def replaced(
    plane: PlaneProcess, remote: ApiClient, rotation: CertificateRenewal, stream: Stream
) -> None:
    """Until both the node and the server have had several certificates, and all asked often."""
    seen = {"node": {b""}, "server": {b""}}
    deadline = time.monotonic() + PATIENCE_S
    while min(map(len, seen.values())) <= LIVES or not stream.is_busy:
        assert time.monotonic() < deadline, (seen, rotation.trouble)
        seen["node"].add(remote.access(agent("n1").name).certificate)
        there = ssl.get_server_certificate(("127.0.0.1", plane.port)).encode()
        seen["server"].add(there)
        await asyncio.sleep(0.3)


async def asked_meanwhile(plane: PlaneProcess, pki: Path) -> Stream:
    """All identities send requests while certificates are replaced; the outcomes."""
    async with plane.client() as admin:
        token = await create_token(admin, "n1", timedelta(hours=1))
        bearer, _ = await create_bearer(admin, "ops", (ADMINS,), timedelta(hours=1))
    node = agent("n1")
    access = await join_or_load((plane.url,), "n1", pki, token)
    remote = ApiClient({node.name: access})
    spec = Node(ObjectMeta(name="n1"), spec=NodeSpec(region="eu", zone="eu-a"))
    await remote.ask(node, SERVERS, RegisterNode(spec), 5.0)

    async def renew(name: str, before: Access) -> Access:
        return await renew_certificate(before, "n1", pki)

    rotation = CertificateRenewal({node.name: access}, renew, remote.take)
    people = msgspec.structs.replace(access, certificate=b"", key=b"", token=bearer)
    one_each = aiohttp.TCPConnector(ssl=people.context(), force_close=True)
    bears = {"Authorization": f"Bearer {bearer}"}
    stream = Stream()
    async with (
        AsyncClient(people, policy=RetryPolicy(tries_max=1)) as kept,
        aiohttp.ClientSession(connector=one_each, headers=bears) as new,
    ):
        asking = (stream.go(*it) for it in requests(plane, remote, kept, new).items())
        tasks = [asyncio.create_task(it) for it in (rotation.run(), *asking)]
        await replaced(plane, remote, rotation, stream)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    await remote.close()
    return stream


def test_no_request_fails_while_certificates_are_replaced(tmp_path: Path) -> None:
    """Of a node whose own are, and of people on kept and on new connections."""

    async def played() -> None:
        plane = PlaneProcess(tmp_path / "plane", "--certificate-life", "4s")
        await plane.start()
        try:
            stream = await asked_meanwhile(plane, tmp_path / "agent")
        finally:
            plane.kill()
        # A watch may be told that its certificate is old; that is no request.
        failed = [it for it in stream.failures if it[0] != "follows"]
        assert not failed, failed[:5]

    play(played())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@only_long
def test_with_two_servers_either_renews_what_the_other_issued(
    tmp_path: Path, cluster: EtcdCluster
) -> None:
    """Servers forward to each other under certificates of seconds as well."""

    async def story() -> None:
        life = ("--certificate-life", f"{LIFE_S}s")
        async with WholePlane(
            tmp_path,
            ("n1",),
            plane=plane_on_etcd(cluster),
            fence=FENCE,
            serve=("--etcd-prefix", "/rotation/", *life),
            agent=("--capacity", "cpu=4"),
            joins=True,
        ) as plane:
            await outlive(plane)

    play(story())


def test_a_connection_that_outlives_its_certificate_has_no_identity(tmp_path: Path) -> None:
    """The handshake was good; what is asked after the end is refused, and the line closed."""

    async def story() -> None:
        plane = await PlaneProcess(tmp_path / "plane").start()
        try:
            authority = CertificateAuthority.open(plane.data / "pki")
            life = timedelta(seconds=3)
            issued = authority.issue("ada", groups=("system:masters",), life=life)
            access = msgspec.structs.replace(
                plane.access(), certificate=issued.certificate, key=issued.key
            )
            path = f"{plane.url}/apis/holdfast.dev/v1/nodes"
            connector = aiohttp.TCPConnector(ssl=access.context(), limit=1)
            async with aiohttp.ClientSession(connector=connector) as session:
                async with session.get(path) as good:
                    assert good.status == 200
                await asyncio.sleep(ends(issued.certificate) - time.time() + 0.1)
                async with session.get(path) as late:
                    assert late.status == 401
                    assert late.headers["Connection"] == "close"
                    assert "has expired" in await late.text()
                # A new connection cannot be made with it at all.
                with pytest.raises(aiohttp.ClientError):
                    async with session.get(path) as never:
                        await never.read()
        finally:
            plane.kill()

    play(story())
