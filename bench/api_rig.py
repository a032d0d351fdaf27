"""A server process with connections to it, and the requests that load it.

`bench/api` and its parts, `bench/load` and `bench/forwarding` start from this.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench.http_load import Connection, connect, request
from holdfast.model.errors import invariant
from holdfast.model.plane import Plane
from holdfast.model.requests import AcquireLease, Term
from tests.live.plane_process import PlaneProcess
from tests.live.process_plane import MAIN, ProcessPlane

GROUP = "/apis/holdfast.dev/v1"
CONNECTIONS = 32
ROUNDS = 3
BATCH = 500
BATCHES_AT_ONCE = 2
# The limit on workloads of one tenant.
TENANT_WORKLOADS = 10_000
_encode = msgspec.json.encode


def document(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "holdfast.dev/v1",
        "kind": kind,
        "metadata": {"name": name, **more.pop("metadata", {})},
        **more,
    }


def workload(name: str) -> dict[str, Any]:
    resources = {"cpu": "100m", "memory": "128Mi"}
    template = {"command": ["sleep", "60"], "resources": resources}
    return document("Workload", name, spec={"replicas": 1, "template": template})


def chunks(documents: list[Any], path: str, size: int = BATCH) -> Iterator[bytes]:
    """Requests with `size` documents each."""
    for at in range(0, len(documents), size):
        yield request("POST", path, _encode(documents[at : at + size]))


class Rig(ProcessPlane):
    """A plane of servers, and connections to the first one under several identities."""

    def __init__(self, folder: Path, *options: str, plane: Plane = MAIN) -> None:
        super().__init__(folder, *options, plane=plane)
        self._lines: list[Connection] = []

    async def close(self) -> None:
        for line in self._lines:
            line.close()
        await super().close()

    def tls(self, name: str = "admin", *groups: str) -> ssl.SSLContext:
        """The TLS context of a client; by default of the administrator."""
        server = self.server
        access = server.access() if name == "admin" else server.access_as(name, *groups)
        return access.context()

    async def lines(
        self, count: int, name: str = "admin", server: PlaneProcess | None = None
    ) -> list[Connection]:
        """Connections to a server, by default to the first one."""
        made = await connect((server or self.server).port, self.tls(name), count)
        self._lines += made
        return made

    async def ask(self, line: Connection, path: str, body: Any) -> Any:
        code, answer = await line.ask(request("POST", path, _encode(body)))
        invariant(200 <= code < 300, f"{path}: {code} {answer[:300]!r}")
        return msgspec.json.decode(answer)

    async def term(self, line: Connection, scope: str) -> Term:
        """Acquire a lease for the client of this connection, and return its term."""
        answer = await self.ask(line, f"{GROUP}/requests", AcquireLease(scope, 600_000))
        return Term(scope, answer["objects"][0]["spec"]["epoch"])

    async def tenant(self, line: Connection, name: str) -> str:
        """Create a tenant whose quota never binds, and return the path of its namespace."""
        await self.ask(line, f"{GROUP}/tenants", document("Tenant", name))
        quota = document("Quota", "default", spec={"hard": {"cpu": "1000000"}})
        space = f"{GROUP}/namespaces/{name}"
        await self.ask(line, f"{space}/quotas", quota)
        return space

    def rss_mb(self) -> float:
        """Resident memory of the server."""
        text = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024
