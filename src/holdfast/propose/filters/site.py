"""Region, zone and pool. They never change for a node, so an old snapshot is right."""

from __future__ import annotations

from holdfast.model.placement.placement_rules import site_refusal
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.value_tables import code_of, table_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.REGION_MISMATCH, Reason.ZONE_MISMATCH, Reason.POOL_MISMATCH)


def site(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node is where the work asks to be."""
    return site_refusal(candidate.gate, work.placement)


def site_codes(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    """The same for many nodes: evaluated once for each place."""
    placement = work.placement
    if not (placement.regions or placement.zones or placement.pool):
        return None

    def code_for(place: tuple[str, str, str]) -> int:
        region, zone, pool = place
        gate = NodeGate(uid="", region=region, zone=zone, pool=pool)
        return code_of(site_refusal(gate, placement), REASONS)

    columns = view.columns
    return table_of(work, "site", columns.places.values, code_for)[columns.place[rows]]
