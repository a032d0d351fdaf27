"""Headroom: the emptier the node stays, the better, so that one lost node takes little with it.

Spreading is the default rather than packing, since services are lost by the node and this plane
buys no nodes by itself. An old picture only ranks wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.view import View, Work


def headroom(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the share of the node that is left afterwards, of what the work asks for.

    What a node that can take the work has left is never negative, nor more than there is.
    """
    columns = view.columns
    total: Floats | None = None
    for resource, units in work.units:
        left = columns.free[resource, rows] - units * (1 + more)
        share = left * columns.inverse[resource, rows]
        total = share if total is None else total + share
    if total is None:
        return np.zeros(np.shape(columns.live[rows] * np.asarray(more)), np.float64)
    return total * (100.0 / len(work.units))


def packing(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the opposite, for fleets that pay by the node: fill one before the next."""
    return 100.0 - headroom(work, view, rows, more)
