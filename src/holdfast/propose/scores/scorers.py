"""The built-in scorers. An old snapshot only leads to a worse ranking.

Headroom: the emptier the node stays, the better, so that one lost node takes little with it.
Spreading is the default rather than packing, since services fail with their node and this plane
buys no nodes by itself.
"""

from __future__ import annotations

import numpy as np

from holdfast.model.kinds.placement import Taint
from holdfast.model.placement.placement_rules import first_untolerated, tenant_image
from holdfast.observe.node_columns import Floats, Ints, Rows
from holdfast.propose.filters.labels import all_hold
from holdfast.propose.filters.value_tables import table_of
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork


def headroom(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the share of the node that is left afterwards, of what the work asks for.

    What a feasible node has left is never negative, nor more than its total.
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


def packing(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the opposite, for fleets that pay by the node: fill one before the next."""
    return 100.0 - headroom(work, view, rows, more)


# Cost: the cheaper node, by the cost that its operator states.
#
# It has no default weight: an operator who pays by the node sets one.


def cost(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: 100 for a node that costs nothing, 50 at one unit an hour, towards 0 above that.

    It does not compare with the most expensive node: one new node would change the score of all.
    """
    return 100.0 / (1.0 + view.columns.cost[rows])


# Image: where the image is present, work starts without waiting for it to be pulled.
#
# A node's status says which images it has: for all, and those that were pulled for one tenant.


def image(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """100 where the image is present for this tenant, 0 where it would have to be pulled first."""
    facts, image = view.columns.facts, work.replica.spec.template.image
    warm = facts.image(image) | facts.image(tenant_image(work.replica.namespace, image))
    return np.where(warm[rows], 100.0, 0.0)


def has_image(work: PendingWork, view: FleetSnapshot) -> bool:
    return bool(work.replica.spec.template.image)


# Preference: nodes that the work prefers, or prefers to avoid, by their labels.
#
# It depends only on the node itself, and is evaluated again when that changes.


def preference(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """0 to 100: the weight of the stated preferences that the node meets, of all of them."""
    wishes = work.placement.prefer
    met = np.zeros(len(view.columns.live[rows]), np.float64)
    for wish in wishes:
        if wish.expressions:
            held = all_hold(wish.expressions, view, rows)
            met += wish.weight * (~held if wish.avoid else held)
    return met * (100.0 / sum(wish.weight for wish in wishes))


def has_preference(work: PendingWork, view: FleetSnapshot) -> bool:
    return bool(work.placement.prefer)


# Scarce: leave nodes with devices to work that asks for devices, as long as others are feasible.
#
# `fragmentation.py` says on which of the nodes with devices such work hurts least; this one says
# that any of them is the worse choice, whatever was asked for so far.


def scarce(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """100 where the node has no devices, 0 where work that asks for none would be in their way."""
    return np.where(view.columns.devices.count[rows] > 0, 0.0, 100.0)


def spares_devices(work: PendingWork, view: FleetSnapshot) -> bool:
    return not work.demand.devices and bool(view.columns.devices.count.any())


# Welcome: avoid nodes with a taint that only asks to be avoided (PreferNoSchedule).
#
# It depends only on the node itself, and is evaluated again when that changes.


def welcome(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """100 where no taint asks to be avoided, 0 where one does and the work does not tolerate it."""
    columns = view.columns
    table = table_of(work, "welcome", columns.taints_seen.values, lambda it: _welcome(work, it))
    return table[columns.taints[rows]].astype(np.float64)


def has_taints(work: PendingWork, view: FleetSnapshot) -> bool:
    return any(view.columns.taints_seen.values)


def _welcome(work: PendingWork, taints: tuple[Taint, ...]) -> int:
    avoided = first_untolerated(taints, work.placement.tolerations, hard_only=False)
    return 100 if avoided is None else 0
