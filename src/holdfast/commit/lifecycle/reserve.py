"""Reserving capacity ahead of a bind: for one replica, for a gang, for recovery.

There is at most one active reservation per owner and intent. A scheduler that crashed after
reserving finds its own again by that name and never makes a second one.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.component_preconditions import grounds_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.leases import former_holder_refusal, term_refusal
from holdfast.commit.ledgers.charges import capacity_class
from holdfast.commit.lifecycle import gangs
from holdfast.commit.lifecycle.bind import (
    fit_on,
    life_refusal,
    load_for_place,
    node_for,
    place_refusal,
)
from holdfast.commit.lifecycle.reservations import (
    add_claim,
    distant_refusal,
    drop_claims,
    give_back,
    held_for,
    is_over,
    open_reservation,
    overdue_refusal,
    replica_owner,
    save,
)
from holdfast.commit.lifecycle.transitions import actor_for, current_replica, record_transition
from holdfast.commit.objects.admission import invalid
from holdfast.commit.operations import (
    add_operation,
    digest,
    past_key,
    recall,
    recall_past,
    remember_past,
)
from holdfast.commit.request_steps import (
    PLACE,
    ComparedRecord,
    PlacementStep,
    Replayed,
    age_refusal,
)
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
    ReservationPhase,
    ReservationSpec,
    reservation_name,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import Actor, Stage, State
from holdfast.model.placement.fit import Allocation, judge_held, recovery_shortage, sums_of
from holdfast.model.quota.charging import budget_of, is_active, is_recovery
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_named, kind_of_struct
from holdfast.model.requests import CommitGang, DropReservation, HoldCapacity, Reserve, Unreserve
from holdfast.model.validation import validate


def reserve(draft: Draft, context: Context, request: Reserve) -> Replica | Replayed | Refusal:
    """Pending to Reserved: the place is charged at once and released at the deadline."""
    load_for_place(draft, request.target, request.node, request.term.scope)
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if isinstance(replica, Refusal):
        return former_holder_refusal(draft, context, request.term, replica)
    if not isinstance(replica, Replica):
        return replica
    actor = actor_for(context, replica, State.RESERVED)
    if isinstance(actor, Refusal):
        return actor
    ledger = node_for(draft, request.node, request.node_uid)
    if isinstance(ledger, Refusal):
        return ledger
    refusal = (
        term_refusal(draft, context, request.term)
        or age_refusal(context, request.snapshot_age_ms)
        or _intent_refusal(request.intent)
        or life_refusal(draft, replica)
        or place_refusal(draft, replica, request.node, ledger)
    )
    if refusal is not None:
        return refusal
    held = fit_on(request.node, ledger, replica, request.devices)
    if isinstance(held, Refusal):
        return held
    reservation = _reservation_for(draft, context, request, replica)
    if isinstance(reservation, Refusal):
        return reservation
    if is_recovery(reservation):
        refusal = recovery_shortage(ledger, sums_of(held))
        if refusal is not None:
            return refusal
    place = gangs.member_claim(draft, replica, request.node, ledger, held)
    grown = add_claim(draft, context, reservation, place, ledger)
    if isinstance(grown, Refusal):
        return grown
    save(draft, grown)
    return record_transition(
        draft,
        context,
        replica,
        State.RESERVED,
        stage=Stage.SCHEDULED,
        reason="Reserved",
        evidence=f"reservation {grown.name} on {request.node}, its ledger as of revision "
        f"{draft.base(keys.node_ledger(request.node))}",
        operation=request.operation,
        mark=mark,
        reservation=grown.name,
    )


def _reservation_for(
    draft: Draft, context: Context, request: Reserve, replica: Replica
) -> Reservation | Refusal:
    """The gang's open reservation to add to, or a new one for this replica alone."""
    of = capacity_class(draft, replica.spec.template.priority_class)
    if not request.gang:
        spec = ReservationSpec(
            owner=replica_owner(replica),
            intent=request.intent,
            deadline=request.deadline,
            capacity_class=of,
            priority_class=budget_of(replica.spec.template.priority_class),
        )
        name = reservation_name(replica.name, request.intent)
        return open_reservation(draft, context, replica.namespace, name, spec, request.term.epoch)
    gang = draft.object(Reservation, replica.namespace, request.gang)
    if gang is None or gang.status.phase is not ReservationPhase.HELD:
        return Refusal(Reason.RESERVATION_MISSING, f"gang reservation {request.gang} is not open")
    if gang.spec.owner.uid != replica.spec.workload_uid:
        return Refusal(
            Reason.PROTECTED_CAPACITY, f"gang {gang.name} belongs to {gang.spec.owner.name}"
        )
    return overdue_refusal(context, gang) or gang


def unreserve(draft: Draft, context: Context, request: Unreserve) -> Replica | Replayed | Refusal:
    """Reserved to Pending: by the scheduler after a conflict, by repair past the deadline."""
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    actor = actor_for(context, replica, State.PENDING)
    if isinstance(actor, Refusal):
        return actor
    refusal = term_refusal(draft, context, request.term)
    if refusal is not None:
        return refusal
    name = replica.status.reservation
    if actor is Actor.REPAIR:
        held = draft.object(Reservation, replica.namespace, name)
        if held is not None and not is_over(context, held):
            return Refusal(Reason.NOT_ALLOWED, f"reservation {name} has not reached its deadline")
    drop_claims(draft, context, replica.namespace, name, replica, request.reason)
    return record_transition(
        draft,
        context,
        replica,
        State.PENDING,
        # A scheduler has looked at it: it waits again.
        stage=Stage.QUEUED,
        reason=request.reason,
        evidence=f"reservation {name} given back",
        operation=request.operation,
        mark=mark,
        reservation="",
    )


def hold_capacity(
    draft: Draft, context: Context, request: HoldCapacity
) -> Reservation | Replayed | Refusal:
    """Hold capacity for an owner and an intent. A gang may start empty and grow by `reserve`."""
    if not context.is_actor(Actor.SCHEDULER, Actor.REPAIR, Actor.WORKLOAD, Actor.RESERVES):
        return Refusal(Reason.NOT_OWNER, f"{context.identity.name} may not hold capacity")
    refusal = grounds_refusal(draft, context, request) or _intent_refusal(request.intent)
    if refusal is not None:
        return refusal
    mark = digest(request)
    name = reservation_name(request.owner.name, request.intent)
    kind = kind_of_struct(Reservation)
    draft.load(keys.object_key(kind, request.namespace, name), past_key(context, request.operation))
    old = draft.object(Reservation, request.namespace, name)
    done = recall(old.metadata, request.operation, mark) if old is not None else None
    done = done or recall_past(draft, context, request.operation, mark)
    if done is not None:
        return done
    owner = _owner(draft, request.namespace, request.owner)
    if isinstance(owner, Refusal):
        return owner
    spec = ReservationSpec(
        owner=request.owner,
        intent=request.intent,
        deadline=request.deadline,
        capacity_class=capacity_class(draft, owner.spec.template.priority_class),
        priority_class=budget_of(owner.spec.template.priority_class),
        min_available=request.min_available,
    )
    claims = request.claims
    made: Reservation | Refusal
    if old is not None and _is_own_recovery(context, old, spec):
        distant = distant_refusal(context, spec.deadline)
        if distant is not None:
            return distant
        made, claims = _kept(draft, old, spec, claims)
    else:
        made = open_reservation(draft, context, request.namespace, name, spec, request.term.epoch)
    draft.load(*(keys.node_ledger(claim.node) for claim in claims if claim.node))
    for claim in claims:
        if isinstance(made, Refusal):
            return made
        made = _held_on(draft, context, made, claim, owner)
    if isinstance(made, Refusal):
        return made
    errors = validate(made)
    if errors:
        return invalid(made, errors)
    made = add_operation(draft, context, made, request.operation, mark)
    # Also kept in a record of its own: what was released since must not be held again.
    remember_past(draft, context, made, request.operation, mark)
    save(draft, made)
    return made


def _is_own_recovery(context: Context, old: Reservation, spec: ReservationSpec) -> bool:
    """Whether the caller already holds this recovery lane for the same owner."""
    return (
        context.is_actor(Actor.RESERVES)
        and spec.intent is Intent.RECOVERY
        and is_active(old)
        and old.status.by == context.identity.name
        and old.spec.owner.uid == spec.owner.uid
    )


def _kept(
    draft: Draft, old: Reservation, spec: ReservationSpec, claims: tuple[Claim, ...]
) -> tuple[Reservation, tuple[Claim, ...]]:
    """What stays of a recovery lane, and what has yet to be held. The rest is released.

    All in one transaction: a lane that moves is never without a place in between, and a deadline
    that passed meanwhile has not been acted on.
    """
    wanted, kept = list(claims), []
    # Claims that are charged elsewhere from now on are charged again.
    paid, pays = ((it.capacity_class, it.priority_class) for it in (old.spec, spec))
    same = paid == pays
    draft.load(*(keys.node_ledger(it.node) for it in old.status.claims if it.node))
    for claim in old.status.claims:
        if claim.consumed:
            continue
        if claim in wanted and same:
            wanted.remove(claim)
            kept.append(claim)
        else:
            give_back(draft, old, claim)
    spec = msgspec.structs.replace(spec, deadline=max(spec.deadline, old.spec.deadline))
    moved_on = spec != old.spec
    metadata = msgspec.structs.replace(
        old.metadata, generation=old.metadata.generation + int(moved_on)
    )
    status = msgspec.structs.replace(old.status, claims=tuple(kept))
    return msgspec.structs.replace(old, metadata=metadata, spec=spec, status=status), tuple(wanted)


def _owner(draft: Draft, namespace: str, owner: ReservationOwner) -> Workload | Replica | Refusal:
    """The owner with exactly this uid. It is read and so compared: nothing is held for a deleted
    owner.
    """
    found: Workload | Replica | None
    if owner.kind == "Workload":
        found = draft.object(Workload, namespace, owner.name)
    elif owner.kind == "Replica":
        found = draft.object(Replica, namespace, owner.name)
    else:
        return Refusal(Reason.INVALID, f"owner.kind: {owner.kind}: must be Workload or Replica")
    if found is None or found.metadata.uid != owner.uid:
        return Refusal(Reason.MISSING, f"{owner.kind} {owner.name} of uid {owner.uid} is gone")
    if found.metadata.deletion_timestamp is not None:
        return Refusal(Reason.TERMINATING, f"{owner.kind} {owner.name} is being deleted")
    return found


def _held_on(
    draft: Draft,
    context: Context,
    reservation: Reservation,
    claim: Claim,
    owner: Workload | Replica,
) -> Reservation | Refusal:
    """Add one claim that states its charge and devices, checked by the same rules as a bind."""
    refusal = _stated_refusal(claim)
    if refusal is not None:
        return refusal
    if not claim.node:
        return add_claim(draft, context, reservation, claim, None)
    ledger = draft.ledger(NodeLedger, keys.node_ledger(claim.node))
    if ledger is None:
        return Refusal(Reason.NODE_MISSING, f"node {claim.node} is not registered")
    held = Allocation(charge=claim.charge, devices=claim.devices, ports=claim.ports)
    refusal = place_refusal(draft, owner, claim.node, ledger) or judge_held(
        ledger, held, recovery=is_recovery(reservation)
    )
    if refusal is not None:
        return refusal
    return add_claim(draft, context, reservation, claim, ledger)


def _stated_refusal(claim: Claim) -> Refusal | None:
    """Refuse a claim that could not be released as stated: it would leak or create capacity."""
    if claim.consumed or any(units < 0 for units in claim.charge.values()):
        why = "claims: must state what they take: nothing negative, and nothing consumed"
        return Refusal(Reason.INVALID, why)
    if not claim.node and (claim.devices or claim.ports):
        return Refusal(Reason.INVALID, "claims: devices and ports require a node")
    return None


def _intent_refusal(intent: Intent) -> Refusal | None:
    """Refuse a preemption: it only promises a place that others hold, while claims made here are
    charged.
    """
    if intent is not Intent.PREEMPTION:
        return None
    return Refusal(Reason.INVALID, "intent: a preemption must use StopAndReserve")


def commit_gang(
    draft: Draft, context: Context, request: CommitGang
) -> Reservation | Replayed | Refusal:
    """Commit a gang: one write allows all its members to be bound. Before it none can be."""
    mark = digest(request)
    gang = _named(draft, request.namespace, request.reservation, request.uid)
    if isinstance(gang, Refusal):
        return gang
    done = recall(gang.metadata, request.operation, mark)
    if done is not None:
        return done
    if not context.is_actor(Actor.SCHEDULER):
        return Refusal(Reason.NOT_OWNER, "only a scheduler may commit a gang")
    refusal = term_refusal(draft, context, request.term) or overdue_refusal(context, gang)
    if refusal is not None:
        return refusal
    if gang.spec.intent is not Intent.GANG or gang.status.phase is not ReservationPhase.HELD:
        return Refusal(Reason.WRONG_STATE, f"{gang.name} is not a gang waiting to be committed")
    refusal = gangs.commit_refusal(draft, gang)
    if refusal is not None:
        return refusal
    status = msgspec.structs.replace(gang.status, phase=ReservationPhase.COMMITTED)
    after = msgspec.structs.replace(gang, status=status)
    after = add_operation(draft, context, after, request.operation, mark)
    save(draft, after)
    return after


def drop(
    draft: Draft, context: Context, request: DropReservation
) -> Reservation | Replayed | Refusal:
    """Release a reservation: by its creator, or by repair after its deadline or without its
    owner.
    """
    mark = digest(request)
    found = _named(draft, request.namespace, request.reservation, request.uid)
    if isinstance(found, Refusal):
        return found
    done = recall(found.metadata, request.operation, mark)
    if done is not None:
        return done
    refusal = term_refusal(draft, context, request.term) or drop_refusal(draft, context, found)
    if refusal is not None:
        return refusal
    after = release_reservation(draft, context, found, request.reason)
    if after is None:
        return Refusal(Reason.RESERVATION_MISSING, f"reservation {found.name} has already ended")
    if isinstance(after, Refusal):
        return after
    after = add_operation(draft, context, after, request.operation, mark)
    save(draft, after)
    return after


def release_reservation(
    draft: Draft, context: Context, found: Reservation, reason: str
) -> Reservation | Refusal | None:
    """Release everything that a reservation still holds.

    The same transaction makes its Reserved replicas Pending again: otherwise they would wait for a
    place that is not held for them.
    """
    if not is_active(found):
        return None
    names = [claim.replica for claim in found.status.claims if claim.replica and not claim.consumed]
    for replica in for_each(names, lambda name: draft.object(Replica, found.namespace, name)):
        if replica is None or replica.status.reservation != found.name:
            continue
        if replica.status.state is not State.RESERVED or not held_for(found, replica):
            continue
        actor = actor_for(context, replica, State.PENDING)
        if isinstance(actor, Refusal):
            return actor
        evidence = f"reservation {found.name} given back"
        record_transition(
            draft,
            context,
            replica,
            State.PENDING,
            stage=Stage.QUEUED,
            reason=reason,
            evidence=evidence,
            reservation="",
        )
    return drop_claims(draft, context, found.namespace, found.name, None, reason)


def drop_refusal(draft: Draft, context: Context, found: Reservation) -> Refusal | None:
    """Refuse a release that this caller may not make now."""
    if context.identity.name == found.status.by:
        return None
    if not context.is_actor(Actor.REPAIR, Actor.GARBAGE):
        return Refusal(Reason.NOT_OWNER, f"{context.identity.name} did not create {found.name}")
    if is_over(context, found) or _ownerless(draft, found):
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"reservation {found.name} has an owner and time left: it is not garbage",
    )


def _ownerless(draft: Draft, found: Reservation) -> bool:
    """Whether the owner is gone. It is read here and so compared: a leak is proven, not guessed."""
    owner = found.spec.owner
    key = keys.object_key(kind_named(owner.kind), found.namespace, owner.name)
    obj = draft.read(key)
    return obj is None or obj.metadata.uid != owner.uid


def _named(draft: Draft, namespace: str, name: str, uid: str) -> Reservation | Refusal:
    found = draft.object(Reservation, namespace, name)
    if found is None or found.metadata.uid != uid:
        return Refusal(Reason.RESERVATION_MISSING, f"reservation {name} does not exist")
    return found


STEPS = (
    PlacementStep(
        "reserve a place",
        "scheduler",
        "the proposal's snapshot",
        "the place, the quota or the device goes to other work; a drain begins",
        "the commit; the loser proposes again",
        is_aged=True,
        request=Reserve,
        handler=reserve,
        compares=(*PLACE, ComparedRecord.RESERVATION),
    ),
    PlacementStep(
        "give a reserved place back",
        "scheduler; controller:repair past the deadline",
        "the reservation",
        "it is bound meanwhile",
        "the replica's transition number",
        request=Unreserve,
        handler=unreserve,
        compares=(ComparedRecord.REPLICA, ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "hold capacity for an owner",
        "scheduler, controller:repair, controller:workload, controller:reserves",
        "a snapshot of nodes",
        "the capacity goes to other work",
        "the commit",
        request=HoldCapacity,
        handler=hold_capacity,
        compares=(
            ComparedRecord.RESERVATION,
            ComparedRecord.NODE_LEDGER,
            ComparedRecord.QUOTA,
            ComparedRecord.EPOCH,
        ),
    ),
    PlacementStep(
        "commit a gang",
        "scheduler",
        "all members' claims",
        "the deadline passes",
        "one write of the reservation",
        request=CommitGang,
        handler=commit_gang,
        compares=(ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
    PlacementStep(
        "release a reservation",
        "its creator; controller:repair, controller:garbage",
        "deadline, or that the owner is gone",
        "it is consumed meanwhile",
        "the reservation's phase in the transaction",
        request=DropReservation,
        handler=drop,
        compares=(ComparedRecord.RESERVATION, ComparedRecord.EPOCH),
    ),
)
