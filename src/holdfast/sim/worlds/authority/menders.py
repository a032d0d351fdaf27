"""Hands that clear up: repair, garbage, drains and endpoints."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.commit.leaks import FOREGROUND_FINALIZER
from holdfast.commit.records import PastOperation
from holdfast.model import keys
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation, ReservationPhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.requests import (
    DropReservation,
    Evict,
    ForgetOperations,
    Move,
    Remove,
    ReportStage,
    Unreserve,
    Update,
)
from holdfast.model.time import Instant, timestamp
from holdfast.sim.worlds.authority.hands import Hand, meant, target
from holdfast.sim.worlds.authority.looks import Look

_ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)
LATE = timedelta(seconds=3)


class RepairHand(Hand):
    """Fails and releases what a fence proved gone, and takes back what is past its deadline."""

    scope = "controller:repair"

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for replica in look.all(Replica):
            yield from self._replica(look, replica, now)
        for held in look.all(Reservation):
            late = held.spec.deadline < timestamp(now.wall_ms) - LATE
            if held.status.phase in _ACTIVE and (late or self.whim(30)):
                yield dropped(self, held, "Expired")

    def _replica(self, look: Look, replica: Replica, now: Instant) -> Iterator[Any]:
        state, binding = replica.status.state, replica.status.binding
        if state is State.RESERVED:
            held = look.get(Reservation, replica.namespace, replica.status.reservation)
            if held is None or held.spec.deadline < timestamp(now.wall_ms) - LATE:
                operation = meant(replica, "unreserve", self.identity)
                yield Unreserve(target(replica), "Expired", self.term, operation)
            return
        if state is State.FAILED and binding is None:
            yield self._move(replica, State.RELEASED)
        if binding is None:
            return
        if state is State.UNKNOWN and (self._gone(look, replica) or self.whim(4)):
            yield self._move(replica, State.FAILED)
        elif state in (State.FAILED, State.SUCCEEDED, State.STOPPING):
            keeps = replica.spec.template.on_disconnect is OnDisconnect.KEEP
            if (self._gone(look, replica) and not keeps) or self.whim(8):
                yield self._move(replica, State.RELEASED)

    @staticmethod
    def _gone(look: Look, replica: Replica) -> bool:
        """Whether the fence has passed; for `keep` work, whether its node lives on without it."""
        binding = replica.status.binding
        node = look.get(Node, "", binding.node) if binding is not None else None
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
            operation=meant(replica, to.value, self.identity),
        )


def dropped(hand: Hand, held: Reservation, reason: str) -> DropReservation:
    """The request to let a reservation go."""
    return DropReservation(
        held.namespace,
        held.name,
        held.metadata.uid,
        reason,
        hand.term,
        f"{hand.identity}/{held.metadata.uid}/drop",
    )


class GarbageHand(Hand):
    """Takes away what outlived its owner: reservations, and operations that are past their time."""

    scope = "controller:garbage"
    period_ms = 6_000
    end_key = keys.after_prefix(keys.OPERATIONS)

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for held in look.all(Reservation):
            if self._owned(look, held) and not self.whim(30):
                continue
            if held.status.phase in _ACTIVE:
                yield dropped(self, held, "Ownerless")
            else:
                uid = held.metadata.uid
                operation = f"{self.identity}/{uid}/remove"
                yield Remove("reservations", held.namespace, held.name, uid, operation=operation)
        for workload in look.all(Workload):
            if FOREGROUND_FINALIZER in workload.metadata.finalizers:
                yield from self._emptied(look, workload)
        old = [
            key.removeprefix(keys.OPERATIONS)
            for key, past in look.keyed(PastOperation).items()
            if past.until < timestamp(now.wall_ms) or self.whim(50)
        ]
        if old:
            yield ForgetOperations(tuple(old), self.term)

    @staticmethod
    def _emptied(look: Look, workload: Workload) -> Iterator[Any]:
        """Let go of a workload that waited for its replicas to go first."""
        if any(r.spec.workload_uid == workload.metadata.uid for r in look.all(Replica)):
            return
        rest = tuple(f for f in workload.metadata.finalizers if f != FOREGROUND_FINALIZER)
        metadata = msgspec.structs.replace(workload.metadata, finalizers=rest)
        yield Update(msgspec.structs.replace(workload, metadata=metadata))

    @staticmethod
    def _owned(look: Look, held: Reservation) -> bool:
        owner = held.spec.owner
        struct = Workload if owner.kind == "Workload" else Replica
        found = look.get(struct, held.namespace, owner.name)
        return found is not None and found.metadata.uid == owner.uid


class DrainHand(Hand):
    """Empties draining nodes, as far as budgets let it."""

    scope = "controller:drain"

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for replica in look.all(Replica):
            binding = replica.status.binding
            if binding is None or replica.status.state not in (State.BOUND, State.RUNNING):
                continue
            node = look.get(Node, "", binding.node)
            if node is not None and node.spec.drain is not None:
                yield Evict(
                    target(replica),
                    Cause.DRAIN,
                    node.spec.drain.reason,
                    self.term,
                    meant(replica, "drain", self.identity),
                )


class EndpointsHand(Hand):
    """Says which replicas are reachable."""

    scope = "controller:endpoints"

    def think(self, look: Look, now: Instant) -> Iterator[Any]:
        for replica in look.all(Replica):
            ready = replica.status.stage is Stage.READY or self.whim(30)
            if replica.status.state is State.RUNNING and ready:
                version = replica.metadata.resource_version
                yield ReportStage(target(replica), Stage.SERVING, version=version)
