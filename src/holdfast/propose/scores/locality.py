"""Locality: near the plane that was asked to place the work, and so near whoever asked.

Where data must be is a hard rule (`filters/residency.py`). Where else work would rather be it says
by `prefer`, or by a soft affinity within a zone or region. An old picture only ranks wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.view import View, Work


def locality(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 in the region whose plane was asked to place it, 0 elsewhere."""
    number = view.columns.regions.known(work.replica.spec.region)
    return np.where(view.columns.region[rows] == (-1 if number is None else number), 100.0, 0.0)


def has_region(work: Work, view: View) -> bool:
    return bool(work.replica.spec.region)
