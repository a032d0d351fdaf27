"""Proofs of transitions: marks, fences, a node's return, an operator's statement."""

from __future__ import annotations

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.leases import term_refusal
from holdfast.model import keys
from holdfast.model.kinds.node import GONE
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor, State
from holdfast.model.nodes.installations import adopts, keeps, ran_on
from holdfast.model.quota.ledger import NodeLedger
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Move


def proof_refusal(
    draft: Draft, context: Context, replica: Replica, request: Move, actor: Actor
) -> Refusal | None:
    """Refuse a transition without the proof that it needs besides its actor."""
    source, to = replica.status.state, request.to
    if actor in (Actor.NODES, Actor.REPAIR, Actor.WORKLOAD):
        refusal = term_refusal(draft, context, request.term)
        if refusal is not None:
            return refusal
    if to is State.STOPPING and source is not State.UNKNOWN:
        return Refusal(
            Reason.NOT_ALLOWED, "running work must be stopped by Evict, which names its cause"
        )
    if actor is Actor.NODES:
        return _mark_refusal(draft, replica, request.mark)
    if actor is Actor.AGENT and source is State.UNKNOWN:
        return _return_refusal(draft, replica, request)
    if actor is Actor.OPERATOR:
        return _word_refusal(draft, replica, request)
    if actor is Actor.REPAIR and to in (State.FAILED, State.RELEASED):
        return _fence_refusal(draft, context, replica, to)
    return None


def _gate(draft: Draft, replica: Replica) -> NodeLedger | None:
    binding = replica.status.binding
    return draft.ledger(NodeLedger, keys.node_ledger(binding.node)) if binding is not None else None


def _mark_refusal(draft: Draft, replica: Replica, mark: int) -> Refusal | None:
    """Refuse Unknown under any mark other than the node's current one."""
    ledger = _gate(draft, replica)
    have = ledger.gate.mark if ledger is not None else 0
    if not mark or have != mark:
        return Refusal(
            Reason.STALE_MARK,
            f"the node's mark is {have}, the request names {mark}",
            {"mark": str(have)},
        )
    return None


def _return_refusal(draft: Draft, replica: Replica, request: Move) -> Refusal | None:
    """An agent that is back may report its Unknown work only on a node without mark or fence.

    Work that was being stopped keeps stopping: its place may be promised. An installation that has
    lost its node's name to another one can only report that its work has ended.
    """
    cause, to = replica.status.cause, request.to
    if (to is State.RUNNING and cause is not None) or (to is State.STOPPING and cause is None):
        asked = f"was asked to stop for {cause.value}" if cause else "was never asked to stop"
        return Refusal(Reason.WRONG_STATE, f"replica {replica.name} {asked}", {"to": to.value})
    ledger = _gate(draft, replica)
    binding = replica.status.binding
    if ledger is None or binding is None:
        return Refusal(Reason.NODE_MISSING, "the node is no longer registered")
    has_lost_name = ledger.gate.installation != binding.installation
    if to is State.FAILED and has_lost_name and ran_on(binding, request.installation):
        return None
    if ledger.gate.mark or ledger.gate.phase in GONE:
        return Refusal(
            Reason.STALE_MARK,
            f"node {binding.node} is {ledger.gate.phase.value} and its mark is not cleared",
            {"mark": str(ledger.gate.mark)},
        )
    is_present = ledger.gate.incarnation == request.incarnation
    is_back = is_present and ran_on(binding, ledger.gate.installation)
    if is_back and adopts(replica, request.incarnation, request.installation):
        return None
    if ledger.gate.incarnation != binding.node_incarnation:
        return Refusal(
            Reason.STALE_INCARNATION, f"node {binding.node} is in a later incarnation now"
        )
    return None


def _word_refusal(draft: Draft, replica: Replica, request: Move) -> Refusal | None:
    if not request.word.strip():
        return Refusal(Reason.NOT_ALLOWED, "word: required: state the reason")
    if request.to is not State.RELEASED or is_out_of_reach(draft, replica):
        return None
    return Refusal(
        Reason.NOT_FENCED,
        f"the node of {replica.name} is not fenced: only its agent may report on it",
    )


def is_out_of_reach(draft: Draft, replica: Replica) -> bool:
    """Whether the node's incarnation that it was bound in is over, so that no agent reports on
    it. Then a person may, who has seen the machine or what is left of it.
    """
    binding, ledger = replica.status.binding, _gate(draft, replica)
    if binding is None or ledger is None:
        return True
    is_later = ledger.gate.incarnation > binding.node_incarnation
    return is_later or ledger.gate.phase in GONE


def _fence_refusal(draft: Draft, context: Context, replica: Replica, to: State) -> Refusal | None:
    """Repair acts only on what is certainly gone: fenced `stop` work, or work that was never bound.

    `keep` work continues when its node is cut off, so no fence proves its end. Repair may declare
    it failed after replaceAfter, which its owner chose; its share is released only by proof of
    stop. An installation that returns in a later incarnation reports on its work itself.
    """
    binding, ledger = replica.status.binding, _gate(draft, replica)
    if binding is None or ledger is None:
        return None
    later = ledger.gate.incarnation > binding.node_incarnation
    if keeps(replica):
        # A named installation reports on its work itself when it is back.
        is_back = later and not binding.installation and not ledger.gate.installation
        away = (ledger.gate.mark or later) and _replaceable(context, replica)
        if to is State.FAILED and (is_back or away):
            return None
        return Refusal(
            Reason.NOT_FENCED,
            f"{replica.name} keeps running when cut off: only the installation of node "
            f"{binding.node} that ran it can prove that it stopped",
        )
    if later or ledger.gate.phase in GONE:
        return None
    return Refusal(
        Reason.NOT_FENCED,
        f"node {binding.node} is not fenced: {replica.name} may still run",
        {"node": binding.node},
    )


def _replaceable(context: Context, replica: Replica) -> bool:
    """Whether `keep` work has been unreachable for as long as its owner wants to wait."""
    wait_s = replica.spec.template.replace_after_seconds
    if wait_s is None or not replica.status.transitions:
        return False
    # It is Unknown, so its last transition is the one that made it so.
    out_ms = context.age_ms(replica.status.transitions[-1].at)
    return out_ms >= wait_s * 1000 + context.settings.skew_ms
