"""A real server, a real scheduler and real controllers as processes, and hollow nodes.

Nodes are registered once and send nothing afterwards; they stay healthy, since the controller that
would fence them does not run. They are registered as another server would forward it, because five
thousand handshakes of agents would take longer than the measurement.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec

from bench.http_load import Connection, connect, request, through
from bench.scheduling.shapes import DISKS, RACKS, Shape
from holdfast.commit.server import SCOPE
from holdfast.host.client.create_form import CreateForm, pack
from holdfast.host.pki.certificates import CertificateAuthority
from holdfast.host.pki.component_credentials import CONTROLLERS, SCHEDULER, identities, provide
from holdfast.host.server import forwarding
from holdfast.model.access import identity as who
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import invariant
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import ObjectMeta
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Bind,
    Create,
    Forward,
    RegisterNode,
    Target,
    Term,
)
from tests.live.plane_process import DIE_WITH_PARENT, ROOT, PlaneProcess

GROUP = "/apis/holdfast.dev/v1"
TENANT = "acme"
SPACE = f"{GROUP}/namespaces/{TENANT}"
WORKLOAD_CONTROLLER = "system:controller:workload"
CREATES = f"{GROUP}/requests?results=names"
LEASE_MS = 2_000
BATCH = 250
START_S = 120.0
_encode = msgspec.json.encode


def document(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """An object as a client writes it."""
    metadata = {"name": name}
    return {"apiVersion": "holdfast.dev/v1", "kind": kind, "metadata": metadata, **more}


def chunks(documents: list[Any], path: str, size: int = BATCH) -> Iterator[bytes]:
    """Requests with `size` documents each."""
    for at in range(0, len(documents), size):
        yield request("POST", path, _encode(documents[at : at + size]))


class Part:
    """A process beside the server."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.pid, self._process, self._log = name, process.pid, process, log

    async def ready(self) -> None:
        deadline = time.monotonic() + START_S
        while b"works with" not in self._log.read_bytes():
            invariant(self._process.poll() is None, f"{self.name}: {self._log.read_text()}")
            invariant(time.monotonic() < deadline, f"{self.name} did not start")
            await asyncio.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Rig:
    """One plane. Use as an async context manager; `fill` comes first, then `run`."""

    def __init__(
        self, folder: Path, *options: str, beside: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`beside` are processes that the plane needs and does not start."""
        folder.mkdir(parents=True, exist_ok=True)
        self._beside = dict(beside)
        self._folder = folder
        self.plane = PlaneProcess(folder / "data", *options)
        self.parts: dict[str, Part] = {}
        self._lines: list[Connection] = []
        self._creation_term: Term | None = None

    async def __aenter__(self) -> Rig:
        await self.plane.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        for line in self._lines:
            line.close()
        for part in self.parts.values():
            part.kill()
        self.plane.kill()

    # Connections ---------------------------------------------------------------------------------

    def tls(self, name: str) -> ssl.SSLContext:
        access = self.plane.access()
        if name != "admin":
            issued = CertificateAuthority.open(self.plane.data / "pki").issue(name)
            access = msgspec.structs.replace(access, certificate=issued.certificate, key=issued.key)
        return access.context()

    async def line(self, name: str = "admin") -> Connection:
        """A connection under this name."""
        (made,) = await connect(self.plane.port, self.tls(name), 1)
        self._lines.append(made)
        return made

    async def ask(self, line: Connection, path: str, body: Any) -> Any:
        code, answer = await line.ask(request("POST", path, _encode(body)))
        invariant(200 <= code < 300, f"{path}: {code} {answer[:300]!r}")
        return msgspec.json.decode(answer)

    async def dropped(self) -> int:
        """How many watches the server has ended because they were not read fast enough."""
        code, body = await (await self.line()).ask(request("GET", "/metrics"))
        invariant(code == 200, f"/metrics: {code}")
        return int(body.partition(b"\nholdfast_watches_dropped ")[2].partition(b"\n")[0])

    # Processes -----------------------------------------------------------------------------------

    async def run(self, name: str, *module: str) -> Part:
        """Start `python -m MODULE …` as a component of this plane."""
        part = self.parts[name] = self._spawn(name, *module)
        await part.ready()
        return part

    def _spawn(self, name: str, *module: str) -> Part:
        log = self._folder / f"{name}.log"
        pki = self._folder / "components"
        for part in (SCHEDULER, CONTROLLERS):
            provide(self.plane.data / "pki", pki, identities(part, "bench"))
        origin = ("--server", self.plane.url, "--pki", str(pki))
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*DIE_WITH_PARENT, sys.executable, "-m", *module, *origin, "--name", "bench"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return Part(name, process, log)

    def pids(self) -> dict[str, int]:
        """Every process of the plane."""
        server = self.plane._process
        invariant(server is not None, "the server runs")
        parts = {name: part.pid for name, part in self.parts.items()}
        return {"server": server.pid} | parts | self._beside  # type: ignore[union-attr]

    # Initial objects -----------------------------------------------------------------------------

    async def fill(self, shape: Shape) -> None:
        """Create the tenant, the nodes, and the replicas that are bound before, one per node."""
        admin = await self.line()
        await self.ask(admin, f"{GROUP}/tenants", document("Tenant", TENANT))
        spec = {"hard": {"cpu": "10000000"}}
        await self.ask(admin, f"{SPACE}/quotas", document("Quota", "default", spec=spec))
        urgent = document("PriorityClass", "urgent", spec={"value": 1000})
        await self.ask(admin, f"{GROUP}/priorityclasses", urgent)
        nodes = await self._register(shape)
        template = shape.initial_template
        made = await self.create_batched("initial", template, shape.initial)
        await self._bind(made, nodes)

    async def epoch(self) -> int:
        """The epoch of the server's lease: it decides forwarded requests under no other."""
        path = f"{GROUP}/leases/{lease_name(SCOPE)}"
        code, answer = await (await self.line()).ask(request("GET", path))
        invariant(code == 200, f"{path}: {code} {answer[:300]!r}")
        found: int = msgspec.json.decode(answer)["spec"]["epoch"]
        return found

    async def _register(self, shape: Shape) -> list[Node]:
        epoch = await self.epoch()
        requests = [
            Forward(who.agent(f"node-{n}"), RegisterNode(_node(n, shape)), epoch)
            for n in range(shape.nodes)
        ]
        found: list[Node] = []
        address = f"{self.plane.url}{forwarding.PATH}"
        connector = aiohttp.TCPConnector(ssl=self.tls(who.server("bench").name))
        async with aiohttp.ClientSession(connector=connector) as session:
            for at in range(0, len(requests), forwarding.LINES_MAX):
                some = requests[at : at + forwarding.LINES_MAX]
                body = b"".join(forwarding.encode_forward(one) for one in some)
                async with session.post(address, data=body) as answer:
                    invariant(answer.status == 200, f"{answer.status}: {await answer.text()}")
                    verdicts = (await answer.read()).splitlines()
                for verdict in map(forwarding.decode_verdict, verdicts):
                    invariant(isinstance(verdict, Accepted), f"a node was refused: {verdict}")
                    found += verdict.objects  # type: ignore[union-attr, arg-type]
        return found

    async def owner(self, name: str, template: dict[str, Any], replicas: int) -> dict[str, Any]:
        """A workload with this many replicas."""
        admin = await self.line()
        spec = {"replicas": replicas, "template": template}
        found: dict[str, Any] = await self.ask(
            admin, f"{SPACE}/workloads", document("Workload", name, spec=spec)
        )
        return found

    async def births(self, name: str, template: dict[str, Any], count: int) -> list[Replica]:
        """Replicas of a new workload, as its controller would write them."""
        owner = await self.owner(name, template, count)
        spec = {
            "workload": name,
            "workloadUid": owner["metadata"]["uid"],
            "template": owner["spec"]["template"],
        }
        documents = [
            document("Replica", f"{name}-{n}-0", spec={**spec, "ordinal": n}) for n in range(count)
        ]
        return [decode_trusted(Replica, _encode(it)) for it in documents]

    async def create_batched(
        self, name: str, template: dict[str, Any], count: int
    ) -> list[dict[str, Any]]:
        """Replicas of a workload; names and uids."""
        if not count:
            return []
        births = await self.births(name, template, count)
        line = await self.line(WORKLOAD_CONTROLLER)
        bodies = chunks(forms(births, await self.creation_term()), CREATES)
        _, _, answers = await through([line], bodies, 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] not in (200, 201)]
        invariant(not refused, f"a replica was refused: {refused[:1]}")
        return [item["names"][0] for item in items]

    async def creation_term(self) -> Term:
        """The term under which the generator creates replicas in place of the controller.

        The lease is short, so that a controller which is started later need not wait for it.
        """
        if self._creation_term is None:
            line = await self.line(WORKLOAD_CONTROLLER)
            scope = WORKLOAD_CONTROLLER.removeprefix("system:")
            answer = await self.ask(line, f"{GROUP}/requests", AcquireLease(scope, LEASE_MS))
            self._creation_term = Term(scope, answer["objects"][0]["spec"]["epoch"])
        return self._creation_term

    async def _bind(self, made: list[dict[str, Any]], nodes: list[Node]) -> None:
        line = await self.line(who.scheduler("initial").name)
        lease = AcquireLease("scheduler:initial", 600_000)
        answer = await self.ask(line, f"{GROUP}/requests", lease)
        term = Term("scheduler:initial", answer["objects"][0]["spec"]["epoch"])
        binds = [
            Bind(Target(TENANT, it["name"], it["uid"], 0), node.name, node.metadata.uid, term)
            for it, node in zip(made, itertools.cycle(nodes), strict=False)
        ]
        bodies = chunks(binds, f"{GROUP}/bindings?results=names")
        _, _, answers = await through([line], bodies, 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] != 200]
        invariant(not refused, f"{len(refused)} binds were refused, such as {refused[:1]}")


def forms(births: list[Replica], term: Term) -> list[CreateForm]:
    """The requests that the controller would send for these replicas."""
    return [
        pack(
            Create(
                msgspec.structs.replace(
                    it, metadata=msgspec.structs.replace(it.metadata, namespace=TENANT)
                ),
                operation=f"{WORKLOAD_CONTROLLER}/{it.spec.workload_uid}/1/create-{it.spec.ordinal}",
                term=term,
            )
        )
        for it in births
    ]


def _node(number: int, shape: Shape) -> Node:
    zone = shape.zones[number % len(shape.zones)]
    labels = {"disk": DISKS[number % len(DISKS)], "rack": f"rack-{number % RACKS}"}
    metadata = ObjectMeta(name=f"node-{number}", labels=labels)
    return Node(metadata, spec=NodeSpec(region="eu", zone=zone, capacity={**shape.node}))
