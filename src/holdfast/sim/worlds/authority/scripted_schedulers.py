"""Hands that place work, badly: on old looks, on one node after another, by every way there is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import DeviceShare, Pending, Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.placement.fit import demand_of
from holdfast.model.requests import (
    Bind,
    BindTogether,
    CommitGang,
    HoldCapacity,
    ReportPending,
    Reserve,
    StopAndReserve,
    Target,
    Term,
    Unreserve,
)
from holdfast.model.time import Instant, timestamp
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.scripted_clients import (
    ObjectSnapshot,
    ScriptedClient,
    operation_id_of,
    target,
)

# How a scheduler hand places a gang: hold a reservation, gather members under it, commit it, and
# bind them all.

_OPEN = (ReservationPhase.HELD, ReservationPhase.COMMITTED)


def gang_requests(
    hand: ScriptedClient, snapshot: ObjectSnapshot, nodes: list[Node], deadline: datetime
) -> Iterator[Any]:
    """One step for every gang that still lacks something."""
    for workload in snapshot.all(Workload):
        if workload.spec.gang is None or workload.metadata.deletion_timestamp is not None:
            continue
        members = [r for r in snapshot.all(Replica) if r.spec.workload_uid == workload.metadata.uid]
        gang = snapshot.get(Reservation, workload.namespace, f"{workload.name}-gang")
        if gang is None or gang.status.phase not in _OPEN:
            # A gang that finds no place would be held and dropped for ever.
            waits = any(r.status.state is State.PENDING for r in members)
            if waits and not hand.resting:
                yield _opened(hand, workload, workload.spec.gang.min_available, deadline)
            continue
        if gang.status.phase is ReservationPhase.HELD:
            yield from _gather(hand, members, gang, nodes, deadline)
        yield from _complete(hand, snapshot, members, gang)


def _opened(
    hand: ScriptedClient, workload: Workload, least: int, deadline: datetime
) -> HoldCapacity:
    owner = ReservationOwner(kind="Workload", name=workload.name, uid=workload.metadata.uid)
    operation = f"{hand.identity}/{workload.metadata.uid}/{deadline.isoformat()}/gang"
    return HoldCapacity(
        workload.namespace, owner, Intent.GANG, (), deadline, hand.term, least, operation
    )


def _gather(
    hand: ScriptedClient,
    members: list[Replica],
    gang: Reservation,
    nodes: list[Node],
    deadline: datetime,
) -> Iterator[Any]:
    for replica in members:
        if replica.status.state is not State.PENDING:
            continue
        node = hand.pick(nodes)
        yield Reserve(
            target(replica),
            node.name,
            node.metadata.uid,
            hand.term,
            deadline,
            Intent.GANG,
            operation_id_of(replica, f"member-{node.name}", hand.identity),
            gang=gang.name,
        )


def _complete(
    hand: ScriptedClient, snapshot: ObjectSnapshot, members: list[Replica], gang: Reservation
) -> Iterator[Any]:
    """Commit the gang, then bind its members; an eager hand tries the second before the first."""
    if gang.status.phase is ReservationPhase.HELD:
        operation = f"{hand.identity}/{gang.metadata.uid}/commit"
        yield CommitGang(gang.namespace, gang.name, gang.metadata.uid, hand.term, operation)
    elif hand.whim(4):
        return
    binds = []
    for claim in gang.status.claims:
        node = snapshot.get(Node, "", claim.node)
        replica = next((r for r in members if r.name == claim.replica), None)
        if claim.consumed or node is None or replica is None:
            continue
        if replica.status.state is State.RESERVED:
            operation = operation_id_of(replica, "bind-member", hand.identity)
            uid = node.metadata.uid
            binds.append(Bind(target(replica), node.name, uid, hand.term, operation=operation))
    early = gang.status.phase is ReservationPhase.HELD
    if binds and (not early or hand.whim(4)):
        yield BindTogether(tuple(binds))


HOLD_S = 20
BINDS_PER_ROUND = 6
WHOLE = 1000


class ScriptedScheduler(ScriptedClient):
    """Places pending replicas. Two of them may share a scope, and then take it from each other."""

    period_ms = 2_000

    def __init__(self, seat: Seat, identity: str, scope: str) -> None:
        super().__init__(seat, identity)
        self.scope = scope
        # Everybody gets his turn, and each of them on every node, wherever the first try began.
        self._cursor = 0
        self._tries: dict[str, int] = {}

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        nodes = [n for n in snapshot.all(Node) if n.status.phase is NodePhase.READY]
        waiting = [r for r in snapshot.all(Replica) if r.status.state is State.PENDING]
        if not nodes:
            return
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        yield from self._reserved(snapshot)
        yield from gang_requests(self, snapshot, nodes, deadline)
        if self.whim(6):
            yield from self._recovery(snapshot, nodes, deadline)
        for replica in self._turn([r for r in waiting if not r.spec.gang]):
            yield self._placed(snapshot, replica, self._next(replica, nodes), deadline)

    def _turn(self, waiting: list[Replica]) -> list[Replica]:
        start = self._cursor % len(waiting) if waiting else 0
        self._cursor += BINDS_PER_ROUND
        return (waiting[start:] + waiting[:start])[:BINDS_PER_ROUND]

    def _next(self, replica: Replica, nodes: list[Node]) -> Node:
        first = int(self.rng.random() * len(nodes))
        tries = self._tries[replica.metadata.uid] = self._tries.get(replica.metadata.uid, first) + 1
        return nodes[tries % len(nodes)]

    def _placed(
        self, snapshot: ObjectSnapshot, replica: Replica, node: Node, deadline: datetime
    ) -> Any:
        place = (target(replica), node.name, node.metadata.uid, self.term)
        if self.whim(6):
            return Reserve(
                *place, deadline, operation=operation_id_of(replica, "reserve", self.identity)
            )
        if replica.spec.priority > 0 and self.whim(2):
            victims = self._victims(snapshot, replica, node)
            if victims:
                return self._preemption(replica, node, victims, deadline)
        if self.whim(8):
            why = Pending(reasons={"NodeFull": 1}, message=f"{node.name} is full")
            version = replica.metadata.resource_version
            return ReportPending(target(replica), why, version=version)
        bind = self._held(snapshot, replica) or self._plain(snapshot, replica, node)
        return self._clumsy(snapshot, bind) if self.whim(8) else bind

    def _plain(self, snapshot: ObjectSnapshot, replica: Replica, node: Node) -> Bind:
        # The operation names the node, since another node is another intention; now and then it is
        # forgotten, and the second request under one id is a mistake that must be refused.
        intent = "bind" if self.whim(2) else f"bind-{node.name}"
        return self._bind(snapshot, replica, node, intent)

    def _bind(
        self,
        snapshot: ObjectSnapshot,
        replica: Replica,
        node: Node,
        intent: str,
        reservation: str = "",
    ) -> Bind:
        return Bind(
            target(replica),
            node.name,
            node.metadata.uid,
            self.term,
            operation=operation_id_of(replica, intent, self.identity),
            snapshot_revision=snapshot.revision,
            reservation=reservation,
        )

    def _held(self, snapshot: ObjectSnapshot, replica: Replica) -> Bind | None:
        """The bind that a preemption or a recovery lane has been waiting for."""
        for name in (f"{replica.name}-preemption", f"{replica.spec.workload}-recovery"):
            held = snapshot.get(Reservation, replica.namespace, name)
            if held is None or held.status.phase is not ReservationPhase.HELD:
                continue
            claim = next((c for c in held.status.claims if not c.consumed), None)
            node = snapshot.get(Node, "", claim.node) if claim is not None else None
            # What is promised must wait for its owner, also for one that takes his time.
            if node is not None and not self.whim(2):
                return self._bind(snapshot, replica, node, f"bind-{held.metadata.uid}", name)
        return None

    def _preemption(
        self, replica: Replica, node: Node, victims: tuple[Target, ...], deadline: datetime
    ) -> StopAndReserve:
        return StopAndReserve(
            target(replica),
            node.name,
            node.metadata.uid,
            victims,
            self.term,
            deadline,
            operation=operation_id_of(
                replica, f"preempt-{node.name}-{len(victims)}", self.identity
            ),
        )

    def _victims(
        self, snapshot: ObjectSnapshot, replica: Replica, node: Node
    ) -> tuple[Target, ...]:
        running = [
            r
            for r in snapshot.all(Replica)
            if r.status.binding is not None
            and r.status.binding.node == node.name
            and r.status.state in (State.BOUND, State.RUNNING)
            and (r.spec.priority < replica.spec.priority or self.whim(10))
        ]
        return tuple(target(r) for r in running[: 1 + int(self.rng.random() * 3)])

    def _reserved(self, snapshot: ObjectSnapshot) -> Iterator[Any]:
        """Bind what is reserved, or now and then give it back."""
        for replica in snapshot.all(Replica):
            if replica.status.state is not State.RESERVED or replica.spec.gang:
                continue
            held = snapshot.get(Reservation, replica.namespace, replica.status.reservation)
            if held is None or not held.status.claims:
                continue
            if self.whim(5):
                operation = operation_id_of(replica, "unreserve", self.identity)
                yield Unreserve(target(replica), "Conflict", self.term, operation)
                continue
            node = snapshot.get(Node, "", held.status.claims[0].node)
            # One that is always in time would never meet a deadline.
            if node is not None and not self.whim(2):
                yield self._bind(snapshot, replica, node, "bind-reserved")

    def _recovery(
        self, snapshot: ObjectSnapshot, nodes: list[Node], deadline: datetime
    ) -> Iterator[Any]:
        """Hold room for one more replica of some workload, to be taken by any of its replicas."""
        workloads = [w for w in snapshot.all(Workload) if w.metadata.deletion_timestamp is None]
        if not workloads:
            return
        workload, node = self.pick(workloads), self.pick(nodes)
        wanted = demand_of(workload.spec.template)
        shares = tuple(
            DeviceShare(device="gpu-0", device_class="gpu", milli=d.milli) for d in wanted.devices
        )
        claim = Claim(node=node.name, charge=wanted.amounts, devices=shares, ports=wanted.ports)
        uid = workload.metadata.uid
        yield HoldCapacity(
            workload.namespace,
            ReservationOwner(kind="Workload", name=workload.name, uid=uid),
            Intent.RECOVERY,
            (claim,),
            deadline,
            self.term,
            operation=f"{self.identity}/{uid}/{snapshot.revision}/recovery",
        )

    def _clumsy(self, snapshot: ObjectSnapshot, bind: Bind) -> Bind:
        """A bind with one thing wrong about it."""
        gpu = DeviceShare(device="gpu-0", device_class="gpu", milli=WHOLE)
        earlier = Term(bind.term.scope, max(0, bind.term.epoch - 1))
        mistakes: list[dict[str, Any]] = [
            {"snapshot_age_ms": 60_000},
            {"policy": "none-such"},
            {"node_uid": "another"},
            {"node": "node-9"},
            {"devices": (gpu,)},
            {"devices": ()},
            {"term": earlier},
            {"term": earlier},
            *self._foreign_terms(snapshot),
        ]
        changed = self.pick(self._strange_claims(snapshot, bind) if self.chance(2) else mistakes)
        return msgspec.structs.replace(bind, operation=f"{bind.operation}-wrong", **changed)

    def _foreign_terms(self, snapshot: ObjectSnapshot) -> list[dict[str, Any]]:
        """Leases that somebody else holds."""
        return [
            {"term": Term(lease.spec.scope, lease.spec.epoch)}
            for lease in snapshot.all(Lease)
            if lease.spec.scope.startswith("scheduler:") and lease.spec.holder != self.identity
        ]

    @staticmethod
    def _strange_claims(snapshot: ObjectSnapshot, bind: Bind) -> list[dict[str, Any]]:
        """What is held for workloads of the same namespace, or a reservation that is not there."""
        found = [
            {"reservation": held.name, "node": claim.node, "node_uid": node.metadata.uid}
            for held in snapshot.all(Reservation)
            if held.namespace == bind.target.namespace
            and held.status.phase is ReservationPhase.HELD
            for claim in held.status.claims
            if not claim.replica and (node := snapshot.get(Node, "", claim.node)) is not None
        ]
        return found or [{"reservation": "none-such"}]
