"""What a plane needs before anything can be bound, made through whatever answers requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.model.access import identity as who
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.node import Device, Node, NodeSpec
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.tenant import Quota, QuotaSpec, Tenant
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.meta import Object, ObjectMeta, Quantity
from holdfast.model.requests import AcquireLease, Create, RegisterNode, Term
from tests.plane import ADMIN, WORKLOADS, accepted, template

Ask = Callable[[Identity, Any], Awaitable[Any]]


class Furniture:
    """Makes objects that must be accepted."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self._births: Term | None = None

    async def create(self, obj: Object, identity: Identity = ADMIN) -> Any:
        return accepted(await self.ask(identity, Create(obj)))

    async def tenant(self, name: str = "acme") -> Any:
        return await self.create(Tenant(ObjectMeta(name=name)))

    async def quota(self, tenant: str, **hard: Quantity) -> Any:
        meta = ObjectMeta(name="default", namespace=tenant)
        return await self.create(Quota(meta, spec=QuotaSpec(hard=hard)))

    async def node(self, name: str, *, cpu: str = "8", gpus: int = 0) -> Any:
        devices = tuple(
            Device(id=f"gpu-{i}", device_class="gpu", model="A100", memory="40Gi")
            for i in range(gpus)
        )
        capacity: dict[str, Quantity] = {"cpu": cpu, "memory": "4Ti", "replicas": "1000"}
        spec = NodeSpec(region="eu", zone="eu-a", capacity=capacity, devices=devices)
        node = Node(ObjectMeta(name=name), spec=spec)
        return accepted(await self.ask(who.agent(name), RegisterNode(node)))

    async def nodes(self, count: int, **spec: Any) -> list[Any]:
        return await asyncio.gather(*(self.node(f"node-{n}", **spec) for n in range(count)))

    async def workload(self, name: str = "web", tenant: str = "acme", **more: Any) -> Any:
        spec = WorkloadSpec(replicas=1, template=template(**more))
        return await self.create(Workload(ObjectMeta(name=name, namespace=tenant), spec=spec))

    async def replica(self, workload: Any, ordinal: int = 0, incarnation: int = 0) -> Any:
        born = Create(replica_of(workload, ordinal, incarnation), term=await self.births())
        return accepted(await self.ask(WORKLOADS, born))

    async def births(self) -> Term:
        """The lease under which replicas are made, taken when it is first needed."""
        if self._births is None:
            self._births = await self.term(WORKLOADS)
        return self._births

    async def term(self, identity: Identity, scope: str = "") -> Term:
        scope = scope or identity.name.removeprefix("system:")
        lease = accepted(await self.ask(identity, AcquireLease(scope, 10_000)))
        return Term(scope, lease.spec.epoch)


def replica_of(workload: Any, ordinal: int, incarnation: int = 0) -> Replica:
    """A replica as its controller would make it."""
    spec = ReplicaSpec(
        workload=workload.name,
        workload_uid=workload.metadata.uid,
        ordinal=ordinal,
        incarnation=incarnation,
        template=workload.spec.template,
    )
    name = f"{workload.name}-{ordinal}-{incarnation}"
    return Replica(ObjectMeta(name=name, namespace=workload.namespace), spec=spec)
