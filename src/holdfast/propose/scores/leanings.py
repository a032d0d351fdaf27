"""What ranks nodes by what they are, whoever is on them. Each is from 0 to 100.

None of these changes with what is taken of a node, so that they are looked at again only when the
node changes. An old picture only ranks wrongly.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.kinds.placement import Taint
from holdfast.model.placing import untolerated
from holdfast.observe.columns import Floats, Ints, Rows
from holdfast.propose.filters.labels import all_hold
from holdfast.propose.filters.tables import table_of
from holdfast.propose.view import View, Work


def preference(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """The weight of the stated preferences that the node meets, of all of them."""
    wishes = work.placement.prefer
    met = np.zeros(len(view.columns.live[rows]), np.float64)
    for wish in wishes:
        if wish.expressions:
            held = all_hold(wish.expressions, view, rows)
            met += wish.weight * (~held if wish.avoid else held)
    return met * (100.0 / sum(wish.weight for wish in wishes))


def has_preference(work: Work, view: View) -> bool:
    return bool(work.placement.prefer)


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


def scarce(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 where the node has no devices, 0 where work that asks for none would be in their way."""
    return np.where(view.columns.devices.count[rows] > 0, 0.0, 100.0)


def spares_devices(work: Work, view: View) -> bool:
    return not work.demand.devices and bool(view.columns.devices.count.any())


def locality(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 in the region whose plane was asked to place it, 0 elsewhere."""
    number = view.columns.regions.known(work.replica.spec.region)
    return np.where(view.columns.region[rows] == (-1 if number is None else number), 100.0, 0.0)


def has_region(work: Work, view: View) -> bool:
    return bool(work.replica.spec.region)


def image(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 where the image is already, so that it need not be fetched first."""
    warm = view.columns.facts.image(work.replica.spec.template.image)
    return np.where(warm[rows], 100.0, 0.0)


def has_image(work: Work, view: View) -> bool:
    return bool(work.replica.spec.template.image)


def cost(work: Work, view: View, rows: Rows, more: Ints | int) -> Floats:
    """100 for a node that costs nothing, 50 at one unit an hour, and towards 0 above that.

    It does not compare with the dearest node: one new node would change the score of all.
    """
    return 100.0 / (1.0 + view.columns.cost[rows])
