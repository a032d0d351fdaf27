"""The bind request for a proposal, and its course as an operation (`observe/operation.py`).

A lost answer settles nothing. The replica is read, and its remembered operations say whether the
bind happened. If not, the same request is sent again under the same id, so that however many copies
arrive, one takes effect. No other node is tried before that.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.replica import Replica
from holdfast.model.requests import Bind, Target, Term
from holdfast.observe.cache import Key
from holdfast.observe.operation import RequestOperation
from holdfast.observe.retry import RetryPolicy
from holdfast.propose.feasibility.outcome import BindReplica

# Each lost answer is followed by a read. If the third copy is not there either, the path to the
# servers is the problem: a pause and a fresh candidate do better than a fourth copy.
SENDS_MAX = 3
# The place stays assumed until the outcome is known, so the look comes at once and never ends. What
# did not happen is proposed again on a fresher snapshot, perhaps for another node.
BIND_POLICY = RetryPolicy(
    tries_max=SENDS_MAX,
    looks_max=None,
    deadline_ms=None,
    pause_ms=1_000,
    pause_max_ms=30_000,
    looks_at_once=True,
    repeats_undone=False,
)


class OpenBind(msgspec.Struct):
    """One bind whose outcome is not known yet; `due_ms` is the end of its pause."""

    key: Key
    bind: Bind
    operation: RequestOperation
    due_ms: int | None = None

    @property
    def uid(self) -> str:
        return self.bind.target.uid


def operation_of(identity: str, uid: str, number: int, node: str) -> str:
    """The id of a bind, which links it to the store's history and to the agent."""
    return f"{identity}/{uid}/{number}/bind-{node}"


def bind_of(identity: str, replica: Replica, proposal: BindReplica, term: Term) -> Bind:
    """The bind request for a proposal.

    Its id is derived from the scheduler, the replica, its transition number and the node, so that
    this scheduler uses the same id after a restart. If it then chooses other devices, the commit
    refuses the id as used, and reading the replica shows the outcome.
    """
    uid, number = replica.metadata.uid, replica.status.transition_number
    return Bind(
        Target(replica.namespace, replica.name, uid, number),
        proposal.node,
        proposal.node_uid,
        term,
        operation=operation_of(identity, uid, number, proposal.node),
        devices=proposal.held.devices or None,
        policy=proposal.policy,
        snapshot_revision=proposal.snapshot_revision,
        snapshot_age_ms=proposal.snapshot_age_ms,
        reservation=proposal.reservation,
        node_revision=proposal.node_revision,
    )
