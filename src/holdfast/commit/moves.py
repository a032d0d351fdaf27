"""Moving a replica along its lifecycle: the law, the record, and what each move has to prove.

Every transition of every replica passes `guard` (is it the replica that was seen, may this
identity make this move) and `moved` (write down who, when, on which revision and on what
evidence).
"""

from __future__ import annotations

import msgspec

from holdfast.commit.charges import release_binding
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.holds import drop_claims
from holdfast.commit.leases import term_refusal
from holdfast.commit.mirrors import erase
from holdfast.commit.operations import Replayed, digest, recall, remembered
from holdfast.commit.requests import Move, ReportPending, ReportStage, Target
from holdfast.model import keys
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica, TransitionRecord
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.ledger import NodeLedger
from holdfast.model.lifecycle import STAGES, Actor, Stage, State, owners, transition
from holdfast.model.refusal import Reason, Refusal

# Released with its deletion asked for, the object itself goes too; this finalizer holds it until
# then.
RELEASE_FINALIZER = "holdfast.dev/release"

_GONE = (NodePhase.FENCED, NodePhase.LOST)

# Who reports which progress. The commit itself sets Bound, a transition to Running sets Starting.
STAGE_OWNER = {
    Stage.QUEUED: Actor.SCHEDULER,
    Stage.SCHEDULED: Actor.SCHEDULER,
    Stage.STARTING: Actor.AGENT,
    Stage.READY: Actor.AGENT,
    Stage.SERVING: Actor.ENDPOINTS,
}
# In which states a stage can be reported at all.
_STAGE_STATES = {
    Actor.SCHEDULER: (State.PENDING, State.RESERVED),
    Actor.AGENT: (State.RUNNING,),
    Actor.ENDPOINTS: (State.RUNNING,),
}


def find(draft: Draft, target: Target) -> Replica | Refusal:
    """The very replica that is meant, whatever its state is now."""
    replica = draft.object(Replica, target.namespace, target.name)
    where = f"replica {target.namespace}/{target.name}"
    if replica is None:
        return Refusal(Reason.MISSING, f"{where} does not exist", {"replica": target.name})
    if replica.metadata.uid != target.uid:
        return Refusal(
            Reason.STALE_REPLICA, f"{where} is another one by now", {"uid": replica.metadata.uid}
        )
    return replica


def as_seen(target: Target, replica: Replica) -> Refusal | None:
    """Whether the replica still stands where the caller saw it."""
    if replica.status.transition_number == target.number:
        return None
    return Refusal(
        Reason.STALE_REPLICA,
        f"replica {target.namespace}/{target.name} is {replica.status.state.value} at transition "
        f"{replica.status.transition_number}, the request rests on {target.number}",
        {
            "state": replica.status.state.value,
            "number": str(replica.status.transition_number),
            "expected": str(target.number),
        },
    )


def current(
    draft: Draft, target: Target, operation: str, mark: str
) -> Replica | Replayed | Refusal:
    """The replica as the caller saw it, or the word that this was done before, or a refusal."""
    replica = find(draft, target)
    if isinstance(replica, Refusal):
        return replica
    return recall(replica.metadata, operation, mark) or as_seen(target, replica) or replica


def actor_for(
    context: Context, replica: Replica, to: State, incarnation: int | None = None
) -> Actor | Refusal:
    """As whom the caller may make this move, or the refusal that names who may."""
    source = replica.status.state
    for actor in context.actors():
        if transition(source, to, actor) is None:
            continue
        if actor is Actor.AGENT:
            refusal = agent_refusal(context, replica, to, incarnation)
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
    context: Context, replica: Replica, to: State, incarnation: int | None
) -> Refusal | None:
    """An agent speaks for replicas bound to its own node, in the life they were bound in."""
    binding = replica.status.binding
    if binding is None or context.identity.node != binding.node:
        return Refusal(
            Reason.NOT_OWNER, f"{context.identity.name} is not the agent of {replica.name}'s node"
        )
    # A later life of the agent may still prove that an earlier one's work has stopped.
    later = to is State.RELEASED and (incarnation or 0) > binding.node_incarnation
    if incarnation != binding.node_incarnation and not later:
        return Refusal(
            Reason.STALE_INCARNATION,
            f"replica {replica.name} belongs to incarnation {binding.node_incarnation} of "
            f"{binding.node}, the agent speaks as {incarnation}",
            {"incarnation": str(binding.node_incarnation)},
        )
    return None


def moved(
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
    """Write the replica in its new state, with the record of this step.

    `changes` are other status fields.
    """
    status = replica.status
    record = TransitionRecord(
        from_state=status.state,
        to=to,
        by=context.identity.name,
        at=context.at,
        revision=max(0, draft.revision(keys.key_of(replica))),
        reason=reason,
        evidence=evidence,
    )
    kept = status.transitions[-(context.settings.transitions_kept - 1) :]
    new_status = msgspec.structs.replace(
        status,
        state=to,
        transition_number=status.transition_number + 1,
        transitions=(*kept, record),
        **changes,
    )
    metadata = remembered(replica.metadata, operation, mark, context.at, context.settings)
    after = msgspec.structs.replace(replica, metadata=metadata, status=new_status)
    if to is State.RELEASED and metadata.deletion_timestamp is not None:
        # Its deletion was asked for and nothing holds it any more.
        rest = tuple(f for f in metadata.finalizers if f != RELEASE_FINALIZER)
        if not rest:
            erase(draft, context, after)
            return after
        after = msgspec.structs.replace(
            after, metadata=msgspec.structs.replace(metadata, finalizers=rest)
        )
    draft.write(keys.key_of(after), after)
    return after


def move(draft: Draft, context: Context, request: Move) -> Replica | Replayed | Refusal:
    """Any transition that has no request of its own."""
    mark = digest(request)
    replica = current(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    if request.to in _OWN_REQUEST:
        return Refusal(Reason.NOT_ALLOWED, f"a move to {request.to.value} has a request of its own")
    actor = actor_for(context, replica, request.to, request.incarnation)
    if isinstance(actor, Refusal):
        return actor
    refusal = _proof_refusal(draft, context, replica, request, actor)
    if refusal is not None:
        return refusal
    changes = _changes(replica, request)
    if request.to is State.RELEASED:
        _give_back(draft, context, replica, request.reason)
    return moved(
        draft,
        context,
        replica,
        request.to,
        reason=request.reason or request.to.value,
        evidence=request.evidence,
        operation=request.operation,
        mark=mark,
        **changes,
    )


def _give_back(draft: Draft, context: Context, replica: Replica, reason: str) -> None:
    """A released replica holds nothing any more:
    neither its binding's share nor a reserved place.
    """
    binding = replica.status.binding
    if binding is not None:
        release_binding(draft, replica, binding)
    elif replica.status.reservation:
        drop_claims(draft, context, replica.namespace, replica.status.reservation, replica, reason)


# These take or give back more than the replica itself, so they have requests of their own.
_OWN_REQUEST = (State.RESERVED, State.BOUND, State.PENDING)


def _changes(replica: Replica, request: Move) -> dict[str, object]:
    changes: dict[str, object] = {}
    if request.process is not None:
        changes["process"] = request.process
    if request.to is State.RUNNING:
        changes["stage"] = Stage.STARTING
    if request.to is not State.PENDING and replica.status.pending is not None:
        changes["pending"] = None
    return changes


def _proof_refusal(
    draft: Draft, context: Context, replica: Replica, request: Move, actor: Actor
) -> Refusal | None:
    """What a move has to prove besides who makes it."""
    source, to = replica.status.state, request.to
    if actor in (Actor.NODES, Actor.REPAIR):
        refusal = term_refusal(draft, context, request.term)
        if refusal is not None:
            return refusal
    if to is State.STOPPING and source is not State.UNKNOWN:
        return Refusal(
            Reason.NOT_ALLOWED, "running work is stopped by evict, which names its cause"
        )
    if actor is Actor.NODES:
        return _mark_refusal(draft, replica, request.mark)
    if actor is Actor.AGENT and source is State.UNKNOWN:
        return _return_refusal(draft, replica)
    if actor is Actor.OPERATOR and not request.word.strip():
        return Refusal(Reason.NOT_ALLOWED, "an operator's word needs a reason")
    if actor is Actor.REPAIR and to in (State.FAILED, State.RELEASED):
        return _fence_refusal(draft, replica, to)
    return None


def _gate(draft: Draft, replica: Replica) -> NodeLedger | None:
    binding = replica.status.binding
    return draft.ledger(NodeLedger, keys.node_ledger(binding.node)) if binding is not None else None


def _mark_refusal(draft: Draft, replica: Replica, mark: int) -> Refusal | None:
    """A replica becomes Unknown only under the mark that its node really has."""
    ledger = _gate(draft, replica)
    have = ledger.gate.mark if ledger is not None else 0
    if not mark or have != mark:
        return Refusal(
            Reason.STALE_MARK,
            f"the node's mark is {have}, the request names {mark}",
            {"mark": str(have)},
        )
    return None


def _return_refusal(draft: Draft, replica: Replica) -> Refusal | None:
    """
    returning agent speaks for its Unknown work only while the node is unmarked and not fenced.
    """
    ledger = _gate(draft, replica)
    binding = replica.status.binding
    if ledger is None or binding is None:
        return Refusal(Reason.NODE_MISSING, "the node is not registered any more")
    if ledger.gate.mark or ledger.gate.phase in _GONE:
        return Refusal(
            Reason.STALE_MARK,
            f"node {binding.node} is {ledger.gate.phase.value} and its mark is not cleared",
            {"mark": str(ledger.gate.mark)},
        )
    if ledger.gate.incarnation != binding.node_incarnation:
        return Refusal(
            Reason.STALE_INCARNATION, f"node {binding.node} lives in a later incarnation by now"
        )
    return None


def _fence_refusal(draft: Draft, replica: Replica, to: State) -> Refusal | None:
    """Repair acts only on what is surely gone: fenced `stop` work, or what was never bound.

    `keep` work goes on when its node is cut off, so no fence proves its end. Repair may declare it
    failed after replaceAfter, which its owner chose; its share comes back only by proof of stop.
    """
    binding, ledger = replica.status.binding, _gate(draft, replica)
    if binding is None or ledger is None:
        return None
    if replica.spec.template.on_disconnect is OnDisconnect.KEEP:
        if to is State.FAILED and replica.spec.template.replace_after_seconds is not None:
            return None
        return Refusal(
            Reason.NOT_FENCED, f"{replica.name} runs on when cut off: only proof of stop ends it"
        )
    fenced = ledger.gate.phase in _GONE or ledger.gate.incarnation > binding.node_incarnation
    if fenced:
        return None
    return Refusal(
        Reason.NOT_FENCED,
        f"node {binding.node} is not fenced: {replica.name} may still run",
        {"node": binding.node},
    )


def report_stage(
    draft: Draft, context: Context, request: ReportStage
) -> Replica | Replayed | Refusal:
    """Progress without a change of ownership;
    also how an agent publishes addresses and probe results.
    """
    mark = digest(request)
    replica = current(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    owner = STAGE_OWNER.get(request.stage)
    if owner is None or not context.is_actor(owner):
        return Refusal(
            Reason.NOT_OWNER, f"{context.identity.name} does not report stage {request.stage.value}"
        )
    if replica.status.state not in _STAGE_STATES[owner]:
        return Refusal(
            Reason.WRONG_STATE,
            f"replica {replica.name} is {replica.status.state.value}; "
            f"stage {request.stage.value} cannot be reported",
        )
    if owner is Actor.AGENT:
        refusal = agent_refusal(context, replica, State.RUNNING, request.incarnation)
        if refusal is not None:
            return refusal
    if owner is Actor.ENDPOINTS and STAGES.index(replica.status.stage) < STAGES.index(Stage.READY):
        return Refusal(Reason.WRONG_STATE, f"replica {replica.name} is not ready")
    status = msgspec.structs.replace(
        replica.status,
        stage=request.stage,
        process=request.process if request.process is not None else replica.status.process,
    )
    return _updated(draft, context, replica, status, request.operation, mark)


def report_pending(
    draft: Draft, context: Context, request: ReportPending
) -> Replica | Replayed | Refusal:
    """Why a replica waits."""
    mark = digest(request)
    replica = current(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    if not context.is_actor(Actor.SCHEDULER):
        return Refusal(Reason.NOT_OWNER, "only a scheduler says why a replica waits")
    if replica.status.state not in (State.PENDING, State.RESERVED):
        return Refusal(
            Reason.WRONG_STATE, f"replica {replica.name} is {replica.status.state.value}"
        )
    status = msgspec.structs.replace(replica.status, pending=request.pending, stage=Stage.QUEUED)
    return _updated(draft, context, replica, status, request.operation, mark)


def _updated(
    draft: Draft, context: Context, replica: Replica, status: object, operation: str, mark: str
) -> Replica:
    """Write a status that differs; an unchanged one is not written,
    so the version does not move.
    """
    if status == replica.status:
        return replica
    metadata = remembered(replica.metadata, operation, mark, context.at, context.settings)
    after = msgspec.structs.replace(replica, metadata=metadata, status=status)
    draft.write(keys.key_of(after), after)
    return after
