"""A real server, a real scheduler and real controllers as processes, and hollow nodes.

Nodes are registered once and send nothing afterwards; they stay healthy, since the controller that
would fence them does not run. They are registered as another server would forward it, because five
thousand handshakes of agents would take longer than the measurement.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import msgspec

from bench import api_rig
from bench.api_rig import GROUP, chunks, document
from bench.http_load import Connection, request, through
from bench.scheduling.shapes import DISKS, RACKS, Shape
from holdfast.commit.server import SCOPE
from holdfast.host.client.create_form import CreateForm, pack
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
from tests.live.part import module

TENANT = "acme"
SPACE = f"{GROUP}/namespaces/{TENANT}"
WORKLOAD_CONTROLLER = "system:controller:workload"
CREATES = f"{GROUP}/requests?results=names"
LEASE_MS = 2_000
BATCH = 250
_encode = msgspec.json.encode


class Rig(api_rig.Rig):
    """One plane. Use as an async context manager; `fill` comes first, then `component`."""

    def __init__(
        self, folder: Path, *options: str, beside: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`beside` are processes that the plane needs and does not start."""
        super().__init__(folder, *options)
        self._beside = dict(beside)
        self._creation_term: Term | None = None

    async def line(self, name: str = "admin") -> Connection:
        """A connection under this name."""
        (made,) = await self.lines(1, name)
        return made

    async def dropped(self) -> int:
        """How many watches the server has ended because they were not read fast enough."""
        code, body = await (await self.line()).ask(request("GET", "/metrics"))
        invariant(code == 200, f"/metrics: {code}")
        return int(body.partition(b"\nholdfast_watches_dropped ")[2].partition(b"\n")[0])

    async def component(self, name: str, *program: str) -> None:
        """Start `python -m PROGRAM …` as the scheduler or the controllers of this plane."""
        trust = self.credentials(name, "bench")
        command = (*module(program[0]), *program[1:])
        await self.run(name, *self.reach, *trust, "--name", "bench", program=command)

    def pids(self) -> dict[str, int]:
        """Every process of the plane."""
        beside = {name: part.pid for name, part in self.parts.items() if part is not self.server}
        return {"server": self.server.pid} | beside | self._beside

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
        address = f"{self.server.url}{forwarding.PATH}"
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
        bodies = chunks(forms(births, await self.creation_term()), CREATES, BATCH)
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
        bodies = chunks(binds, f"{GROUP}/bindings?results=names", BATCH)
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
