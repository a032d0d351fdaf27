"""Nodes: registration by their agents, and the words that controller:nodes says of them.

Whatever changes a node's gate (phase, mark, incarnation, cordon, taints, capacity) writes the
node's ledger in the same transaction. So a bind that compares the ledger can never slip in between
a cordon and its effect.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.admission import invalid
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.form import clipped
from holdfast.commit.leases import term_refusal
from holdfast.commit.operations import (
    Replayed,
    digest,
    recall,
    recall_past,
    remember_past,
    remembered,
)
from holdfast.commit.preconditions import (
    absence_refusal,
    states_a_version,
    version_refusal,
    visible_version,
)
from holdfast.commit.timings import timed
from holdfast.model import keys
from holdfast.model.kinds.node import Mark, Node, NodePhase, NodeStatus
from holdfast.model.ledger import NodeLedger, mirrored
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.requests import JudgeNode, NodeWord, RegisterNode
from holdfast.model.timings import fence_wait_ms
from holdfast.model.validation import validate

_GONE = (NodePhase.FENCED, NodePhase.LOST)

# What an agent says of its own machine; everything else in the spec belongs to the operator.
AGENT_SPEC = ("capacity", "reserved", "devices", "port_share")
AGENT_STATUS = (
    *("agent_version", "address", "boot_id", "installation", "images"),
    *("isolation", "isolation_notes"),
)
# Only set at the first registration: a machine does not move, and its operator may re-label it
# later.
FIRST_SPEC = ("region", "zone", "pool", "cost_per_hour")


def mirror(draft: Draft, node: Node) -> None:
    """Write a node and the ledger that mirrors it."""
    key = keys.node_ledger(node.name)
    before = draft.ledger(NodeLedger, key)
    after = mirrored(node, before)
    if after != before:
        draft.write(key, after)
    draft.write(keys.key_of(node), node)


def register(draft: Draft, context: Context, request: RegisterNode) -> Node | Replayed | Refusal:
    """An agent presents itself. After a fence it begins a new life, with the mark cleared.

    Its inventory is what makes that safe: the work of the old life has stopped, and `keep` work
    that still runs is charged until its own proof of stop, because its replica is not released
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
            f"node {name} is run by another agent, which keeps another directory; this one may "
            "have the name once that one is gone and its node fenced",
        )
    if old.status.phase in _GONE and request.holds is not None and request.holds.number:
        # It speaks for a life that is over, and has not stopped what it ran.
        return Refusal(Reason.STALE_INCARNATION, f"node {name} was fenced meanwhile: look at it")
    spec = msgspec.structs.replace(
        old.spec, **{field: getattr(request.node.spec, field) for field in AGENT_SPEC}
    )
    status = timed(context, request, old.status, _returned(old, request.node.status))
    if (spec, status) == (old.spec, old.status):
        return old
    metadata = old.metadata
    if spec != old.spec:
        metadata = msgspec.structs.replace(metadata, generation=metadata.generation + 1)
    node = msgspec.structs.replace(old, metadata=metadata, spec=spec, status=status)
    return _mirrored(draft, remembered(draft, context, node, request.operation, mark))


def _unseen_refusal(draft: Draft, old: Node, given: ObjectMeta) -> Refusal | None:
    """Whether the agent has not seen the node as it is.

    A registration that comes late would take newer facts back; and one that was sent before a fence
    would begin a new life while work of the old one may still run.
    """
    if given.uid and states_a_version(given):
        return version_refusal(draft, old, given)
    return Refusal(
        Reason.STALE_OBJECT,
        f"node {old.name} is registered: read it, and state its uid and resourceVersion",
        {"field": "metadata.resourceVersion"},
    )


def _is_anothers(now: NodeStatus, given: NodeStatus) -> bool:
    """Whether this life belongs to another agent under the same name.

    One that does not know what the other has started would start it once more.
    """
    is_other = bool(now.installation) and now.installation != given.installation
    return is_other and now.phase not in _GONE


def _first(draft: Draft, context: Context, request: RegisterNode, mark: str) -> Node | Refusal:
    given = request.node
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
    node = Node(metadata, spec=spec, status=timed(context, request, None, status))
    node = remembered(draft, context, node, request.operation, mark)
    # Also apart from it: if it is deleted soon, a copy of this request must not bring it back.
    remember_past(draft, context, node, request.operation, mark)
    return _mirrored(draft, node)


def _mirrored(draft: Draft, node: Node) -> Node | Refusal:
    """Write the node, if it is one that admission would let in as well."""
    errors = validate(node)
    if errors:
        return invalid(node, errors)
    mirror(draft, node)
    return node


def _returned(old: Node, given: NodeStatus) -> NodeStatus:
    """The status after a registration: a fenced node starts a new life,
    any other keeps the one it has.
    """
    status = msgspec.structs.replace(
        old.status, **{field: getattr(given, field) for field in AGENT_STATUS}
    )
    if old.status.phase not in _GONE:
        return status
    return msgspec.structs.replace(
        status, phase=NodePhase.READY, mark=None, incarnation=old.status.incarnation + 1
    )


def judge(draft: Draft, context: Context, request: JudgeNode) -> Node | Replayed | Refusal:
    """Move a node's phase, by controller:nodes alone and under its epoch."""
    mark = digest(request)
    if not context.is_actor(Actor.NODES):
        return Refusal(Reason.NOT_OWNER, "only controller:nodes judges nodes")
    node = draft.object(Node, "", request.node)
    if node is None or node.metadata.uid != request.uid:
        return Refusal(Reason.NODE_MISSING, f"node {request.node} is not there any more")
    past = recall(node.metadata, request.operation, mark)
    if past is not None:
        return past
    refusal = term_refusal(draft, context, request.term)
    if refusal is not None:
        return refusal
    refusal = _outdated_refusal(draft, node, request)
    if refusal is not None:
        return refusal
    status = _judged(context, node, request)
    if isinstance(status, Refusal):
        return status
    if status == node.status:
        return node
    after = msgspec.structs.replace(node, status=status)
    after = remembered(draft, context, after, request.operation, mark)
    mirror(draft, after)
    return after


def _outdated_refusal(draft: Draft, node: Node, request: JudgeNode) -> Refusal | None:
    """Whether something was said of the node since it was judged."""
    now = visible_version(draft, keys.key_of(node))
    if request.version == now:
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"node {node.name} has changed since resourceVersion {request.version[:40]!r}; judge it as "
        "it is now",
        {"resourceVersion": now or "uncommitted"},
    )


# From which phases each word may be said.
_FROM = {
    NodeWord.SUSPECT: (NodePhase.READY, NodePhase.SUSPECT),
    NodeWord.TRUST: (NodePhase.SUSPECT, NodePhase.READY),
    NodeWord.MARK: (NodePhase.READY, NodePhase.SUSPECT),
    NodeWord.CLEAR: (NodePhase.UNKNOWN,),
    NodeWord.FENCE: (NodePhase.UNKNOWN,),
    NodeWord.LOSE: (NodePhase.FENCED,),
}
_TO = {
    NodeWord.SUSPECT: NodePhase.SUSPECT,
    NodeWord.TRUST: NodePhase.READY,
    NodeWord.MARK: NodePhase.UNKNOWN,
    NodeWord.CLEAR: NodePhase.READY,
    NodeWord.FENCE: NodePhase.FENCED,
    NodeWord.LOSE: NodePhase.LOST,
}


def _judged(context: Context, node: Node, request: JudgeNode) -> NodeStatus | Refusal:
    status, word = node.status, request.word
    if status.phase not in _FROM[word]:
        return Refusal(
            Reason.WRONG_STATE,
            f"node {node.name} is {status.phase.value}; {word.value} does not apply",
            {"phase": status.phase.value},
        )
    if word in (NodeWord.CLEAR, NodeWord.FENCE):
        have = status.mark.number if status.mark is not None else 0
        if have != request.mark:
            return Refusal(
                Reason.STALE_MARK,
                f"node {node.name} has mark {have}, the request is about mark {request.mark}",
                {"mark": str(have)},
            )
    refusal = _wait_refusal(context, node, request) if word is NodeWord.FENCE else None
    if refusal is not None:
        return refusal
    after = msgspec.structs.replace(status, phase=_TO[word])
    if word is NodeWord.MARK:
        number = status.marks + 1
        made = Mark(
            number=number,
            at=context.at,
            by=context.identity.name,
            epoch=request.term.epoch,
            reason=clipped(request.reason),
        )
        return msgspec.structs.replace(after, mark=made, marks=number)
    if word is NodeWord.CLEAR:
        return msgspec.structs.replace(after, mark=None)
    return after


def _wait_refusal(context: Context, node: Node, request: JudgeNode) -> Refusal | None:
    """A fence waits for the greatest timing that work on the node may hold, whatever the settings
    of the servers are by now."""
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
