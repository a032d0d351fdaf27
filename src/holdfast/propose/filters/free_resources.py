"""Resources: sums, devices and fixed ports, by the same `claim` as the commit.

The sums include what is assumed. An old snapshot offers what is taken by now, which the commit
refuses, or misses what was released, which the next change corrects.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.model.placement.fit import claim
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes, Level, Rows
from holdfast.propose.filters.free_devices import device_codes
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot, PendingWork

REASONS = (
    *(Reason.NODE_FULL, Reason.PORT_TAKEN, Reason.PORT_NOT_OFFERED),
    *(Reason.DEVICE_MISSING, Reason.DEVICE_TAKEN),
)
_FULL, _PORT, _ELSEWHERE, _MISSING, _TAKEN = range(1, 6)


def resources(work: PendingWork, candidate: Candidate) -> Refusal | None:
    """Whether the work fits on the node beside what is there."""
    held = claim(candidate.site.ledger, work.demand)
    return held if isinstance(held, Refusal) else None


def resource_codes(
    work: PendingWork, view: FleetSnapshot, rows: Rows, level: Level
) -> Codes | None:
    """The same for many nodes: sums first, then ports, then devices, in the order of the rule."""
    columns = view.columns
    short = None
    for resource, units in work.units:
        lacking = columns.left(resource, rows, level) < units
        short = lacking if short is None else short | lacking
    if short is None:
        short = np.zeros(len(columns.live[rows]), np.bool_)
    codes = short.astype(np.uint8)
    for port in work.demand.ports:
        _mark(columns.ports.not_offered(port), view, rows, codes, _ELSEWHERE)
        if level is not Level.EMPTY:
            taken = columns.ports.taken(port, settled=level is Level.SETTLED)
            _mark(taken, view, rows, codes, _PORT)
    if work.demand.devices:
        device_codes(work, view, rows, level, codes, missing=_MISSING, taken=_TAKEN)
    return codes


def _mark(found: Sequence[int], view: FleetSnapshot, rows: Rows, codes: Codes, code: int) -> None:
    """Give the code to those of the rows that were found and have none yet."""
    if found:
        there = np.zeros(view.columns.count, np.bool_)
        there[found] = True
        codes[there[rows] & (codes == 0)] = code
