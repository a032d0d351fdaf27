"""Image: where the image is already, work starts without waiting for it to be fetched.

A node says in its status what it has. An old picture only ranks wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.view import View, Work


def image(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 where the image is already, 0 where it would have to be fetched first."""
    warm = view.columns.facts.image(work.replica.spec.template.image)
    return np.where(warm[rows], 100.0, 0.0)


def has_image(work: Work, view: View) -> bool:
    return bool(work.replica.spec.template.image)
