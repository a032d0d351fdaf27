"""The result of a rule for each different value, looked up for all rows at once.

The rule is the model's own function, evaluated once for each value that nodes have: a plane has few
zones, pools, taints and protections. Filters call this; results are kept with the work and only new
values are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.node_columns import Codes
from holdfast.propose.fleet_snapshot import PendingWork

V = TypeVar("V")

# Rows whose node is not known have number 0, even before any node has brought a value.
_NO_VALUES: Codes = np.zeros(1, np.uint8)


def table_of(work: PendingWork, name: str, values: Sequence[V], rule: Callable[[V], int]) -> Codes:
    """The result of the rule for each value, by the value's number."""
    table = work.tables.get(name)
    known = len(table) if table is not None else 0
    if table is None or known < len(values):
        fresh = np.array([rule(value) for value in values[known:]], np.uint8)
        table = fresh if table is None else np.concatenate([table, fresh])
        work.tables[name] = table
    return table if len(table) else _NO_VALUES


def code_of(refusal: Refusal | None, reasons: tuple[Reason, ...]) -> int:
    """A refusal as a filter's code: 0 for none, otherwise the position of its reason from 1."""
    return reasons.index(refusal.reason) + 1 if refusal is not None else 0
