"""Node requests: registration by agents, and the verdicts of controller:nodes.

Every change of a node's gate (phase, mark, incarnation, cordon, taints, capacity) writes the node's
ledger in the same transaction. So a bind that compares the ledger can never slip in between a
cordon and its effect.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.leases import term_refusal
from holdfast.commit.objects.admission import invalid
from holdfast.commit.objects.preconditions import (
    absence_refusal,
    states_a_version,
    version_refusal,
    visible_version,
)
from holdfast.commit.objects.request_form import clip
from holdfast.commit.operations import (
    add_operation,
    digest,
    recall,
    recall_past,
    remember_past,
)
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Replayed
from holdfast.model import keys
from holdfast.model.kinds.node import GONE, Mark, Node, NodePhase, NodeStatus
from holdfast.model.kinds.override import Override
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Condition, ConditionStatus, ObjectMeta, condition, with_condition
from holdfast.model.nodes.fence import (
    TIMING_PENDING,
    exceeds,
    fence_wait_ms,
    greatest_timing,
    limit_timing,
    timing_of,
    timing_record,
)
from holdfast.model.overrides import approves_zone, is_in_force
from holdfast.model.quota.ledger import NodeLedger, mirror_node
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import SYSTEM_NAMESPACE, kind_of
from holdfast.model.requests import JudgeNode, NodeAction, RegisterNode
from holdfast.model.validation import validate

# The record of the greatest timing that work on a node may hold, as registrations change it.
#
# `register` calls it. The record only grows, with two exceptions: a new incarnation, which starts
# when nothing of the old one runs, and an agent that states, on the current record, that its work
# holds less. Not under a mark, whose countdown began when more was held. The answer window shrinks
# only with a new incarnation.


def with_fence_timing(
    context: Context, request: RegisterNode, before: NodeStatus | None, after: NodeStatus
) -> NodeStatus:
    """The status with its timing record; `before` is None at the first registration."""
    plane, holds = context.settings.fence, request.holds
    record = before.timing if before is not None else None
    held = timing_of(record)
    is_new_life = before is None or before.incarnation != after.incarnation
    is_known = holds is not None and record is not None and holds.number == record.number
    may_fall = is_new_life or (is_known and after.mark is None)
    most = greatest_timing(plane) if held is None else greatest_timing(held, plane)
    timing = greatest_timing(plane) if may_fall else most
    if not is_new_life:
        # A server may still answer from a read that it sent under the longer window, even after the
        # record has shrunk: within one incarnation the fence keeps waiting for that.
        timing = greatest_timing(msgspec.structs.replace(timing, ack_window_ms=most.ack_window_ms))
    if holds is not None:
        given = msgspec.structs.replace(
            plane, self_stop_after_ms=holds.self_stop_after_ms, grace_ms=holds.grace_ms
        )
        # No timing beyond the record was ever given out. An agent that claims more would delay the
        # fence of its node, and with it every replacement, for as long as it likes.
        timing = greatest_timing(timing, limit_timing(given, most))
    number = record.number if record is not None else 0
    # A newly started process ends the claims of earlier ones, which may still arrive.
    is_news = timing != held or (holds is not None and not holds.number)
    made = timing_record(timing, number + is_news)
    is_pending = exceeds(timing, greatest_timing(plane))
    return msgspec.structs.replace(
        after,
        timing=made,
        conditions=_conditions(context, after, is_pending, timing.fence_after_ms),
    )


def _conditions(
    context: Context, status: NodeStatus, is_pending: bool, wait_ms: int
) -> tuple[Condition, ...]:
    """The condition that a lowered setting waits for work that holds more, or no longer waits."""
    if not is_pending and condition(status.conditions, TIMING_PENDING) is None:
        return status.conditions
    pending = Condition(
        TIMING_PENDING,
        ConditionStatus.TRUE if is_pending else ConditionStatus.FALSE,
        reason="WorkHoldsMore" if is_pending else "InForce",
        message=f"work on this node was started under longer timings than the current settings: "
        f"until that work ends, the node is fenced {wait_ms} ms after its mark"
        if is_pending
        else "the current settings are in force",
    )
    return with_condition(status.conditions, pending, context.at)


# The fields that an agent reports of its machine; the rest of the spec belongs to the operator.
AGENT_SPEC = ("capacity", "reserved", "devices", "port_share")
AGENT_STATUS = (
    *("agent_version", "address", "boot_id", "installation", "images"),
    *("isolation", "isolation_notes"),
)
# Set only at the first registration: a machine does not move, and its operator may relabel it
# later.
FIRST_SPEC = ("region", "zone", "pool", "cost_per_hour")


def write_node(draft: Draft, node: Node) -> None:
    """Write a node and its ledger."""
    key = keys.node_ledger(node.name)
    before = draft.ledger(NodeLedger, key)
    after = mirror_node(node, before)
    if after != before:
        draft.write(key, after)
    draft.write(keys.key_of(node), node)


def register(draft: Draft, context: Context, request: RegisterNode) -> Node | Replayed | Refusal:
    """Register an agent's node. After a fence it begins a new incarnation, with the mark cleared.

    Its inventory makes that safe: the work of the old incarnation has stopped, and `keep` work that
    still runs stays charged until its own proof of stop, because its replica is not released
    before.
    """
    name = request.node.name
    if context.identity.node != name:
        return Refusal(Reason.NOT_OWNER, f"{context.identity.name} may not register node {name}")
    mark = digest(request)
    old = draft.object(Node, "", name)
    if old is None:
        return (
            recall_past(draft, context, request.operation, mark)
            or absence_refusal(kind_of(request.node), name, request.node.metadata)
            or _first(draft, context, request, mark)
        )
    past = recall(old.metadata, request.operation, mark)
    if past is not None:
        return past
    refusal = _unseen_refusal(draft, old, request.node.metadata)
    if refusal is not None:
        return refusal
    if _is_anothers(old.status, request.node.status):
        return Refusal(
            Reason.NOT_OWNER,
            f"node {name} is run by another agent with another directory; this agent may have the "
            "name once that agent is gone and its node fenced",
        )
    if old.status.phase in GONE and request.holds is not None and request.holds.number:
        # The agent speaks for a past incarnation, and has not stopped what it ran.
        return Refusal(Reason.STALE_INCARNATION, f"node {name} was fenced meanwhile: read it again")
    spec = msgspec.structs.replace(
        old.spec, **{field: getattr(request.node.spec, field) for field in AGENT_SPEC}
    )
    status = with_fence_timing(context, request, old.status, _returned(old, request.node.status))
    if (spec, status) == (old.spec, old.status):
        return old
    metadata = old.metadata
    if spec != old.spec:
        metadata = msgspec.structs.replace(metadata, generation=metadata.generation + 1)
    node = msgspec.structs.replace(old, metadata=metadata, spec=spec, status=status)
    return _mirrored(draft, add_operation(draft, context, node, request.operation, mark))


def _unseen_refusal(draft: Draft, old: Node, given: ObjectMeta) -> Refusal | None:
    """Refuse an agent that has not seen the current node.

    A delayed registration would revert newer facts; one that was sent before a fence would begin a
    new incarnation while work of the old one may still run.
    """
    if given.uid and states_a_version(given):
        return version_refusal(draft, old, given)
    return Refusal(
        Reason.STALE_OBJECT,
        f"node {old.name} is already registered: read it, and state its uid and resourceVersion",
        {"field": "metadata.resourceVersion"},
    )


def _is_anothers(now: NodeStatus, given: NodeStatus) -> bool:
    """Whether this incarnation belongs to another agent under the same name.

    An agent that does not know what the other has started would start it again.
    """
    is_other = bool(now.installation) and now.installation != given.installation
    return is_other and now.phase not in GONE


def _first(draft: Draft, context: Context, request: RegisterNode, mark: str) -> Node | Refusal:
    given = request.node
    why = context.plane.node_refusal(given.spec.region)
    if why:
        return Refusal(Reason.REGION_MISMATCH, f"node {given.name}: {why}")
    fields = (*AGENT_SPEC, *FIRST_SPEC)
    spec = msgspec.structs.replace(
        Node(ObjectMeta()).spec, **{field: getattr(given.spec, field) for field in fields}
    )
    status = NodeStatus(
        incarnation=1, **{field: getattr(given.status, field) for field in AGENT_STATUS}
    )
    metadata = ObjectMeta(
        name=given.name,
        uid=context.new_uid(),
        generation=1,
        creation_timestamp=context.at,
        labels=given.metadata.labels,
    )
    node = Node(metadata, spec=spec, status=with_fence_timing(context, request, None, status))
    node = add_operation(draft, context, node, request.operation, mark)
    # Also kept in a record of its own: if the node is deleted soon, a copy of this request must not
    # bring it back.
    remember_past(draft, context, node, request.operation, mark)
    return _mirrored(draft, node)


def _mirrored(draft: Draft, node: Node) -> Node | Refusal:
    """Write the node, if admission would accept it too."""
    errors = validate(node)
    if errors:
        return invalid(node, errors)
    write_node(draft, node)
    return node


def _returned(old: Node, given: NodeStatus) -> NodeStatus:
    """The status after a registration: a fenced node begins a new incarnation, any other keeps
    its own.
    """
    status = msgspec.structs.replace(
        old.status, **{field: getattr(given, field) for field in AGENT_STATUS}
    )
    if old.status.phase not in GONE:
        return status
    return msgspec.structs.replace(
        status, phase=NodePhase.READY, mark=None, incarnation=old.status.incarnation + 1
    )


def judge(draft: Draft, context: Context, request: JudgeNode) -> Node | Replayed | Refusal:
    """Change a node's phase: only controller:nodes, and under its epoch."""
    mark = digest(request)
    if not context.is_actor(Actor.NODES):
        return Refusal(Reason.NOT_OWNER, "only controller:nodes may judge nodes")
    node = draft.object(Node, "", request.node)
    if node is None or node.metadata.uid != request.uid:
        return Refusal(Reason.NODE_MISSING, f"node {request.node} does not exist")
    past = recall(node.metadata, request.operation, mark)
    if past is not None:
        return past
    refusal = term_refusal(draft, context, request.term)
    if refusal is not None:
        return refusal
    refusal = _outdated_refusal(draft, node, request) or _approval_refusal(
        draft, context, node, request.approval
    )
    if refusal is not None:
        return refusal
    status = _judged(context, node, request)
    if isinstance(status, Refusal):
        return status
    if status == node.status:
        return node
    after = msgspec.structs.replace(node, status=status)
    after = add_operation(draft, context, after, request.operation, mark)
    write_node(draft, after)
    return after


def _outdated_refusal(draft: Draft, node: Node, request: JudgeNode) -> Refusal | None:
    """Refuse a verdict on an outdated version of the node."""
    now = visible_version(draft, keys.key_of(node))
    if request.version == now:
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"node {node.name} has changed since resourceVersion {request.version[:40]!r}; read "
        "it again",
        {"resourceVersion": now or "uncommitted"},
    )


def _approval_refusal(draft: Draft, context: Context, node: Node, name: str) -> Refusal | None:
    """Refuse what rests on an override that is not in force, by the authority's calendar."""
    if not name:
        return None
    found = draft.object(Override, SYSTEM_NAMESPACE, name)
    region, zone = node.spec.region, node.spec.zone
    if found is None or not approves_zone(found, region, zone):
        why = f"override {name[:80]} does not approve to give up zone {zone} of region {region}"
    elif not is_in_force(found, context.now.wall_ms) or _has_lasted(context, found):
        why = f"override {name} ended at {found.spec.expires.isoformat(timespec='seconds')}"
    else:
        return None
    return Refusal(Reason.OVERRIDE_NOT_IN_FORCE, why, {"override": name[:80]})


def _has_lasted(context: Context, override: Override) -> bool:
    """Whether it was in force for as long as was intended, whatever the calendar says now."""
    made = override.metadata.creation_timestamp
    if made is None:
        return False
    return context.age_ms(made) >= (override.spec.expires - made).total_seconds() * 1_000


# The phases from which each action is allowed.
_FROM = {
    NodeAction.SUSPECT: (NodePhase.READY, NodePhase.SUSPECT),
    NodeAction.TRUST: (NodePhase.SUSPECT, NodePhase.READY),
    NodeAction.MARK: (NodePhase.READY, NodePhase.SUSPECT),
    NodeAction.CLEAR: (NodePhase.UNKNOWN,),
    NodeAction.FENCE: (NodePhase.UNKNOWN,),
    NodeAction.LOSE: (NodePhase.FENCED,),
}
_TO = {
    NodeAction.SUSPECT: NodePhase.SUSPECT,
    NodeAction.TRUST: NodePhase.READY,
    NodeAction.MARK: NodePhase.UNKNOWN,
    NodeAction.CLEAR: NodePhase.READY,
    NodeAction.FENCE: NodePhase.FENCED,
    NodeAction.LOSE: NodePhase.LOST,
}


def _judged(context: Context, node: Node, request: JudgeNode) -> NodeStatus | Refusal:
    status, action = node.status, request.word
    if status.phase not in _FROM[action]:
        return Refusal(
            Reason.WRONG_STATE,
            f"node {node.name} is {status.phase.value}; {action.value} is not allowed",
            {"phase": status.phase.value},
        )
    if action in (NodeAction.CLEAR, NodeAction.FENCE):
        have = status.mark.number if status.mark is not None else 0
        if have != request.mark:
            return Refusal(
                Reason.STALE_MARK,
                f"node {node.name} has mark {have}, the request names mark {request.mark}",
                {"mark": str(have)},
            )
    refusal = _wait_refusal(context, node, request) if action is NodeAction.FENCE else None
    if refusal is not None:
        return refusal
    after = msgspec.structs.replace(status, phase=_TO[action])
    if action is NodeAction.MARK:
        number = status.marks + 1
        made = Mark(
            number=number,
            at=context.at,
            by=context.identity.name,
            epoch=request.term.epoch,
            reason=clip(request.reason),
        )
        return msgspec.structs.replace(after, mark=made, marks=number)
    if action is NodeAction.CLEAR:
        return msgspec.structs.replace(after, mark=None)
    return after


def _wait_refusal(context: Context, node: Node, request: JudgeNode) -> Refusal | None:
    """Refuse a fence before the greatest timing that work on the node may hold has passed,
    whatever the servers' current settings are.
    """
    plane = context.settings.fence
    waited_ms = plane.fence_after_ms if request.waited_ms is None else request.waited_ms
    wait_ms = fence_wait_ms(node.status.timing, plane)
    if waited_ms >= wait_ms:
        return None
    return Refusal(
        Reason.NOT_FENCED,
        f"work on node {node.name} may run for {wait_ms} ms after its mark; only {waited_ms} ms "
        "have passed",
        {"node": node.name, "waitMs": str(wait_ms)},
    )


STEPS = (
    PlacementStep(
        "register a node",
        "its agent",
        "its own machine, and the node at a resourceVersion",
        "the node is fenced, or a later registration comes first",
        "the node's version in the transaction; a fenced node begins a new incarnation",
        request=RegisterNode,
        handler=register,
        compares=(ComparedRecord.NODE, ComparedRecord.NODE_LEDGER),
    ),
    PlacementStep(
        "suspect, mark, clear, fence a node",
        "controller:nodes",
        "renewals, on its own monotonic clock, and the node at a resourceVersion",
        "the node comes back; another controller takes over",
        "the node's version, the very mark, the epoch, and an override that it rests on",
        request=JudgeNode,
        handler=judge,
        compares=(
            ComparedRecord.NODE,
            ComparedRecord.NODE_LEDGER,
            ComparedRecord.EPOCH,
            ComparedRecord.OVERRIDE,
        ),
    ),
)
