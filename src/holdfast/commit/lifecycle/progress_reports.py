"""Progress without a change of ownership: how far a replica has come, and why it waits."""

from __future__ import annotations

import msgspec

from holdfast.commit.component_preconditions import grounds_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.ledgers.derived_records import write_replica
from holdfast.commit.lifecycle.transitions import agent_refusal, current_replica
from holdfast.commit.objects.preconditions import visible_version
from holdfast.commit.operations import add_operation, digest
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed
from holdfast.model import keys
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import STAGES, Actor, Stage, State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import ReportPending, ReportStage

# Who reports which stage. The commit itself sets Bound, a transition to Running sets Starting.
STAGE_OWNER = {
    Stage.QUEUED: Actor.SCHEDULER,
    Stage.STARTING: Actor.AGENT,
    Stage.READY: Actor.AGENT,
    Stage.SERVING: Actor.ENDPOINTS,
}
# The states in which each stage can be reported.
_STAGE_STATES = {
    Actor.SCHEDULER: (State.PENDING, State.RESERVED),
    Actor.AGENT: (State.RUNNING,),
    Actor.ENDPOINTS: (State.RUNNING,),
}
# An agent that cannot start work yet, for lack of a Secret, reports so before anything runs.
_STARTING_STATES = (State.BOUND, State.RUNNING)


def report_stage(
    draft: Draft, context: Context, request: ReportStage
) -> Replica | Replayed | Refusal:
    """Report progress without a change of ownership; agents also publish addresses and probe
    results this way.
    """
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    owner = STAGE_OWNER.get(request.stage)
    if owner is None or not context.is_actor(owner):
        return Refusal(
            Reason.NOT_OWNER, f"{context.identity.name} may not report stage {request.stage.value}"
        )
    refusal = grounds_refusal(draft, context, request) or _unseen_refusal(draft, replica, request)
    if refusal is not None:
        return refusal
    states = _STARTING_STATES if request.stage is Stage.STARTING else _STAGE_STATES[owner]
    if replica.status.state not in states:
        return Refusal(
            Reason.WRONG_STATE,
            f"replica {replica.name} is {replica.status.state.value}; "
            f"stage {request.stage.value} cannot be reported",
        )
    if owner is Actor.AGENT:
        refusal = agent_refusal(context, replica, State.RUNNING, request.incarnation)
        if refusal is not None:
            return refusal
    elif request.process is not None:
        return Refusal(
            Reason.NOT_OWNER,
            f"only its agent may report on {replica.name}'s process",
            {"field": "process"},
        )
    if owner is Actor.ENDPOINTS and STAGES.index(replica.status.stage) < STAGES.index(Stage.READY):
        return Refusal(Reason.WRONG_STATE, f"replica {replica.name} is not ready")
    stage = request.stage
    if stage is Stage.READY and replica.status.stage is Stage.SERVING:
        # Its agent does not know what publishes it. A replica that serves is ready, and keeps
        # serving; its changed address concerns its process alone.
        stage = Stage.SERVING
    process = replica.status.process
    if request.process is not None:
        # Only restart transitions count restarts; no report can.
        process = msgspec.structs.replace(request.process, restarts=process.restarts)
    is_news = stage is Stage.READY and replica.status.stage is not Stage.READY
    status = msgspec.structs.replace(
        replica.status,
        stage=stage,
        # By this clock and not the agent's: rollouts compare it with other times of the plane.
        ready_since=context.at if is_news else replica.status.ready_since,
        process=process,
    )
    return _updated(draft, context, replica, status, request.operation, mark)


def report_pending(
    draft: Draft, context: Context, request: ReportPending
) -> Replica | Replayed | Refusal:
    """Record why a replica waits."""
    mark = digest(request)
    replica = current_replica(draft, request.target, request.operation, mark)
    if not isinstance(replica, Replica):
        return replica
    if not context.is_actor(Actor.SCHEDULER):
        return Refusal(Reason.NOT_OWNER, "only a scheduler may report why a replica waits")
    refusal = grounds_refusal(draft, context, request) or _unseen_refusal(draft, replica, request)
    if refusal is not None:
        return refusal
    if replica.status.state not in (State.PENDING, State.RESERVED):
        return Refusal(
            Reason.WRONG_STATE, f"replica {replica.name} is {replica.status.state.value}"
        )
    # What has a reservation stays Scheduled, whatever it waits for.
    stage = Stage.QUEUED if replica.status.state is State.PENDING else replica.status.stage
    status = msgspec.structs.replace(replica.status, pending=request.pending, stage=stage)
    return _updated(draft, context, replica, status, request.operation, mark)


def _unseen_refusal(
    draft: Draft, replica: Replica, request: ReportStage | ReportPending
) -> Refusal | None:
    """Refuse a report that rests on another version of the replica.

    Its transition number does not change with its progress, which goes back and forth.
    """
    now = visible_version(draft, keys.key_of(replica))
    if request.version == now:
        return None
    return Refusal(
        Reason.STALE_REPLICA,
        f"replica {replica.name} has changed since resourceVersion {request.version[:40]!r}; "
        "read it again",
        {"resourceVersion": now or "uncommitted"},
    )


def _updated(
    draft: Draft, context: Context, replica: Replica, status: object, operation: str, mark: str
) -> Replica:
    """Write a changed status. An unchanged one is not written, so the version stays."""
    if status == replica.status:
        return replica
    after = msgspec.structs.replace(replica, status=status)
    after = add_operation(draft, context, after, operation, mark)
    write_replica(draft, after)
    return after


STEPS = (
    PlacementStep(
        "report progress",
        "agent, scheduler, controller:endpoints",
        "the work itself",
        "it is moved meanwhile",
        "the transition number",
        request=ReportStage,
        handler=report_stage,
        compares=(ComparedRecord.REPLICA, ComparedRecord.DISRUPTION_LEDGER),
    ),
    PlacementStep(
        "say why it waits",
        "scheduler",
        "the last proposal",
        "it is bound meanwhile",
        "the transition number",
        request=ReportPending,
        handler=report_pending,
        compares=(ComparedRecord.REPLICA,),
    ),
)
