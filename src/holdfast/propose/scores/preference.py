"""Preference: nodes that the work would rather have, or rather not, by their labels.

It looks only at what a node is, and is asked again when that changes. An old picture only ranks
wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.filters.labels import all_hold
from holdfast.propose.view import View, Work


def preference(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the weight of the stated preferences that the node meets, of all of them."""
    wishes = work.placement.prefer
    met = np.zeros(len(view.columns.live[rows]), np.float64)
    for wish in wishes:
        if wish.expressions:
            held = all_hold(wish.expressions, view, rows)
            met += wish.weight * (~held if wish.avoid else held)
    return met * (100.0 / sum(wish.weight for wish in wishes))


def has_preference(work: Work, view: View) -> bool:
    return bool(work.placement.prefer)
