"""What replicas and reservations hold, and of which nodes: as their own objects say it.

`fleet.py` asks this of the state before and after each change, and writes down the difference.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.fit import Held
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationPhase
from holdfast.model.lifecycle import CHARGED, Cause

_ACTIVE = (ReservationPhase.HELD, ReservationPhase.COMMITTED)


class Where(msgspec.Struct, frozen=True, gc=False):
    """Where something is written down: on which node, on which shelf, for whom."""

    node: str
    shelf: str
    owner: str


def node_of(replica: Any) -> str:
    """Where a replica is, or an empty string."""
    if not isinstance(replica, Replica) or replica.status.state not in CHARGED:
        return ""
    binding = replica.status.binding
    return binding.node if binding is not None else ""


def _held(source: Binding | Claim, tenant: str) -> Held:
    return Held(source.charge, source.devices, source.ports, tenant)


def of_replica(replica: Any) -> dict[Where, Held]:
    """What a replica holds. A released one keeps its binding as history only."""
    if not isinstance(replica, Replica):
        return {}
    binding = replica.status.binding
    if binding is None or replica.status.state not in CHARGED:
        return {}
    uid, held = replica.metadata.uid, _held(binding, replica.namespace)
    found = {Where(binding.node, "held", uid): held}
    if replica.status.cause is Cause.PREEMPTION:
        found[Where(binding.node, "leaving", uid)] = held
    return found


def of_reservation(reservation: Any) -> dict[Where, Held]:
    """What a reservation holds: its open claims, or for a preemption what it was promised."""
    if not isinstance(reservation, Reservation) or reservation.status.phase not in _ACTIVE:
        return {}
    is_promise = reservation.spec.intent is Intent.PREEMPTION
    shelf = "promised" if is_promise else "held"
    found: dict[Where, Held] = {}
    for index, claim in enumerate(reservation.status.claims):
        if claim.consumed or not claim.node:
            continue
        # A gang may have several claims on one node. A promise has one, and its holder's name.
        uid = reservation.metadata.uid
        owner = uid if is_promise else f"{uid}/{index}"
        found[Where(claim.node, shelf, owner)] = _held(claim, reservation.namespace)
    return found
