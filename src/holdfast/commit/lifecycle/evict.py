"""Eviction: the one way to stop running work on purpose, and the first half of a preemption.

The caller names the cause, and each cause belongs to one identity. The same transaction reads and
writes the workload's disruption ledger, so a drain, a rollout and a preemption at the same moment
cannot together exceed the budget.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.leases import former_holder_refusal, term_refusal
from holdfast.commit.ledgers.charges import (
    allowance_refusal,
    capacity_class,
    charge_tenant,
    cohort_of,
    held_by_binding,
    note_departure,
)
from holdfast.commit.lifecycle.bind import life_refusal, load_for_place, node_for, place_refusal
from holdfast.commit.lifecycle.reservations import (
    is_past_deadline,
    open_reservation,
    replica_owner,
    save,
)
from holdfast.commit.lifecycle.transitions import (
    actor_for,
    current_replica,
    find_replica,
    record_transition,
    stale_target_refusal,
)
from holdfast.commit.operations import add_operation, digest
from holdfast.commit.request_steps import (
    PLACE,
    ComparedRecord,
    PlacementStep,
    Replayed,
    age_refusal,
)
from holdfast.model import keys
from holdfast.model.allowance import above_nominal
from holdfast.model.charging import QUOTA_NAME, budget_of
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Displaced, Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationSpec,
    reservation_name,
)
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass, Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.ledger import Amounts, DisruptionLedger, NodeLedger, QuotaLedger
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, State
from holdfast.model.placement.disruption import disruption_refusal, is_available
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    promise_allocation,
    return_allocation,
    take_allocation,
)
from holdfast.model.placement.taint_eviction import stay_ends
from holdfast.model.preemption import (
    VICTIMS_MAX,
    Contender,
    contender_of_victim,
    eviction_refusal,
    less_hard,
    preempts_refusal,
    turn_refusal,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Evict, StopAndReserve
from holdfast.model.rollouts import target_of

# What a victim loses cannot be given back, so its place is looked at again sooner.
PREEMPTION_AGE_MAX_MS = 5_000


def evict(draft: Draft, context: Context, request: Evict) -> Replica | Replayed | Refusal:
    """Bound or Running to Stopping."""
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    if request.cause is Cause.PREEMPTION:
        # Without the replica that it makes way for, its priority could not be checked.
        return Refusal(Reason.NOT_ALLOWED, "cause: a preemption must use StopAndReserve")
    owner = CAUSE_OWNER[request.cause]
    refusal = term_refusal(draft, context, request.term) if owner is not Actor.USER else None
    if refusal is not None:
        return refusal
    if request.idle and is_available(replica):
        return Refusal(Reason.NOT_ALLOWED, f"replica {replica.name} runs again")
    return stop(draft, context, replica, request.cause, request.evidence, request.operation, mark)


def stop(
    draft: Draft,
    context: Context,
    replica: Replica,
    cause: Cause,
    evidence: str,
    operation: str = "",
    mark: str = "",
    displaced: Displaced | None = None,
) -> Replica | Refusal:
    """Stop one replica for a cause: the identity must own the cause, and the budget must allow
    it. `displaced` is what a victim of a preemption makes way for.
    """
    owner = CAUSE_OWNER[cause]
    if not context.is_actor(owner):
        return Refusal(
            Reason.NOT_OWNER,
            f"only {owner.value} may stop work for {cause.value}, not {context.identity.name}",
            {"owners": owner.value},
        )
    actor = actor_for(context, replica, State.STOPPING)
    if isinstance(actor, Refusal):
        return actor
    if cause in _REASONED:
        refusal = _REASONED[cause](draft, context, replica)
        if refusal is not None:
            return refusal
    key = keys.disruption_ledger(replica.namespace, replica.spec.workload)
    ledger = draft.ledger(DisruptionLedger, key) or DisruptionLedger()
    refusal = disruption_refusal(ledger, cause, available=is_available(replica))
    if refusal is not None and not (
        cause is Cause.DRAIN and _drain_overdue(draft, context, replica)
    ):
        return msgspec.structs.replace(
            refusal, message=f"workload {replica.spec.workload}: {refusal.message}"
        )
    _note_leaving(draft, replica, cause)
    return record_transition(
        draft,
        context,
        replica,
        State.STOPPING,
        reason=cause.value,
        evidence=evidence,
        operation=operation,
        mark=mark,
        cause=cause,
        displaced=displaced or replica.status.displaced,
    )


def _undrained_refusal(draft: Draft, _context: Context, replica: Replica) -> Refusal | None:
    """Refuse a drain eviction when the node is not being drained, or no longer: the operator's
    request ends the drain, whatever the drain controller still believes.
    """
    binding = replica.status.binding
    ledger = (
        draft.ledger(NodeLedger, keys.node_ledger(binding.node)) if binding is not None else None
    )
    if binding is None or (ledger is not None and ledger.gate.draining):
        return None
    return Refusal(
        Reason.NOT_ALLOWED, f"node {binding.node} is not being drained", {"node": binding.node}
    )


def _rolled_refusal(draft: Draft, _context: Context, replica: Replica) -> Refusal | None:
    """Refuse a rollout eviction of the revision that the ordinal takes: a stale rollout stops
    none of it.
    """
    workload = draft.object(Workload, replica.namespace, replica.spec.workload)
    revision = replica.spec.revision
    if workload is None or not revision or target_of(workload, replica.spec.ordinal) != revision:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"replica {replica.name} has revision {revision}, which its place takes",
        {"revision": revision},
    )


def _reclaim_refusal(draft: Draft, context: Context, replica: Replica) -> Refusal | None:
    """Refuse to take back what the tenant has not borrowed, or was not told to give back by now."""
    tenant, binding = replica.namespace, replica.status.binding
    quota = draft.object(Quota, tenant, QUOTA_NAME)
    notice = quota.status.reclaim if quota is not None else None
    if notice is None or not is_past_deadline(context, notice.deadline):
        until = notice.deadline.isoformat() if notice is not None else ""
        return Refusal(
            Reason.NOT_ALLOWED,
            f"the quota of tenant {tenant} has no notice of a reclaim whose deadline has passed",
            {"deadline": until},
        )
    ledger = draft.ledger(QuotaLedger, keys.quota_ledger(cohort_of(draft, tenant)))
    over = above_nominal(ledger, tenant) if ledger is not None else {}
    if binding is not None and any(binding.charge.get(it, 0) for it in over):
        return None
    return Refusal(
        Reason.VICTIM_PROTECTED,
        f"replica {replica.name} holds nothing that tenant {tenant} has borrowed",
        {"rule": "Nominal"},
    )


def _tolerated_refusal(draft: Draft, context: Context, replica: Replica) -> Refusal | None:
    """Refuse a taint eviction of work that no taint of its node sends away, or not yet."""
    binding = replica.status.binding
    ledger = (
        draft.ledger(NodeLedger, keys.node_ledger(binding.node)) if binding is not None else None
    )
    if binding is None or ledger is None:
        return None
    tolerations = replica.spec.template.placement.tolerations
    ends = stay_ends(ledger.gate.taints, tolerations, binding.at)
    if ends is not None and (ends.at is None or is_past_deadline(context, ends.at)):
        return None
    when = f" before {ends.at.isoformat()}" if ends is not None and ends.at is not None else ""
    return Refusal(
        Reason.NOT_ALLOWED,
        f"no taint of node {binding.node} sends it away{when}",
        {"node": binding.node},
    )


# Causes that must hold at this moment, whatever their owner has seen.
_REASONED = {
    Cause.DRAIN: _undrained_refusal,
    Cause.ROLLOUT: _rolled_refusal,
    Cause.RECLAIM: _reclaim_refusal,
    Cause.TAINT: _tolerated_refusal,
}


def _drain_overdue(draft: Draft, context: Context, replica: Replica) -> bool:
    """Whether the operator's deadline for the drain of its node has passed: budgets end there."""
    binding = replica.status.binding
    node = draft.object(Node, "", binding.node) if binding is not None else None
    drain = node.spec.drain if node is not None else None
    return (
        drain is not None
        and drain.deadline is not None
        and is_past_deadline(context, drain.deadline)
    )


def _note_leaving(draft: Draft, replica: Replica, cause: Cause) -> None:
    """Record in the ledgers what work that is stopped for other work still holds.

    A release removes the note by the same cause. So a victim that comes back from Unknown and is
    stopped for another cause must leave the note here.
    """
    binding = replica.status.binding
    if binding is not None:
        note_departure(draft, replica, binding, replica.status.cause, cause)


def stop_and_reserve(
    draft: Draft, context: Context, request: StopAndReserve
) -> Reservation | Replayed | Refusal:
    """Stop the victims and promise their place to a pending replica; the bind follows their
    release.
    """
    load_for_place(draft, request.target, request.node, request.term.scope)
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if isinstance(replica, Refusal):
        return former_holder_refusal(draft, context, request.term, replica)
    if not isinstance(replica, Replica):
        return replica
    actor = actor_for(context, replica, State.BOUND)
    if isinstance(actor, Refusal):
        return actor
    if not 0 < len(request.victims) <= VICTIMS_MAX:
        return Refusal(Reason.NOT_ALLOWED, f"victims: must have 1 to {VICTIMS_MAX} entries")
    ledger = node_for(draft, request.node, request.node_uid)
    if isinstance(ledger, Refusal):
        return ledger
    refusal = (
        term_refusal(draft, context, request.term)
        or age_refusal(context, request.snapshot_age_ms, PREEMPTION_AGE_MAX_MS)
        or life_refusal(draft, replica)
        or _preempts_refusal(draft, replica)
        or place_refusal(draft, replica, request.node, ledger)
    )
    if refusal is not None:
        return refusal
    emptied = _stop_victims(draft, context, request, replica, ledger)
    if isinstance(emptied, Refusal):
        return emptied
    return _promise(draft, context, request, replica, emptied, mark)


def _preempts_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """Refuse a preemption for work whose class may not preempt."""
    name = budget_of(replica.spec.template.priority_class)
    return preempts_refusal(draft.object(PriorityClass, "", name), name)


def _stop_victims(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    replica: Replica,
    ledger: NodeLedger,
) -> NodeLedger | Refusal:
    """Stop each victim. Returns the node's ledger as it will be when all of them are gone."""
    found = for_each(request.victims, lambda target: find_replica(draft, target))
    draft.load(
        *(
            keys.disruption_ledger(victim.namespace, victim.spec.workload)
            for victim in found
            if isinstance(victim, Replica)
        )
    )
    preemptor = _contender(draft, replica)
    quota = draft.ledger(QuotaLedger, keys.quota_ledger(preemptor.cohort)) or QuotaLedger()
    emptied, held = ledger, []
    for target in request.victims:
        # Read again: a victim that is named twice has been stopped by now.
        victim = find_replica(draft, target)
        if isinstance(victim, Refusal):
            return victim
        refusal = stale_target_refusal(target, victim) or _elsewhere_refusal(request, victim)
        if refusal is not None:
            return refusal
        binding = victim.status.binding
        contender = contender_of_victim(victim, cohort_of(draft, victim.namespace))
        refusal = eviction_refusal(preemptor, contender, quota) or _turn_refusal(
            context, replica, victim
        )
        if refusal is not None:
            return _of_victim(refusal, victim, replica)
        if contender.of is CapacityClass.HARD:
            quota = less_hard(quota, victim.namespace, contender.amounts)
        way = _way_for(victim, replica)
        why = Displaced(
            by=replica.spec.workload_uid,
            priority=replica.spec.priority,
            at=context.at,
            incarnation=victim.spec.incarnation,
        )
        stopped = stop(draft, context, victim, Cause.PREEMPTION, way, displaced=why)
        if isinstance(stopped, Refusal):
            return _of_victim(stopped, victim, replica)
        if binding is not None:
            allocation = held_by_binding(binding)
            emptied = return_allocation(emptied, allocation, victim.metadata.uid)
            held.append((victim, allocation))
    return _unneeded_refusal(draft, context, request, replica, emptied, held) or emptied


def _contender(draft: Draft, replica: Replica) -> Contender:
    """The preemptor for the rule: as it would be charged."""
    return Contender(
        replica.namespace,
        replica.spec.priority,
        capacity_class(draft, replica.spec.template.priority_class),
        cohort_of(draft, replica.namespace),
        demand_of(replica.spec.template).amounts,
    )


def _turn_refusal(context: Context, replica: Replica, victim: Replica) -> Refusal | None:
    displaced = replica.status.displaced
    ago_ms = context.age_ms(displaced.at) if displaced is not None and displaced.at else 0
    return turn_refusal(displaced, victim.spec.workload_uid, ago_ms)


def _elsewhere_refusal(request: StopAndReserve, victim: Replica) -> Refusal | None:
    binding = victim.status.binding
    if binding is not None and binding.node == request.node:
        return None
    return Refusal(Reason.WRONG_STATE, f"{victim.name} does not run on {request.node}")


def _of_victim(refusal: Refusal, victim: Replica, replica: Replica) -> Refusal:
    """The refusal with the victim that it is about: by name only within its tenant."""
    is_own = victim.namespace == replica.namespace
    name = victim.name if is_own else "work of another tenant"
    return msgspec.structs.replace(
        refusal,
        message=f"victim {name}: {refusal.message}",
        details={**refusal.details, "victim": victim.metadata.uid},
    )


def _unneeded_refusal(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    replica: Replica,
    emptied: NodeLedger,
    held: list[tuple[Replica, Allocation]],
) -> Refusal | None:
    """Refuse a victim without which there would be room as well, on the node and in the quota: the
    snapshot was old, and other work has ended meanwhile.
    """
    demand = demand_of(replica.spec.template)
    victims = [victim for victim, _ in held]
    for victim, allocation in held:
        if victim.spec.gang:
            # Its gang stops as a whole.
            continue
        kept = take_allocation(emptied, allocation, victim.metadata.uid)
        if isinstance(claim(kept, demand, request.devices), Refusal):
            continue
        others = [it for it in victims if it is not victim]
        if _allowance(draft, context, replica, demand.amounts, others) is None:
            needless = Refusal(
                Reason.VICTIM_NOT_NEEDED, f"there is room on node {request.node} beside it"
            )
            return _of_victim(needless, victim, replica)
    return None


def _allowance(
    draft: Draft, context: Context, replica: Replica, amounts: Amounts, leavers: list[Replica]
) -> Refusal | None:
    """Whether the quota would refuse the bind once these have released what they hold."""
    name = replica.spec.template.priority_class
    of, budget = capacity_class(draft, name), budget_of(name)
    return allowance_refusal(draft, context, replica.namespace, of, amounts, budget, leavers)


def _way_for(victim: Replica, replica: Replica) -> str:
    """What a victim makes way for. Of another tenant's work it learns the priority and no name."""
    if victim.namespace == replica.namespace:
        return f"makes way for {replica.name}"
    return f"makes way for another tenant's work of priority {replica.spec.priority}"


def _promise(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    replica: Replica,
    emptied: NodeLedger,
    mark: str,
) -> Reservation | Refusal:
    held = claim(emptied, demand_of(replica.spec.template), request.devices)
    if isinstance(held, Refusal):
        return msgspec.structs.replace(
            held, message=f"node {request.node}, even without the victims: {held.message}"
        )
    of = capacity_class(draft, replica.spec.template.priority_class)
    leavers = [
        v for v in (find_replica(draft, t) for t in request.victims) if isinstance(v, Replica)
    ]
    # No victim is stopped for work that its own quota would refuse afterwards.
    budget = budget_of(replica.spec.template.priority_class)
    refusal = _allowance(draft, context, replica, held.charge, leavers)
    if refusal is not None:
        return refusal
    # Charged at once where the quota has room already, so that nothing else takes that room before
    # the bind. Otherwise the bind charges what the victims gave back.
    cohort = charge_tenant(draft, context, replica.namespace, of, held.charge, budget)
    spec = ReservationSpec(
        owner=replica_owner(replica),
        intent=Intent.PREEMPTION,
        deadline=request.deadline,
        capacity_class=of,
        priority_class=budget,
        quota=not isinstance(cohort, Refusal),
    )
    name = reservation_name(replica.name, Intent.PREEMPTION)
    made = open_reservation(draft, context, replica.namespace, name, spec, request.term.epoch)
    if isinstance(made, Refusal):
        return made
    promise = Claim(
        node=request.node,
        replica=replica.name,
        charge=held.charge,
        devices=held.devices,
        ports=held.ports,
    )
    real = draft.ledger(NodeLedger, keys.node_ledger(request.node)) or emptied
    draft.write(keys.node_ledger(request.node), promise_allocation(real, held, made.metadata.uid))
    status = msgspec.structs.replace(
        made.status, claims=(promise,), cohort=cohort if isinstance(cohort, str) else ""
    )
    made = msgspec.structs.replace(made, status=status)
    made = add_operation(draft, context, made, request.operation, mark)
    save(draft, made)
    # The replica stays Pending with its transition number. A late copy finds its operation here,
    # and the active reservation and the victims' numbers refuse any other try.
    noted = add_operation(draft, context, replica, request.operation, mark)
    draft.write(keys.key_of(replica), noted)
    return made


STEPS = (
    PlacementStep(
        "stop victims and promise their place",
        "scheduler",
        "a snapshot with the victims on it",
        "a victim ends, a budget is used up, the quota would not allow the bind",
        "the commit; no victim is stopped in vain",
        is_aged=True,
        age_max_ms=PREEMPTION_AGE_MAX_MS,
        request=StopAndReserve,
        handler=stop_and_reserve,
        compares=(*PLACE, ComparedRecord.DISRUPTION_LEDGER),
    ),
    PlacementStep(
        "evict",
        "the owner of the cause",
        "the replica and its budget",
        "another eviction uses up the budget",
        "the disruption ledger in the transaction",
        request=Evict,
        handler=evict,
        compares=(ComparedRecord.REPLICA, ComparedRecord.DISRUPTION_LEDGER),
    ),
)
