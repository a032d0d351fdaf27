"""Cost: the cheaper node, by what its operator says that it costs.

It has no weight of its own: who pays by the node gives it one. An old picture only ranks wrongly.
"""

from __future__ import annotations

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.view import View, Work


def cost(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: 100 for a node that costs nothing, 50 at one unit an hour, towards 0 above that.

    It does not compare with the dearest node: one new node would change the score of all.
    """
    return 100.0 / (1.0 + view.columns.cost[rows])
