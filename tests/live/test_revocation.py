"""Revoked clients are out within seconds, over real TLS: also on open connections.

HOLDFAST_RUN_LONG=1, as `make run-long` sets it, plays it with two servers on etcd as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from holdfast.cli.revoke import revoke_identity
from holdfast.host.client import Access, AsyncClient
from holdfast.host.pki.bearer_tokens import create_bearer, groups_for
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.join_tokens import create_token
from holdfast.host.pki.node_join import NodeFiles, join_or_load
from holdfast.model.errors import Forbidden
from holdfast.model.kinds.access import RoleBinding, RoleRef, Subject, Token
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import ObjectMeta
from holdfast.model.plane import Plane
from holdfast.model.registry import SYSTEM_NAMESPACE
from tests.etcd_cluster import EtcdCluster
from tests.live.plane_process import PATIENT
from tests.live.process_plane import MAIN, plane_on_etcd
from tests.live.whole_plane import WholePlane
from tests.patience import PATIENCE_S, STORY_S

HOUR = timedelta(hours=1)
IN = "/apis/holdfast.dev/v1/namespaces/default"
only_long = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_RUN_LONG"), reason="needs etcd: make run-long runs it"
)


class ConnectedClient:
    """A person, a service or a node with connections to one server, each of which is kept."""

    def __init__(self, access: Access, server: int = 0) -> None:
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        connector = aiohttp.TCPConnector(ssl=access.context())
        self._http = aiohttp.ClientSession(connector=connector, headers=headers)
        self._url = access.servers[server % len(access.servers)]
        self._ears: dict[str, asyncio.Task[float]] = {}

    async def __aenter__(self) -> ConnectedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._ears.values():
            task.cancel()
        await asyncio.gather(*self._ears.values(), return_exceptions=True)
        await self._http.close()

    async def code(self, path: str) -> int:
        async with self._http.get(self._url + path) as answer:
            await answer.read()
            return answer.status

    async def follow(self, what: str, path: str, **query: str) -> None:
        """Listen until the stream ends; it must have begun."""
        begun = asyncio.Event()

        async def listen() -> None:
            async with self._http.get(self._url + path, params=query, timeout=_EVER) as answer:
                assert answer.status == 200, await answer.text()
                begun.set()
                with contextlib.suppress(aiohttp.ClientError):
                    while await answer.content.readany():
                        pass

        await self._listen(what, listen(), begun)

    async def run(self, replica: str) -> None:
        """Run a command that only says something once, until it or its line ends."""
        begun = asyncio.Event()
        query = [("command", it) for it in ("sh", "-c", "echo here; sleep 100")]
        path = f"{self._url}{IN}/replicas/{replica}/exec"

        async def listen() -> None:
            async with self._http.ws_connect(
                path, params=[*query, ("stdout", "true")], protocols=("v5.channel.k8s.io",)
            ) as line:
                async for _ in line:
                    begun.set()

        await self._listen("exec", listen(), begun)

    async def _listen(
        self, what: str, listening: Coroutine[Any, Any, None], begun: asyncio.Event
    ) -> None:
        task = self._ears[what] = asyncio.create_task(listening)
        waiting = asyncio.create_task(begun.wait())
        await asyncio.wait((task, waiting), timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert begun.is_set(), (what, task)

    @property
    def open(self) -> list[str]:
        return [what for what, task in self._ears.items() if not task.done()]

    async def all_ended(self) -> None:
        """Every stream must end. How soon is judged in tests/unit/host/api."""
        for task in self._ears.values():
            await asyncio.wait_for(asyncio.shield(task), PATIENCE_S)


_EVER = aiohttp.ClientTimeout(total=None)


@asynccontextmanager
async def bearer(
    plane: WholePlane, user: str, ttl: timedelta = HOUR, tenants: tuple[str, ...] = ("default",)
) -> AsyncIterator[Any]:
    """A client of these tenants with a token; and the token's name."""
    text, _ = await create_bearer(plane.client, user, groups_for((), tenants), ttl)
    access = msgspec.structs.replace(plane.access, certificate=b"", key=b"", token=text)
    # Through the last server: another one than tells of the revocation, if there are several.
    async with ConnectedClient(access, server=-1) as made:
        yield made, text.split(".")[1]


async def listens_to_all(one: ConnectedClient, replica: Replica) -> None:
    await one.follow("watch", f"{IN}/replicas", watch="true")
    await one.follow("log", f"{IN}/replicas/{replica.name}/log", follow="true")
    await one.run(replica.name)


async def people(plane: WholePlane, replica: Replica) -> None:
    """By token: taken back, ended by itself; a role; a certificate. Others do not notice."""
    async with bearer(plane, "bob") as (bob, _):
        await listens_to_all(bob, replica)
        async with bearer(plane, "ann") as (ann, name):
            # Used at once, maybe at a server that has not heard of it yet.
            assert await ann.code(f"{IN}/workloads") == 200
            await listens_to_all(ann, replica)
            body = {"spec": {"revoked": True}}
            await plane.client.patch(Token, name, SYSTEM_NAMESPACE, body)
            await ann.all_ended()
            assert await ann.code(f"{IN}/workloads") == 401
        async with bearer(plane, "eve", timedelta(seconds=1)) as (eve, _):
            await eve.follow("watch", f"{IN}/replicas", watch="true")
            await eve.all_ended()
            assert await eve.code(f"{IN}/workloads") == 401
        async with bearer(plane, "dan", tenants=()) as (dan, _):
            assert await dan.code(f"{IN}/replicas") == 403
            role = RoleRef(name="tenant-editor", namespace=SYSTEM_NAMESPACE)
            given = RoleBinding(
                ObjectMeta(name="dan", namespace="default"),
                subjects=(Subject(kind="User", name="dan"),),
                role_ref=role,
            )
            await plane.client.create(given)

            async def may() -> bool:
                return await dan.code(f"{IN}/replicas") == 200

            await plane.until(may)
            await listens_to_all(dan, replica)
            await plane.client.delete(RoleBinding, "dan", "default")
            await dan.all_ended()
            assert await dan.code(f"{IN}/replicas") == 403
        issued = CertificateAuthority.open(plane.folder / "pki").issue(
            "cat", groups=("tenant:default",)
        )
        access = msgspec.structs.replace(
            plane.access, certificate=issued.certificate, key=issued.key
        )
        async with ConnectedClient(access) as cat:
            await listens_to_all(cat, replica)
            await revoke_identity(plane.client, "cat", "left")
            await cat.all_ended()
            assert await cat.code(f"{IN}/workloads") == 401
        assert bob.open == ["watch", "log", "exec"]
        assert await bob.code(f"{IN}/workloads") == 200


async def nodes(plane: WholePlane) -> None:
    """A node that is revoked loses its line and its work, and is let in again by a new token."""
    files = NodeFiles(plane.folder / "n1" / "pki")
    old_token = (plane.folder / "n1.token").read_text()
    old_key, old = files.key.read_bytes(), files.certificate.read_bytes()
    access = msgspec.structs.replace(plane.access, certificate=old, key=old_key)
    async with ConnectedClient(access, server=-1) as thief:
        await thief.follow("watch", "/apis/holdfast.dev/v1/nodes", watch="true")
        await revoke_identity(plane.client, "system:node:n1", "its disk was stolen")
        await thief.all_ended()
        assert await thief.code("/apis/holdfast.dev/v1/nodes") == 401
    # Neither a renewal nor the token that was used up gives the key another certificate.
    stolen = plane.folder / "stolen"
    stolen.mkdir(mode=0o700)
    NodeFiles(stolen).key.write_bytes(old_key)
    with pytest.raises(Forbidden, match="was used by node n1 already"):
        await join_or_load(plane.access_urls, "n1", stolen, old_token)

    async def is_doubted() -> bool:
        return (await plane.client.get(Node, "n1")).status.phase is not NodePhase.READY

    await plane.until(is_doubted)
    token = await create_token(plane.client, "n1", HOUR)
    (plane.folder / "n1.token").write_text(token)
    plane.parts["n1"].signal(signal.SIGKILL)

    async def is_in_again() -> bool:
        is_new = files.certificate.exists() and files.key.read_bytes() != old_key
        return is_new and not await is_doubted()

    await plane.until(is_in_again)
    await plane.ready(1)


async def deleted(plane: WholePlane) -> None:
    """A node that is deleted is out as well, and does not come back by itself."""
    await plane.scale(0)

    async def is_empty() -> bool:
        return not await plane.replicas()

    await plane.until(is_empty)
    await plane.client.delete(Node, "n1")
    files = NodeFiles(plane.folder / "n1" / "pki")
    # Without the kubeconfig of the administrator, whose credentials would be read again.
    access = msgspec.structs.replace(
        plane.access,
        certificate=files.certificate.read_bytes(),
        key=files.key.read_bytes(),
        origin=None,
    )
    async with AsyncClient(access, policy=PATIENT) as agent:
        with pytest.raises(Forbidden, match="was revoked"):
            await agent.list(Node)

    async def is_told() -> bool:
        return "was revoked" in plane.parts["n1"].log_path.read_text()

    # The agent logs why it is not let in.
    await plane.until(is_told)
    assert not (await plane.client.list(Node)).objects


def play(tmp_path: Path, plane: Plane = MAIN) -> None:
    async def story() -> None:
        async with WholePlane(tmp_path, ("n1",), plane=plane, joins=True) as whole:
            await whole.apply(1)
            (replica,) = await whole.ready(1)
            await people(whole, replica)
            await nodes(whole)
            await deleted(whole)

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_a_revoked_client_is_out_within_seconds_wherever_it_is_connected(tmp_path: Path) -> None:
    """People by token and by certificate, a node, a node that was deleted."""
    play(tmp_path)


@only_long
def test_all_servers_feel_a_revocation(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd") as cluster:
        play(tmp_path, plane_on_etcd(cluster))
