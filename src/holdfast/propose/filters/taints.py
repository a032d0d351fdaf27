"""Taints. An old snapshot may miss one that was just set; the commit knows it."""

from __future__ import annotations

from holdfast.model.kinds.placement import Taint
from holdfast.model.placement.placement_rules import taint_refusal
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.value_tables import code_of, table_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.TAINTED,)


def taints(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the work tolerates the node's taints."""
    return taint_refusal(candidate.gate, work.placement)


def taint_codes(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    """The same for many nodes: evaluated once for each list of taints."""

    def code_for(seen: tuple[Taint, ...]) -> int:
        return code_of(taint_refusal(NodeGate(uid="", taints=seen), work.placement), REASONS)

    columns = view.columns
    table = table_of(work, "taints", columns.taints_seen.values, code_for)
    return table[columns.taints[rows]] if table.any() else None
