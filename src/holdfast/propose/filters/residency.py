"""Residency: the law of the region. What is not known is refused, here as in the commit.

A region or tenant that is not in the snapshot keeps the work waiting until it arrives.
"""

from __future__ import annotations

from holdfast.model.placement.placement_rules import residency_refusal
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.value_tables import code_of, table_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.RESIDENCY_UNKNOWN, Reason.RESIDENCY_FORBIDDEN)


def residency(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the data of this work may be in the node's region."""
    return residency_refusal(work.placement, work.tenant, candidate.gate.region, candidate.region)


def residency_codes(
    work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level
) -> Codes | None:
    """The same for many nodes: evaluated once for each region."""

    def code_for(name: str) -> int:
        refusal = residency_refusal(work.placement, work.tenant, name, view.region(name))
        return code_of(refusal, REASONS)

    columns = view.columns
    table = table_of(work, "residency", columns.regions.values, code_for)
    return table[columns.region[rows]] if table.any() else None
