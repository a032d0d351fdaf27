"""Diagnoses a replica on a node that is in contact: how far it is, and what delays it.

`explain_replica.py` calls this. It compares the replica's status with the progress notes of the
agent's last renewal: whether the agent has seen the binding, and whether the work is further than
its status shows.
"""

from __future__ import annotations

from holdfast.agent.work import REPORT_POLICY, RESTART_MAX_MS
from holdfast.correct.status import count_stages
from holdfast.explain.answer import (
    CONTROLLER_LOOKS_MS,
    Diagnosis,
    EvidenceItem,
    ProgressStep,
    StuckReason,
    after,
)
from holdfast.explain.evidence import ReplicaFacts, revision_of
from holdfast.explain.node_contact import signs_of
from holdfast.model.access.identity import agent
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import CRASH_LOOP, Binding, Replica
from holdfast.model.kinds.workload import LASTING, Workload
from holdfast.model.lifecycle import READY_STAGES, Actor, Cause, Stage, State
from holdfast.model.nodes.heartbeat import WorkProgress
from holdfast.model.time import Instant, wall_ms

# An agent in contact receives a binding within this time; clocks may differ by as much.
TOLD_WITHIN_MS = 1_000
# The counts that controller:status takes from each replica.
_COUNTS = ("bound", "starting", "ready", "serving")


def diagnose_bound(facts: ReplicaFacts, node: Node, binding: Binding, now: Instant) -> Diagnosis:
    """Diagnoses a Bound replica."""
    note = facts.note(node.name)
    if note is None:
        return _unseen(facts, node, binding, now)
    if note.doing is WorkProgress.STARTING:
        lack = facts.replica.status.process.reason
        message = f"the agent of node {node.name} is about to start it"
        return _starting(
            facts, node, StuckReason.STARTING, f"{message}: {lack}" if lack else message
        )
    what = "runs" if note.doing is WorkProgress.RUNS else "has ended"
    return _starting(
        facts,
        node,
        StuckReason.UNPROPAGATED,
        f"it {what} on node {node.name}; the agent's report of that is not acknowledged yet",
    )


def _unseen(facts: ReplicaFacts, node: Node, binding: Binding, now: Instant) -> Diagnosis:
    """The agent's notes do not name it. The time of the last renewal shows if they could have."""
    age_ms, said = facts.heard_ago_ms(node.name), facts.progress_notes(node.name)
    is_later = (
        age_ms is not None
        and binding.at is not None
        and now.wall_ms - age_ms >= wall_ms(binding.at) + TOLD_WITHIN_MS
    )
    if said is None or said.more or not is_later:
        why = "it has more notes than fit into a renewal" if said is not None and said.more else ""
        why = why or "no queried server has received a renewal since"
        message = f"it is unknown whether the agent of node {node.name} has seen the binding: {why}"
        return _starting(facts, node, StuckReason.UNTOLD, message, ProgressStep.BINDING)
    message = f"the agent of node {node.name} renewed after the bind and has not seen the binding"
    return _starting(facts, node, StuckReason.UNSEEN, message, ProgressStep.BINDING)


def _starting(
    facts: ReplicaFacts,
    node: Node,
    why: StuckReason,
    message: str,
    leg: ProgressStep = ProgressStep.STARTUP,
) -> Diagnosis:
    """The agent must start it and report that; after the deadline it is placed again."""
    replica = facts.replica
    binding, within_s = replica.status.binding, replica.spec.template.startup_deadline_seconds
    begun = binding.at if binding is not None else None
    return Diagnosis(
        leg,
        why,
        message,
        agent(node.name).name,
        Actor.REPAIR.value,
        after(begun or facts.since, within_s * 1_000),
        signs=(*signs_of(facts, node), *_noted(facts, node)),
    )


def _noted(facts: ReplicaFacts, node: Node) -> list[EvidenceItem]:
    note, age_ms = facts.note(node.name), facts.heard_ago_ms(node.name)
    if age_ms is None:
        return []
    says = f"reports it as {note.doing.value}" if note is not None else "does not report it"
    return [EvidenceItem(f"renewal of node {node.name}", says, age_ms=age_ms)]


def diagnose_running(facts: ReplicaFacts, node: Node, now: Instant) -> Diagnosis:
    """Diagnoses a Running replica."""
    replica = facts.replica
    status, workload = replica.status, facts.workload
    note = facts.note(node.name)
    if note is not None and note.doing is WorkProgress.ENDED:
        return Diagnosis(
            ProgressStep.STARTUP,
            StuckReason.UNPROPAGATED,
            f"it has ended on node {node.name}; the agent's report of that is not acknowledged yet",
            agent(node.name).name,
            deadline=after(facts.since, REPORT_POLICY.pause_max_ms),
            signs=(*signs_of(facts, node), *_noted(facts, node)),
        )
    if status.stage not in READY_STAGES:
        return _unready(facts, node)
    served = workload is not None and workload.spec.type in LASTING
    if served and status.stage is not Stage.SERVING:
        return Diagnosis(
            ProgressStep.SERVING,
            StuckReason.UNLISTED,
            "it is ready, and no Endpoints object lists its address yet",
            Actor.ENDPOINTS.value,
            deadline=after(status.ready_since or facts.since, CONTROLLER_LOOKS_MS),
        )
    behind = _uncounted(facts, workload) if workload is not None else ""
    if behind:
        return Diagnosis(
            ProgressStep.SERVING if served else ProgressStep.READINESS,
            StuckReason.UNPROPAGATED,
            f"it works, and {behind}",
            Actor.STATUS.value,
            deadline=after(status.ready_since or facts.since, CONTROLLER_LOOKS_MS),
            signs=(EvidenceItem(f"workload {replica.spec.workload}", behind, _written(workload)),),
        )
    done = "serves" if served else "is ready"
    return Diagnosis(
        ProgressStep.NONE, StuckReason.NOTHING, f"it runs on node {node.name} and {done}"
    )


def _written(workload: Workload | None) -> int:
    return revision_of(workload) if workload is not None else 0


def _uncounted(facts: ReplicaFacts, workload: Workload) -> str:
    """Where the counts in the workload's status are wrong; empty if they are right."""
    if facts.siblings is None:
        return ""
    now, said = count_stages(workload, list(facts.siblings)), workload.status.progress
    wrong = [
        f"{getattr(said, it)} instead of {getattr(now, it)} {it}"
        for it in _COUNTS
        if getattr(said, it) != getattr(now, it)
    ]
    return f"the workload's status says {', '.join(wrong)}" if wrong else ""


def _unready(facts: ReplicaFacts, node: Node) -> Diagnosis:
    """Diagnoses a replica that runs or restarts, and is not ready."""
    replica = facts.replica
    status, last = replica.status, replica.status.transitions[-1:]
    is_restart = any(it.from_state is it.to is State.RUNNING for it in last)
    if is_restart:
        is_loop = any(it.reason == CRASH_LOOP for it in last)
        how = "repeatedly" if is_loop else "again"
        return Diagnosis(
            ProgressStep.STARTUP,
            StuckReason.CRASHING if is_loop else StuckReason.STARTING,
            f"it ended and is started {how}: {status.process.reason or last[0].evidence}",
            agent(node.name).name,
            # The longest restart backoff.
            deadline=after(facts.since, RESTART_MAX_MS),
            signs=tuple(signs_of(facts, node)),
        )
    probes = replica.spec.template.probes
    is_asked = probes.readiness is not None or probes.startup is not None
    why = status.process.reason or "its probe has not succeeded yet"
    return Diagnosis(
        ProgressStep.READINESS,
        StuckReason.NOT_READY,
        f"it runs and is not ready: {why}" if is_asked else "it runs; its agent reports it next",
        agent(node.name).name,
        Actor.USER.value if is_asked else "",
        None if is_asked else after(facts.since, REPORT_POLICY.pause_max_ms),
        "work that is not ready is not stopped; its liveness probe or its owner may stop it"
        if is_asked
        else "",
        signs=tuple(signs_of(facts, node)),
    )


def diagnose_ending(facts: ReplicaFacts, node: Node) -> Diagnosis:
    """Diagnoses a replica that is being stopped, or has ended."""
    replica = facts.replica
    cause, state = replica.status.cause, replica.status.state
    is_stopping = state is State.STOPPING
    why = f" for {cause.value}" if cause is not None else ""
    if cause is Cause.PREEMPTION and replica.status.transitions:
        # The evidence says what it makes way for, and names no work of another tenant.
        said = [it.evidence for it in replica.status.transitions if it.to is State.STOPPING]
        why = f": it {said[-1]}" if said else why
    message = f"it is being stopped{why}" if is_stopping else f"it has {state.value.lower()}"
    grace_ms = _grace_ms(replica) if is_stopping else 0
    within_ms = grace_ms + facts.timing.kill_bound_ms + REPORT_POLICY.pause_max_ms
    return Diagnosis(
        ProgressStep.RELEASE,
        StuckReason.STOPPING if is_stopping else StuckReason.RELEASE,
        f"{message}; the agent of node {node.name} must prove that nothing of it runs",
        agent(node.name).name,
        Actor.WORKLOAD.value,
        after(facts.since, within_ms),
        signs=tuple(signs_of(facts, node)),
    )


def _grace_ms(replica: Replica) -> int:
    asked_s = replica.metadata.deletion_grace_period_seconds
    return (replica.spec.template.grace_seconds if asked_s is None else asked_s) * 1_000
