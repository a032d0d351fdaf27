"""Scarce: leave nodes with devices to those who ask for devices, as long as others do.

`fragmentation.py` says on which of the nodes with devices such work hurts least; this one, that any
of them is the worse choice, whatever was asked for so far. An old picture only ranks wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.view import View, Work


def scarce(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 where the node has no devices, 0 where work that asks for none would be in their way."""
    return np.where(view.columns.devices.count[rows] > 0, 0.0, 100.0)


def spares_devices(work: Work, view: View) -> bool:
    return not work.demand.devices and bool(view.columns.devices.count.any())
