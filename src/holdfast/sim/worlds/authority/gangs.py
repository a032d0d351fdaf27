"""How a scheduler hand places a gang: hold a reservation, gather members under it, commit it, and
bind them all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.requests import Bind, BindTogether, CommitGang, HoldCapacity, Reserve
from holdfast.sim.worlds.authority.hands import Hand, meant, target
from holdfast.sim.worlds.authority.looks import Look

_OPEN = (ReservationPhase.HELD, ReservationPhase.COMMITTED)


def gangs(hand: Hand, look: Look, nodes: list[Node], deadline: datetime) -> Iterator[Any]:
    """One step for every gang that still lacks something."""
    for workload in look.all(Workload):
        if workload.spec.gang is None or workload.metadata.deletion_timestamp is not None:
            continue
        members = [r for r in look.all(Replica) if r.spec.workload_uid == workload.metadata.uid]
        gang = look.get(Reservation, workload.namespace, f"{workload.name}-gang")
        if gang is None or gang.status.phase not in _OPEN:
            # A gang that finds no place would be held and dropped for ever.
            waits = any(r.status.state is State.PENDING for r in members)
            if waits and not hand.resting:
                yield _opened(hand, workload, workload.spec.gang.min_available, deadline)
            continue
        if gang.status.phase is ReservationPhase.HELD:
            yield from _gather(hand, members, gang, nodes, deadline)
        yield from _complete(hand, look, members, gang)


def _opened(hand: Hand, workload: Workload, least: int, deadline: datetime) -> HoldCapacity:
    owner = ReservationOwner(kind="Workload", name=workload.name, uid=workload.metadata.uid)
    operation = f"{hand.identity}/{workload.metadata.uid}/{deadline.isoformat()}/gang"
    return HoldCapacity(
        workload.namespace, owner, Intent.GANG, (), deadline, hand.term, least, operation
    )


def _gather(
    hand: Hand,
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
            meant(replica, f"member-{node.name}", hand.identity),
            gang=gang.name,
        )


def _complete(hand: Hand, look: Look, members: list[Replica], gang: Reservation) -> Iterator[Any]:
    """Commit the gang, then bind its members; an eager hand tries the second before the first."""
    if gang.status.phase is ReservationPhase.HELD:
        operation = f"{hand.identity}/{gang.metadata.uid}/commit"
        yield CommitGang(gang.namespace, gang.name, gang.metadata.uid, hand.term, operation)
    elif hand.whim(4):
        return
    binds = []
    for claim in gang.status.claims:
        node = look.get(Node, "", claim.node)
        replica = next((r for r in members if r.name == claim.replica), None)
        if claim.consumed or node is None or replica is None:
            continue
        if replica.status.state is State.RESERVED:
            operation = meant(replica, "bind-member", hand.identity)
            uid = node.metadata.uid
            binds.append(Bind(target(replica), node.name, uid, hand.term, operation=operation))
    early = gang.status.phase is ReservationPhase.HELD
    if binds and (not early or hand.whim(4)):
        yield BindTogether(tuple(binds))
