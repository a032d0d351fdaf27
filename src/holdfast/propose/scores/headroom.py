"""Headroom: the emptier the node stays, the better, so that one lost node takes little with it.

Spreading is the default rather than packing, since services are lost by the node and this plane
buys no nodes by itself. An old picture only ranks wrongly.
"""

from __future__ import annotations

from holdfast.propose.view import Candidate, Work


def headroom(work: Work, candidate: Candidate) -> float:
    """0 to 100: the share of the node that is left afterwards, of what the work asks for."""
    ledger = candidate.site.ledger
    shares = []
    for resource, units in work.demand.amounts.items():
        whole = ledger.allocatable.get(resource, 0)
        if whole > 0:
            left = ledger.free(resource) - units
            shares.append(min(1.0, max(0.0, left / whole)))
    return 100.0 * sum(shares) / len(shares) if shares else 0.0
