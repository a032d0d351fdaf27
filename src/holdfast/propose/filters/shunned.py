"""Nodes that the commit refused a moment ago, although the snapshot allowed them.

Until such a node changes, or for a short time, our state of it is wrong: proposing it again would
be refused again. The reason is the commit's own, so there is no list of reasons here.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.refusal import Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork


def shunned(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the node is avoided for a moment."""
    return candidate.shunned


def shunned_codes(work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level) -> Codes | None:
    """The same for many nodes."""
    return view.columns.shunned[rows].astype(np.uint8)
