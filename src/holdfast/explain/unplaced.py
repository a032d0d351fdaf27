"""Diagnoses a replica without a place: Pending, or Reserved.

`explain_replica.py` calls this. The replica's status holds the scheduler's last report, the last
decision names the snapshot that it rests on, and the stored objects show the present state.
"""

from __future__ import annotations

from datetime import datetime

from holdfast.explain.answer import (
    CONTROLLER_LOOKS_MS,
    SCHEDULER_LOOKS_MS,
    Diagnosis,
    EvidenceItem,
    ProgressStep,
    StuckReason,
    after,
    next_of,
)
from holdfast.explain.evidence import ReplicaFacts, revision_of
from holdfast.explain.feasible_nodes import (
    OF_QUOTA,
    FeasibleNodes,
    asked_again,
    find_feasible_nodes,
)
from holdfast.model.kinds.decision import DecisionSpec
from holdfast.model.kinds.replica import Pending
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.lifecycle import Actor
from holdfast.model.refusal import Reason
from holdfast.model.time import Instant, timestamp, wall_ms
from holdfast.propose.feasibility.outcome import (
    SCHEDULING_RETRYING,
    SERVERS_UNAVAILABLE,
    BindGang,
    BindReplica,
    Preempt,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache

_OF_GRANTS = (
    Reason.GRANT_EXPIRED.value,
    Reason.GRANT_EXCEEDED.value,
    Reason.QUOTA_UNKNOWN.value,
)
_OF_BINDS = (SCHEDULING_RETRYING, SERVERS_UNAVAILABLE)
# The result in a decision whose bind has no known answer.
_OPEN = ("Unknown", "")


def diagnose_pending(facts: ReplicaFacts, now: Instant, verdict_cache: VerdictCache) -> Diagnosis:
    """Diagnoses a Pending replica."""
    replica = facts.replica
    if replica.metadata.deletion_timestamp is not None:
        return Diagnosis(
            ProgressStep.RELEASE,
            StuckReason.STOPPING,
            "it is being deleted and holds no place",
            Actor.WORKLOAD.value,
            deadline=after(replica.metadata.deletion_timestamp, CONTROLLER_LOOKS_MS),
        )
    said, decided = replica.status.pending, facts.decision
    spec = decided.spec if decided is not None else None
    if spec is not None and spec.chosen and spec.result in _OPEN:
        return _open(facts, spec, now)
    found = find_feasible_nodes(facts, now, verdict_cache)
    if said is None:
        return _untried(facts, found, now)
    if any(reason in _OF_BINDS for reason in said.reasons):
        return _waits(facts, said, found, StuckReason.BIND_OPEN, ProgressStep.BINDING, now)
    counted = _OF_GRANTS if found.quota is None else (*_OF_GRANTS, *OF_QUOTA)
    if any(reason in counted for reason in said.reasons):
        return _waits(facts, said, found, StuckReason.QUOTA, ProgressStep.SCHEDULING, now)
    # Of reasons that are a scheduler's own, only its report is known.
    is_free = bool(found.node) and found.quota is None
    is_free = is_free and asked_again(verdict_cache).issuperset(said.reasons)
    if is_free or Reason.TOO_OLD.value in said.reasons:
        return _stale(facts, said, found, now)
    return _waits(facts, said, found, StuckReason.NO_PLACE, ProgressStep.SCHEDULING, now)


def _open(facts: ReplicaFacts, spec: DecisionSpec, now: Instant) -> Diagnosis:
    """A bind has no known answer: the scheduler reads the replica before it sends again."""
    return Diagnosis(
        ProgressStep.BINDING,
        StuckReason.BIND_OPEN,
        f"a bind to node {spec.chosen} is in flight, or its answer was lost",
        Actor.SCHEDULER.value,
        deadline=after(spec.decided_at, SCHEDULER_LOOKS_MS),
        signs=tuple(_decided(facts, now)),
    )


def _untried(facts: ReplicaFacts, found: FeasibleNodes, now: Instant) -> Diagnosis:
    return Diagnosis(
        ProgressStep.SCHEDULING,
        StuckReason.NOT_TRIED,
        "no scheduler has decided about it yet",
        Actor.SCHEDULER.value,
        deadline=after(facts.since, SCHEDULER_LOOKS_MS),
        signs=(*_decided(facts, now), *_now(found)),
    )


def _waits(
    facts: ReplicaFacts,
    said: Pending,
    found: FeasibleNodes,
    why: StuckReason,
    leg: ProgressStep,
    now: Instant,
) -> Diagnosis:
    """Diagnoses a replica by the scheduler's report."""
    owner = said.owner or Actor.SCHEDULER.value
    # A bind in flight has a place already, which the stored objects do not show.
    change = found.smallest_change if why is not StuckReason.BIND_OPEN else ""
    return Diagnosis(
        leg,
        why,
        said.message,
        owner,
        # The scheduler tries again by then, whatever the replica waits for.
        then=Actor.SCHEDULER.value if owner != Actor.SCHEDULER else "",
        deadline=_next_look(facts, said, now),
        verdict=said.verdict,
        nearest_miss=said.nearest_miss,
        smallest_change=change or said.smallest_change,
        signs=(*_decided(facts, now), *_now(found)),
    )


def _stale(facts: ReplicaFacts, said: Pending, found: FeasibleNodes, now: Instant) -> Diagnosis:
    """A node would take it, and the scheduler has not seen that."""
    seen = facts.decision.spec if facts.decision is not None else None
    message = f"the last decision found no place ({said.message})"
    if found.node:
        message = f"node {found.node} would take it since revision {found.revision}; {message}"
    if seen is not None and found.node:
        known = min((seen.seen.get(it, 0) for it in ("nodes", "replicas")), default=0)
        is_behind = known < found.revision
        how = "had not seen that yet" if is_behind else "should have seen that"
        message += f"; the scheduler {how}: its snapshot was at revision {known}"
    return Diagnosis(
        ProgressStep.SCHEDULING,
        StuckReason.STALE_PICTURE,
        message,
        Actor.SCHEDULER.value,
        deadline=_next_look(facts, said, now),
        verdict=said.verdict,
        nearest_miss=said.nearest_miss,
        smallest_change=said.smallest_change,
        signs=(*_decided(facts, now), *_now(found)),
    )


def _next_look(facts: ReplicaFacts, said: Pending, now: Instant) -> datetime | None:
    """The latest time at which a scheduler tries again.

    The status is written only when its text changes, so the time in it may be long past. From then
    on a scheduler tries once per period.
    """
    at = timestamp(now.wall_ms)
    decided = facts.decision.spec.decided_at if facts.decision is not None else None
    moment = said.next_wake or after(decided, SCHEDULER_LOOKS_MS) or facts.since
    return next_of(moment, SCHEDULER_LOOKS_MS, at) if moment is not None else None


def diagnose_reserved(facts: ReplicaFacts, now: Instant) -> Diagnosis:
    """Diagnoses a Reserved replica."""
    replica = facts.replica
    name = replica.status.reservation
    held = facts.stored.object(Reservation, replica.namespace, name)
    if held is None:
        return Diagnosis(
            ProgressStep.BINDING,
            StuckReason.RESERVED,
            f"reservation {name}, which held its place, no longer exists",
            Actor.REPAIR.value,
            deadline=after(facts.since, CONTROLLER_LOOKS_MS),
        )
    deadline = held.spec.deadline
    is_over = wall_ms(deadline) <= now.wall_ms
    sign = EvidenceItem(f"reservation {name}", f"held until {deadline:%H:%M:%S}", revision_of(held))
    return Diagnosis(
        ProgressStep.BINDING,
        StuckReason.RESERVED,
        f"a reservation holds a place for it until {deadline:%H:%M:%S}"
        + (", and it was not bound in time" if is_over else ""),
        Actor.REPAIR.value if is_over else Actor.SCHEDULER.value,
        "" if is_over else Actor.REPAIR.value,
        after(deadline, CONTROLLER_LOOKS_MS) if is_over else deadline,
        signs=(sign,),
    )


# Evidence -----------------------------------------------------------------------------------------


def _decided(facts: ReplicaFacts, now: Instant) -> list[EvidenceItem]:
    decided = facts.decision
    if decided is None:
        return []
    spec = decided.spec
    says = (
        f"attempt {spec.attempt} by {spec.scheduler} under epoch {spec.epoch}: {spec.result}, on "
        f"a snapshot of revision {spec.snapshot_revision}, {spec.snapshot_age_ms} ms old"
    )
    if spec.snapshot_age_max_ms:
        says += f" (at most {spec.snapshot_age_max_ms} ms were allowed)"
    at = spec.decided_at
    age_ms = max(0, now.wall_ms - wall_ms(at)) if at is not None else None
    return [EvidenceItem(f"decision {decided.name}", says, spec.snapshot_revision, age_ms)]


def _now(found: FeasibleNodes) -> list[EvidenceItem]:
    """What the stored objects show."""
    quota = found.quota.message if found.quota is not None else "has room for it"
    return [EvidenceItem("quota of its tenant", quota, found.quota_revision), _place(found)]


def _place(found: FeasibleNodes) -> EvidenceItem:
    members, needed = found.now.members, found.now.needed
    match found.now.decision:
        case BindReplica():
            more = f", and {found.count - 1} more" if found.count > 1 else ""
            return EvidenceItem(f"node {found.node}", f"would take it now{more}", found.revision)
        case BindGang():
            says = f"{found.count} would take {members} members of its gang now"
            return EvidenceItem("nodes", says, found.revision)
        case Preempt(node=node, members=places):
            where = "nodes" if places else f"node {node}"
            whom = f"{len(places)} members of its gang" if places else "it"
            count = len(found.now.victims)
            if not count:
                return EvidenceItem(where, f"promised to {whom}")
            # Not their names: they may be those of another tenant.
            return EvidenceItem(where, f"would take {whom} once {count} other replicas stopped")
    if needed > 1:
        says = f"they would take {members} members of its gang now, and it needs {needed} at once"
        return EvidenceItem("nodes", says)
    return EvidenceItem("nodes", "none would take it now")
