"""Eviction: the one way to stop running work on purpose, and the first half of a preemption.

The caller names the cause, and each cause belongs to one identity. The same transaction reads and
writes the workload's disruption ledger, so a drain, a rollout and a preemption at the same moment
cannot together exceed the budget.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.authority_table import age_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft, for_each
from holdfast.commit.leases import former_holder_refusal, term_refusal
from holdfast.commit.ledgers.charges import (
    PRIORITY_NAME,
    allowance_refusal,
    budget_of,
    capacity_class,
    held_by_binding,
)
from holdfast.commit.lifecycle.bind import life_refusal, load_for_place, node_for, place_refusal
from holdfast.commit.lifecycle.reservations import (
    is_past_deadline,
    open_reservation,
    replica_owner,
    reservation_name,
    save,
)
from holdfast.commit.lifecycle.transitions import (
    actor_for,
    current_replica,
    find_replica,
    record_transition,
    stale_target_refusal,
)
from holdfast.commit.operations import Replayed, add_operation, digest
from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation, ReservationSpec
from holdfast.model.kinds.tenant import PriorityClass
from holdfast.model.kinds.workload import Workload
from holdfast.model.ledger import DisruptionLedger, NodeLedger
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, State
from holdfast.model.placement.disruption import disruption_refusal, is_available
from holdfast.model.placement.fit import (
    begin_departure,
    claim,
    demand_of,
    finish_departure,
    promise_allocation,
    return_allocation,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Evict, StopAndReserve
from holdfast.model.rollouts import target_of

VICTIMS_MAX = 64


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
) -> Replica | Refusal:
    """Stop one replica for a cause: the identity must own the cause, and the budget must allow
    it.
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
        refusal = _REASONED[cause](draft, replica)
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
    )


def _undrained_refusal(draft: Draft, replica: Replica) -> Refusal | None:
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


def _rolled_refusal(draft: Draft, replica: Replica) -> Refusal | None:
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


# Causes that must hold at this moment, whatever their owner has seen.
_REASONED = {Cause.DRAIN: _undrained_refusal, Cause.ROLLOUT: _rolled_refusal}


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
    """Record in the node's ledger what victims of this preemption still hold.

    A release removes the note by the same cause. So a victim that comes back from Unknown and is
    stopped for another cause must leave the note here.
    """
    binding = replica.status.binding
    noted, leaves = replica.status.cause is Cause.PREEMPTION, cause is Cause.PREEMPTION
    if binding is None or noted == leaves:
        return
    ledger = draft.ledger(NodeLedger, keys.node_ledger(binding.node))
    if ledger is not None:
        change = begin_departure if leaves else finish_departure
        draft.write(keys.node_ledger(binding.node), change(ledger, held_by_binding(binding)))


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
        or age_refusal(request, request.snapshot_age_ms)
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
    name = replica.spec.template.priority_class or PRIORITY_NAME
    found = draft.object(PriorityClass, "", name)
    if found is not None and found.spec.preempts:
        return None
    return Refusal(
        Reason.NOT_ALLOWED,
        f"priority class {name!r} does not preempt other work",
        {"priorityClass": name},
    )


def _victim_refusal(request: StopAndReserve, replica: Replica, victim: Replica) -> Refusal | None:
    binding = victim.status.binding
    if binding is None or binding.node != request.node:
        return Refusal(Reason.WRONG_STATE, f"{victim.name} does not run on {request.node}")
    if victim.spec.priority >= replica.spec.priority:
        return Refusal(
            Reason.NOT_ALLOWED,
            f"{victim.name} has priority {victim.spec.priority}, not below {replica.spec.priority}",
        )
    return None


def _stop_victims(
    draft: Draft,
    context: Context,
    request: StopAndReserve,
    replica: Replica,
    ledger: NodeLedger,
) -> NodeLedger | Refusal:
    """Stop each victim. Returns the node's ledger as it will be when all of them are gone."""
    emptied = ledger
    found = for_each(request.victims, lambda target: find_replica(draft, target))
    draft.load(
        *(
            keys.disruption_ledger(victim.namespace, victim.spec.workload)
            for victim in found
            if isinstance(victim, Replica)
        )
    )
    for target in request.victims:
        # Read again: a victim that is named twice has been stopped by now.
        victim = find_replica(draft, target)
        if isinstance(victim, Refusal):
            return victim
        refusal = stale_target_refusal(target, victim) or _victim_refusal(request, replica, victim)
        if refusal is not None:
            return refusal
        stopped = stop(draft, context, victim, Cause.PREEMPTION, _way_for(victim, replica))
        if isinstance(stopped, Refusal):
            return stopped
        binding = victim.status.binding
        if binding is not None:
            emptied = return_allocation(emptied, held_by_binding(binding), victim.metadata.uid)
    return emptied


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
    refusal = allowance_refusal(draft, context, replica.namespace, of, held.charge, budget, leavers)
    if refusal is not None:
        return refusal
    spec = ReservationSpec(
        owner=replica_owner(replica),
        intent=Intent.PREEMPTION,
        deadline=request.deadline,
        capacity_class=of,
        priority_class=budget,
        quota=False,
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
    status = msgspec.structs.replace(made.status, claims=(promise,))
    made = msgspec.structs.replace(made, status=status)
    made = add_operation(draft, context, made, request.operation, mark)
    save(draft, made)
    # The replica stays Pending, but its transition number changes: a second try must not preempt
    # again.
    noted = add_operation(draft, context, replica, request.operation, mark)
    draft.write(keys.key_of(replica), noted)
    return made
