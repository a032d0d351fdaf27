"""Scripted clients that place work badly: on old snapshots, on one node after another, and by all
requests that place."""

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
from holdfast.model.quota.charging import is_active
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

# How a scripted scheduler places a gang: hold a reservation, reserve its members under it, commit
# it, and bind them all.


def gang_requests(
    client: ScriptedClient, snapshot: ObjectSnapshot, nodes: list[Node], deadline: datetime
) -> Iterator[Any]:
    """The next step for every gang that is not complete."""
    for workload in snapshot.all(Workload):
        if workload.spec.gang is None or workload.metadata.deletion_timestamp is not None:
            continue
        members = [r for r in snapshot.all(Replica) if r.spec.workload_uid == workload.metadata.uid]
        gang = snapshot.get(Reservation, workload.namespace, f"{workload.name}-gang")
        if gang is None or not is_active(gang):
            # A resting client would hold and drop a gang that does not fit without end.
            waits = any(r.status.state is State.PENDING for r in members)
            if waits and not client.resting:
                yield _hold_gang(client, workload, workload.spec.gang.min_available, deadline)
            continue
        if gang.status.phase is ReservationPhase.HELD:
            yield from _reserve_members(client, members, gang, nodes, deadline)
        yield from _bind_members(client, snapshot, members, gang)


def _hold_gang(
    client: ScriptedClient, workload: Workload, least: int, deadline: datetime
) -> HoldCapacity:
    owner = ReservationOwner(kind="Workload", name=workload.name, uid=workload.metadata.uid)
    operation = f"{client.identity}/{workload.metadata.uid}/{deadline.isoformat()}/gang"
    return HoldCapacity(
        workload.namespace, owner, Intent.GANG, (), deadline, client.term, least, operation
    )


def _reserve_members(
    client: ScriptedClient,
    members: list[Replica],
    gang: Reservation,
    nodes: list[Node],
    deadline: datetime,
) -> Iterator[Any]:
    for replica in members:
        if replica.status.state is not State.PENDING:
            continue
        node = client.pick(nodes)
        yield Reserve(
            target(replica),
            node.name,
            node.metadata.uid,
            client.term,
            deadline,
            Intent.GANG,
            operation_id_of(replica, f"member-{node.name}", client.identity),
            gang=gang.name,
        )


def _bind_members(
    client: ScriptedClient, snapshot: ObjectSnapshot, members: list[Replica], gang: Reservation
) -> Iterator[Any]:
    """Commits the gang, then binds its members. Sometimes the client binds before the commit."""
    if gang.status.phase is ReservationPhase.HELD:
        operation = f"{client.identity}/{gang.metadata.uid}/commit"
        yield CommitGang(gang.namespace, gang.name, gang.metadata.uid, client.term, operation)
    elif client.whim(4):
        return
    binds = []
    for claim in gang.status.claims:
        node = snapshot.get(Node, "", claim.node)
        replica = next((r for r in members if r.name == claim.replica), None)
        if claim.consumed or node is None or replica is None:
            continue
        if replica.status.state is State.RESERVED:
            operation = operation_id_of(replica, "bind-member", client.identity)
            uid = node.metadata.uid
            binds.append(Bind(target(replica), node.name, uid, client.term, operation=operation))
    early = gang.status.phase is ReservationPhase.HELD
    if binds and (not early or client.whim(4)):
        yield BindTogether(tuple(binds))


HOLD_S = 20
BINDS_PER_ROUND = 6
WHOLE = 1000


class ScriptedScheduler(ScriptedClient):
    """Places pending replicas. Two schedulers may share a scope and compete for its lease."""

    period_ms = 2_000

    def __init__(self, seat: Seat, identity: str, scope: str) -> None:
        super().__init__(seat, identity)
        self.scope = scope
        # Each waiting replica gets its turn, and each is tried on every node in turn.
        self._cursor = 0
        self._tries: dict[str, int] = {}

    def next_requests(self, snapshot: ObjectSnapshot, now: Instant) -> Iterator[Any]:
        nodes = [n for n in snapshot.all(Node) if n.status.phase is NodePhase.READY]
        waiting = [r for r in snapshot.all(Replica) if r.status.state is State.PENDING]
        if not nodes:
            return
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        yield from self._bind_reserved(snapshot)
        yield from gang_requests(self, snapshot, nodes, deadline)
        if self.whim(6):
            yield from self._recovery(snapshot, nodes, deadline)
        for replica in self._next_waiting([r for r in waiting if not r.spec.gang]):
            yield self._placement(snapshot, replica, self._next_node(replica, nodes), deadline)

    def _next_waiting(self, waiting: list[Replica]) -> list[Replica]:
        start = self._cursor % len(waiting) if waiting else 0
        self._cursor += BINDS_PER_ROUND
        return (waiting[start:] + waiting[:start])[:BINDS_PER_ROUND]

    def _next_node(self, replica: Replica, nodes: list[Node]) -> Node:
        first = int(self.rng.random() * len(nodes))
        tries = self._tries[replica.metadata.uid] = self._tries.get(replica.metadata.uid, first) + 1
        return nodes[tries % len(nodes)]

    def _placement(
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
        bind = self._bind_from_reservation(snapshot, replica) or self._plain(
            snapshot, replica, node
        )
        return self._wrong_bind(snapshot, bind) if self.whim(8) else bind

    def _plain(self, snapshot: ObjectSnapshot, replica: Replica, node: Node) -> Bind:
        # The operation names the node, since another node is another intent. Sometimes the name is
        # left out, and the second request under one id is a mistake that a server must refuse.
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

    def _bind_from_reservation(self, snapshot: ObjectSnapshot, replica: Replica) -> Bind | None:
        """The bind that consumes a preemption or a recovery reservation."""
        for name in (f"{replica.name}-preemption", f"{replica.spec.workload}-recovery"):
            held = snapshot.get(Reservation, replica.namespace, name)
            if held is None or held.status.phase is not ReservationPhase.HELD:
                continue
            claim = next((c for c in held.status.claims if not c.consumed), None)
            node = snapshot.get(Node, "", claim.node) if claim is not None else None
            # The promised capacity must stay for its owner, even a slow one.
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

    def _bind_reserved(self, snapshot: ObjectSnapshot) -> Iterator[Any]:
        """Binds what is reserved, or sometimes gives it back."""
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
            # A scheduler that is always in time would never reach a deadline.
            if node is not None and not self.whim(2):
                yield self._bind(snapshot, replica, node, "bind-reserved")

    def _recovery(
        self, snapshot: ObjectSnapshot, nodes: list[Node], deadline: datetime
    ) -> Iterator[Any]:
        """Holds capacity for one more replica of a workload, which any of its replicas may take."""
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

    def _wrong_bind(self, snapshot: ObjectSnapshot, bind: Bind) -> Bind:
        """A bind with one error in it."""
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
        changed = self.pick(self._foreign_claims(snapshot, bind) if self.chance(2) else mistakes)
        return msgspec.structs.replace(bind, operation=f"{bind.operation}-wrong", **changed)

    def _foreign_terms(self, snapshot: ObjectSnapshot) -> list[dict[str, Any]]:
        """Terms of leases that other schedulers hold."""
        return [
            {"term": Term(lease.spec.scope, lease.spec.epoch)}
            for lease in snapshot.all(Lease)
            if lease.spec.scope.startswith("scheduler:") and lease.spec.holder != self.identity
        ]

    @staticmethod
    def _foreign_claims(snapshot: ObjectSnapshot, bind: Bind) -> list[dict[str, Any]]:
        """Reservations of other owners in the namespace, or one that does not exist."""
        found = [
            {"reservation": held.name, "node": claim.node, "node_uid": node.metadata.uid}
            for held in snapshot.all(Reservation)
            if held.namespace == bind.target.namespace
            and held.status.phase is ReservationPhase.HELD
            for claim in held.status.claims
            if not claim.replica and (node := snapshot.get(Node, "", claim.node)) is not None
        ]
        return found or [{"reservation": "none-such"}]
