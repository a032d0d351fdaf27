"""The next step for one replica: its whole lifecycle on a node, as one function.

The agent calls `next_step` whenever something about a replica changed, performs the one step that
it returns, and calls it again after the result. Nothing here remembers an event: the step follows
from what is on the machine, the last known status from the servers, and the state of the node. So a
lost answer leads to the same request again, under the same operation id.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.agent.heartbeats import Life
from holdfast.agent.probes import action_of, with_port_number
from holdfast.agent.runtime_protocol import (
    DEADLINE_PASSED,
    Attempt,
    Check,
    Clear,
    Halt,
    Launch,
    RunProbe,
)
from holdfast.agent.secret_values import lacking, secret_names, secret_values
from holdfast.agent.status_reports import (
    end_report,
    move,
    published_addresses,
    release_report,
    restart_report,
    stage_report,
)
from holdfast.agent.work import (
    NodeContext,
    ReplicaWork,
    WorkPhase,
    alive,
    is_over,
    is_ready,
    outcome,
)
from holdfast.model.kinds.replica import Binding, Process, Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.template import RestartPolicy
from holdfast.model.lifecycle import Stage, State
from holdfast.model.nodes.installations import adopts, keeps, proves_stop
from holdfast.model.placement.gang import (
    claim_of,
    gang_record_name,
    is_formed,
    is_of_gang,
    member_variables,
    with_numbers,
)
from holdfast.model.read_requests import Get
from holdfast.model.requests import Move, ReportStage

# How work is stopped: its pre-stop hook first, if it has one, then SIGTERM, then SIGKILL.
#
# Serving work lingers at first, since clients that read its address a moment ago may still connect
# (docs/controllers.md says for how long). The pre-stop hook begins at once. Both and the stop share
# one grace; the shim kills when that is over, whatever the hook does. A stop by the deadline, or by
# the end of the node's incarnation, has neither.

# The part of a grace that remains for the stop itself, however long the pre-stop hook takes: a
# quarter of a short one, two seconds of a long one.
STOP_KEEPS_MS = 2_000


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Nothing to do before this moment, or before something changes."""

    until_ms: int | None = None


class PrepareStop(msgspec.Struct, frozen=True):
    """Run the pre-stop hook before the stop, or just let the work serve for a moment longer."""

    probe: RunProbe | None
    grace_ms: int


def kept_ms(grace_ms: int) -> int:
    """The part of a grace that the pre-stop hook may not use."""
    return min(STOP_KEEPS_MS, grace_ms // 4)


def pre_stop_hook(work: ReplicaWork, replica: Replica) -> RunProbe | None:
    """The pre-stop hook of the work, if it has one."""
    pre_stop = replica.spec.template.pre_stop
    action = action_of(pre_stop) if pre_stop is not None else None
    action = with_port_number(action, work.process) if action is not None else None
    if action is None:
        return None
    return RunProbe(Attempt(work.uid, work.attempt), Check.PRE_STOP, action, 0)


def lingering_ms(replica: Replica) -> int:
    """How long it keeps serving clients that have yet to learn that it stops."""
    if replica.status.stage is not Stage.SERVING:
        return 0
    return replica.spec.template.drain_seconds * 1_000


def stop(
    work: ReplicaWork, grace_ms: int, now_ms: int, first: RunProbe | None = None, linger_ms: int = 0
) -> Wait | PrepareStop | Halt | None:
    """The step that stops running work; None once nothing runs. A later, shorter grace counts."""
    attempt = Attempt(work.uid, work.attempt)
    match work.phase:
        case WorkPhase.RUNNING if first is not None and grace_ms > 0:
            timeout_ms = grace_ms - kept_ms(grace_ms)
            return PrepareStop(msgspec.structs.replace(first, timeout_ms=timeout_ms), grace_ms)
        case WorkPhase.RUNNING if linger_ms > 0 and grace_ms > 0:
            return PrepareStop(None, grace_ms)
        case WorkPhase.LAUNCHING | WorkPhase.RUNNING:
            return Halt(attempt, grace_ms)
        case WorkPhase.LEAVING:
            until_ms = work.stop_by_ms - kept_ms(work.halt_grace_ms)
            if first is None or work.has_left:
                began_ms = work.stop_by_ms - work.halt_grace_ms
                until_ms = min(until_ms, began_ms + linger_ms)
            if now_ms < until_ms and grace_ms >= work.halt_grace_ms:
                return Wait(until_ms)
            return Halt(attempt, min(max(0, work.stop_by_ms - now_ms), grace_ms))
        case WorkPhase.HALTING:
            return Halt(attempt, grace_ms) if grace_ms < work.halt_grace_ms else Wait()
        case WorkPhase.NONE | WorkPhase.ENDED:
            return None


# Work whose start fails this often here is failed: it may start on another node.
START_TRIES_MAX = 5


class Vanish(msgspec.Struct, frozen=True, gc=False):
    """The servers know a process that is not on the machine: count it as ended."""


class ReadNode(msgspec.Struct, frozen=True, gc=False):
    """The servers know a later incarnation of this node: read the node."""


class MissingInput(msgspec.Struct, frozen=True, gc=False):
    """Something that the start needs is missing."""

    what: str


Step = (
    Wait
    | Vanish
    | ReadNode
    | Get
    | Launch
    | PrepareStop
    | Halt
    | MissingInput
    | Clear
    | Move
    | ReportStage
)

WAIT = Wait()


def next_step(work: ReplicaWork, view: NodeContext) -> Step:
    """The next step for a replica."""
    if work.is_cleared:
        return WAIT
    if work.must_read:
        return Get("replicas", work.name, work.namespace)
    replica = work.replica
    binding = replica.status.binding if replica is not None else None
    if work.is_gone or replica is None or binding is None or binding.node != view.node:
        return _leave(work, view.grace_max_ms, view)
    here = Life(binding.node_uid, binding.node_incarnation)
    if replica.status.state is State.RELEASED:
        return _leave(work, _grace_ms(replica), view)
    incarnation = view.life.incarnation if view.life is not None else None
    is_same_node = view.life is not None and binding.node_uid == view.life.uid
    if is_same_node and adopts(replica, incarnation, view.installation):
        return _adopt(work, replica, view)
    if view.life is None or here != view.life:
        return _of_another_life(work, replica, binding, view)
    match replica.status.state:
        case State.BOUND:
            return _begin(work, replica, view)
        case State.RUNNING:
            return _run(work, replica, view)
        case State.UNKNOWN:
            return _return(work, replica, view)
        case State.STOPPING | State.FAILED | State.SUCCEEDED:
            return _end(work, replica, view) or release_report(work, replica, view)
    return WAIT


def _leave(work: ReplicaWork, grace_ms: int, view: NodeContext) -> Step:
    """It does not belong here: stop it, and remove what it left."""
    return stop(work, grace_ms, view.now_ms) or Clear(work.uid)


def _end(
    work: ReplicaWork, replica: Replica, view: NodeContext
) -> Wait | PrepareStop | Halt | None:
    """Stop it on request, with pre-stop hook and lingering."""
    first, linger_ms = pre_stop_hook(work, replica), lingering_ms(replica)
    return stop(work, _grace_ms(replica), view.now_ms, first, linger_ms)


def _of_another_life(
    work: ReplicaWork, replica: Replica, binding: Binding, view: NodeContext
) -> Step:
    """Work of an earlier incarnation stops, unless it is `keep` work. This agent may not report on
    it, except that it has stopped, where it can prove that."""
    life = view.life
    is_ours = life is not None and binding.node_uid == life.uid
    if life is not None and is_ours and binding.node_incarnation > life.incarnation:
        return ReadNode()
    if not work.is_kept:
        step = stop(work, min(_grace_ms(replica), view.grace_max_ms), view.now_ms)
        if step is not None:
            return step
    may_say = life is not None or view.has_lost_name
    incarnation = life.incarnation if life is not None else None
    if work.is_active or not may_say or not proves_stop(replica, incarnation, view.installation):
        return WAIT
    if replica.status.state in (State.STOPPING, State.FAILED, State.SUCCEEDED):
        return release_report(work, replica, view)
    if replica.status.state is State.UNKNOWN and view.has_lost_name:
        # It cannot start here again, so its replacement may start elsewhere.
        return move(work, replica, view, State.FAILED, "NameLost", _ended(work))
    return WAIT


def _ended(work: ReplicaWork) -> Process | None:
    return work.process if work.phase is WorkPhase.ENDED else None


def _begin(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """It was never reported as running: start it, or report its state."""
    policy = replica.spec.template.restart
    reason = "Started" if replica.status.state is State.BOUND else "Returned"
    match work.phase:
        case WorkPhase.NONE:
            return _launch(work, replica, view)
        case WorkPhase.RUNNING:
            return move(work, replica, view, State.RUNNING, reason, work.process)
        case WorkPhase.ENDED if work.has_run:
            ends = outcome(policy, work.process)
            if ends is not None:
                return end_report(work, replica, view, ends)
            # It ran; its end is reported next.
            return move(work, replica, view, State.RUNNING, reason, alive(work.process))
        case WorkPhase.ENDED:
            # Work that once ran here can run here: its failed starts are a crash loop.
            is_new = not (replica.status.process.id or replica.status.process.restarts)
            is_last = policy is RestartPolicy.NEVER or work.crashes >= START_TRIES_MAX
            if is_new and is_last and work.process.reason != DEADLINE_PASSED:
                return end_report(work, replica, view, State.FAILED)
            return _launch(work, replica, view)
    return WAIT


def _run(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """It was reported as running: report when it is ready, and restart it when it has ended."""
    known, process = replica.status.process, work.process
    match work.phase:
        case WorkPhase.NONE:
            return Vanish()
        case WorkPhase.RUNNING | WorkPhase.LEAVING:
            return _look_after(work, replica, view)
        case WorkPhase.ENDED:
            if not work.has_run and process.reason == DEADLINE_PASSED:
                return _launch(work, replica, view)
            is_said = bool(process.id) and known.id == process.id and is_over(known)
            if is_said or work.said == work.attempt:
                return _launch(work, replica, view)
            ends = outcome(replica.spec.template.restart, process)
            if ends is not None:
                return end_report(work, replica, view, ends)
            return restart_report(work, replica, view)
    return WAIT


def _look_after(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """It runs: report a change of its health, and stop it if a probe failed and it can restart."""
    health = work.health
    if health is None:
        return WAIT
    if work.phase is WorkPhase.LEAVING or (
        health.ill and view.is_clear and view.deadline_ms is not None
    ):
        grace_ms = replica.spec.template.grace_seconds * 1_000
        return stop(work, grace_ms, view.now_ms, pre_stop_hook(work, replica)) or WAIT
    known = replica.status.process
    is_same = known.id == work.process.id
    is_known_ready = is_same and is_ready(replica)
    opening = work.opening(view.now_ms) if health.is_ready and not is_known_ready else None
    if health.is_ready and opening is None:
        if is_known_ready and known.addresses == published_addresses(work, replica):
            return WAIT
        if is_same and not is_known_ready and view.now_ms < work.ready_ms:
            # Flapping work waits for this, longer each time.
            return Wait(work.ready_ms)
        return stage_report(work, replica, view, Stage.READY)
    complaint = opening.complaint if opening is not None else health.complaint
    is_told = not is_ready(replica) and (bool(known.reason) or not complaint)
    if is_same and is_told:
        return Wait(opening.until_ms) if opening is not None else WAIT
    return stage_report(work, replica, view, Stage.STARTING, complaint)


def _return(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """The node was out of contact. Once its mark is cleared, report the state of its work.

    Work that was requested to stop keeps stopping, also under a mark.
    """
    if replica.status.cause is not None:
        step = _end(work, replica, view)
        if isinstance(step, Halt | PrepareStop) or not view.is_clear:
            return step or WAIT
        return move(work, replica, view, State.STOPPING, "Returned", work.process)
    if not view.is_clear:
        return WAIT
    if work.phase is WorkPhase.NONE and replica.status.process.id:
        return Vanish()
    return _begin(work, replica, view)


def _adopt(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """It outlived the incarnation that started it: adopt it into this one, or report its end.

    Work that does not run is not started under a binding of an earlier incarnation: the known
    status may be old, and a replacement may exist.
    """
    is_here = work.is_active or (work.phase is WorkPhase.ENDED and work.has_run)
    has_vanished = work.phase is WorkPhase.NONE and bool(replica.status.process.id)
    if is_here or has_vanished or replica.status.cause is not None:
        return _return(work, replica, view)
    if not view.is_clear:
        return WAIT
    return move(work, replica, view, State.FAILED, "NotStarted", _ended(work))


def _launch(work: ReplicaWork, replica: Replica, view: NodeContext) -> Step:
    """Start the next attempt, if it is due and there is a deadline to run until."""
    binding = replica.status.binding
    if view.deadline_ms is None or not view.is_clear or binding is None:
        return WAIT
    if view.now_ms < work.resume_ms:
        if work.lack and replica.status.process.reason != work.lack:
            return stage_report(work, replica, view, Stage.STARTING, work.lack)
        return Wait(work.resume_ms)
    template = replica.spec.template
    for name in secret_names(template):
        if name not in work.secrets:
            return Get("secrets", name, work.namespace)
    what = lacking(template, work.secrets, work.namespace)
    if what:
        return MissingInput(what)
    variables: Mapping[str, str] = {}
    if replica.spec.gang:
        if not work.has_gang:
            return Get("reservations", gang_record_name(replica.spec.gang), work.namespace)
        what = incomplete(work.gang, replica)
        if what or work.gang is None:
            return MissingInput(what)
        variables = member_variables(work.gang, template)
        template = with_numbers(template, binding.ports)
    is_kept = keeps(replica)
    grace_ms = template.grace_seconds * 1_000
    # After a restart without an inventory, the servers have the only count.
    number = max(work.attempt + 1, replica.status.process.restarts)
    return Launch(
        Attempt(work.uid, number),
        work.namespace,
        work.name,
        template,
        binding.token,
        None if is_kept else view.deadline_ms,
        # The fence does not wait for a longer grace than the plane's own.
        grace_ms if is_kept else min(grace_ms, view.grace_max_ms),
        binding.devices,
        secret_values(template, work.secrets),
        replica.spec.ordinal,
        # An older server does not send the tenant's requirement.
        max(binding.isolation, template.isolation, key=lambda it: it.strength),
        binding.tenant_uid,
        variables,
    )


# `Process.reason` begins with this while a member waits for its gang.
GANG_INCOMPLETE = "GangIncomplete"


def incomplete(record: Reservation | None, replica: Replica) -> str:
    """Why a member may not start: its gang is not committed, or is over; empty if it may."""
    gang = f"gang {replica.namespace}/{replica.spec.gang}"
    if record is None or not is_of_gang(record, replica.spec.workload_uid):
        return f"{GANG_INCOMPLETE}: {gang} has no record"
    if not is_formed(record, replica.spec.workload_uid):
        return f"{GANG_INCOMPLETE}: {gang} is {record.status.phase.value}: {record.status.reason}"
    if claim_of(record, replica.name) is None:
        return f"{GANG_INCOMPLETE}: {gang} runs without this replica"
    return ""


def _grace_ms(replica: Replica) -> int:
    """Its time to stop: from its deletion, or else from its template."""
    asked_s = replica.metadata.deletion_grace_period_seconds
    template_s = replica.spec.template.grace_seconds
    return (template_s if asked_s is None else asked_s) * 1_000
