"""Tenancy: nodes and pools that are kept for certain tenants or classes of work.

An old picture may offer a node that is protected by now; the commit refuses it.
"""

from __future__ import annotations

from holdfast.model.placing import protection_refusal
from holdfast.model.refusal import Refusal
from holdfast.propose.view import Candidate, Work


def tenancy(work: Work, candidate: Candidate) -> Refusal | None:
    """Whether the capacity of the node, and of its pool, is for this work."""
    gate, region = candidate.gate, candidate.region
    pools = region.spec.pools if region is not None else ()
    pool = next((pool.protected_for for pool in pools if pool.name == gate.pool), None)
    tenant, priority_class = work.namespace, work.priority_class
    return protection_refusal(gate.protected_for, tenant, priority_class) or protection_refusal(
        pool, tenant, priority_class
    )
