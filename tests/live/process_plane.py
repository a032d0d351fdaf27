"""A plane of processes: its servers, and whatever is run beside them.

    async with ProcessPlane(folder, plane=Plane("eu", PlaneRole.REGION, "eu")) as plane:
        await plane.run("scheduler", "scheduler", *plane.reach, *plane.credentials("scheduler"))

Several planes may be beside each other, each in a folder of its own. All tests and benchmarks with
more than a server start from this.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import msgspec

from holdfast.host.client import Access, AsyncClient
from holdfast.host.pki.component_credentials import identities, provide
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.replica import Replica
from holdfast.model.plane import Plane
from tests.etcd_cluster import EtcdCluster
from tests.free_ports import free_ports
from tests.live.names import port_at
from tests.live.part import HOST, LOOK_S, START_TIMEOUT_S, Part
from tests.live.plane_process import PATIENT, PlaneProcess

# The plane of a test that says nothing of planes: one server with a store of its own.
MAIN = Plane()


def plane_on_etcd(cluster: EtcdCluster, servers: int = 2) -> Plane:
    """A plane with this many servers over an etcd cluster."""
    targets = ",".join(member.target for member in cluster.members)
    names = tuple(f"server-{n}" for n in range(1, servers + 1))
    return Plane(store=f"etcd://{targets}", servers=names)


def _options(plane: Plane) -> tuple[tuple[str, str], ...]:
    """The options of a server of this plane."""
    return (
        ("--plane", plane.name),
        ("--plane-role", plane.role.value),
        ("--plane-region", plane.region),
        ("--store", plane.store),
    )


class ProcessPlane:
    """See the module's docstring. `parts` has every process by its name."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        plane: Plane = MAIN,
        hosts: Sequence[str] = (),
        wrap: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> None:
        """`options` are further ones of its servers. With `hosts` each server listens at its own,
        all at the same port. `wrap` is what to put before the command of a part.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.pki, self.plane, self._wrap = folder, folder / "pki", plane, wrap
        self.servers = plane.servers or ("server-1",)
        count = len(self.servers)
        ports = [port_at(hosts)] * count if hosts else free_ports(count)
        hosts = hosts or ["127.0.0.1"] * count
        usual = _options(MAIN)
        given = [it for it in _options(plane) if it not in usual]
        about = [word for option in given for word in option]
        self.processes = tuple(
            PlaneProcess(
                folder / name,
                *("--name", name, *about, *options),
                host=host,
                port=port,
                pki=self.pki,
                wrap=wrap.get(name, ()),
            )
            for name, host, port in zip(self.servers, hosts, ports, strict=True)
        )
        self.server = self.processes[0]
        self.access_urls = tuple(it.url for it in self.processes)
        self.parts: dict[str, Part] = {it.name: it for it in self.processes}
        self._client: AsyncClient | None = None

    # Its life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the servers. The first one makes the authority that all others need."""
        first, *others = self.servers
        await self.begin(first)
        await self.begin(*others)
        self._client = AsyncClient(self.access, policy=PATIENT)

    async def close(self) -> None:
        for part in self.parts.values():
            part.kill()
        if self._client is not None:
            await self._client.close()

    def add(self, name: str, *arguments: str, program: Sequence[str] = HOST) -> Part:
        """A part that is not started yet."""
        wrap = self._wrap.get(name, ())
        part = Part(self.folder, name, *arguments, program=program, wrap=wrap)
        self.parts[name] = part
        return part

    async def run(self, name: str, *arguments: str, program: Sequence[str] = HOST) -> Part:
        """A part that works."""
        part = self.add(name, *arguments, program=program)
        await self.begin(name)
        return part

    async def begin(self, *names: str) -> None:
        """Start these parts at once, and wait until all of them work."""
        for name in names:
            self.parts[name].spawn()
        await asyncio.gather(*(self.parts[name].ready() for name in names))

    # What parts are started with -----------------------------------------------------------------

    @property
    def reach(self) -> tuple[str, ...]:
        """The options with the addresses of all servers."""
        return tuple(word for url in self.access_urls for word in ("--server", url))

    def credentials(self, part: str, name: str = "main") -> tuple[str, str]:
        """The option with the certificates of a component, which are made if need be."""
        into = self.folder / f"{part if name == 'main' else name}-pki"
        provide(self.pki, into, identities(part, name))
        return "--pki", str(into)

    # Looking -------------------------------------------------------------------------------------

    @property
    def access(self) -> Access:
        """The administrator's, to all servers."""
        return msgspec.structs.replace(self.server.access(), servers=self.access_urls)

    @property
    def client(self) -> AsyncClient:
        assert self._client is not None
        return self._client

    async def replicas(self) -> list[Replica]:
        """Those of the default tenant, by name."""
        found = (await self.client.list(Replica, "default")).objects
        return sorted(found, key=lambda it: it.name)

    async def until(
        self, holds: Callable[[], Awaitable[Any]], timeout_s: float = START_TIMEOUT_S
    ) -> Any:
        """What is seen, once there is something to see."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = await holds()
            if seen:
                return seen
            assert time.monotonic() < deadline, await self.snapshot()
            await asyncio.sleep(LOOK_S)

    async def snapshot(self) -> str:
        """All that helps to understand why something did not come true."""
        told = []
        if self._client is not None:
            with contextlib.suppress(HoldfastError):
                told += [f"{it.name}: {it.status}" for it in await self.replicas()]
        told += [f"{it.name}, life {it.lives}: {it.log[-400:]}" for it in self.parts.values()]
        return "\n".join(told)


class Pair(ProcessPlane):
    """Server `one`, which started first and so decides, and server `two`, which forwards to it."""

    def __init__(self, folder: Path, cluster: EtcdCluster, prefix: str) -> None:
        plane = msgspec.structs.replace(plane_on_etcd(cluster), servers=("one", "two"))
        super().__init__(folder, "--etcd-prefix", prefix, plane=plane)
        self.one, self.two = self.processes
