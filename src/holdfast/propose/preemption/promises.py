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
from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, reservation_name
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    take_allocation,
    withdraw_promise,
)
from holdfast.model.quota.charging import is_active
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Refusal
from holdfast.model.requests import (
    DropReservation,
    PromisedPlace,
    Request,
    StopAndReserve,
    Target,
    Term,
)
from holdfast.model.time import Instant, rfc3339, timestamp, wall_ms
from holdfast.observe.operation_plan import AwaitProgress, AwaitShown, PlanStep
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.outcome import (
    VICTIMS_STOPPING,
    BindReplica,
    MemberPlace,
    PlacementReport,
    Preempt,
    Verdict,
    WakeEvent,
)
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.plans import PlacementPlan, PlannedPlace, gang_plan_name

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


class OpenPromise(msgspec.Struct, frozen=True):
    """A place that the store shows as promised to a replica."""

    replica: Replica
    held: Reservation
    at: Claim


def promises_of(view: FleetSnapshot, replicas: Iterable[Replica]) -> list[OpenPromise]:
    """The open promises of these replicas that the store shows."""
    found = ((it, promise_of(view, it)) for it in replicas)
    return [OpenPromise(it, *promise) for it, promise in found if promise is not None]


def fits_now(view: FleetSnapshot, promises: Iterable[OpenPromise]) -> bool:
    """Whether the victims have left the promised places, so that all of them can be bound."""
    ledgers: dict[str, NodeLedger] = {}
    for it in promises:
        site = view.fleet.get(it.at.node)
        if site is None:
            return False
        # Binds in flight count: what two promises on one node wait for has no names.
        ledger = ledgers.get(it.at.node, site.ledger)
        demand, uid = demand_of(it.replica.spec.template), it.held.metadata.uid
        found = claim(ledger, demand, it.at.devices or None, uid)
        if isinstance(found, Refusal):
            return False
        left = withdraw_promise(ledger, uid)
        ledgers[it.at.node] = take_allocation(left, found, it.replica.metadata.uid)
    return True


def is_kept(
    view: FleetSnapshot, promise: OpenPromise, equivalence: EquivalenceClass, now: Instant
) -> bool:
    """Whether there is time left to use the promise, and its node takes work."""
    site = view.fleet.get(promise.at.node)
    left_ms = wall_ms(promise.held.spec.deadline) - now.wall_ms
    takes = site is not None and bool(equivalence.verdicts.takes_work(view.columns)[site.row])
    return takes and left_ms >= LEFT_MIN_MS


def bind_of_promise(view: FleetSnapshot, promise: OpenPromise) -> BindReplica:
    """The bind that turns a promise into a binding."""
    at, site = promise.at, view.fleet.get(promise.at.node)
    return BindReplica(
        node=at.node,
        node_uid=site.uid if site is not None else "",
        held=Allocation(at.charge, at.devices, at.ports),
        score=0.0,
        scores={},
        candidates=1,
        reasons={},
        policy=view.policy.name if view.policy is not None else "",
        snapshot_revision=view.revision,
        snapshot_age_ms=view.age_ms,
        reservation=promise.held.name,
        node_revision=site.revision if site is not None else 0,
    )


def resume_promise(
    view: FleetSnapshot, replica: Replica, equivalence: EquivalenceClass, now: Instant
) -> BindReplica | Preempt | None:
    """What to do about the promise of a replica; None if it has none."""
    promises = promises_of(view, [replica])
    if not promises:
        return None
    (promise,) = promises
    is_over = not is_kept(view, promise, equivalence, now)
    if not is_over and fits_now(view, promises):
        return bind_of_promise(view, promise)
    return promised_preemption(view, promises, is_over=is_over)


def promised_preemption(
    view: FleetSnapshot, promises: Sequence[OpenPromise], *, is_over: bool
) -> Preempt:
    """The decision to wait for promises that the store shows, or to give them back."""
    places = [_place_of(view, it) for it in promises]
    first = places[0]
    return Preempt(
        first.node,
        first.node_uid,
        first.held,
        {},
        (),
        PlacementReport({VICTIMS_STOPPING: 1}, "", Verdict.WAITING, ()),
        view.revision,
        view.age_ms,
        is_over=is_over,
        members=tuple(places) if first.replica.spec.gang else (),
    )


def _place_of(view: FleetSnapshot, promise: OpenPromise) -> MemberPlace:
    at, site = promise.at, view.fleet.get(promise.at.node)
    uid = site.uid if site is not None else ""
    return MemberPlace(promise.replica, at.node, uid, Allocation(at.charge, at.devices, at.ports))


def plan_of(
    identity: str, term: Term, replica: Replica, found: Preempt, view: FleetSnapshot, now: Instant
) -> PlacementPlan:
    """The plan for a decision to preempt: for this replica, or for its gang."""
    places = found.members or (MemberPlace(replica, found.node, found.node_uid, found.held),)
    replicas = [it.replica for it in places]
    promises = promises_of(view, replicas)
    if promises:
        until_ms = min(wall_ms(it.held.spec.deadline) for it in promises)
    else:
        until_ms = now.wall_ms + (found.grace_s + STOP_MARGIN_S) * 1_000
    deadline_ms = now.monotonic_ms + max(0, until_ms - now.wall_ms - LEFT_MIN_MS)
    drop = PlanStep("give back", _drop(identity, replicas, term))
    if found.is_over:
        steps: tuple[PlanStep, ...] = (drop,)
    else:
        shown = AwaitShown("that the victims have stopped", _stopped(replicas))
        steps = (PlanStep("wait for the victims", _nothing, (shown,)),)
        if found.victims:
            stop = _stop(identity, places, found, term, until_ms)
            steps = (PlanStep("stop victims", stop), *steps)
    gang = replica.spec.gang
    return PlacementPlan(
        name=plan_name(replica),
        replicas=tuple(replicas),
        places=tuple(
            PlannedPlace(it.replica, it.node, it.held, found.victims)
            if found.victims
            else PlannedPlace(it.replica, it.node, Allocation({}))
            for it in places
        ),
        steps=steps,
        waits=_waiting([it.node for it in places], until_ms, gang),
        deadline_ms=deadline_ms,
        objects=tuple(("reservations", it.namespace, _name(it)) for it in replicas),
        undo=() if found.is_over else (drop,),
        swaps=_swaps(replica, found, view),
    )


def plan_name(replica: Replica) -> tuple[str, str, str]:
    """The name of the plan about a replica, or about its gang; one at a time has it."""
    if replica.spec.gang:
        return gang_plan_name(replica.namespace, replica.spec.gang)
    return "preemption", replica.namespace, replica.name


def _name(replica: Replica) -> str:
    return reservation_name(replica.name, Intent.PREEMPTION)


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


def _stopped(replicas: Sequence[Replica]) -> Callable[[FleetSnapshot], AwaitProgress]:
    def progress(view: FleetSnapshot) -> AwaitProgress:
        promises = promises_of(view, replicas)
        if len(promises) < len(replicas):
            last = [(it, view.get("reservations", it.namespace, _name(it))) for it in replicas]
            # One that has not been seen yet may still come.
            is_over = any(
                isinstance(held, Reservation)
                and held.spec.owner.uid == it.metadata.uid
                and not is_active(held)
                for it, held in last
            )
            return AwaitProgress.IMPOSSIBLE if is_over else AwaitProgress.NOT_YET
        return AwaitProgress.MET if fits_now(view, promises) else AwaitProgress.NOT_YET

    return progress


def _stop(
    identity: str, places: Sequence[MemberPlace], found: Preempt, term: Term, until_ms: int
) -> Callable[[FleetSnapshot], Sequence[Request]]:
    def requests(view: FleetSnapshot) -> Sequence[Request]:
        if promises_of(view, [it.replica for it in places]):
            return ()
        victims = [view.get("replicas", *key) for key in found.keys]
        targets = tuple(_target(it) for it in victims if isinstance(it, Replica))
        first, *rest = (
            PromisedPlace(_target(it.replica), it.node, it.node_uid, it.held.devices or None)
            for it in places
        )
        # The same victims at the same transitions are the same intention: once they were stopped
        # their transitions are others, so no second stop has this id.
        others = [(it.target.uid, it.target.number, it.node) for it in rest]
        named = zlib.crc32(repr([[(v.uid, v.number) for v in targets], others]).encode())
        it = first.target
        operation = f"{identity}/{it.uid}/{it.number}/preempt-{first.node}-{named:08x}"
        return [
            StopAndReserve(
                it,
                first.node,
                first.node_uid,
                targets,
                term,
                timestamp(until_ms),
                devices=first.devices,
                snapshot_age_ms=view.age_ms,
                operation=operation,
                members=tuple(rest),
            )
        ]

    return requests


def _drop(
    identity: str, replicas: Sequence[Replica], term: Term
) -> Callable[[FleetSnapshot], Sequence[Request]]:
    def requests(view: FleetSnapshot) -> Sequence[Request]:
        why = "the promised place is not used"
        return [
            DropReservation(
                it.held.namespace,
                it.held.name,
                it.held.metadata.uid,
                why,
                term,
                operation=f"{identity}/{it.held.metadata.uid}/drop",
            )
            for it in promises_of(view, replicas)
        ]

    return requests


def _waiting(
    nodes: Sequence[str], until_ms: int, gang: str
) -> Callable[[FleetSnapshot, Instant], PlacementReport]:
    names = list(dict.fromkeys(nodes))
    where = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes"
    whose = f"gang {gang} " if gang else ""

    def report(view: FleetSnapshot, now: Instant) -> PlacementReport:
        sites = (view.fleet.get(name) for name in names)
        count = sum(len(site.leaving) for site in sites if site is not None)
        who = "one victim" if count == 1 else f"{count} victims"
        message = f"{whose}waits for {who} to stop on {where}, until {rfc3339(until_ms)}"
        return PlacementReport(
            {VICTIMS_STOPPING: len(names)},
            message,
            Verdict.WAITING,
            (WakeEvent.NODES,),
            nodes=len(names),
        )

    return report
