"""Transitions: the rules, the record and the proofs of each replica transition.

Every transition of every replica passes `current_replica` (is it the replica that was seen),
`actor_for` (may this identity make this transition) and `record_transition` (record who, when, on
which revision and on what evidence).
"""

from __future__ import annotations

import msgspec

from holdfast.commit.access.visibility import missing_replica
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.charges import release_binding
from holdfast.commit.ledgers.derived_records import erase, write_replica
from holdfast.commit.lifecycle.gangs import leave
from holdfast.commit.lifecycle.replica_birth import is_success_uncounted
from holdfast.commit.lifecycle.reservations import drop_claims
from holdfast.commit.lifecycle.transition_proofs import is_out_of_reach, proof_refusal
from holdfast.commit.objects.request_form import COUNT_MAX, clip
from holdfast.commit.operations import add_operation, digest, recall
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.kinds.reservation import Intent, reservation_name
from holdfast.model.lifecycle import Actor, Stage, State, owners, transition
from holdfast.model.nodes.installations import (
    adopts,
    contact_conditions,
    keeps,
    proves_stop,
    ran_on,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Move, Target

# Once it is Released with its deletion requested, the object is deleted too; until then this
# finalizer holds it.
RELEASE_FINALIZER = "holdfast.dev/release"


def find_replica(draft: Draft, target: Target) -> Replica | Refusal:
    """The replica with exactly this uid, whatever its state is now."""
    replica = draft.object(Replica, target.namespace, target.name)
    if replica is None:
        return missing_replica(target)
    if replica.metadata.uid != target.uid:
        return Refusal(
            Reason.STALE_REPLICA,
            f"replica {target.namespace}/{target.name} was replaced by another of its name",
            {"uid": replica.metadata.uid},
        )
    return replica


def stale_target_refusal(target: Target, replica: Replica) -> Refusal | None:
    """Refuse a target that is not at the transition that the caller saw."""
    if replica.status.transition_number == target.number:
        return None
    return Refusal(
        Reason.STALE_REPLICA,
        f"replica {target.namespace}/{target.name} is {replica.status.state.value} at transition "
        f"{replica.status.transition_number}, the request names {target.number}",
        {
            "state": replica.status.state.value,
            "number": str(replica.status.transition_number),
            "expected": str(target.number),
        },
    )


def current_replica(
    draft: Draft, target: Target, operation: str, mark: str
) -> Replica | Replayed | Refusal:
    """The replica as the caller saw it, or the replay of an earlier operation, or a refusal."""
    replica = find_replica(draft, target)
    if isinstance(replica, Refusal):
        return replica
    return (
        recall(replica.metadata, operation, mark)
        or stale_target_refusal(target, replica)
        or replica
    )


def actor_for(
    context: Context,
    replica: Replica,
    to: State,
    incarnation: int | None = None,
    installation: str = "",
) -> Actor | Refusal:
    """The actor as which the caller may make this transition, or the refusal that names who may."""
    source = replica.status.state
    for actor in context.actors():
        if transition(source, to, actor) is None:
            continue
        if actor is Actor.AGENT:
            refusal = agent_refusal(context, replica, to, incarnation, installation)
            if refusal is not None:
                return refusal
        return actor
    allowed = owners(source, to)
    if not allowed:
        return Refusal(
            Reason.WRONG_STATE,
            f"replica {replica.name} is {source.value}; it cannot become {to.value}",
            {"state": source.value, "to": to.value},
        )
    return Refusal(
        Reason.NOT_OWNER,
        f"{context.identity.name} may not move {replica.name} from {source.value} to {to.value}; "
        f"only {', '.join(allowed)} may",
        {"owners": ",".join(allowed)},
    )


def agent_refusal(
    context: Context,
    replica: Replica,
    to: State,
    incarnation: int | None,
    installation: str = "",
) -> Refusal | None:
    """Refuse an agent that reports on replicas of another node, or of another incarnation.

    Afterwards it may still prove that such work has stopped, as far as it can know that.
    """
    binding = replica.status.binding
    if binding is None or context.identity.node != binding.node:
        return Refusal(
            Reason.NOT_OWNER, f"{context.identity.name} is not the agent of {replica.name}'s node"
        )
    if to is State.RELEASED:
        return _stop_refusal(replica, incarnation, installation)
    if adopts(replica, incarnation, installation):
        return None
    ended = to is State.FAILED and keeps(replica) and bool(installation)
    if ended and ran_on(binding, installation):
        return None
    if incarnation != binding.node_incarnation:
        return Refusal(
            Reason.STALE_INCARNATION,
            f"replica {replica.name} belongs to incarnation {binding.node_incarnation} of "
            f"{binding.node}, the agent speaks as {incarnation}",
            {"incarnation": str(binding.node_incarnation)},
        )
    return None


def _stop_refusal(replica: Replica, incarnation: int | None, installation: str) -> Refusal | None:
    """Refuse a proof of stop from an agent that cannot know it."""
    binding = replica.status.binding
    if binding is None or proves_stop(replica, incarnation, installation):
        return None
    if keeps(replica) and not ran_on(binding, installation):
        return Refusal(
            Reason.NOT_OWNER,
            f"replica {replica.name} keeps running when cut off, and was bound to installation "
            f"{binding.installation or 'unknown'} of node {binding.node}: only that one "
            "or an operator can state that it has stopped",
            {"installation": binding.installation},
        )
    return Refusal(
        Reason.STALE_INCARNATION,
        f"replica {replica.name} belongs to incarnation {binding.node_incarnation} of "
        f"{binding.node}, the agent speaks as {incarnation}",
        {"incarnation": str(binding.node_incarnation)},
    )


def record_transition(
    draft: Draft,
    context: Context,
    replica: Replica,
    to: State,
    *,
    reason: str,
    evidence: str,
    operation: str = "",
    mark: str = "",
    **changes: object,
) -> Replica:
    """Write the replica in its new state, with the record of this transition.

    `changes` are other status fields.
    """
    leave(draft, replica, to)
    status = replica.status
    record = TransitionRecord(
        from_state=status.state,
        to=to,
        by=context.identity.name,
        at=context.at,
        revision=draft.base(keys.key_of(replica)),
        reason=clip(reason),
        evidence=clip(evidence),
    )
    by_agent = context.identity.node is not None
    new_status = msgspec.structs.replace(
        status,
        conditions=contact_conditions(
            replica, to, status.conditions, context.at, by_agent=by_agent
        ),
        state=to,
        transition_number=status.transition_number + 1,
        transitions=(*status.transitions, record)[-context.settings.transitions_kept :],
        **changes,
    )
    moved = msgspec.structs.replace(replica, status=new_status)
    after = add_operation(draft, context, moved, operation, mark)
    metadata = after.metadata
    is_dying = metadata.deletion_timestamp is not None
    if to is State.RELEASED and is_dying and not is_success_uncounted(draft, replica):
        # Its deletion was requested and nothing holds it any more.
        rest = tuple(f for f in metadata.finalizers if f != RELEASE_FINALIZER)
        if not rest:
            erase(draft, context, after)
            return after
        after = msgspec.structs.replace(
            after, metadata=msgspec.structs.replace(metadata, finalizers=rest)
        )
    write_replica(draft, after)
    return after


def move(draft: Draft, context: Context, request: Move) -> Replica | Replayed | Refusal:
    """Make any transition that has no request of its own."""
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    if request.to in _OWN_REQUEST:
        return Refusal(
            Reason.NOT_ALLOWED, f"a transition to {request.to.value} has a request of its own"
        )
    actor = actor_for(context, replica, request.to, request.incarnation, request.installation)
    if isinstance(actor, Refusal):
        return actor
    refusal = proof_refusal(draft, context, replica, request, actor)
    if refusal is not None:
        return refusal
    changes = _changes(replica, request)
    binding = replica.status.binding
    if binding is not None and adopts(replica, request.incarnation, request.installation):
        # From here on it belongs to the incarnation that found it.
        later = msgspec.structs.replace(binding, node_incarnation=request.incarnation)
        changes["binding"] = later
    if request.to is State.RELEASED:
        _give_back(draft, context, replica, request.reason)
    return record_transition(
        draft,
        context,
        replica,
        request.to,
        reason=request.reason or request.to.value,
        evidence=f"{request.word.strip()} (stated by an operator)"
        if actor is Actor.OPERATOR
        else request.evidence,
        operation=request.operation,
        mark=mark,
        **changes,
    )


def give_up(
    draft: Draft, context: Context, replica: Replica, operation: str, mark: str
) -> Replica | None:
    """The replica after an operator declared it gone, if that counts in its state.

    The fence releases work that ends when it is cut off. Of work that runs on, no component can
    ever prove the stop once its machine is destroyed; only an operator can state it.
    """
    word = {"reason": "OperatorsWord", "evidence": f"forced by {context.identity.name}"}
    is_final = keeps(replica) and is_out_of_reach(draft, replica)
    if replica.status.state is State.UNKNOWN:
        if not is_final:
            return record_transition(
                draft, context, replica, State.FAILED, operation=operation, mark=mark, **word
            )
        replica = record_transition(draft, context, replica, State.FAILED, **word)
    if not is_final or transition(replica.status.state, State.RELEASED, Actor.OPERATOR) is None:
        return None
    _give_back(draft, context, replica, word["reason"])
    return record_transition(
        draft, context, replica, State.RELEASED, operation=operation, mark=mark, **word
    )


def _give_back(draft: Draft, context: Context, replica: Replica, reason: str) -> None:
    """Release everything that a released replica held: its binding's share or a reserved place."""
    binding = replica.status.binding
    if binding is not None:
        release_binding(draft, replica, binding)
        return
    promise = reservation_name(replica.name, Intent.PREEMPTION)
    for name in (replica.status.reservation, promise):
        if name:
            drop_claims(draft, context, replica.namespace, name, replica, reason)


# These take or release more than the replica itself, so they have requests of their own.
_OWN_REQUEST = (State.RESERVED, State.BOUND, State.PENDING)


def _changes(replica: Replica, request: Move) -> dict[str, object]:
    changes: dict[str, object] = {}
    process, before = request.process, replica.status.process
    # The commit counts restarts, so that no agent can lose or forge one.
    if request.to is State.RUNNING and replica.status.state is State.RUNNING:
        # A restart in place.
        restarts = min(before.restarts + 1, COUNT_MAX)
        changes["process"] = msgspec.structs.replace(process or before, restarts=restarts)
    elif process is not None:
        changes["process"] = msgspec.structs.replace(process, restarts=before.restarts)
    if request.to is State.RUNNING:
        changes["stage"] = Stage.STARTING
    if request.to is not State.PENDING and replica.status.pending is not None:
        changes["pending"] = None
    return changes


STEPS = (
    PlacementStep(
        "move along the lifecycle",
        "the owner of the transition",
        "the replica at a transition number",
        "another actor moves it first",
        "the transition number; the loser gets StaleReplica",
        request=Move,
        handler=move,
        compares=(ComparedRecord.REPLICA,),
    ),
)
