"""Diagnoses a replica whose node is silent, marked, fenced, gone, or in another incarnation.

`explain_replica.py` calls this. The times are those of controller:nodes, counted as it counts them:
silence from the last renewal that any server received, the fence from the moment it saw its mark.
Each new holder of its lease starts the fence wait again.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast.correct.nodes.controller import MARK_AFTER_HALF_PERIODS, SUSPECT_AFTER_PERIODS
from holdfast.correct.nodes.disruption_limits import (
    SILENT_PERCENT_MAX,
    SilentZone,
    silent_zone,
    zone_of,
    zone_wait_ms,
)
from holdfast.explain.answer import (
    AGENT_LOOKS_MS,
    CONTROLLER_LOOKS_MS,
    Diagnosis,
    EvidenceItem,
    ProgressStep,
    StuckReason,
    after,
    changed_at,
    judged_at,
)
from holdfast.explain.evidence import ReplicaFacts, revision_of
from holdfast.model.access.identity import agent
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import GONE, Node, NodePhase
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.replica import Binding, Replica
from holdfast.model.lifecycle import ENDING, READY_STAGES, Actor, State
from holdfast.model.nodes.fence import fence_wait_ms
from holdfast.model.nodes.heartbeat import ZONE_SILENCE_MAX_MS
from holdfast.model.nodes.installations import awaits_adoption, is_kept_elsewhere, keeps, machine_of
from holdfast.model.overrides import zone_approval
from holdfast.model.time import Instant, timestamp

_NODES, _REPAIR = Actor.NODES.value, Actor.REPAIR.value
# controller:repair acts a little after replaceAfterSeconds, because clocks differ.
_REPLACE_LATE_MS = 3_000


def diagnose_lost_contact(facts: ReplicaFacts, now: Instant) -> Diagnosis | None:
    """Diagnoses a replica whose node is out of contact; None if the node is in contact."""
    replica, node = facts.replica, facts.node
    binding = replica.status.binding
    if binding is None:
        return _repair(facts, "it was never bound to a node, so there is nothing to stop", None)
    if node is None:
        return _gone(facts, binding.node)
    if node.status.incarnation > binding.node_incarnation:
        return _other_life(facts, node, binding)
    match node.status.phase:
        case NodePhase.READY:
            return None
        case NodePhase.SUSPECT:
            return _silent(facts, node, now)
        case NodePhase.UNKNOWN:
            return _marked(facts, node, now)
    return _fenced(facts, node)


def diagnose_return(facts: ReplicaFacts, node: Node) -> Diagnosis:
    """Diagnoses an Unknown replica on a node that is back in contact."""
    return Diagnosis(
        _leg(facts.replica),
        StuckReason.RETURN,
        f"node {node.name} is back in contact; its agent has not reported this replica yet",
        agent(node.name).name,
        deadline=after(judged_at(node) or facts.since, AGENT_LOOKS_MS),
        signs=tuple(signs_of(facts, node)),
    )


def _leg(replica: Replica) -> ProgressStep:
    """The step it was at when its node fell silent."""
    if replica.status.state in ENDING or replica.status.cause is not None:
        return ProgressStep.RELEASE
    if replica.status.stage in READY_STAGES:
        return ProgressStep.SERVING
    return ProgressStep.READINESS if replica.status.process.id else ProgressStep.STARTUP


def signs_of(facts: ReplicaFacts, node: Node) -> Iterable[EvidenceItem]:
    """The evidence about its node."""
    mark = node.status.mark
    said = f", mark {mark.number}: {mark.reason}" if mark is not None else ""
    says = f"{node.status.phase.value} in incarnation {node.status.incarnation}{said}"
    yield EvidenceItem(f"node {node.name}", says, revision_of(node))
    age_ms = facts.heard_ago_ms(node.name)
    if age_ms is not None:
        yield EvidenceItem(f"agent of node {node.name}", "last renewal", age_ms=age_ms)
    elif facts.heard:
        yield EvidenceItem(f"agent of node {node.name}", "no queried server has received a renewal")


# Silence and the fence ----------------------------------------------------------------------------


def _silent(facts: ReplicaFacts, node: Node, now: Instant) -> Diagnosis:
    """The node is Suspect: it takes no new work, and nothing else has happened."""
    every_ms = facts.timing.renew_every_ms
    mark_ms = every_ms * MARK_AFTER_HALF_PERIODS // 2
    age_ms = facts.heard_ago_ms(node.name)
    # It became Suspect when no server had received a renewal for this long. A queried server may
    # have received one since, or may not be the server that the agent sends to.
    judged = after(judged_at(node), mark_ms - every_ms * SUSPECT_AFTER_PERIODS)
    heard = timestamp(now.wall_ms - age_ms + mark_ms) if age_ms is not None else None
    deadline = max((it for it in (judged, heard) if it is not None), default=None)
    message = f"node {node.name} has missed {SUSPECT_AFTER_PERIODS} renewals"
    held, until = _hold(facts, node, now)
    return Diagnosis(
        _leg(facts.replica),
        StuckReason.BRAKE if held else StuckReason.SILENT,
        f"{message}; {held}, so no node there is given up" if held else message,
        _NODES,
        # Nothing is replaced before the node is marked and the fence has passed.
        _REPAIR,
        until if held else deadline,
        _held_up(held) if held else "" if deadline else "the time of its last renewal is unknown",
        signs=tuple(signs_of(facts, node)),
    )


def _marked(facts: ReplicaFacts, node: Node, now: Instant) -> Diagnosis:
    """The node is marked: its work must have stopped itself before it is replaced."""
    replica = facts.replica
    if keeps(replica) and replica.status.state is not State.BOUND:
        return _kept(facts, node)
    mark, wait_ms = node.status.mark, fence_wait_ms(node.status.timing, facts.timing)
    deadline = None
    if mark is not None:
        begun = [mark.at, *_terms(facts)]
        deadline = after(max(begun), wait_ms)
    held, until = _hold(facts, node, now)
    message = (
        f"node {node.name} is out of contact. Its work stops itself and is replaced once "
        f"that is certain: {wait_ms // 1_000} s after the mark was seen"
    )
    return Diagnosis(
        _leg(replica),
        StuckReason.BRAKE if held else StuckReason.FENCE,
        f"{message}; {held}, so no node there is given up" if held else message,
        _NODES,
        _REPAIR,
        _later(until, deadline) if held else deadline,
        _held_up(held) if held else "" if deadline else "the node has no mark to count from",
        signs=tuple(signs_of(facts, node)),
    )


def _terms(facts: ReplicaFacts) -> Iterable[datetime]:
    """When the lease of controller:nodes changed hands: a new holder starts the count again."""
    for lease in facts.stored.all(Lease):
        if lease.spec.scope == _NODES and lease.spec.acquired is not None:
            yield lease.spec.acquired


def _hold(
    facts: ReplicaFacts, node: Node, now: Instant
) -> tuple[SilentZone | None, datetime | None]:
    """What holds the zone of a node back, if it is held, and until when at most.

    The wait counts from when enough nodes of the zone were suspected, and again from each new
    holder of the lease of controller:nodes.
    """
    zone, silent_ms = zone_of(node), facts.timing.renew_every_ms * SUSPECT_AFTER_PERIODS
    there = [it for it in facts.stored.all(Node) if zone_of(it) == zone]
    judged = [(it, _is_silent(facts, it, silent_ms)) for it in there]
    found = silent_zone(zone, judged)
    spec = node.spec
    if found is None or zone_approval(
        facts.stored.all(Override), spec.region, spec.zone, now.wall_ms
    ):
        return None, None
    since = sorted(at for it, silent in judged if silent and (at := judged_at(it)) is not None)
    enough = -(-found.expected * SILENT_PERCENT_MAX // 100)
    reports = facts.heard
    observers = sum(it.heard > 0 for report in reports[:1] for it in report.all_words())
    wait_ms = zone_wait_ms(
        max((it.zone_silence_max_ms for it in reports), default=ZONE_SILENCE_MAX_MS), observers
    )
    if len(since) < enough:
        return found, None
    until = after(max([since[enough - 1], *_terms(facts)]), wait_ms)
    is_over = until is not None and until <= timestamp(now.wall_ms)
    return (None, None) if is_over else (found, until)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return max((it for it in (one, other) if it is not None), default=None)


def _is_silent(facts: ReplicaFacts, node: Node, silent_ms: int) -> bool:
    """Whether a node is silent. A Ready node is not, even if no queried server hears it."""
    age_ms = facts.heard_ago_ms(node.name)
    is_unheard = age_ms is None or age_ms >= silent_ms
    return node.status.phase is not NodePhase.READY and is_unheard


def _held_up(held: SilentZone) -> str:
    return (
        f"{held}: this continues when some of them are back in contact, when the zone has been "
        "silent for long enough, or when an Override of type RepairApproval names the zone"
    )


# Afterwards ---------------------------------------------------------------------------------------


def _fenced(facts: ReplicaFacts, node: Node) -> Diagnosis:
    replica = facts.replica
    if keeps(replica) and replica.status.state is not State.BOUND:
        return _kept(facts, node)
    return _repair(facts, f"node {node.name} is fenced: all work there has stopped", node)


def _other_life(facts: ReplicaFacts, node: Node, binding: Binding) -> Diagnosis:
    replica = facts.replica
    if is_kept_elsewhere(replica, binding, node.status.installation):
        return _elsewhere(facts, node, binding)
    if awaits_adoption(replica, binding):
        return diagnose_return(facts, node)
    message = (
        f"node {node.name} is in incarnation {node.status.incarnation}; this replica was bound to "
        "an earlier one"
    )
    if keeps(replica) and replica.status.state in ENDING:
        return Diagnosis(
            ProgressStep.RELEASE,
            StuckReason.RELEASE,
            f"{message}: its agent must prove that it has stopped",
            agent(node.name).name,
            deadline=after(facts.since, AGENT_LOOKS_MS + _grace_ms(replica)),
            signs=tuple(signs_of(facts, node)),
        )
    return _repair(facts, message, node)


def _elsewhere(facts: ReplicaFacts, node: Node, binding: Binding) -> Diagnosis:
    """Another machine has the node's name and cannot report what the first one runs."""
    replica, wait_s = facts.replica, facts.replica.spec.template.replace_after_seconds
    message = (
        f"node {node.name} is now another machine, and this replica keeps running when cut off: it "
        f"may still run on {machine_of(binding)}, which stops or reports it once back in contact"
    )
    if replica.status.state is State.UNKNOWN and wait_s is not None:
        return _replaced_after(facts, message, wait_s, node)
    return _word(facts, message, node)


def _gone(facts: ReplicaFacts, name: str) -> Diagnosis:
    if keeps(facts.replica) and facts.replica.status.state in ENDING:
        message = f"node {name} no longer exists, and this replica keeps running when cut off"
        return _word(facts, message, None)
    return _repair(facts, f"node {name} no longer exists", None)


def _kept(facts: ReplicaFacts, node: Node) -> Diagnosis:
    """It keeps running when cut off, so no fence proves that it has ended."""
    replica = facts.replica
    wait_s = replica.spec.template.replace_after_seconds
    binding, where = replica.status.binding, f"node {node.name} is {node.status.phase.value}"
    runs_on = f"it keeps running when cut off, and {where}"
    if binding is not None:
        runs_on += f": it may still run on {machine_of(binding)}"
    if replica.status.state is State.UNKNOWN and wait_s is not None:
        return _replaced_after(facts, runs_on, wait_s, node)
    if node.status.phase in GONE:
        return _word(facts, runs_on, node)
    return Diagnosis(
        _leg(replica),
        StuckReason.SILENT,
        f"{runs_on}. It is not replaced; its agent reports it when back in contact",
        agent(node.name).name,
        Actor.OPERATOR.value,
        no_deadline="replaceAfterSeconds is not set, so it is not replaced",
        signs=tuple(signs_of(facts, node)),
    )


def _replaced_after(facts: ReplicaFacts, message: str, wait_s: int, node: Node) -> Diagnosis:
    """The workload sets replaceAfterSeconds, so it is replaced after that."""
    return Diagnosis(
        _leg(facts.replica),
        StuckReason.SILENT,
        f"{message}. It is replaced after {wait_s} s (replaceAfterSeconds)",
        _REPAIR,
        deadline=after(facts.since, wait_s * 1_000 + _REPLACE_LATE_MS + CONTROLLER_LOOKS_MS),
        signs=tuple(signs_of(facts, node)),
    )


def _word(facts: ReplicaFacts, message: str, node: Node | None) -> Diagnosis:
    name = facts.replica.name
    return Diagnosis(
        _leg(facts.replica),
        StuckReason.WORD,
        f"{message}. If you know that it has stopped, confirm it: kubectl delete replica {name} "
        "--force --grace-period=0",
        Actor.OPERATOR.value,
        no_deadline="only proof that it stopped, or an operator's confirmation, ends it",
        signs=tuple(signs_of(facts, node)) if node is not None else (),
    )


def _repair(facts: ReplicaFacts, message: str, node: Node | None) -> Diagnosis:
    """It is certain that no agent will report it any more, so controller:repair acts."""
    known = (facts.since, changed_at(node) if node is not None else None)
    begun = max((it for it in known if it is not None), default=None)
    return Diagnosis(
        _leg(facts.replica),
        StuckReason.REPAIR,
        message,
        _REPAIR,
        Actor.WORKLOAD.value,
        after(begun, CONTROLLER_LOOKS_MS),
        signs=tuple(signs_of(facts, node)) if node is not None else (),
    )


def _grace_ms(replica: Replica) -> int:
    asked_s = replica.metadata.deletion_grace_period_seconds
    return (replica.spec.template.grace_seconds if asked_s is None else asked_s) * 1_000
