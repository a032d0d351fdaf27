"""Binds of `bench/api`: nodes, pending replicas of one workload, and their binds in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.api_rig import BATCHES_AT_ONCE, GROUP, Rig, chunks, document, workload
from bench.bare_store import bare_store
from bench.harness import figure
from bench.http_load import Connection, connect, through
from holdfast.correct.controller import operation as operation_id
from holdfast.host.client.create_form import CreateForm
from holdfast.model.errors import invariant
from holdfast.model.kinds.node import Node, NodeSpec
from holdfast.model.meta import ObjectMeta, Quantity
from holdfast.model.requests import Bind, RegisterNode, Target, Term
from holdfast.store.etcd import EtcdConfig, EtcdStore
from tests.etcd_cluster import EtcdCluster
from tests.live.process_plane import plane_on_etcd

BINDS = 3_000
BIND_NODES = 50
# The size of a bound replica.
ROW = b"x" * 1_500


async def register(rig: Rig, count: int) -> list[dict[str, Any]]:
    """Register nodes, each under the identity of its own agent."""
    found = []
    for n in range(count):
        name = f"node-{n}"
        (line,) = await connect(rig.server.port, rig.tls(f"system:node:{name}"), 1)
        capacity: dict[str, Quantity] = {"cpu": "64", "memory": "4Ti", "replicas": "1000"}
        spec = NodeSpec(region="eu", zone="eu-a", capacity=capacity)
        asked = RegisterNode(Node(ObjectMeta(name=name), spec=spec))
        answer = await rig.ask(line, f"{GROUP}/requests", asked)
        found.append(answer["objects"][0])
        line.close()
    return found


class Binder:
    """Pending replicas of one workload, and binds for them."""

    def __init__(self, rig: Rig, nodes: list[dict[str, Any]]) -> None:
        self._rig, self._nodes = rig, nodes

    async def prepare(self, line: Connection, space: str, count: int) -> list[Bind]:
        rig = self._rig
        owner = await rig.ask(line, f"{space}/workloads", workload("bound"))
        uid, template = owner["metadata"]["uid"], owner["spec"]["template"]
        namespace = space.rpartition("/")[2]
        documents = [
            document(
                "Replica",
                f"bound-{n}-0",
                spec={"workload": "bound", "workloadUid": uid, "ordinal": n, "template": template},
            )
            for n in range(count)
        ]
        for it in documents:
            it["metadata"]["namespace"] = namespace
        lines = await rig.lines(1, "system:controller:workload")
        births = await rig.term(lines[0], "controller:workload")
        forms = [
            CreateForm(
                msgspec.Raw(msgspec.json.encode(it)),
                operation_id("bench", uid, n, "create"),
                births,
            )
            for n, it in enumerate(documents)
        ]
        path = f"{GROUP}/requests?results=names"
        _, _, answers = await through(lines, chunks(forms, path), 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] not in (200, 201)]
        invariant(not refused, f"a replica was refused: {refused[:1]}")
        (scheduler,) = await rig.lines(1, "system:scheduler:bench")
        term = await rig.term(scheduler, "scheduler:bench")
        return [self._bind(namespace, item["names"][0], n, term) for n, item in enumerate(items)]

    def _bind(self, namespace: str, made: dict[str, Any], n: int, term: Term) -> Bind:
        # The last binds go one to each node; all the others share a few nodes.
        node = self._nodes[n % min(BIND_NODES, len(self._nodes)) if n < BINDS else n - BINDS]
        return Bind(
            Target(namespace, made["name"], made["uid"], 0),
            node["metadata"]["name"],
            node["metadata"]["uid"],
            term,
            operation=operation_id("bench", made["uid"], 0, "bind"),
        )

    async def perform(self, binds: list[Bind]) -> float:
        """Perform the binds in batches, and return the seconds that they took."""
        lines = await self._rig.lines(BATCHES_AT_ONCE, "system:scheduler:bench")
        bodies = chunks(binds, f"{GROUP}/bindings?results=names")
        took, _, answers = await through(lines, bodies, 200)
        items = [item for answer in answers for item in msgspec.json.decode(answer)["items"]]
        refused = [item for item in items if item["code"] != 200]
        invariant(not refused, f"{len(refused)} binds were refused, such as {refused[:1]}")
        return took


async def binds_on_etcd(folder: Path) -> None:
    with EtcdCluster(folder / "etcd") as cluster:
        async with Rig(folder / "on-etcd", plane=plane_on_etcd(cluster, 1)) as rig:
            (line,) = await rig.lines(1)
            space = await rig.tenant(line, "acme")
            binder = Binder(rig, await register(rig, BIND_NODES))
            took = await binder.perform(await binder.prepare(line, space, BINDS))
        bare = await EtcdStore.open(EtcdConfig(endpoints=cluster.endpoints, prefix="/bare/"))
        bound, _ = await bare_store(bare, ROW, 3 * BINDS, 30, 4)
        await bare.close()
    figure(
        "api.bind.etcd",
        BINDS / took,
        "binds/s",
        peer="bare etcd, three rows for each, ten in a transaction, four at once",
        peer_value=bound / 3,
        goal=">= 1500",
        durability="power",
        members=1,
    )
