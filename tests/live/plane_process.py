"""A real server as a process of its own, over real TLS, and clients for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from holdfast.host.client import Access, AsyncClient, from_kubeconfig
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.workload import Workload
from holdfast.model.requests import AcquireLease, Term
from holdfast.observe.retry import RetryPolicy
from tests.free_ports import free_ports
from tests.live.part import HOST, Part

# Patient enough for a server that is killed and started again on a busy machine.
PATIENT = RetryPolicy(tries_max=60, looks_max=60, deadline_ms=60_000, try_ms=5_000)


class PlaneProcess(Part):
    """One server. Its port stays the same over restarts."""

    def __init__(
        self,
        data: Path,
        *options: str,
        host: str = "127.0.0.1",
        port: int = 0,
        pki: Path | None = None,
        program: Sequence[str] = HOST,
        wrap: Sequence[str] = (),
    ) -> None:
        """`pki` is the folder of the authority, where it is not its own."""
        self.data, self.port, self.pki = data, port or free_ports(1)[0], pki or data / "pki"
        self._address = f"{host}:{self.port}"
        at = ["serve", "--data", str(data), "--listen", self._address]
        at += ["--pki", str(pki)] if pki is not None else []
        super().__init__(data.parent, data.name, *at, *options, program=program, wrap=wrap)

    @property
    def url(self) -> str:
        return f"https://{self._address}"

    async def start(self) -> PlaneProcess:
        """Start it, and wait until it says that it is ready."""
        self.spawn()
        await self.ready()
        return self

    def access(self, *others: PlaneProcess) -> Access:
        """The administrator's, to this server and perhaps others."""
        found = from_kubeconfig(self.data / "kubeconfig")
        return msgspec.structs.replace(found, servers=(self.url, *(o.url for o in others)))

    def client(self, *others: PlaneProcess, policy: RetryPolicy = PATIENT) -> AsyncClient:
        return AsyncClient(self.access(*others), policy=policy)

    def access_as(self, name: str, *groups: str) -> Access:
        """The access of a certificate of its own, issued by the plane's authority."""
        issued = CertificateAuthority.open(self.pki).issue(name, groups=groups)
        return msgspec.structs.replace(
            self.access(), certificate=issued.certificate, key=issued.key
        )

    def client_as(self, name: str, *groups: str) -> AsyncClient:
        return AsyncClient(self.access_as(name, *groups), policy=PATIENT)

    async def fetch(self, path: str, *, known: bool = True) -> tuple[int, str]:
        """Code and text of any path, as the administrator or without credentials."""
        access = self.access()
        if not known:
            access = msgspec.structs.replace(access, certificate=b"", key=b"")
        connector = aiohttp.TCPConnector(ssl=access.context())
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(self.url + path) as response,
        ):
            return response.status, await response.text()


async def until(condition: Callable[[], bool], timeout_s: float) -> None:
    """Wait for what other tasks bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true in {timeout_s} s"
        await asyncio.sleep(0.01)


async def take_lease(client: AsyncClient, scope: str) -> Term:
    """Take a lease that is free or this client's already, and let the client write under it."""
    found = [it.spec for it in (await client.list(Lease)).objects if it.spec.scope == scope]
    seen = (found[0].epoch, found[0].renewals) if found else (0, 0)
    (lease,) = (await client.ask(AcquireLease(scope, 600_000, *seen))).objects
    assert isinstance(lease, Lease)
    client.term = Term(scope, lease.spec.epoch)
    return client.term


def workload(name: str, **spec: Any) -> Workload:
    """A small service in the default tenant."""
    document = {
        "apiVersion": "holdfast.dev/v1",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"command": ["sleep", "60"]}, **spec},
    }
    return decode_trusted(Workload, msgspec.json.encode(document))
