"""Scripted clients that stand in for controllers, as small as possible."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.commit.record_encoding import PastOperation
from holdfast.model import keys
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import FOREGROUND_FINALIZER, REPLICAS_FINALIZER, ObjectMeta
from holdfast.model.quota.charging import is_active
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import (
    Create,
    DropReservation,
    Evict,
    ForgetOperations,
    JudgeNode,
    Move,
    NodeAction,
    Remove,
    ReportStage,
    Unreserve,
    Update,
)
from holdfast.model.time import Instant, timestamp
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.scripted_clients import (
    ObjectSnapshot,
    ScriptedClient,
    operation_id_of,
    target,
)

_ENDED = (State.FAILED, State.SUCCEEDED, State.RELEASED)
FENCE_MS = 12_000


class ScriptedWorkloadController(ScriptedClient):
    """Keeps the replica count: creates, evicts, releases and removes replicas, and finishes the
    deletion of workloads."""

    scope = "controller:workload"

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        # The last incarnation at an ordinal without an object, as refusals report it.
        self._reached: dict[tuple[str, int], int] = {}

    def on_answer(self, request: Any, answer: Any) -> None:
        if isinstance(answer, Refusal) and answer.reason is Reason.STALE_PLACE:
            reached = answer.details.get("reached")
            if reached is not None:
                spec = request.object.spec
                self._reached[spec.workload_uid, spec.ordinal] = int(reached)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        by_owner: dict[str, list[Replica]] = {}
        for replica in snapshot.all(Replica):
            by_owner.setdefault(replica.spec.workload_uid, []).append(replica)
        for workload in snapshot.all(Workload):
            mine = by_owner.get(workload.metadata.uid, [])
            dying = workload.metadata.deletion_timestamp is not None
            wanted = 0 if dying else workload.spec.replicas
            for replica in mine:
                doomed = replica.metadata.deletion_timestamp is not None
                surplus = replica.spec.ordinal >= wanted or doomed
                yield from self._replica_requests(replica, surplus=surplus, dying=dying)
            if dying and not mine:
                yield self._without_finalizer(workload)
            # A server must refuse replicas of a workload under deletion.
            created = workload.spec.replicas if self.whim(6) else wanted
            yield from self._creations(workload, mine, created)

    def _creations(self, workload: Workload, mine: list[Replica], wanted: int) -> Iterator[Any]:
        alive = {r.spec.ordinal for r in mine if r.status.state not in _ENDED}
        for ordinal in range(wanted):
            if ordinal in alive:
                continue
            lives = [r.spec.incarnation for r in mine if r.spec.ordinal == ordinal]
            gone = self._reached.get((workload.metadata.uid, ordinal), -1)
            yield Create(self._replica(workload, ordinal, max(*lives, gone, -1) + 1))

    def _replica(self, workload: Workload, ordinal: int, incarnation: int) -> Replica:
        spec = ReplicaSpec(
            workload=workload.name,
            workload_uid=workload.metadata.uid,
            ordinal=ordinal,
            incarnation=incarnation,
            gang=workload.name if workload.spec.gang is not None else "",
            template=workload.spec.template,
        )
        name = f"{workload.name}-{ordinal}-{incarnation}"
        return Replica(ObjectMeta(name=name, namespace=workload.namespace), spec=spec)

    def _replica_requests(self, replica: Replica, *, surplus: bool, dying: bool) -> Iterator[Any]:
        state = replica.status.state
        if state is State.RELEASED:
            yield Remove(
                "replicas",
                replica.namespace,
                replica.name,
                replica.metadata.uid,
                operation=f"{self.identity}/{replica.metadata.uid}/remove",
            )
        elif not surplus:
            if state is State.PENDING and self.whim(60):
                # As for a job past its deadline.
                yield Move(
                    target(replica),
                    State.FAILED,
                    "Deadline",
                    term=self.term,
                    operation=operation_id_of(replica, "fail", self.identity),
                )
        elif state in (State.PENDING, State.RESERVED):
            yield Move(
                target(replica),
                State.RELEASED,
                "ScaleDown",
                term=self.term,
                operation=operation_id_of(replica, "release", self.identity),
            )
        elif state in (State.BOUND, State.RUNNING):
            cause = Cause.DELETED if dying else Cause.SCALE_DOWN
            yield Evict(
                target(replica),
                cause,
                # A privileged write without a term is refused, then repeated correctly.
                term=None if self.whim(12) else self.term,
                operation=operation_id_of(replica, "stop", self.identity),
            )

    def _without_finalizer(self, workload: Workload) -> Update:
        rest = tuple(f for f in workload.metadata.finalizers if f != REPLICAS_FINALIZER)
        metadata = msgspec.structs.replace(workload.metadata, finalizers=rest)
        return Update(msgspec.structs.replace(workload, metadata=metadata))


class ScriptedNodesController(ScriptedClient):
    """Marks nodes when the script says so, and fences them after a wait on its own clock."""

    scope = "controller:nodes"

    def __init__(self, seat: Seat, identity: str) -> None:
        super().__init__(seat, identity)
        self._ordered: dict[str, NodeAction] = {}
        # When it first read a mark, by node and number. A restart begins the wait again.
        self._marked: dict[tuple[str, int], int] = {}

    def on_prompt(self, body: dict[str, Any]) -> None:
        self._ordered[body["node"]] = NodeAction(body["action"])

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for node in snapshot.all(Node):
            action, mark = self._judgement(node, now)
            if action is not None:
                yield JudgeNode(
                    node.name,
                    node.metadata.uid,
                    action,
                    self.term,
                    mark,
                    "silence",
                    f"{self.identity}/{node.metadata.uid}/{snapshot.revision}/{action.value}-{mark}",
                    version=node.metadata.resource_version,
                )
            if node.status.mark is not None and node.status.phase is NodePhase.UNKNOWN:
                yield from self._mark_unknown(snapshot, node, node.status.mark.number)

    def _judgement(self, node: Node, now: Instant) -> tuple[NodeAction | None, int]:
        mark = node.status.mark.number if node.status.mark is not None else 0
        match node.status.phase:
            case NodePhase.READY if node.name in self._ordered:
                return self._ordered.pop(node.name), 0
            case NodePhase.SUSPECT:
                return (NodeAction.MARK if self.whim(3) else NodeAction.TRUST), 0
            case NodePhase.UNKNOWN:
                uid = node.metadata.uid
                since = self._marked.setdefault((uid, mark), now.monotonic_ms)
                if now.monotonic_ms - since >= FENCE_MS:
                    # One in ten names a mark other than the current one.
                    return NodeAction.FENCE, mark - 1 if self.whim(10) else mark
                return (NodeAction.CLEAR if self.chance(4) else None), mark
            case NodePhase.FENCED if self.whim(8):
                return NodeAction.LOSE, 0
        return None, 0

    def _mark_unknown(self, snapshot: ObjectSnapshot, node: Node, mark: int) -> Iterator[Any]:
        for replica in snapshot.all(Replica):
            binding = replica.status.binding
            if binding is None or binding.node != node.name:
                continue
            if replica.status.state in (State.BOUND, State.RUNNING, State.STOPPING):
                yield Move(
                    target(replica),
                    State.UNKNOWN,
                    "NodeUnknown",
                    mark=mark,
                    term=self.term,
                    operation=operation_id_of(replica, f"unknown-{mark}", self.identity),
                )


LATE = timedelta(seconds=3)


class ScriptedRepairController(ScriptedClient):
    """Fails and releases work that a fence proved gone, and drops expired reservations."""

    scope = "controller:repair"

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for replica in snapshot.all(Replica):
            yield from self._replica(snapshot, replica, now)
        for held in snapshot.all(Reservation):
            late = held.spec.deadline < timestamp(now.wall_ms) - LATE
            if is_active(held) and (late or self.whim(30)):
                yield drop_request(self, held, "Expired")

    def _replica(self, snapshot: ObjectSnapshot, replica: Replica, now: Instant) -> Iterator[Any]:
        state, binding = replica.status.state, replica.status.binding
        if state is State.RESERVED:
            held = snapshot.get(Reservation, replica.namespace, replica.status.reservation)
            if held is None or held.spec.deadline < timestamp(now.wall_ms) - LATE:
                operation = operation_id_of(replica, "unreserve", self.identity)
                yield Unreserve(target(replica), "Expired", self.term, operation)
            return
        if state is State.FAILED and binding is None:
            yield self._move(replica, State.RELEASED)
        if binding is None:
            return
        if state is State.UNKNOWN and (self._is_gone(snapshot, replica) or self.whim(4)):
            yield self._move(replica, State.FAILED)
        elif state in (State.FAILED, State.SUCCEEDED, State.STOPPING):
            keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
            if (self._is_gone(snapshot, replica) and not keeps) or self.whim(8):
                yield self._move(replica, State.RELEASED)

    @staticmethod
    def _is_gone(snapshot: ObjectSnapshot, replica: Replica) -> bool:
        """Whether the node is fenced or in a later incarnation; for `keep` work only the latter."""
        binding = replica.status.binding
        node = snapshot.get(Node, "", binding.node) if binding is not None else None
        if binding is None or node is None or node.status.incarnation > binding.node_incarnation:
            return True
        keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
        return node.status.phase in (NodePhase.FENCED, NodePhase.LOST) and not keeps

    def _move(self, replica: Replica, to: State) -> Move:
        return Move(
            target(replica),
            to,
            "Fenced",
            "the node is fenced",
            term=self.term,
            operation=operation_id_of(replica, to.value, self.identity),
        )


def drop_request(client: ScriptedClient, held: Reservation, reason: str) -> DropReservation:
    """The request to drop a reservation."""
    return DropReservation(
        held.namespace,
        held.name,
        held.metadata.uid,
        reason,
        client.term,
        f"{client.identity}/{held.metadata.uid}/drop",
    )


class ScriptedGarbageController(ScriptedClient):
    """Removes reservations without an owner, and operations whose time is over."""

    scope = "controller:garbage"
    period_ms = 6_000
    end_key = keys.after_prefix(keys.OPERATIONS)

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for held in snapshot.all(Reservation):
            if self._has_owner(snapshot, held) and not self.whim(30):
                continue
            if is_active(held):
                yield drop_request(self, held, "Ownerless")
            else:
                uid = held.metadata.uid
                operation = f"{self.identity}/{uid}/remove"
                yield Remove("reservations", held.namespace, held.name, uid, operation=operation)
        for workload in snapshot.all(Workload):
            if FOREGROUND_FINALIZER in workload.metadata.finalizers:
                yield from self._finish_foreground(snapshot, workload)
        old = [
            key.removeprefix(keys.OPERATIONS)
            for key, past in snapshot.keyed(PastOperation).items()
            if past.until < timestamp(now.wall_ms) or self.whim(50)
        ]
        if old:
            yield ForgetOperations(tuple(old), self.term)

    @staticmethod
    def _finish_foreground(snapshot: ObjectSnapshot, workload: Workload) -> Iterator[Any]:
        """Finishes the foreground deletion of a workload without replicas."""
        if any(r.spec.workload_uid == workload.metadata.uid for r in snapshot.all(Replica)):
            return
        rest = tuple(f for f in workload.metadata.finalizers if f != FOREGROUND_FINALIZER)
        metadata = msgspec.structs.replace(workload.metadata, finalizers=rest)
        yield Update(msgspec.structs.replace(workload, metadata=metadata))

    @staticmethod
    def _has_owner(snapshot: ObjectSnapshot, held: Reservation) -> bool:
        owner = held.spec.owner
        struct = Workload if owner.kind == "Workload" else Replica
        found = snapshot.get(struct, held.namespace, owner.name)
        return found is not None and found.metadata.uid == owner.uid


class ScriptedDrainController(ScriptedClient):
    """Evicts from draining nodes, as far as budgets permit."""

    scope = "controller:drain"

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for replica in snapshot.all(Replica):
            binding = replica.status.binding
            if binding is None or replica.status.state not in (State.BOUND, State.RUNNING):
                continue
            node = snapshot.get(Node, "", binding.node)
            if node is not None and node.spec.drain is not None:
                yield Evict(
                    target(replica),
                    Cause.DRAIN,
                    node.spec.drain.reason,
                    self.term,
                    operation_id_of(replica, "drain", self.identity),
                )


class ScriptedEndpointsController(ScriptedClient):
    """Reports which replicas serve."""

    scope = "controller:endpoints"

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        for replica in snapshot.all(Replica):
            ready = replica.status.stage is Stage.READY or self.whim(30)
            if replica.status.state is State.RUNNING and ready:
                version = replica.metadata.resource_version
                yield ReportStage(target(replica), Stage.SERVING, version=version)
