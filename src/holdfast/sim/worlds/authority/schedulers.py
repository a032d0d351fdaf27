"""Hands that place work, badly: on old looks, on nodes drawn at random, by every way there is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from holdfast.commit.requests import (
    Bind,
    BindTogether,
    CommitGang,
    HoldCapacity,
    Reserve,
    StopAndReserve,
    Unreserve,
)
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.time import Instant, timestamp
from holdfast.sim.worlds.authority.hands import Hand, Look, meant, target

HOLD_S = 20
BINDS_PER_ROUND = 6


class SchedulerHand(Hand):
    """Places pending replicas. Two of them may share a scope, and then take it from each other."""

    period_ms = 2_000

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        nodes = [n for n in look.all(Node) if n.status.phase is NodePhase.READY]
        waiting = [r for r in look.all(Replica) if r.status.state is State.PENDING]
        if not nodes:
            return
        deadline = timestamp(now.wall_ms) + timedelta(seconds=HOLD_S)
        yield from self._reserved(look, deadline)
        yield from self._gangs(look, nodes, deadline)
        for replica in self._some(waiting):
            if replica.spec.gang:
                continue
            yield self._placed(look, replica, self.pick(nodes), deadline)

    def _some(self, waiting: list[Replica]) -> list[Replica]:
        start = int(self.rng.random() * len(waiting)) if waiting else 0
        return (waiting[start:] + waiting[:start])[:BINDS_PER_ROUND]

    def _placed(self, look: Look, replica: Replica, node: Node, deadline: datetime) -> Any:
        term = self.term
        place = (target(replica), node.name, node.metadata.uid, term)
        if self.chance(6):
            return Reserve(*place, deadline, operation=meant(replica, "reserve", self.identity))
        if self.chance(4) and replica.spec.priority > 0:
            victims = self._victims(look, replica, node)
            if victims:
                return StopAndReserve(
                    *place[:3],
                    victims,
                    term,
                    deadline,
                    operation=meant(replica, f"preempt-{node.name}", self.identity),
                )
        promise = look.get(Reservation, replica.namespace, f"{replica.name}-preemption")
        if promise is not None and promise.status.phase is ReservationPhase.HELD:
            claim = promise.status.claims[0]
            there = look.get(Node, "", claim.node)
            if there is not None:
                return Bind(
                    target(replica),
                    claim.node,
                    there.metadata.uid,
                    term,
                    operation=meant(replica, "bind-promised", self.identity),
                    reservation=promise.name,
                    snapshot_revision=look.revision,
                )
        # The operation names the node: another node is another intention.
        operation = meant(replica, f"bind-{node.name}", self.identity)
        return Bind(*place, operation=operation, snapshot_revision=look.revision)

    def _victims(self, look: Look, replica: Replica, node: Node) -> tuple[Any, ...]:
        running = [
            r
            for r in look.all(Replica)
            if r.status.binding is not None
            and r.status.binding.node == node.name
            and r.status.state in (State.BOUND, State.RUNNING)
            and r.spec.priority < replica.spec.priority
        ]
        return tuple(target(r) for r in running[:2])

    def _reserved(self, look: Look, deadline: datetime) -> Iterator[Any]:
        """Bind what is reserved, or now and then give it back."""
        for replica in look.all(Replica):
            if replica.status.state is not State.RESERVED or replica.spec.gang:
                continue
            held = look.get(Reservation, replica.namespace, replica.status.reservation)
            if held is None or not held.status.claims:
                continue
            if self.chance(5):
                yield Unreserve(
                    target(replica),
                    "Conflict",
                    self.term,
                    meant(replica, "unreserve", self.identity),
                )
                continue
            node = look.get(Node, "", held.status.claims[0].node)
            if node is not None:
                yield Bind(
                    target(replica),
                    node.name,
                    node.metadata.uid,
                    self.term,
                    operation=meant(replica, "bind-reserved", self.identity),
                    snapshot_revision=look.revision,
                )

    def _gangs(self, look: Look, nodes: list[Node], deadline: datetime) -> Iterator[Any]:
        """Hold a reservation, gather members under it, commit it, bind them all."""
        for workload in look.all(Workload):
            if workload.spec.gang is None or workload.metadata.deletion_timestamp is not None:
                continue
            members = [r for r in look.all(Replica) if r.spec.workload_uid == workload.metadata.uid]
            gang = look.get(Reservation, workload.namespace, f"{workload.name}-gang")
            if any(r.status.state is State.PENDING for r in members):
                yield from self._gather(workload, members, gang, nodes, deadline)
            yield from self._complete(look, members, gang)

    def _gather(
        self,
        workload: Workload,
        members: list[Replica],
        gang: Reservation | None,
        nodes: list[Node],
        deadline: datetime,
    ) -> Iterator[Any]:
        gang_spec = workload.spec.gang
        if gang_spec is None:
            return
        if gang is None or gang.status.phase not in (
            ReservationPhase.HELD,
            ReservationPhase.COMMITTED,
        ):
            owner = ReservationOwner(kind="Workload", name=workload.name, uid=workload.metadata.uid)
            yield HoldCapacity(
                workload.namespace,
                owner,
                Intent.GANG,
                (),
                deadline,
                self.term,
                gang_spec.min_available,
            )
            return
        for replica in members:
            if replica.status.state is State.PENDING and gang.status.phase is ReservationPhase.HELD:
                node = self.pick(nodes)
                yield Reserve(
                    target(replica),
                    node.name,
                    node.metadata.uid,
                    self.term,
                    deadline,
                    Intent.GANG,
                    meant(replica, f"member-{node.name}", self.identity),
                    gang=gang.name,
                )

    def _complete(
        self, look: Look, members: list[Replica], gang: Reservation | None
    ) -> Iterator[Any]:
        if gang is None:
            return
        if gang.status.phase is ReservationPhase.HELD:
            yield CommitGang(
                gang.namespace,
                gang.name,
                gang.metadata.uid,
                self.term,
                f"{self.identity}/{gang.metadata.uid}/commit",
            )
        if gang.status.phase is not ReservationPhase.COMMITTED:
            return
        binds = []
        for claim in gang.status.claims:
            node = look.get(Node, "", claim.node)
            replica = next((r for r in members if r.name == claim.replica), None)
            if claim.consumed or node is None or replica is None:
                continue
            if replica.status.state is State.RESERVED:
                binds.append(
                    Bind(
                        target(replica),
                        node.name,
                        node.metadata.uid,
                        self.term,
                        operation=meant(replica, "bind-member", self.identity),
                    )
                )
        if binds:
            yield BindTogether(tuple(binds))
