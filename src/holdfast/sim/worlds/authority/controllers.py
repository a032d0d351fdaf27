"""Hands that correct: workloads, nodes, repair and garbage, as thin as they can be."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.commit.removal import REPLICAS_FINALIZER
from holdfast.commit.requests import (
    Create,
    DropReservation,
    Evict,
    JudgeNode,
    Move,
    NodeWord,
    Remove,
    Unreserve,
    Update,
)
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.reservation import Reservation, ReservationPhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, State
from holdfast.model.meta import ObjectMeta
from holdfast.model.time import Instant, timestamp
from holdfast.sim.plan import Prompted
from holdfast.sim.worlds.authority.hands import Hand, Look, meant, target

_ENDED = (State.FAILED, State.SUCCEEDED, State.RELEASED)
FENCE_MS = 12_000


class WorkloadHand(Hand):
    """Keeps the count: births, evictions, releases and the last rites of replicas and workloads."""

    scope = "controller:workload"

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        by_owner: dict[str, list[Replica]] = {}
        for replica in look.all(Replica):
            by_owner.setdefault(replica.spec.workload_uid, []).append(replica)
        for workload in look.all(Workload):
            mine = by_owner.get(workload.metadata.uid, [])
            dying = workload.metadata.deletion_timestamp is not None
            wanted = 0 if dying else workload.spec.replicas
            for replica in mine:
                doomed = replica.metadata.deletion_timestamp is not None
                surplus = replica.spec.ordinal >= wanted or doomed
                yield from self._tend(replica, surplus=surplus, dying=dying)
            if dying and not mine:
                yield self._let_go(workload)
            yield from self._births(workload, mine, wanted)

    def _births(self, workload: Workload, mine: list[Replica], wanted: int) -> Iterator[Any]:
        alive = {r.spec.ordinal for r in mine if r.status.state not in _ENDED}
        for ordinal in range(wanted):
            if ordinal in alive:
                continue
            lives = [r.spec.incarnation for r in mine if r.spec.ordinal == ordinal]
            yield Create(self._replica(workload, ordinal, max(lives, default=-1) + 1))

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

    def _tend(self, replica: Replica, *, surplus: bool, dying: bool) -> Iterator[Any]:
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
            return
        elif state in (State.PENDING, State.RESERVED):
            yield Move(
                target(replica),
                State.RELEASED,
                "ScaleDown",
                operation=meant(replica, "release", self.identity),
            )
        elif state in (State.BOUND, State.RUNNING):
            cause = Cause.DELETED if dying else Cause.SCALE_DOWN
            yield Evict(
                target(replica),
                cause,
                term=self.term,
                operation=meant(replica, "stop", self.identity),
            )

    def _let_go(self, workload: Workload) -> Update:
        rest = tuple(f for f in workload.metadata.finalizers if f != REPLICAS_FINALIZER)
        metadata = msgspec.structs.replace(workload.metadata, finalizers=rest, resource_version="")
        return Update(msgspec.structs.replace(workload, metadata=metadata))


class NodesHand(Hand):
    """Marks nodes when the script says so, and fences them after a wait on its own clock."""

    scope = "controller:nodes"

    def __init__(self, seat: Any, identity: str) -> None:
        super().__init__(seat, identity)
        self._silent: dict[str, NodeWord] = {}
        # When it saw a mark committed, by node and number; a new life starts the count again.
        self._marked: dict[tuple[str, int], int] = {}

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        if isinstance(stimulus, Prompted):
            self._silent[stimulus.body["node"]] = NodeWord(stimulus.body["word"])
            return []
        return super().step(stimulus, now)

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for node in look.all(Node):
            word, mark = self._word(node, now)
            if word is not None:
                yield JudgeNode(
                    node.name,
                    node.metadata.uid,
                    word,
                    self.term,
                    mark,
                    "silence",
                    f"{self.identity}/{node.metadata.uid}/{node.status.marks}/{word.value}",
                )
            if node.status.mark is not None and node.status.phase is NodePhase.UNKNOWN:
                yield from self._unknown(look, node, node.status.mark.number)

    def _word(self, node: Node, now: Instant) -> tuple[NodeWord | None, int]:
        mark = node.status.mark.number if node.status.mark is not None else 0
        match node.status.phase:
            case NodePhase.READY if node.name in self._silent:
                return self._silent.pop(node.name), 0
            case NodePhase.SUSPECT:
                return (NodeWord.MARK if self.chance(3) else NodeWord.TRUST), 0
            case NodePhase.UNKNOWN:
                since = self._marked.setdefault((node.name, mark), now.monotonic_ms)
                if now.monotonic_ms - since >= FENCE_MS:
                    return NodeWord.FENCE, mark
                return (NodeWord.CLEAR if self.chance(4) else None), mark
        return None, 0

    def _unknown(self, look: Look, node: Node, mark: int) -> Iterator[Any]:
        for replica in look.all(Replica):
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
                    operation=meant(replica, f"unknown-{mark}", self.identity),
                )


class RepairHand(Hand):
    """Fails and releases what a fence proved gone, and takes back what is past its deadline."""

    scope = "controller:repair"

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for replica in look.all(Replica):
            yield from self._replica(look, replica, now)
        late = timestamp(now.wall_ms) - timedelta(seconds=3)
        for held in look.all(Reservation):
            active = held.status.phase in (ReservationPhase.HELD, ReservationPhase.COMMITTED)
            if active and held.spec.deadline < late:
                yield DropReservation(
                    held.namespace,
                    held.name,
                    held.metadata.uid,
                    "Expired",
                    self.term,
                    f"{self.identity}/{held.metadata.uid}/drop",
                )

    def _replica(self, look: Look, replica: Replica, now: Instant) -> Iterator[Any]:
        state, binding = replica.status.state, replica.status.binding
        if state is State.RESERVED:
            held = look.get(Reservation, replica.namespace, replica.status.reservation)
            if held is None or held.spec.deadline < timestamp(now.wall_ms) - timedelta(seconds=3):
                yield Unreserve(
                    target(replica),
                    "Expired",
                    self.term,
                    meant(replica, "unreserve", self.identity),
                )
            return
        if state is State.FAILED and binding is None:
            yield self._move(replica, State.RELEASED)
            return
        if binding is None:
            return
        node = look.get(Node, "", binding.node)
        gone = node is None or node.status.phase in (NodePhase.FENCED, NodePhase.LOST)
        later = node is not None and node.status.incarnation > binding.node_incarnation
        keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
        if not (gone or later) or keeps:
            return
        if state is State.UNKNOWN:
            yield self._move(replica, State.FAILED)
        elif state in (State.FAILED, State.SUCCEEDED, State.STOPPING):
            yield self._move(replica, State.RELEASED)

    def _move(self, replica: Replica, to: State) -> Move:
        return Move(
            target(replica),
            to,
            "Fenced",
            "the node is fenced",
            term=self.term,
            operation=meant(replica, to.value, self.identity),
        )


class GarbageHand(Hand):
    """Takes away what outlived its owner: here, reservations whose replica or workload is gone."""

    scope = "controller:garbage"
    period_ms = 6_000

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for held in look.all(Reservation):
            owner = held.spec.owner
            struct = Workload if owner.kind == "Workload" else Replica
            found = look.get(struct, held.namespace, owner.name)
            if found is not None and found.metadata.uid == owner.uid:
                continue
            if held.status.phase in (ReservationPhase.HELD, ReservationPhase.COMMITTED):
                yield DropReservation(
                    held.namespace,
                    held.name,
                    held.metadata.uid,
                    "Ownerless",
                    self.term,
                    f"{self.identity}/{held.metadata.uid}/drop",
                )
            else:
                yield Remove(
                    "reservations",
                    held.namespace,
                    held.name,
                    held.metadata.uid,
                    operation=f"{self.identity}/{held.metadata.uid}/remove",
                )
