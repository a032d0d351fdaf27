"""Why a replica has not progressed further: one answer for every state.

Servers call `explain` for requests (`host/api/plane/explanations.py`), the simulator for its
scenarios. `unplaced.py` diagnoses replicas without a place, `node_contact.py` those whose node is
out of contact, `on_node.py` all others. A replica that waits always has an owner of the next step,
and a deadline for it or the reason why there is none.
"""

from __future__ import annotations

import msgspec

from holdfast.explain.actors import owner_activity
from holdfast.explain.answer import Diagnosis, EvidenceItem, Explanation, ProgressStep, StuckReason
from holdfast.explain.evidence import ReplicaFacts, revision_of
from holdfast.explain.node_contact import diagnose_lost_contact, diagnose_return
from holdfast.explain.on_node import diagnose_bound, diagnose_ending, diagnose_running
from holdfast.explain.unplaced import diagnose_pending, diagnose_reserved
from holdfast.model.errors import invariant, unreachable
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass
from holdfast.model.lifecycle import CHARGED, State
from holdfast.model.placement.fit import demand_of
from holdfast.model.quantity import render
from holdfast.model.quota.charging import budget_of, capacity_class_of
from holdfast.model.time import Instant, wall_ms
from holdfast.propose.feasibility.verdict_cache import VerdictCache


def explain(facts: ReplicaFacts, now: Instant, verdict_cache: VerdictCache) -> Explanation:
    """Explains a replica. `now` is the clock of the server that read the facts, and the cache has
    the filters and scorers that users added.
    """
    found = _found(facts, now, verdict_cache)
    owner = owner_activity(facts, found.owner, now) if found.owner else None
    if owner is not None and owner.acts is False:
        # An inactive owner meets no deadline.
        why = [f"{found.owner} is not active: no process holds its lease", found.no_deadline]
        said = "; ".join(it for it in why if it)
        found = msgspec.structs.replace(found, deadline=None, no_deadline=said)
    if found.owner and found.deadline is None and not found.no_deadline:
        found = msgspec.structs.replace(found, no_deadline="the start of the wait is unknown")
    is_over = found.why is StuckReason.NOTHING
    invariant(is_over or found.owner, f"{facts.replica.name} waits without an owner: {found}")
    replica = facts.replica
    late_ms = now.wall_ms - wall_ms(found.deadline) if found.deadline is not None else 0
    acting = owner.signs if owner is not None else ()
    signs = (_own(facts, now), *_capacity(facts), *found.signs, *acting, *_told(facts, now))
    return Explanation(
        namespace=replica.namespace,
        name=replica.name,
        uid=replica.metadata.uid,
        state=replica.status.state,
        stage=replica.status.stage,
        revision=facts.stored.revision,
        finding=msgspec.structs.replace(found, signs=()),
        late_ms=max(0, late_ms),
        signs=signs,
        timeline=replica.status.transitions,
        unknown=dict(facts.unknown),
    )


def _found(facts: ReplicaFacts, now: Instant, verdict_cache: VerdictCache) -> Diagnosis:
    replica = facts.replica
    state, binding = replica.status.state, replica.status.binding
    match state:
        case State.PENDING:
            return diagnose_pending(facts, now, verdict_cache)
        case State.RESERVED:
            return diagnose_reserved(facts, now)
        case State.RELEASED:
            return Diagnosis(ProgressStep.NONE, StuckReason.NOTHING, _ended(facts))
    found, node = diagnose_lost_contact(facts, now), facts.node
    if found is not None:
        return found
    if node is None or binding is None:
        unreachable("a replica without a node is out of contact")
    match state:
        case State.BOUND:
            return diagnose_bound(facts, node, binding, now)
        case State.RUNNING:
            return diagnose_running(facts, node, now)
        case State.UNKNOWN:
            return diagnose_return(facts, node)
    return diagnose_ending(facts, node)


def _ended(facts: ReplicaFacts) -> str:
    """How the replica ended."""
    last = facts.replica.status.transitions[-1:]
    how = f" by {last[0].by}: {last[0].reason}" if last else ""
    return f"it was released{how}. Its successor has another name"


def _told(facts: ReplicaFacts, now: Instant) -> list[EvidenceItem]:
    """The events about the replica."""
    found = []
    for event in facts.events:
        at = event.last_timestamp
        often = f" ({event.count} times)" if event.count > 1 else ""
        age_ms = max(0, now.wall_ms - wall_ms(at)) if at is not None else None
        said = f"{event.message}{often}"
        found.append(EvidenceItem(f"event {event.reason}", said, revision_of(event), age_ms))
    return found


def _capacity(facts: ReplicaFacts) -> list[EvidenceItem]:
    """Of which class the capacity is that it holds or waits for, and how much it is."""
    replica, binding = facts.replica, facts.replica.status.binding
    name = budget_of(replica.spec.template.priority_class)
    if replica.status.state in CHARGED and binding is not None:
        of, charge, holds = CapacityClass(binding.capacity_class or "hard"), binding.charge, "holds"
    elif replica.status.state is State.PENDING:
        of = capacity_class_of(facts.stored.object(PriorityClass, "", name))
        charge, holds = demand_of(replica.spec.template).amounts, "asks for"
    else:
        return []
    amounts = ", ".join(f"{render(it, units)} {it}" for it, units in sorted(charge.items()))
    firm = "committed" if of is CapacityClass.HARD else "may be stopped for work of higher priority"
    says = f"{holds} {of.value} capacity ({firm}) in priority class {name}: {amounts}"
    return [EvidenceItem("capacity", says)]


def _own(facts: ReplicaFacts, now: Instant) -> EvidenceItem:
    """The state of the replica itself."""
    replica = facts.replica
    status, since = replica.status, facts.since
    says = f"{status.state.value}, {status.stage.value}"
    age_ms = max(0, now.wall_ms - wall_ms(since)) if since is not None else None
    return EvidenceItem(f"replica {replica.name}", says, revision_of(replica), age_ms)
