"""Reservation: capacity or quota held for a stated intent, with an owner and a deadline."""

from __future__ import annotations

from enum import StrEnum

from holdfast.model.kind_declaration import Kind, KindRules, Unwritten, Writers, count, moment, text
from holdfast.model.kinds.replica import DeviceShare
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, Count, Int, Object, Part, Revision, Timestamp


class Intent(StrEnum):
    """Why capacity is held.

    There is at most one active reservation per owner, generation and intent.
    """

    BIND = "bind"
    GANG = "gang"
    RECOVERY = "recovery"
    PREEMPTION = "preemption"
    REBALANCE = "rebalance"
    TEMPORARY = "temporary"


class ReservationPhase(StrEnum):
    HELD = "Held"
    COMMITTED = "Committed"
    CONSUMED = "Consumed"
    RELEASED = "Released"


class ReservationOwner(Part, frozen=True):
    """The owner of the reserved capacity.

    kind: the owner's kind.
    name: the owner's name, in the reservation's namespace.
    uid: the owner's uid.
    generation: the owner's generation at the time of the request.
    """

    kind: str
    name: str
    uid: str
    generation: Revision = 0


class Claim(Part, frozen=True):
    """What is held on one node.

    node: the node; empty for quota alone.
    replica: the replica it is meant for; empty for any of the owner's.
    address: for members of a gang that learn of each other: the address of the node.
    charge: amounts by resource, in internal units.
    devices: the devices that are held.
    ports: the fixed ports that are held, such as TCP/8080; of a member of a gang, all of them in
        the order of its template.
    consumed: whether a binding has replaced it.
    """

    node: str = ""
    replica: str = ""
    address: str = ""
    charge: dict[str, Int] = {}
    devices: tuple[DeviceShare, ...] = ()
    ports: tuple[str, ...] = ()
    consumed: bool = False


class ReservationSpec(Part, frozen=True):
    """What is held and until when. Only a recovery reservation can be renewed.

    owner: the owner of the reservation.
    intent: why.
    deadline: after this it is released, by the authority's clock.
    capacity_class: the quota class that is charged.
    priority_class: the priority class whose budget is charged.
    quota: whether the tenant's quota is charged, or only the nodes.
    min_available: for gangs: how many claims are needed before it is committed.
    """

    owner: ReservationOwner
    intent: Intent
    deadline: Timestamp
    capacity_class: CapacityClass = CapacityClass.HARD
    priority_class: str = ""
    quota: bool = True
    min_available: Count = 0


class ReservationStatus(Part, frozen=True):
    """What is held right now.

    phase: Held, Committed (a gang that may start), Consumed or Released.
    claims: what is held on which node; of a gang that was committed, the places of its members.
    succeeded: for gangs: how many members have done their work since it was committed.
    cohort: the quota cohort that was charged.
    by: the identity that created it.
    epoch: the lease epoch under which it was created.
    reason: why it ended.
    conditions: they are not written yet.
    """

    phase: ReservationPhase = ReservationPhase.HELD
    claims: tuple[Claim, ...] = ()
    succeeded: Count = 0
    cohort: str = ""
    by: str = ""
    epoch: Revision = 0
    reason: str = ""
    conditions: tuple[Condition, ...] = ()


class Reservation(Object, frozen=True, kw_only=True, tag="Reservation"):
    """Capacity or quota held for a stated intent.

    spec: what is held and until when.
    status: what is held right now.
    """

    spec: ReservationSpec
    status: ReservationStatus = ReservationStatus()


def reservation_name(owner: str, intent: Intent) -> str:
    """One name per owner and intent, so that a second reservation for the same is the same
    object.
    """
    return f"{owner}-{intent.value}"


def _reservation_rules() -> KindRules:
    from holdfast.model.validation import reservation

    return KindRules(
        reservation.reservation, reservation.reservation_status, reservation.reservation_update
    )


RESERVATION_KIND = Kind(
    Reservation,
    "reservations",
    rules=_reservation_rules,
    writers=Writers(spec=(), removers=(Actor.REPAIR, Actor.GARBAGE)),
    columns=(
        text("Phase", lambda o: o.status.phase.value, "Held, Committed, Consumed or Released"),
        text("Intent", lambda o: o.spec.intent.value, "what it is held for"),
        text("Owner", lambda o: f"{o.spec.owner.kind}/{o.spec.owner.name}", "whom it is held for"),
        count("Claims", lambda o: len(o.status.claims), "how many places it holds"),
        moment("Deadline", lambda o: o.spec.deadline, "when it is given back"),
    ),
    short_names=("rsv",),
    immutable=("spec",),
    removal_order=4,
    unwritten=Unwritten(("conditions",)),
)
