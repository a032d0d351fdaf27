"""The scripted clients of an example: its operator, a rival scheduler, and a drain client.

They read the store and send requests to the servers, and repeat each act until it has an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.model.kinds.node import Node, NodeDrain
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.secret import Secret
from holdfast.model.kinds.template import DeviceRequest, OnDisconnect, Resources, Template
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import Workload, WorkloadSpec
from holdfast.model.lifecycle import CHARGED, State
from holdfast.model.meta import API_VERSION, Object, ObjectMeta, OwnerReference
from holdfast.model.requests import Accepted, Bind, Create, Remove, Update
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.scripted_clients import (
    ObjectSnapshot,
    ScriptedClient,
    operation_id_of,
    target,
)
from holdfast.sim.worlds.authority.scripted_controllers import ScriptedDrainController
from holdfast.sim.worlds.end_to_end.people import RestingOperator

RIVAL = "system:scheduler:rival"


def workload_act(
    name: str,
    tenant: str,
    *,
    replicas: int = 1,
    cpu: str = "1",
    gpus: int = 0,
    priority: str = "",
    residency: str = "",
    pool: str = "",
    node: str = "",
    keep: bool = False,
) -> dict[str, Any]:
    """The act of creating a workload, as JSON. `node` is the label of the only node allowed."""
    return {
        "do": "make",
        "name": name,
        "tenant": tenant,
        "replicas": replicas,
        "cpu": cpu,
        "gpus": gpus,
        "priority": priority,
        "residency": residency,
        "pool": pool,
        "node": node,
        "keep": keep,
    }


class SteadyClient(ScriptedClient):
    """A client without random decisions: it acts only on what it sees now."""

    def chance(self, one_in: int) -> bool:
        return False


class OperatorClient(SteadyClient, RestingOperator):
    """The operator of the example: creates, scales, cordons and drains objects by name."""

    period_ms = 200

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(answer, Accepted) and self._acts:
            self._acts.pop(0)

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        match act["do"]:
            case "make":
                return Create(_workload(act))
            case "scale":
                return _scale(snapshot, act["name"], act["replicas"])
            case "free":
                return _free_one(snapshot, act["among"])
            case "limit":
                return _set_quota(snapshot, act["tenant"], act["hard"])
            case "child":
                return _child(snapshot, act)
            case "delete":
                return Remove("workloads", act["tenant"], act["name"])
            case _:
                return _change_node(snapshot, act)


def _workload(act: dict[str, Any]) -> Workload:
    gpus = act["gpus"]
    placement = Placement(
        residency=act["residency"],
        pool=act["pool"],
        node_selector={"name": act["node"]} if act["node"] else {},
    )
    template = Template(
        command=("work",),
        resources=Resources(cpu=act["cpu"], memory="1Gi"),
        devices=(DeviceRequest(device_class="gpu", count=gpus, memory="8Gi"),) if gpus else (),
        placement=placement,
        priority_class=act["priority"],
        grace_seconds=1,
        on_disconnect=OnDisconnect.KEEP if act["keep"] else OnDisconnect.STOP,
    )
    metadata = ObjectMeta(name=act["name"], namespace=act["tenant"])
    return Workload(metadata, spec=WorkloadSpec(replicas=act["replicas"], template=template))


def _scale(snapshot: ObjectSnapshot, name: str, replicas: int) -> Update | None:
    for workload in snapshot.all(Workload):
        if workload.name == name:
            return Update(_with(workload, replicas=replicas))
    return None


def _free_one(snapshot: ObjectSnapshot, among: list[str]) -> Update | None:
    """Scale down to zero the one of these workloads that holds the resource."""
    for replica in snapshot.all(Replica):
        if replica.spec.workload in among and replica.status.state in CHARGED:
            return _scale(snapshot, replica.spec.workload, 0)
    return None


def _set_quota(snapshot: ObjectSnapshot, tenant: str, hard: dict[str, str]) -> Update | None:
    """Change the quota of a tenant."""
    quota = snapshot.get(Quota, tenant, "default")
    return Update(_with(quota, hard=hard)) if quota is not None else None


def _child(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Create | None:
    """Create a Secret that several workloads own."""
    named = [it for it in snapshot.all(Workload) if it.name in act["owners"]]
    if len(named) < len(act["owners"]):
        return None
    owners = tuple(
        OwnerReference(API_VERSION, "Workload", it.name, it.metadata.uid) for it in named
    )
    metadata = ObjectMeta(name=act["name"], namespace=act["tenant"], owner_references=owners)
    return Create(Secret(metadata))


def _change_node(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Update | None:
    node = snapshot.get(Node, "", act["node"])
    if node is None:
        return None
    if act["do"] == "drain":
        return Update(_with(node, drain=NodeDrain("maintenance")))
    return Update(_with(node, cordoned=act["do"] == "cordon"))


def _with(obj: Object, **changes: Any) -> Object:
    spec = msgspec.structs.replace(obj.spec, **changes)  # type: ignore[attr-defined]
    return msgspec.structs.replace(obj, spec=spec)


class RivalScheduler(SteadyClient):
    """A scheduler that binds only the replicas and nodes that the example names."""

    period_ms = 200
    scope = "scheduler:rival"

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._wanted: list[dict[str, Any]] = []

    def on_prompt(self, body: dict[str, Any]) -> None:
        self._wanted.append(body)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for wanted in self._wanted:
            node = snapshot.get(Node, "", wanted["node"])
            for replica in snapshot.all(Replica):
                if node is None or replica.name != wanted["replica"]:
                    continue
                if replica.status.state is State.PENDING:
                    intent = operation_id_of(replica, f"bind-{node.name}", self.identity)
                    uid = node.metadata.uid
                    yield Bind(target(replica), node.name, uid, self.term, operation=intent)

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(request, Bind) and isinstance(answer, Accepted):
            self._wanted = [it for it in self._wanted if it["replica"] != request.target.name]


class DrainClient(SteadyClient, ScriptedDrainController):
    """Empties drained nodes at once."""

    period_ms = 500
