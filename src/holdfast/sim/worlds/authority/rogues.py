"""Rogue clients: they try every request under identities that have no permission for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.commit.server import SCOPE
from holdfast.model.access.identity import Identity
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation, ReservationOwner
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import AutoscaleStatus, RolloutStatus, Workload
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.requests import (
    Accepted,
    AcquireLease,
    Bind,
    Create,
    DropReservation,
    Evict,
    ForgetOperations,
    Forward,
    HoldCapacity,
    JudgeNode,
    Move,
    NodeAction,
    Patch,
    PatchType,
    RegisterNode,
    Remove,
    RenewLease,
    ReportStage,
    Term,
    Unreserve,
    Update,
)
from holdfast.model.time import Instant, timestamp
from holdfast.sim.planes.facts import StateFact, Trespass
from holdfast.sim.planes.shared_names import ADMIN, MISCHIEF
from holdfast.sim.worlds.authority.scripted_clients import ObjectSnapshot, ScriptedClient, target


class Rogue(ScriptedClient):
    """Tries every request under an identity that has no permission for it."""

    period_ms = 4_000

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        replicas, nodes = list(snapshot.all(Replica)), list(snapshot.all(Node))
        if not replicas or not nodes:
            return
        replica, node = self.pick(replicas), self.pick(nodes)
        tried = self.pick(list(self._forbidden_requests(snapshot, replica, node, now)))
        if "operation" in tried.__struct_fields__:
            operation = f"{self.identity}{MISCHIEF}{now.monotonic_ms}"
            tried = msgspec.structs.replace(tried, operation=operation)
        yield tried

    def _answered(self, request: Any, answer: Any) -> list[Any]:
        # A write without any change is accepted. If it changed an object, its operation id shows.
        harmless = isinstance(request, Update | Patch)
        if isinstance(answer, Accepted) and not answer.replayed and not harmless:
            return [StateFact(Trespass(self.identity, request))]
        return []

    def _forbidden_requests(
        self, snapshot: ObjectSnapshot, replica: Replica, node: Node, now: Instant
    ) -> Iterator[Any]:
        binding = replica.status.binding
        term = Term("scheduler:one", binding.epoch if binding is not None else 1)
        mine, uid = target(replica), node.metadata.uid
        deadline = timestamp(now.wall_ms) + timedelta(seconds=60)
        incarnation = binding.node_incarnation if binding is not None else 1
        mark = node.status.marks
        yield Bind(mine, node.name, uid, term, snapshot_revision=snapshot.revision)
        for to in State:
            yield Move(mine, to, "mischief", incarnation=incarnation, mark=mark, term=term)
        for cause in Cause:
            yield Evict(mine, cause, "mischief", term)
        version = replica.metadata.resource_version
        yield ReportStage(mine, Stage.READY, incarnation, version=version)
        yield Unreserve(mine, "mischief", term)
        since = node.metadata.resource_version
        for action in (NodeAction.SUSPECT, NodeAction.MARK, NodeAction.FENCE):
            yield JudgeNode(
                node.name, uid, action, Term("controller:nodes", 1), mark, version=since
            )
        yield RegisterNode(node)
        yield AcquireLease("scheduler:one", 1_000, term.epoch, 0)
        yield RenewLease(term, number=1_000_000)
        yield ForgetOperations(("some",), Term("controller:garbage", 1))
        ours, asked = Identity(name=f"system:{term.scope}"), Bind(mine, node.name, uid, term)
        yield Forward(ADMIN, Remove("nodes", "", node.name), _authority_epoch(snapshot))
        yield Forward(ours, asked, _authority_epoch(snapshot))
        yield from self._object_requests(snapshot, replica, deadline, term)

    def _object_requests(
        self, snapshot: ObjectSnapshot, replica: Replica, deadline: Any, term: Term
    ) -> Iterator[Any]:
        other = State.FAILED if replica.status.state is State.RELEASED else State.RELEASED
        status = msgspec.structs.replace(replica.status, state=other)
        yield Update(msgspec.structs.replace(replica, status=status), "status")
        yield Update(_with_label(replica))
        yield Create(_next_incarnation(replica))
        for held in snapshot.all(Reservation):
            yield DropReservation(held.namespace, held.name, held.metadata.uid, "mischief", term)
            owner = ReservationOwner(kind="Replica", name=replica.name, uid=replica.metadata.uid)
            yield HoldCapacity(
                held.namespace, owner, Intent.RECOVERY, held.status.claims, deadline, term
            )
        for workload in snapshot.all(Workload):
            yield from self._workload_requests(workload)
        for quota in snapshot.all(Quota):
            # Borrowing stays limited, so that only the identity is a reason to refuse this one.
            hard = {**quota.spec.hard, "cpu": "1000"}
            spec = msgspec.structs.replace(quota.spec, hard=hard)
            richer = Update(msgspec.structs.replace(quota, spec=spec))
            yield richer
            # Only a server may forward requests, whichever identity it claims for them.
            yield Forward(ADMIN, richer, _authority_epoch(snapshot))

    @staticmethod
    def _workload_requests(workload: Workload) -> Iterator[Any]:
        status = workload.status
        for part in (
            {"rollout": RolloutStatus(current="mine")},
            {"autoscale": AutoscaleStatus(desired=7)},
        ):
            changed = msgspec.structs.replace(status, **part)
            yield Update(msgspec.structs.replace(workload, status=changed), "status")
        spec = msgspec.structs.replace(workload.spec, replicas=workload.spec.replicas + 1)
        yield Update(msgspec.structs.replace(workload, spec=spec))
        more = {"spec": {"replicas": workload.spec.replicas + 1}}
        for kind in (PatchType.MERGE, PatchType.APPLY):
            where = ("workloads", workload.namespace, workload.name)
            yield Patch(*where, kind, more, manager="mine", force=True)
        metadata = msgspec.structs.replace(workload.metadata, finalizers=())
        yield Update(msgspec.structs.replace(workload, metadata=metadata))
        yield Remove("workloads", workload.namespace, workload.name)


def _authority_epoch(snapshot: ObjectSnapshot) -> int:
    """The epoch under which servers decide now.

    A server drops a forwarded request with another epoch from any sender, which proves nothing.
    """
    lease = snapshot.get(Lease, "", lease_name(SCOPE))
    return lease.spec.epoch if lease is not None else 0


def _with_label(obj: Object) -> Object:
    metadata = msgspec.structs.replace(obj.metadata, labels={"owned": "by-rogue"})
    return msgspec.structs.replace(obj, metadata=metadata)


def _next_incarnation(replica: Replica) -> Replica:
    spec = msgspec.structs.replace(replica.spec, incarnation=replica.spec.incarnation + 50)
    name = f"{spec.workload}-{spec.ordinal}-{spec.incarnation}"
    return Replica(ObjectMeta(name=name, namespace=replica.namespace), spec=spec)
