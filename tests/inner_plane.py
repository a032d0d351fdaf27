"""A whole server in this process, over TLS, with kept lines for any identity (`tests/lines.py`).

    async with inner_plane(folder) as plane:
        await plane.place("n1")
        await plane.tenant("acme")

What real components would do is asked for by hand, under their identities.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.host.client.paths import TERM_HEADER
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.server.server_process import ServerProcess
from holdfast.host.server.settings import ListenAddress, ServerSettings
from holdfast.model.access.identity import ADMINS
from tests.lines import Line

GROUP = "/apis/holdfast.dev/v1"
REQUESTS = f"{GROUP}/requests"
SCHEDULER = "system:scheduler:one"
TERM = {"scope": "scheduler:one", "epoch": 1}
WORKLOADS = "system:controller:workload"


class InnerPlane:
    """One server. `uids` has those of all that was made, by NAMESPACE/NAME."""

    def __init__(self, plane: ServerProcess, pki: Path) -> None:
        self._plane, self._authority = plane, CertificateAuthority.open(pki)
        self._lines: dict[tuple[str, int], Line] = {}
        self.uids: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self._plane.url

    def line(self, name: str, number: int = 0) -> Line:
        """A line of a user: `user-T` works for tenant T, `admin` is one. What lasts needs another
        number than what is asked meanwhile.
        """
        if (name, number) not in self._lines:
            groups = [ADMINS] if name == "admin" else []
            groups += [f"tenant:{name[5:]}"] if name.startswith("user-") else []
            issued = self._authority.issue(name, groups=groups)
            self._lines[name, number] = Line(self._plane.url, self._authority.pem, issued)
        return self._lines[name, number]

    def close(self) -> None:
        for line in self._lines.values():
            line.hang_up()

    async def make(self, who: str, path: str, body: Any, **headers: str) -> Any:
        """Something that must be accepted: the object that it has become."""
        answer = await self.line(who).ask("POST", path, body, headers=headers)
        assert answer.code in (200, 201), (who, path, answer.body)
        made = answer.body["objects"][0] if "objects" in answer.body else answer.body
        metadata = made["metadata"]
        self.uids[f"{metadata.get('namespace', '')}/{metadata['name']}"] = metadata["uid"]
        return made

    async def place(self, *nodes: str) -> None:
        """Nodes with room for all, and the leases of a scheduler and a controller."""
        for name in nodes:
            node: dict[str, Any] = {"kind": "Node", "apiVersion": "holdfast.dev/v1"}
            spec = {"region": "eu", "capacity": {"cpu": "900", "memory": "900Gi"}}
            node |= {"metadata": {"name": name}, "spec": spec}
            request = {"type": "RegisterNode", "node": node}
            await self.make(f"system:node:{name}", REQUESTS, request)
        for name in (SCHEDULER, WORKLOADS):
            scope = name.removeprefix("system:")
            lease = {"type": "AcquireLease", "scope": scope, "duration_ms": 600_000}
            await self.make(name, REQUESTS, lease)

    async def tenant(self, name: str) -> None:
        """A tenant with a quota."""
        await self.make("admin", f"{GROUP}/tenants", {"metadata": {"name": name}})
        quota = {"metadata": {"name": "default"}, "spec": {"hard": {"cpu": "64"}, "cohort": "all"}}
        await self.make("admin", f"{GROUP}/namespaces/{name}/quotas", quota)

    async def workload(self, tenant: str, name: str, template: Any, replicas: int) -> None:
        body = {"metadata": {"name": name}, "spec": {"template": template, "replicas": replicas}}
        await self.make(f"user-{tenant}", f"{GROUP}/namespaces/{tenant}/workloads", body)

    async def replica(self, tenant: str, workload: str, ordinal: int, template: Any) -> Any:
        """One that waits for a place."""
        spec = {"workload": workload, "workloadUid": self.uids[f"{tenant}/{workload}"]}
        spec |= {"ordinal": ordinal, "template": template}
        body = {"metadata": {"name": f"{workload}-{ordinal}-0"}, "spec": spec}
        path = f"{GROUP}/namespaces/{tenant}/replicas"
        return await self.make(WORKLOADS, path, body, **{TERM_HEADER: "1 controller:workload"})

    async def bound(self, replica: Any, node: str) -> Any:
        """The replica after it got a place on a node."""
        request = {
            "type": "Bind",
            "target": target(replica),
            "node": node,
            "node_uid": self.uids[f"/{node}"],
            "term": TERM,
        }
        return await self.make(SCHEDULER, REQUESTS, request)

    async def moved(self, replica: Any, to: str) -> Any:
        """The replica after its agent said what has become of it."""
        request = {"type": "Move", "target": target(replica), "to": to, "incarnation": 1}
        node = replica["status"]["binding"]["node"]
        return await self.make(f"system:node:{node}", REQUESTS, request)


def target(replica: Any) -> dict[str, Any]:
    """The very replica, as it was seen."""
    metadata = replica["metadata"]
    return {
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "number": replica.get("status", {}).get("transitionNumber", 0),
    }


@asynccontextmanager
async def inner_plane(folder: Path) -> AsyncIterator[InnerPlane]:
    plane = ServerProcess(
        ServerSettings(
            data=folder, listen=ListenAddress("127.0.0.1", 0), store="memory:", name="one"
        )
    )
    await plane.start()
    made = InnerPlane(plane, folder / "pki")
    try:
        yield made
    finally:
        made.close()
        await plane.stop()
