"""Reservations as records: creating one, consuming a claim, and releasing it.

A reservation's claims are charged to node and tenant when it is created, owned by the reservation's
uid. A bind turns a claim into a binding; the rest is released here when the reservation ends. A
preemption's claim is different: its place is only promised, because its victims still hold it, and
it charges no node until it is bound. Its tenant is charged at once if the quota has room.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.charges import charge_tenant, refund_tenant, return_node, take_node
from holdfast.commit.ledgers.derived_records import update_derived_records
from holdfast.commit.objects.request_form import clip
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    ReservationStatus,
)
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.placement.fit import Allocation, withdraw_promise
from holdfast.model.placement.gang import is_broken, is_formed, phase_when_over, runs
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal


def replica_owner(replica: Replica) -> ReservationOwner:
    """A replica as the owner of a reservation."""
    return ReservationOwner(
        kind="Replica",
        name=replica.name,
        uid=replica.metadata.uid,
        generation=replica.metadata.generation,
    )


def held_by_claim(claim: Claim) -> Allocation:
    """The allocation of a claim."""
    return Allocation(charge=claim.charge, devices=claim.devices, ports=claim.ports)


def is_promise(reservation: Reservation) -> bool:
    """Whether its place is only promised and still held by others."""
    return reservation.spec.intent is Intent.PREEMPTION


def overdue_refusal(context: Context, reservation: Reservation) -> Refusal | None:
    """Refuse use after the deadline. A holder stops one skew early, because the reclaimer's
    clock may be that much ahead.
    """
    deadline = reservation.spec.deadline
    left_ms = (deadline - context.at).total_seconds() * 1000
    if left_ms > context.settings.skew_ms:
        return None
    return Refusal(
        Reason.RESERVATION_EXPIRED,
        f"reservation {reservation.name} ended at {deadline.isoformat()}",
        {"reservation": reservation.name, "deadline": deadline.isoformat()},
    )


def is_past_deadline(context: Context, deadline: datetime) -> bool:
    """Whether a reclaimer may act: one skew after the deadline, because the holder's clock may
    be behind.
    """
    return (context.at - deadline).total_seconds() * 1000 >= context.settings.skew_ms


def is_over(context: Context, reservation: Reservation) -> bool:
    """Whether its deadline has passed, or its intended duration, whatever wall clock set the
    deadline.
    """
    deadline, made = reservation.spec.deadline, reservation.metadata.creation_timestamp
    if made is None or is_past_deadline(context, deadline):
        return is_past_deadline(context, deadline)
    for_ms = (deadline - made).total_seconds() * 1000
    return context.age_ms(made) >= for_ms + context.settings.skew_ms


def distant_refusal(context: Context, deadline: datetime) -> Refusal | None:
    """Refuse a deadline further ahead than any reservation may last: the caller's clock is
    wrong, and the capacity would be held until that day.
    """
    left_ms = (deadline - context.at).total_seconds() * 1000
    if left_ms <= context.settings.reservation_max_ms:
        return None
    most_s = context.settings.reservation_max_ms // 1000
    return Refusal(
        Reason.INVALID,
        f"spec.deadline: {deadline.isoformat()}: is more than {most_s} s ahead of the servers' "
        f"clock, {context.at.isoformat()}; correct the clock of {context.identity.name}",
        {"field": "spec.deadline"},
    )


def open_reservation(
    draft: Draft, context: Context, namespace: str, name: str, spec: ReservationSpec, epoch: int
) -> Reservation | Refusal:
    """A new, empty reservation.

    An active one under this name is a refusal, not a second reservation.
    """
    old = draft.object(Reservation, namespace, name)
    if old is not None and (is_active(old) or runs(old, spec.owner.uid)):
        return Refusal(
            Reason.RESERVATION_EXISTS,
            f"{spec.owner.name} already holds reservation {name} for {spec.intent.value}",
            {"reservation": name, "uid": old.metadata.uid},
        )
    owner = spec.owner
    made = Reservation(
        ObjectMeta(
            name=name,
            namespace=namespace,
            uid=context.new_uid(),
            generation=1,
            creation_timestamp=context.at,
            owner_references=(
                OwnerReference(
                    api_version=API_VERSION,
                    kind=owner.kind,
                    name=owner.name,
                    uid=owner.uid,
                    controller=True,
                ),
            ),
        ),
        spec=spec,
        status=ReservationStatus(by=context.identity.name, epoch=epoch),
    )
    if old is not None:
        # Its successor keeps the remembered operations, or a late copy of one would count as a new
        # request.
        metadata = msgspec.structs.replace(made.metadata, operations=old.metadata.operations)
        made = msgspec.structs.replace(made, metadata=metadata)
    refusal = overdue_refusal(context, made) or distant_refusal(context, spec.deadline)
    if refusal is None and old is None:
        # An ended one is replaced; any other is a new object of its tenant.
        refusal = update_derived_records(draft, context, None, made)
    return refusal if refusal is not None else made


def add_claim(
    draft: Draft,
    context: Context,
    reservation: Reservation,
    claim: Claim,
    ledger: NodeLedger | None,
) -> Reservation | Refusal:
    """Charge a claim and add it. `ledger` is the node's, already checked; None for quota alone."""
    cohort = reservation.status.cohort
    if reservation.spec.quota:
        spec = reservation.spec
        charge = charge_tenant(
            draft,
            context,
            reservation.namespace,
            spec.capacity_class,
            claim.charge,
            spec.priority_class,
        )
        if isinstance(charge, Refusal):
            return charge
        cohort = charge
    if ledger is not None:
        take_node(draft, claim.node, ledger, held_by_claim(claim), reservation)
    status = msgspec.structs.replace(
        reservation.status, claims=(*reservation.status.claims, claim), cohort=cohort
    )
    return msgspec.structs.replace(reservation, status=status)


def held_for(reservation: Reservation, replica: Replica) -> bool:
    """Whether it is held for exactly this replica or its workload, by uid and not only by name."""
    return reservation.spec.owner.uid in (replica.metadata.uid, replica.spec.workload_uid)


def save(draft: Draft, reservation: Reservation) -> None:
    draft.write(keys.key_of(reservation), reservation)


def claim_for(reservation: Reservation, replica: Replica, node: str) -> int | None:
    """The open claim that this replica may consume on this node: its own, or one for any replica
    of the owner.
    """
    for index, claim in enumerate(reservation.status.claims):
        if claim.node == node and not claim.consumed and claim.replica in ("", replica.name):
            return index
    return None


def give_back(draft: Draft, reservation: Reservation, claim: Claim) -> None:
    """Return one open claim to its node and tenant."""
    if is_promise(reservation):
        ledger = draft.ledger(NodeLedger, keys.node_ledger(claim.node))
        if ledger is not None:
            after = withdraw_promise(ledger, reservation.metadata.uid)
            draft.write(keys.node_ledger(claim.node), after)
    elif claim.node:
        return_node(draft, claim.node, held_by_claim(claim), reservation)
    spec = reservation.spec
    if spec.quota:
        refund_tenant(
            draft, reservation.namespace, spec.capacity_class, claim.charge, spec.priority_class
        )


def consume_claim(reservation: Reservation, index: int, replica: str) -> Reservation:
    """The reservation after one claim became the binding of this replica; with the last one it is
    consumed.
    """
    claims = list(reservation.status.claims)
    claims[index] = msgspec.structs.replace(claims[index], replica=replica, consumed=True)
    done = all(claim.consumed for claim in claims)
    status = msgspec.structs.replace(
        reservation.status,
        claims=tuple(claims),
        phase=ReservationPhase.CONSUMED if done else reservation.status.phase,
    )
    return msgspec.structs.replace(reservation, status=status)


def drop_claims(
    draft: Draft,
    context: Context,
    namespace: str,
    name: str,
    replica: Replica | None,
    reason: str,
) -> Reservation | None:
    """Release what a reservation still holds, all of it or only the share of one replica.

    A deleted or ended reservation holds nothing, so there is nothing to do and nothing to refuse.
    """
    reservation = draft.object(Reservation, namespace, name)
    if reservation is None or not is_active(reservation):
        return None
    if replica is not None and not held_for(reservation, replica):
        return None
    draft.load(*(keys.node_ledger(c.node) for c in reservation.status.claims if c.node))
    rest = []
    for claim in reservation.status.claims:
        mine = replica is None or claim.replica == replica.name
        if claim.consumed or not mine:
            rest.append(claim)
        else:
            give_back(draft, reservation, claim)
    still_open = any(not claim.consumed for claim in rest)
    status = msgspec.structs.replace(
        reservation.status,
        claims=tuple(rest),
        phase=reservation.status.phase if still_open else ReservationPhase.RELEASED,
        reason=clip(reason),
    )
    after = msgspec.structs.replace(reservation, status=status)
    if is_formed(reservation, reservation.spec.owner.uid):
        # Its bound members go on, if they are enough; the others have lost their places.
        goes_on = ReservationPhase.COMMITTED if still_open else ReservationPhase.CONSUMED
        is_over = is_broken(after, reservation.spec.min_available)
        phase = phase_when_over(after) if is_over else goes_on
        after = msgspec.structs.replace(after, status=msgspec.structs.replace(status, phase=phase))
    save(draft, after)
    return after
