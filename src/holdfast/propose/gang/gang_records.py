"""What a snapshot shows of a gang: its members, its record, and who of it may be stopped."""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Reservation
from holdfast.model.kinds.workload import Workload
from holdfast.model.placement.gang import (
    PLACED,
    gang_record_name,
    is_formed,
    is_of_gang,
    spare_members,
)
from holdfast.observe.indexer import Index
from holdfast.propose.fleet_snapshot import FleetSnapshot


def _gang_of(replica: Replica) -> tuple[str, ...]:
    return (f"{replica.namespace}/{replica.spec.gang}",) if replica.spec.gang else ()


BY_GANG = Index("replicas", "gang", _gang_of)


def record_in(view: FleetSnapshot, replica: Replica) -> Reservation | None:
    """The record of the gang of this replica, as the snapshot has it."""
    return _record(view, replica.namespace, replica.spec.workload_uid, replica.spec.gang)


def _record(view: FleetSnapshot, namespace: str, uid: str, gang: str) -> Reservation | None:
    found: Reservation | None = view.get("reservations", namespace, gang_record_name(gang))
    return found if is_of_gang(found, uid) else None


def members_of(view: FleetSnapshot, replica: Replica) -> list[Replica]:
    """The members of the gang of this replica, by index."""
    (value,) = _gang_of(replica)
    uid = replica.spec.workload_uid
    found = [it for it in view.found(BY_GANG, value) if it.spec.workload_uid == uid]
    return sorted(found, key=lambda it: (it.spec.ordinal, it.spec.incarnation))


class RunningGang(msgspec.Struct, frozen=True):
    """A gang as the victims of a preemption are chosen from it.

    spare: how many of its members may be stopped so that it goes on; None if it is over, and what
        is left of it stops anyway.
    placed: the uids of the members that have to stop if it ends.
    """

    spare: int | None
    placed: frozenset[str]


def running_gang(view: FleetSnapshot, key: tuple[str, str, str]) -> RunningGang | None:
    """The gang of this tenant, workload (by uid) and name; None while its record is not known.

    Members that leave by a plan of ours, or that a hypothesis has taken out, have left it already.
    """
    namespace, uid, gang = key
    record = _record(view, namespace, uid, gang)
    if record is None:
        return None
    members = [
        (it, view.get("replicas", namespace, it.replica), _is_there(view, it, namespace))
        for it in record.status.claims
    ]
    placed = frozenset(
        replica.metadata.uid
        for _, replica, is_there in members
        if is_there and isinstance(replica, Replica) and replica.status.state in PLACED
    )
    if not is_formed(record, uid):
        return RunningGang(None, placed)
    workload: Workload | None = view.get("workloads", namespace, gang)
    stated = workload.spec.gang if workload is not None else None
    least = stated.min_available if stated is not None else 1
    gone = sum(not is_there for _, _, is_there in members)
    return RunningGang(max(0, spare_members(record, least) - gone), placed)


def _is_there(view: FleetSnapshot, claim: Claim, namespace: str) -> bool:
    replica = view.get("replicas", namespace, claim.replica)
    site = view.fleet.get(claim.node)
    if not claim.consumed:
        return True
    if replica is None or site is None:
        return False
    uid = replica.metadata.uid
    return uid in site.held and uid not in site.leaving
