"""The users of this world: an operator that follows a script. `rogues` has the attackers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.kinds.node import Node, NodeDrain
from holdfast.model.kinds.placement import Isolation, Placement, Taint, TaintEffect
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import (
    DeviceRequest,
    OnDisconnect,
    Port,
    Resources,
    RestartPolicy,
    Template,
)
from holdfast.model.kinds.tenant import Quota, Tenant
from holdfast.model.kinds.workload import (
    Disruption,
    Gang,
    Job,
    Workload,
    WorkloadSpec,
    WorkloadType,
)
from holdfast.model.lifecycle import State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Create, Patch, PatchType, Propagation, Remove, Update
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.plan import Act
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.randomness import between, pick
from holdfast.sim.worlds.authority.scripted_clients import REST, ObjectSnapshot, ScriptedClient

NODES = 5
FAULTS_MS = 180_000
# The clients that would otherwise never stop.
RESTLESS = (
    *(f"agent-{number}" for number in range(NODES)),
    *(f"scheduler-{name}" for name in ("one", "two", "three", "four")),
    *(f"controller-{name}" for name in ("workload", "nodes", "repair", "garbage")),
    *(f"controller-{name}" for name in ("drain", "endpoints")),
)


def script(rng: Random) -> Sequence[Act]:
    """The acts of the operator and the controllers over the run."""
    acts = [Act(500 + 100 * i, "operator", _workload(rng, i)) for i in range(5)]
    for number in range(5, 5 + between(rng, 10, 25)):
        at_ms = between(rng, 5_000, 170_000)
        acts.append(Act(at_ms, "operator", _act(rng, number)))
    for _ in range(between(rng, 2, 12)):
        silence = {
            "node": f"node-{between(rng, 0, NODES - 1)}",
            "action": pick(rng, ("Suspect", "Mark", "Mark")),
        }
        acts.append(Act(between(rng, 5_000, 175_000), "controller-nodes", silence))
    for _ in range(between(rng, 3, 8)):
        at_ms, tenant = between(rng, 5_000, 165_000), pick(rng, TENANTS)
        lifted_ms = at_ms + between(rng, 1_000, 9_000)
        for when_ms, on in ((at_ms, True), (lifted_ms, False)):
            acts.append(Act(when_ms, "operator", {"do": "suspend", "tenant": tenant, "on": on}))
    acts += [Act(FAULTS_MS + 1_000, name, REST) for name in RESTLESS]
    return sorted(acts, key=lambda act: act.at_ms)


# The priority class of reclaimable work, in worlds that have one.
SPARE = "spare"
# Few of the percentages repeat a setting, and some are below what is in use.
CPU_PERCENTS, MEMORY_PERCENTS = (50, 100, 150, 200, 300), (90, 100, 120, 150)


def overcommitting_script(rng: Random) -> Sequence[Act]:
    """The same, with changes of the overcommit instead of quotas, and some reclaimable work."""
    acts: list[Act] = []
    for act in script(rng):
        body = act.body
        if body.get("do") == "quota":
            body = _overcommit(rng)
        elif body.get("do") == "create":
            body = {**body, "memory": pick(rng, ("1Gi", "3Gi", "7Gi"))}
            if not body["urgent"] and between(rng, 0, 2) == 0:
                body["class"] = SPARE
        acts.append(msgspec.structs.replace(act, body=body))
    acts += [
        Act(between(rng, 5_000, 170_000), "operator", _overcommit(rng))
        for _ in range(between(rng, 4, 10))
    ]
    return sorted(acts, key=lambda act: act.at_ms)


def _overcommit(rng: Random) -> dict[str, Any]:
    return {
        "do": "overcommit",
        "node": f"node-{between(rng, 0, NODES - 1)}",
        "cpu": pick(rng, CPU_PERCENTS),
        "memory": pick(rng, MEMORY_PERCENTS),
    }


def _act(rng: Random, number: int) -> dict[str, Any]:
    node, tenant = f"node-{between(rng, 0, NODES - 1)}", pick(rng, TENANTS)
    some = between(rng, 0, 99)
    return pick(
        rng,
        (
            _workload(rng, number),
            {"do": "scale", "some": some, "replicas": between(rng, 0, 5)},
            {"do": "scale", "some": some, "replicas": between(rng, 0, 5)},
            {"do": "delete", "some": some},
            {"do": "cordon", "node": node, "on": bool(some % 2)},
            {"do": "drain", "node": node, "on": bool(some % 2)},
            {"do": "taint", "node": node, "on": bool(some % 2)},
            {"do": "retire", "node": node},
            {"do": "kill", "some": some},
            {"do": "force", "some": some},
            {"do": "force", "some": some},
            {"do": "label", "some": some, "how": pick(rng, ("merge", "json", "apply"))},
            {"do": "quota", "tenant": tenant, "cpu": between(rng, 2, 14)},
        ),
    )


def _workload(rng: Random, number: int) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": pick(rng, TENANTS),
        "replicas": between(rng, 1, 4),
        "cpu": pick(rng, ("500m", "1", "2")),
        "gpu": pick(rng, ("", "", "1", "500m")),
        "urgent": pick(rng, (False, False, True)),
        "gang": pick(rng, (False, False, False, True)),
        "eu": pick(rng, (False, True)),
        "keep": pick(rng, (False, False, True)),
        "budget": pick(rng, (None, 1)),
        "port": pick(rng, (0, 0, 0, 8080)),
    }


class Operator(ScriptedClient):
    """Performs acts one after another, each until it has a definite answer."""

    period_ms = 1_500

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._acts: list[dict[str, Any]] = []

    def on_prompt(self, body: dict[str, Any]) -> None:
        self._acts.append(body)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        while self._acts:
            request = self._request(snapshot, self._acts[0])
            if request is not None:
                yield request
                return
            self._acts.pop(0)

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(answer, Accepted | Refusal) and self._acts:
            self._acts.pop(0)

    def _request(self, snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
        match act["do"]:
            case "create":
                return Create(workload_of(act))
            case "scale" | "delete" | "label":
                return _on_workload(snapshot, act)
            case "kill" | "force":
                return _on_replica(snapshot, act)
            case "quota" | "suspend":
                return _on_tenant(snapshot, act)
            case _:
                return _on_node(snapshot, act)


def _on_workload(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
    workloads = list(snapshot.all(Workload))
    if not workloads:
        return None
    found = workloads[act["some"] % len(workloads)]
    if act["do"] == "label":
        return _patch(found, act["how"], str(act["some"]))
    if act["do"] == "delete":
        how = Propagation.FOREGROUND if act["some"] % 4 == 0 else Propagation.BACKGROUND
        return Remove("workloads", found.namespace, found.name, found.metadata.uid, propagation=how)
    spec = msgspec.structs.replace(found.spec, replicas=act["replicas"])
    return Update(msgspec.structs.replace(found, spec=spec))


def _patch(workload: Workload, how: str, value: str) -> Patch:
    labels = {"metadata": {"labels": {"some": value}}}
    name = {"apiVersion": "holdfast.dev/v1", "kind": "Workload"}
    whole = {**name, "metadata": {"name": workload.name, **labels["metadata"]}}
    kind, body = {
        "merge": (PatchType.MERGE, labels),
        "json": (PatchType.JSON, [{"op": "replace", "path": "/spec/replicas", "value": 1}]),
        "apply": (PatchType.APPLY, whole),
    }[how]
    return Patch("workloads", workload.namespace, workload.name, kind, body, manager=f"by-{how}")


def _on_replica(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
    """Deletes a replica in any state, or states by force that one out of contact is gone."""
    force = act["do"] == "force"
    replicas = [r for r in snapshot.all(Replica) if not force or r.status.state is State.UNKNOWN]
    if not replicas:
        return None
    gone = replicas[act["some"] % len(replicas)]
    return Remove("replicas", gone.namespace, gone.name, gone.metadata.uid, force=force)


def _on_tenant(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
    quota = snapshot.get(Quota, act["tenant"], "default")
    tenant = snapshot.get(Tenant, "", act["tenant"])
    if quota is None or tenant is None:
        return None
    if act["do"] == "suspend":
        spec = msgspec.structs.replace(tenant.spec, suspended=act["on"])
        return Update(msgspec.structs.replace(tenant, spec=spec))
    hard = {**quota.spec.hard, "cpu": str(act["cpu"])}
    return Update(_with_spec(quota, hard=hard))


def _on_node(snapshot: ObjectSnapshot, act: dict[str, Any]) -> Any:
    node = snapshot.get(Node, "", act["node"])
    if node is None:
        return None
    if act["do"] == "retire":
        return Remove("nodes", "", node.name, node.metadata.uid)
    if act["do"] == "cordon":
        return Update(_with_spec(node, cordoned=act["on"]))
    if act["do"] == "overcommit":
        percents = {"cpu": act["cpu"], "memory": act["memory"]}
        return Update(_with_spec(node, overcommit=percents))
    if act["do"] == "taint":
        taint = Taint(key="held", effect=TaintEffect.NO_SCHEDULE)
        return Update(_with_spec(node, taints=(taint,) if act["on"] else ()))
    return Update(_with_spec(node, drain=NodeDrain("script") if act["on"] else None))


def _with_spec(obj: Object, **changes: Any) -> Object:
    """The object with parts of its spec changed."""
    spec = msgspec.structs.replace(obj.spec, **changes)  # type: ignore[attr-defined]
    return msgspec.structs.replace(obj, spec=spec)


def workload_of(act: dict[str, Any]) -> Workload:
    """The workload that an act describes."""
    share = None if act["gpu"] in ("", "1") else act["gpu"]
    devices = (DeviceRequest(device_class="gpu", share=share, memory="8Gi"),) if act["gpu"] else ()
    template = Template(
        command=("work",),
        resources=Resources(cpu=act["cpu"], memory=act.get("memory", "1Gi")),
        devices=devices,
        ports=(Port(name="web", port=act["port"]),) if act["port"] else (),
        placement=Placement(residency="eu" if act["eu"] else ""),
        priority_class="urgent" if act["urgent"] else act.get("class", ""),
        isolation=Isolation(act.get("isolation", "none")),
        on_disconnect=OnDisconnect.KEEP if act["keep"] else OnDisconnect.STOP,
    )
    least = max(1, act["replicas"] - act.get("spare", 0))
    gang = None
    if act["gang"]:
        within, is_required = act.get("within", ""), act.get("within_required", True)
        gang = Gang(least, timeout_seconds=20, within=within, within_required=is_required)
    has_budget = act["budget"] is not None and gang is None
    budget = Disruption(max_unavailable=act["budget"]) if has_budget else None
    spec = WorkloadSpec(replicas=act["replicas"], template=template, gang=gang, disruption=budget)
    if "seconds" in act:
        once = msgspec.structs.replace(template, restart=RestartPolicy.NEVER)
        job = Job(expected_seconds=act["seconds"], ttl_seconds_after_finished=1)
        spec = msgspec.structs.replace(spec, type=WorkloadType.JOB, template=once, job=job)
    return Workload(ObjectMeta(name=act["name"], namespace=act["tenant"]), spec=spec)
