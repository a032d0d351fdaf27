"""When the place of a replica may be taken by the next incarnation.

controller:workload asks for the birth by this rule, and the commit lets it happen by the same.
"""

from __future__ import annotations

import hashlib

from holdfast.model.access.identity import NODE_PREFIX
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.lifecycle import State
from holdfast.model.placement.placement_rules import NODE_LABEL

# The reason of a step that controller:repair takes because the node lives in another life.
NODE_RETURNED = "NodeReturned"


def vacates(replica: Replica) -> bool:
    """Whether its place may be taken: it was released, or its owner does not want to wait for it.

    The latter is `keep` work out of contact that was given up after replaceAfter. It may still run
    beside its successor; whoever wants that asked for it.
    """
    state, steps = replica.status.state, replica.status.transitions
    if state is not State.FAILED or replica.spec.template.on_disconnect is not OnDisconnect.KEEP:
        return state is State.RELEASED
    last = steps[-1]
    # One whose agent has told how it ended, or whose node is back in another life, will also be
    # proven to have stopped, and soon.
    is_back = last.by.startswith(NODE_PREFIX) or last.reason == NODE_RETURNED
    return last.from_state is State.UNKNOWN and not is_back


# Where the replicas of one-per-node work have their places.
#
# The place follows from the node's name, so that everybody who makes a replica for a node makes the
# same one, and the commit refuses the second. Names may lead to the same number: the later node
# moves on to the next place. Where a node has its replica then depends on who was there first, so
# each birth looks at all places that the node may have come to: from its first one on until one
# that was never used. A place that was used once stays so while the workload is there, as the
# places ledger remembers.

PLACES_MAX = 1_000_000


def home_of(replica: Replica) -> str:
    """The node that a replica is for; empty if it is for any."""
    return replica.spec.template.placement.node_selector.get(NODE_LABEL, "")


def first_place(node: str) -> int:
    """The place of a node's replica, unless another node had it first."""
    digest = hashlib.blake2b(node.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % PLACES_MAX


def next_place(place: int) -> int:
    """Where to look after a place that others have used."""
    return (place + 1) % PLACES_MAX
