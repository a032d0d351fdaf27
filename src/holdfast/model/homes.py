"""Where the replicas of one-per-node work have their places.

The place follows from the node's name, so that everybody who makes a replica for a node makes the
same one, and the commit refuses the second. Names may lead to the same number: the later node moves
on to the next place. Where a node has its replica then depends on who was there first, so each
birth looks at all places that the node may have come to: from its first one on until one that was
never used. A place that was used once stays so while the workload is there, as the places ledger
remembers.
"""

from __future__ import annotations

import hashlib

from holdfast.model.kinds.replica import Replica
from holdfast.model.placing import NODE_LABEL

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
