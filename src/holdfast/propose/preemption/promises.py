"""The plan of a preemption, and what a decision makes of a promise that the store shows.

    decide  ->  stop the victims and promise their place   (StopAndReserve, one transaction)
            ->  wait until the promise fits                (the victims' proof of stop)
            ->  decide again: bind to the promised place

A scheduler that starts finds the promise of its replica in the store and goes on from there. What
cannot be used any more is given back (DropReservation), and so is a promise whose victims have not
stopped in time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from holdfast.model.charging import is_active
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, reservation_name
from holdfast.model.placement.fit import Allocation, claim, demand_of
from holdfast.model.refusal import Refusal
from holdfast.model.requests import DropReservation, Request, StopAndReserve, Target, Term
from holdfast.model.time import Instant, rfc3339, timestamp, wall_ms
from holdfast.observe.operation_plan import AwaitProgress, AwaitShown, PlanStep
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.outcome import (
    VICTIMS_STOPPING,
    BindReplica,
    PlacementReport,
    Preempt,
    Verdict,
    WakeEvent,
)
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.plans import PlacementPlan, PlannedPlace

# A promise lasts for the grace of its victims and this: they are killed, their proof of stop is
# committed and seen, and the bind is sent. A fence takes longer; then other nodes do better.
STOP_MARGIN_S = 90
# The commit ends a promise one clock skew early, and a bind takes time.
LEFT_MIN_MS = 10_000


def promise_of(view: FleetSnapshot, replica: Replica) -> tuple[Reservation, Claim] | None:
    """The open promise of a replica that the store shows."""
    name = reservation_name(replica.name, Intent.PREEMPTION)
    found: Reservation | None = view.get("reservations", replica.namespace, name)
    if found is None or not is_active(found) or found.spec.owner.uid != replica.metadata.uid:
        return None
    claims = [it for it in found.status.claims if not it.consumed]
    return (found, claims[0]) if claims else None


def fits_now(view: FleetSnapshot, replica: Replica, held: Reservation, at: Claim) -> bool:
    """Whether the victims have left the promised place."""
    site = view.fleet.get(at.node)
    if site is None:
        return False
    demand = demand_of(replica.spec.template)
    # Binds in flight count: what two promises on one node wait for has no names.
    found = claim(site.ledger, demand, at.devices or None, held.metadata.uid)
    return not isinstance(found, Refusal)


def resumed(
    view: FleetSnapshot, replica: Replica, equivalence: EquivalenceClass, now: Instant
) -> BindReplica | Preempt | None:
    """What to do about the promise of a replica; None if it has none."""
    found = promise_of(view, replica)
    if found is None:
        return None
    held, at = found
    site = view.fleet.get(at.node)
    left_ms = wall_ms(held.spec.deadline) - now.wall_ms
    takes = site is not None and bool(equivalence.verdicts.takes_work(view.columns)[site.row])
    is_over = left_ms < LEFT_MIN_MS or not takes
    if site is not None and not is_over and fits_now(view, replica, held, at):
        return BindReplica(
            node=at.node,
            node_uid=site.uid,
            held=Allocation(at.charge, at.devices, at.ports),
            score=0.0,
            scores={},
            candidates=1,
            reasons={},
            policy=view.policy.name if view.policy is not None else "",
            snapshot_revision=view.revision,
            snapshot_age_ms=view.age_ms,
            reservation=held.name,
            node_revision=site.revision,
        )
    return Preempt(
        at.node,
        site.uid if site is not None else "",
        Allocation(at.charge, at.devices, at.ports),
        {},
        (),
        PlacementReport({VICTIMS_STOPPING: 1}, "", Verdict.WAITING, ()),
        view.revision,
        view.age_ms,
        is_over=is_over,
    )


def plan_of(
    identity: str, term: Term, replica: Replica, found: Preempt, view: FleetSnapshot, now: Instant
) -> PlacementPlan:
    """The plan for a decision to preempt."""
    target = _target(replica)
    promise = promise_of(view, replica)
    if promise is not None:
        until_ms = wall_ms(promise[0].spec.deadline)
    else:
        until_ms = now.wall_ms + (found.grace_s + STOP_MARGIN_S) * 1_000
    deadline_ms = now.monotonic_ms + max(0, until_ms - now.wall_ms - LEFT_MIN_MS)
    drop = PlanStep("give back", _drop(identity, replica, term))
    if found.is_over:
        steps: tuple[PlanStep, ...] = (drop,)
    else:
        shown = AwaitShown("that the victims have stopped", _stopped(replica))
        steps = (PlanStep("wait for the victims", _nothing, (shown,)),)
        if found.victims:
            steps = (
                PlanStep("stop victims", _stop(identity, replica, found, term, until_ms)),
                *steps,
            )
    key = "reservations", target.namespace, reservation_name(target.name, Intent.PREEMPTION)
    places = (PlannedPlace(replica, found.node, found.held, found.victims),)
    return PlacementPlan(
        name=("preemption", target.namespace, target.name),
        replicas=(replica,),
        places=places if found.victims else (PlannedPlace(replica, found.node, Allocation({})),),
        steps=steps,
        waits=_waiting(found.node, until_ms),
        deadline_ms=deadline_ms,
        objects=(key,),
        undo=() if found.is_over else (drop,),
        swaps=_swaps(replica, found, view),
    )


def _swaps(replica: Replica, found: Preempt, view: FleetSnapshot) -> bool:
    """Whether a victim's workload stopped the replica's own before."""
    displaced = replica.status.displaced
    victims = [view.get("replicas", *key) for key in found.keys]
    return displaced is not None and any(
        it is not None and it.spec.workload_uid == displaced.by for it in victims
    )


def _target(replica: Replica) -> Target:
    number = replica.status.transition_number
    return Target(replica.namespace, replica.name, replica.metadata.uid, number)


def _nothing(_view: object) -> Sequence[Request]:
    return ()


def _stopped(replica: Replica) -> Callable[[FleetSnapshot], AwaitProgress]:
    def progress(view: FleetSnapshot) -> AwaitProgress:
        found = promise_of(view, replica)
        if found is None:
            name = reservation_name(replica.name, Intent.PREEMPTION)
            last: Reservation | None = view.get("reservations", replica.namespace, name)
            mine = last is not None and last.spec.owner.uid == replica.metadata.uid
            # One that has not been seen yet may still come.
            return AwaitProgress.IMPOSSIBLE if mine else AwaitProgress.NOT_YET
        is_free = fits_now(view, replica, *found)
        return AwaitProgress.MET if is_free else AwaitProgress.NOT_YET

    return progress


def _stop(
    identity: str, replica: Replica, found: Preempt, term: Term, until_ms: int
) -> Callable[[FleetSnapshot], Sequence[Request]]:
    def requests(view: FleetSnapshot) -> Sequence[Request]:
        if promise_of(view, replica) is not None:
            return ()
        victims = [view.get("replicas", *key) for key in found.keys]
        targets = tuple(_target(it) for it in victims if isinstance(it, Replica))
        it = _target(replica)
        # The same victims at the same transitions are the same intention: once they were stopped
        # their transitions are others, so no second stop has this id.
        named = zlib.crc32(repr([(v.uid, v.number) for v in targets]).encode())
        operation = f"{identity}/{it.uid}/{it.number}/preempt-{found.node}-{named:08x}"
        return [
            StopAndReserve(
                it,
                found.node,
                found.node_uid,
                targets,
                term,
                timestamp(until_ms),
                devices=found.held.devices or None,
                snapshot_age_ms=view.age_ms,
                operation=operation,
            )
        ]

    return requests


def _drop(
    identity: str, replica: Replica, term: Term
) -> Callable[[FleetSnapshot], Sequence[Request]]:
    def requests(view: FleetSnapshot) -> Sequence[Request]:
        found = promise_of(view, replica)
        if found is None:
            return ()
        held = found[0]
        operation = f"{identity}/{held.metadata.uid}/drop"
        why = "the promised place is not used"
        return [
            DropReservation(
                held.namespace, held.name, held.metadata.uid, why, term, operation=operation
            )
        ]

    return requests


def _waiting(node: str, until_ms: int) -> Callable[[FleetSnapshot, Instant], PlacementReport]:
    def report(view: FleetSnapshot, now: Instant) -> PlacementReport:
        site = view.fleet.get(node)
        count = len(site.leaving) if site is not None else 0
        who = "one victim" if count == 1 else f"{count} victims"
        message = f"waits for {who} to stop on node {node}, until {rfc3339(until_ms)}"
        return PlacementReport(
            {VICTIMS_STOPPING: 1}, message, Verdict.WAITING, (WakeEvent.NODES,), nodes=1
        )

    return report
