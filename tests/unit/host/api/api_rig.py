"""A whole server in this process: store, authority, hub and HTTP on a loopback port.

Callers say who they are in a header, which stands for a client certificate here; how callers are
authenticated is tested elsewhere.
"""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from holdfast.commit.heartbeat_intake import Renewals
from holdfast.commit.server import AuthorityServer
from holdfast.host.api.app import Api
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.process.shell import Shell
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.model.access.identity import ADMINS, MONITORS, Identity, server
from holdfast.model.errors import Forbidden
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.read_requests import Reach
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.contract import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore

PATIENCE_S = 60.0
GROUP = "/apis/holdfast.dev/v1"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
WEB: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1",
    "kind": "Workload",
    "metadata": {"name": "web", "namespace": "acme"},
    "spec": {"template": {"command": ["sleep", "60"]}},
}


class Answer:
    """What came back."""

    def __init__(self, code: int, headers: Any, body: bytes) -> None:
        self.code, self.headers, self.raw = code, headers, body

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw) if self.raw else None


class ApiRig:
    """Use as an async context manager."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Users whose credentials are not accepted any more.
        self.strangers: set[str] = set()
        self.hub = WatchHub(Forms())
        self.hub_shell = Shell(self.hub, server("one"), store=store)
        self.authority_server = AuthorityServer("one", random.Random(1), store)
        self.authority = Shell(self.authority_server, server("one"), store=store)
        self.renewals = Shell(Renewals("one", FenceTiming()), server("one"), store=store)
        self.api = Api(
            store=store,
            authority=self.authority,
            hub=self.hub,
            hub_shell=self.hub_shell,
            authenticate=self.authenticate,
            renewals=self.renewals,
            pulses=ComponentPulses("one"),
        )
        self.url = ""

    def authenticate(self, request: web.BaseRequest) -> Identity:
        """The identity that the request names in a header, unless it is not accepted any more."""
        name = request.headers.get("X-Test-User", "admin")
        if name in self.strangers:
            raise Forbidden(f"{name} is not known any more", code="Unauthenticated")
        groups = {"admin": (ADMINS,), "prometheus": (MONITORS,)}.get(name, ())
        tenants = ("acme",) if name == "ada" else ()
        return Identity(name=name, groups=groups, tenants=tenants)

    async def __aenter__(self) -> ApiRig:
        await self.authority.start()
        await self.renewals.start()
        await self.hub_shell.start()
        await self.hub_shell.ask("test", Reach(0), PATIENCE_S)
        self.url = f"http://127.0.0.1:{await self.api.start()}"
        self.http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        await self.api.stop()
        await self.hub_shell.stop()
        await self.renewals.stop()
        await self.authority.stop()
        await self.store.close()

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "admin",
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else msgspec.json.encode(body)
        headers = {"X-Test-User": user, **(headers or {})}
        if data is not None:
            headers.setdefault("Content-Type", "application/json")
        async with self.http.request(
            method,
            self.url + path,
            data=io.BytesIO(data) if data else data,
            headers=headers,
            params=query,
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def tenant(self, name: str = "acme") -> None:
        body = {"kind": "Tenant", "metadata": {"name": name}}
        answer = await self.send("POST", f"{GROUP}/tenants", body)
        assert answer.code == 201, answer.body

    async def create(self, body: dict[str, Any], **more: Any) -> Answer:
        metadata = body["metadata"]
        return await self.send("POST", workloads(metadata.get("namespace", "acme")), body, **more)

    def watch(self, path: str, *, user: str = "admin", accept: str = "", **query: str) -> Any:
        """An open watch, to be used with `async with` and read with `events`."""
        headers = {"X-Test-User": user} | ({"Accept": accept} if accept else {})
        params = {"watch": "true", **query}
        return self.http.get(self.url + path, headers=headers, params=params)


async def events(response: Any, count: int) -> list[tuple[str, Any]]:
    """The next events of a watch."""
    found = []
    for _ in range(count):
        line = msgspec.json.decode(await response.content.readline())
        found.append((line["type"], line["object"]))
    return found


def workloads(namespace: str = "acme", name: str = "") -> str:
    path = f"{GROUP}/namespaces/{namespace}/workloads"
    return f"{path}/{name}" if name else path


def named(name: str, namespace: str = "acme", **metadata: Any) -> dict[str, Any]:
    return {**WEB, "metadata": {"name": name, "namespace": namespace, **metadata}}


async def store_of(kind: str, folder: Path) -> Store:
    if kind == "memory":
        return MemoryStore()
    return await SqliteStore.open(folder / "api.db")


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, PATIENCE_S))


def with_tenant(story: Callable[[ApiRig], Awaitable[None]]) -> None:
    """Play a story on a server over an empty store in memory, with one tenant."""

    async def played() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await story(rig)

    play(played())
