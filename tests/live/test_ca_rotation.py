"""The certificate authority of a plane of two servers is replaced while all clients work.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, plays it with more clients and for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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

from holdfast.cli.main import main
from holdfast.host.client import Access, AsyncClient, from_kubeconfig
from holdfast.host.pki.bearer_tokens import create_bearer
from holdfast.host.pki.component_credentials import identities, provide
from holdfast.host.pki.kubeconfig import kubeconfig
from holdfast.host.pki.trust_bundle import common_name, decode_bundle, names
from holdfast.model.access.identity import ADMINS
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import Tenant
from holdfast.observe.retry import RetryPolicy
from tests.etcd_cluster import EtcdCluster
from tests.live.process_plane import plane_on_etcd
from tests.live.whole_plane import LONG_FENCE, PLACE, WholePlane
from tests.live.witness import beats, processes
from tests.patience import PATIENCE_S, STORY_S

IS_LONG = bool(os.environ.get("HOLDFAST_RUN_LONG"))
# Each client asks so often; the load only has to meet every moment of every step.
PAUSE_S = 0.02 if IS_LONG else 0.25
# Between two steps all clients work for this long.
WORK_S = 30.0 if IS_LONG else 1.0
NODES = ("n1", "n2")
ONCE = RetryPolicy(tries_max=1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


class Load:
    """Clients that ask all the time, each with the access that it has at the moment."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, BaseException]] = []
        self.counts: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, name: str, access: Access) -> None:
        """Read and write on a kept connection, and make new connections, through one server."""
        tls = access.context()

        async def kept() -> None:
            async with AsyncClient(access, policy=ONCE) as client:
                while True:
                    await self._counted(f"{name} writes", lambda: _write(client))
                    await self._counted(f"{name} reads", lambda: client.get(Tenant, "default"))

        async def new() -> None:
            while True:
                await self._counted(f"{name} connects", lambda: connect(access, tls))

        async def watch() -> None:
            while True:
                await self._counted(f"{name} watches", lambda: _watch(access, tls))

        for work in (kept, new, watch):
            self._tasks[f"{name} {work.__name__}"] = asyncio.create_task(work())

    async def _counted(self, name: str, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            await ask()
        except (HoldfastError, aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failures.append((name, error))
        self.counts[name] = self.counts.get(name, 0) + 1
        await asyncio.sleep(PAUSE_S)

    async def end(self, name: str = "") -> None:
        """Stop a client, or all."""
        ended = [it for it in self._tasks if it.startswith(name)]
        tasks = [self._tasks.pop(it) for it in ended]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _write(client: AsyncClient) -> Any:
    label = {"metadata": {"labels": {"at": f"{time.monotonic_ns()}"}}}
    return await client.patch(Tenant, "default", "", label)


async def connect(access: Access, tls: ssl.SSLContext | None = None) -> None:
    """One request on a connection of its own. Raises what is wrong."""
    one_each = aiohttp.TCPConnector(ssl=tls or access.context(), force_close=True)
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    async with (
        aiohttp.ClientSession(connector=one_each, headers=headers) as session,
        session.get(f"{access.servers[0]}/apis/holdfast.dev/v1/nodes/n1") as answer,
    ):
        if answer.status != 200:
            raise Unavailable(f"{answer.status} {await answer.text()}")


async def _watch(access: Access, tls: ssl.SSLContext) -> None:
    """Hear of writes until the stream ends, which a watch may at any time; silence is a failure."""
    query = {"watch": "true"}
    path = f"{access.servers[0]}/apis/holdfast.dev/v1/tenants"
    headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
    silence = aiohttp.ClientTimeout(total=None, sock_read=PATIENCE_S)
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls), headers=headers, timeout=silence
        ) as session,
        session.get(path, params=query) as answer,
    ):
        if answer.status != 200:
            raise Unavailable(f"{answer.status} {await answer.text()}")
        with contextlib.suppress(aiohttp.ClientPayloadError):
            async for _ in answer.content:
                pass


class Story:
    """A plane, its load, and the administrator's commands."""

    def __init__(self, plane: WholePlane) -> None:
        self.plane, self.load = plane, Load()
        self.pki = plane.folder / "pki"
        self.admin = plane.folder / plane.servers[0] / "kubeconfig"

    async def command(self, *words: str, kubeconfig: Path | None = None) -> int:
        where = ("--kubeconfig", str(kubeconfig or self.admin))
        return await asyncio.to_thread(main, (*words, *where))

    async def until_done(self, *words: str) -> None:
        """A step that is refused until all have followed."""

        async def look() -> bool:
            if await self.command(*words) == 0:
                return True
            await asyncio.sleep(1.0)
            return False

        await self.plane.until(look)

    def shown(self) -> set[str]:
        """The names of the authorities whose certificates the servers show."""
        found = set()
        for url in self.plane.access_urls:
            host, _, port = url.removeprefix("https://").rpartition(":")
            pem = ssl.get_server_certificate((host, int(port)))
            found.add(common_name(x509.load_pem_x509_certificate(pem.encode()).issuer))
        return found


@pytest.mark.long
@pytest.mark.slow
def test_the_authority_is_replaced_under_load_without_an_error(
    tmp_path: Path, cluster: EtcdCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """No request fails, no work restarts and no node is doubted; who holds only the old authority
    is refused after the last step, and not before."""

    async def story() -> None:
        async with WholePlane(
            tmp_path,
            NODES,
            plane=plane_on_etcd(cluster),
            fence=LONG_FENCE,
            serve=("--etcd-prefix", "/ca/"),
            joins=True,
        ) as plane:
            played = Story(plane)
            try:
                await _play(played, capsys)
            finally:
                await played.load.end()

    asyncio.run(asyncio.wait_for(story(), STORY_S))


async def _play(of: Story, capsys: pytest.CaptureFixture[str]) -> None:
    plane, load = of.plane, of.load
    await plane.apply(2)
    before = await plane.ready(2)
    old = plane.access
    text, _ = await create_bearer(plane.client, "ops", (ADMINS,), timedelta(hours=1))
    handed_out = plane.folder / "ops.kubeconfig"
    handed_out.write_bytes(kubeconfig(old.servers[0], old.ca, text, user="ops"))
    people = from_kubeconfig(handed_out)
    for number, url in enumerate(plane.access_urls):
        load.begin(f"old-{number}", msgspec.structs.replace(old, servers=(url,)))
        load.begin(f"ops-{number}", msgspec.structs.replace(people, servers=(url,)))
    first = of.shown()

    # Begin: all trust both, the old one signs and is shown.
    assert await of.command("ca", "rotate", "begin") == 0
    capsys.readouterr()
    assert await of.command("ca", "rotate", "switch") == 1
    assert "switch is refused, nothing was changed" in capsys.readouterr().err
    assert await of.command("ca", "kubeconfig", kubeconfig=handed_out) == 0
    people = from_kubeconfig(handed_out)
    assert people.ca.count(b"BEGIN CERTIFICATE") == 2
    await load.end("ops")
    for number, url in enumerate(plane.access_urls):
        load.begin(f"ops-{number}", msgspec.structs.replace(people, servers=(url,)))
    await of.until_done("ca", "rotate", "switch")

    # Switch: the new one signs, servers still show the old one.
    assert of.shown() == first
    (signer,) = {*names(decode_bundle((of.pki / "ca.bundle").read_bytes()))} - first
    for part in ("scheduler", "controllers"):
        provide(of.pki, plane.folder / f"{part}-pki", identities(part, "main"))
    await plane.until(lambda: _are_of(plane, signer))
    await asyncio.sleep(WORK_S)
    await plane.until(lambda: _is_refused_for_admin(of, capsys))
    # No request has failed, with either authority.
    await load.end("old")
    assert not load.failures, load.failures[:5]
    assert await of.command("ca", "status") == 0
    told = capsys.readouterr().out
    assert "system:node:n1" in told
    assert "Finish would be refused" in told

    # Finish: the new one alone. The administrator's old certificate is what stands against it.
    await plane.until(lambda: _only_people(of, capsys))
    assert await of.command("ca", "rotate", "finish", "--force") == 0
    assert "cut off: user admin" in capsys.readouterr().err
    await _refused(old, plane.access)
    await asyncio.sleep(WORK_S)
    assert of.shown() == {signer}
    await load.end()
    capsys.readouterr()
    assert await of.command("audit", "list", "--verb", "RotateAuthority") == 0
    told = capsys.readouterr().out
    assert all(step in told for step in ("begin", "switch", "finish")), told
    assert not load.failures, load.failures[:5]
    assert min(load.counts.values()) > 0, load.counts
    await _nothing_happened(plane, before)


async def _are_of(plane: WholePlane, signer: str) -> bool:
    """Whether all nodes have certificates of this authority."""
    files = [plane.folder / node / "pki" / "node.crt" for node in NODES]
    found = {common_name(x509.load_pem_x509_certificate(it.read_bytes()).issuer) for it in files}
    return found == {signer}


async def _is_refused_for_admin(of: Story, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether the last step is refused because of the administrator; it is refused in any case."""
    capsys.readouterr()
    assert await of.command("ca", "rotate", "finish") == 1
    await asyncio.sleep(1.0)
    return "user admin presented a certificate of the old authority" in capsys.readouterr().err


async def _only_people(of: Story, capsys: pytest.CaptureFixture[str]) -> bool:
    """Whether nothing but the administrator's old certificate stands against the last step."""
    await of.command("ca", "status")
    _, _, told = capsys.readouterr().out.partition("Finish would be refused:\n")
    against = [it for it in told.partition("\n\n")[0].splitlines() if it]
    await asyncio.sleep(1.0)
    return bool(against) and all("user admin showed" in it for it in against)


async def _refused(old: Access, new: Access) -> None:
    """Who holds only the old authority is refused, as one who trusts and as one who shows."""
    for url in new.servers:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await connect(msgspec.structs.replace(old, servers=(url,)))
        shows_old = msgspec.structs.replace(old, servers=(url,), ca=new.ca)
        with pytest.raises(aiohttp.ClientError):
            await connect(shows_old)
        await connect(msgspec.structs.replace(new, servers=(url,)))


async def _nothing_happened(plane: WholePlane, before: list[Replica]) -> None:
    """All work runs as it ran before, and no node was lost for a moment."""
    async with AsyncClient(plane.access) as client:
        nodes = [await client.get(Node, name) for name in NODES]
        replicas = (await client.list(Replica, "default")).objects
    assert [(it.status.phase, it.status.incarnation) for it in nodes] == [(NodePhase.READY, 1)] * 2
    after = {it.name: it.status.process.id for it in replicas}
    assert after == {it.name: it.status.process.id for it in before}
    assert len(processes(beats(plane.witness), PLACE)) == 1
    assert all(part.lives == 1 for part in plane.parts.values())
