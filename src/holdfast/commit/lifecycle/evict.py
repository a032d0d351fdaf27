"""Eviction: the one way to stop running work on purpose.

The caller names the cause, and each cause belongs to one identity. The same transaction reads and
writes the workload's disruption ledger, so a drain, a rollout and a preemption at the same moment
cannot together exceed the budget.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.leases import term_refusal
from holdfast.commit.ledgers.charges import (
    cohort_of,
    note_departure,
)
from holdfast.commit.lifecycle.reservations import (
    is_past_deadline,
)
from holdfast.commit.lifecycle.transitions import (
    actor_for,
    current_replica,
    record_transition,
)
from holdfast.commit.operations import digest
from holdfast.commit.request_steps import (
    ComparedRecord,
    PlacementStep,
    Replayed,
)
from holdfast.model import keys
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Displaced, Replica
from holdfast.model.kinds.tenant import Quota
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import CAUSE_OWNER, Actor, Cause, State
from holdfast.model.placement.disruption import disruption_refusal, is_available
from holdfast.model.placement.taint_eviction import stay_ends
from holdfast.model.quota.allowance import above_nominal
from holdfast.model.quota.charging import QUOTA_NAME
from holdfast.model.quota.ledger import DisruptionLedger, NodeLedger, QuotaLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Evict
from holdfast.model.workload.rollouts import target_of


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


STEPS = (
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
