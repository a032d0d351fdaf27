"""Readiness: phase, drain and cordon.

Late heartbeats are judged by controller:nodes, which makes such a node Suspect; a scheduler
receives none itself. With an old snapshot a node is offered that is Suspect by now, and the commit
refuses it.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from holdfast.model.kinds.node import NodePhase
from holdfast.model.placement.placement_rules import gate_refusal
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows, gate_number
from holdfast.propose.filters.value_tables import code_of
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (Reason.NODE_NOT_READY, Reason.NODE_DRAINING, Reason.NODE_CORDONED)


def _codes_of_gates() -> Codes:
    """The result of the rule for each possible gate, by its number."""
    found = {}
    for phase, draining, cordoned in product(NodePhase, (False, True), (False, True)):
        gate = NodeGate(uid="", phase=phase, draining=draining, cordoned=cordoned)
        number = gate_number(phase, draining=draining, cordoned=cordoned)
        found[number] = code_of(gate_refusal(gate), REASONS)
    return np.array([found[number] for number in range(len(found))], np.uint8)


_CODES = _codes_of_gates()


def readiness(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node takes any new work."""
    return gate_refusal(candidate.gate)


def readiness_codes(
    work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level
) -> Codes | None:
    """The same for many nodes."""
    return _CODES[view.columns.gate[rows]]
