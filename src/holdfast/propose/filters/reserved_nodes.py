"""Tenancy: nodes and pools that are reserved for certain tenants or classes of work.

An old snapshot may offer a node that is protected by now; the commit refuses it.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.kinds.node import Protection
from holdfast.model.kinds.region import Region
from holdfast.model.placement.placement_rules import protection_refusal
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.value_tables import code_of, table_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.TENANCY_FORBIDDEN, Reason.PROTECTED_CAPACITY)


def tenancy(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the capacity of the node, and of its pool, is for this work."""
    gate = candidate.gate
    return _protection_refusal(gate.protected_for, work) or _protection_refusal(
        _of_pool(candidate.region, gate.pool), work
    )


def tenancy_codes(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    """The same for many nodes: evaluated once for each protection and each pool of a region."""

    def of_node(protection: Protection | None) -> int:
        return code_of(_protection_refusal(protection, work), REASONS)

    def of_pool(place: tuple[str, str, str]) -> int:
        region, _, pool = place
        return code_of(_protection_refusal(_of_pool(view.region(region), pool), work), REASONS)

    columns = view.columns
    nodes = table_of(work, "protection", columns.protections.values, of_node)
    pools = table_of(work, "pool", columns.places.values, of_pool)
    if not pools.any():
        return nodes[columns.protection[rows]] if nodes.any() else None
    own = nodes[columns.protection[rows]]
    return np.where(own != 0, own, pools[columns.place[rows]])


def _protection_refusal(protection: Protection | None, work: PendingWork) -> Refusal | None:
    return protection_refusal(protection, work.namespace, work.priority_class)


def _of_pool(region: Region | None, name: str) -> Protection | None:
    pools = region.spec.pools if region is not None else ()
    return next((pool.protected_for for pool in pools if pool.name == name), None)
