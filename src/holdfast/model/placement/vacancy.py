"""When the next incarnation may take the ordinal of a replica.

controller:workload creates replicas by this rule, and the commit enforces the same rule.
"""

from __future__ import annotations

import hashlib

from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.placement.placement_rules import NODE_LABEL

# The reason of a transition by controller:repair because the node is in another incarnation.
NODE_RETURNED = "NodeReturned"


def vacates(replica: Replica) -> bool:
    """Whether its ordinal is free: it was released, or replaceAfter has passed.

    The latter is `keep` work out of contact. It may still run beside its successor, which its owner
    accepts by setting replaceAfterSeconds.
    """
    state, steps = replica.status.state, replica.status.transitions
    if state is not State.FAILED or replica.spec.template.on_disconnect is not OnDisconnect.KEEP:
        return state is State.RELEASED
    last = steps[-1]
    # If its agent has reported its end, or its node is back in another incarnation, proof that it
    # stopped will follow soon.
    is_back = last.by.startswith(NODE_PREFIX) or last.reason == NODE_RETURNED
    return last.from_state is State.UNKNOWN and not is_back


# The ordinals of PerNode replicas.
#
# The ordinal follows from a hash of the node's name, so that all requests to create a replica for a
# node name the same one, and the commit refuses the second. On a hash collision the later node
# takes the next ordinal. The ordinal of a node then depends on which node came first, so each
# creation checks all ordinals that the node may have: from its first one up to one that was never
# used. An ordinal that was used once stays used while the workload exists, as the places ledger
# records.

PLACES_MAX = 1_000_000


def home_of(replica: Replica) -> str:
    """The node that a replica is for; empty if it may run on any."""
    return replica.spec.template.placement.node_selector.get(NODE_LABEL, "")


def first_place(node: str) -> int:
    """The ordinal of a node's replica, unless another node took it first."""
    digest = hashlib.blake2b(node.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PLACES_MAX


def next_place(place: int) -> int:
    """The ordinal to try after one that another node uses."""
    return (place + 1) % PLACES_MAX
