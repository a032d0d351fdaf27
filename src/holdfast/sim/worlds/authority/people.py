"""People: an operator who follows a script, and a rogue who tries what he may not do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from holdfast.commit.requests import (
    Accepted,
    AcquireLease,
    Bind,
    Create,
    DropReservation,
    Evict,
    HoldCapacity,
    JudgeNode,
    Move,
    NodeWord,
    RegisterNode,
    Remove,
    ReportStage,
    Term,
    Unreserve,
    Update,
)
from holdfast.model.kinds.node import Node, NodeDrain
from holdfast.model.kinds.placement import Placement
from holdfast.model.kinds.quota import Quota
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationOwner
from holdfast.model.kinds.template import DeviceRequest, OnDisconnect, Resources, Template
from holdfast.model.kinds.workload import Disruption, Gang, Workload, WorkloadSpec
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Refusal
from holdfast.model.time import Instant, timestamp
from holdfast.sim.cell import Seat
from holdfast.sim.plan import Act, Prompted
from holdfast.sim.randomness import between, pick
from holdfast.sim.worlds.authority.hands import Hand, Look, Tell, target

TENANTS = ("ada", "bob")
NODES = 5


def script(rng: Random) -> Sequence[Act]:
    """What the operator does over the run."""
    acts = [Act(500 + 100 * i, "operator", _workload(rng, i)) for i in range(5)]
    for number in range(5, 5 + between(rng, 10, 25)):
        at_ms = between(rng, 5_000, 170_000)
        acts.append(Act(at_ms, "operator", _act(rng, number)))
    for _ in range(between(rng, 2, 12)):
        silence = {
            "node": f"node-{between(rng, 0, NODES - 1)}",
            "word": pick(rng, ("Suspect", "Mark", "Mark")),
        }
        acts.append(Act(between(rng, 5_000, 175_000), "controller-nodes", silence))
    return sorted(acts, key=lambda act: act.at_ms)


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
            {"do": "kill", "some": some},
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
        "keep": pick(rng, (False, False, False, True)),
        "budget": pick(rng, (None, 1)),
    }


class Operator(Hand):
    """Carries out acts one after another, each until it has a definite answer."""

    period_ms = 1_500

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._acts: list[dict[str, Any]] = []

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        if isinstance(stimulus, Prompted):
            self._acts.append(stimulus.body)
            return []
        return super().step(stimulus, now)

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        while self._acts:
            request = self._request(look, self._acts[0])
            if request is not None:
                yield request
                return
            self._acts.pop(0)

    def heard(self, request: Any, answer: Any) -> None:
        if isinstance(answer, Accepted | Refusal) and self._acts:
            self._acts.pop(0)

    def _request(self, look: Look, act: dict[str, Any]) -> Any:
        workloads = list(look.all(Workload))
        match act["do"]:
            case "create":
                return Create(workload_of(act))
            case "scale" if workloads:
                found = workloads[act["some"] % len(workloads)]
                spec = msgspec.structs.replace(found.spec, replicas=act["replicas"])
                return Update(msgspec.structs.replace(found, spec=spec))
            case "delete" if workloads:
                found = workloads[act["some"] % len(workloads)]
                return Remove("workloads", found.namespace, found.name, found.metadata.uid)
            case "kill":
                replicas = list(look.all(Replica))
                if replicas:
                    gone = replicas[act["some"] % len(replicas)]
                    return Remove("replicas", gone.namespace, gone.name, gone.metadata.uid)
            case "quota":
                quota = look.get(Quota, act["tenant"], "default")
                if quota is not None:
                    hard = {**quota.spec.hard, "cpu": str(act["cpu"])}
                    spec = msgspec.structs.replace(quota.spec, hard=hard)
                    return Update(msgspec.structs.replace(quota, spec=spec))
            case "cordon" | "drain":
                node = look.get(Node, "", act["node"])
                if node is not None:
                    return Update(msgspec.structs.replace(node, spec=_gated(node, act)))
        return None


def _gated(node: Node, act: dict[str, Any]) -> Any:
    if act["do"] == "cordon":
        return msgspec.structs.replace(node.spec, cordoned=act["on"])
    return msgspec.structs.replace(node.spec, drain=NodeDrain("script") if act["on"] else None)


def workload_of(act: dict[str, Any]) -> Workload:
    """The workload that an act describes."""
    share = None if act["gpu"] in ("", "1") else act["gpu"]
    devices = (DeviceRequest(device_class="gpu", share=share, memory="8Gi"),) if act["gpu"] else ()
    template = Template(
        command=("work",),
        resources=Resources(cpu=act["cpu"], memory="1Gi"),
        devices=devices,
        placement=Placement(residency="eu" if act["eu"] else ""),
        priority_class="urgent" if act["urgent"] else "",
        on_disconnect=OnDisconnect.KEEP if act["keep"] else OnDisconnect.STOP,
    )
    gang = Gang(min_available=act["replicas"], timeout_seconds=20) if act["gang"] else None
    budget = Disruption(max_unavailable=act["budget"]) if act["budget"] is not None else None
    spec = WorkloadSpec(replicas=act["replicas"], template=template, gang=gang, disruption=budget)
    return Workload(ObjectMeta(name=act["name"], namespace=act["tenant"]), spec=spec)


class Trespass(msgspec.Struct, frozen=True):
    """A fact that must never be stated: the rogue was allowed something."""

    who: str
    request: Any


class Rogue(Hand):
    """Tries everything under an identity that may do none of it."""

    period_ms = 4_000

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        replicas, nodes = list(look.all(Replica)), list(look.all(Node))
        if not replicas or not nodes:
            return
        replica, node = self.pick(replicas), self.pick(nodes)
        yield self.pick(list(self._mischief(look, replica, node, now)))

    def _answered(self, request: Any, answer: Any) -> list[Any]:
        if isinstance(answer, Accepted) and not answer.replayed:
            return [Tell(Trespass(self.identity, request))]
        return []

    def _mischief(self, look: Look, replica: Replica, node: Node, now: Instant) -> Iterator[Any]:
        binding = replica.status.binding
        term = Term("scheduler:one", binding.epoch if binding is not None else 1)
        mine, uid = target(replica), node.metadata.uid
        deadline = timestamp(now.wall_ms) + timedelta(seconds=60)
        incarnation = binding.node_incarnation if binding is not None else 1
        mark = node.status.marks
        yield Bind(mine, node.name, uid, term, snapshot_revision=look.revision)
        for to in State:
            yield Move(mine, to, "mischief", incarnation=incarnation, mark=mark, term=term)
        for cause in Cause:
            yield Evict(mine, cause, "mischief", term)
        yield ReportStage(mine, Stage.READY, incarnation)
        yield Unreserve(mine, "mischief", term)
        yield JudgeNode(node.name, uid, NodeWord.MARK, Term("controller:nodes", 1))
        yield JudgeNode(node.name, uid, NodeWord.FENCE, Term("controller:nodes", 1), mark)
        yield RegisterNode(node)
        yield AcquireLease("scheduler:one", 1_000, term.epoch, 0)
        yield from self._on_objects(look, replica, deadline, term)

    def _on_objects(self, look: Look, replica: Replica, deadline: Any, term: Term) -> Iterator[Any]:
        other = State.FAILED if replica.status.state is State.RELEASED else State.RELEASED
        status = msgspec.structs.replace(replica.status, state=other)
        yield Update(msgspec.structs.replace(replica, status=status), "status")
        yield Update(_relabelled(replica))
        yield Create(_renamed(replica))
        for held in look.all(Reservation):
            yield DropReservation(held.namespace, held.name, held.metadata.uid, "mischief", term)
            owner = ReservationOwner(kind="Replica", name=replica.name, uid=replica.metadata.uid)
            yield HoldCapacity(
                held.namespace, owner, Intent.RECOVERY, held.status.claims, deadline, term
            )
        for quota in look.all(Quota):
            spec = msgspec.structs.replace(quota.spec, hard={"cpu": "1000"})
            yield Update(msgspec.structs.replace(quota, spec=spec))


def _relabelled(obj: Object) -> Object:
    metadata = msgspec.structs.replace(obj.metadata, labels={"owned": "by-rogue"})
    return msgspec.structs.replace(obj, metadata=metadata)


def _renamed(replica: Replica) -> Replica:
    spec = msgspec.structs.replace(replica.spec, incarnation=replica.spec.incarnation + 50)
    name = f"{spec.workload}-{spec.ordinal}-{spec.incarnation}"
    return Replica(ObjectMeta(name=name, namespace=replica.namespace), spec=spec)
