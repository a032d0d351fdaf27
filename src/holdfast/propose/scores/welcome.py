"""Welcome: keep away from nodes with a taint that only asks to be avoided.

It looks only at what a node is, and is asked again when that changes. An old picture only ranks
wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.kinds.placement import Taint
from holdfast.model.placing import untolerated
from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.filters.tables import table_of
from holdfast.propose.view import View, Work


def welcome(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 where no taint asks to be avoided, 0 where one does and the work says nothing of it."""
    columns = view.columns
    table = table_of(work, "welcome", columns.taints_seen.values, lambda it: _welcome(work, it))
    return table[columns.taints[rows]].astype(np.float64)


def has_taints(work: Work, view: View) -> bool:
    return any(view.columns.taints_seen.values)


def _welcome(work: Work, taints: tuple[Taint, ...]) -> int:
    avoided = untolerated(taints, work.placement.tolerations, hard_only=False)
    return 100 if avoided is None else 0
