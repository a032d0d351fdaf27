"""Locality and network: how near a node is to the data that work states in `placement.data`.

Locality knows only names: the zone, its region, or elsewhere. Network knows how far regions are
from each other, as their operator states. Both are looked up for each different place of nodes, of
which a plane has few. What is stated wrongly leads to a worse ranking and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from holdfast.model.kinds.region import Region
from holdfast.observe.node_columns import Floats, Ints, Rows
from holdfast.propose.filters.value_tables import table_of
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork

NEAREST, SAME_REGION = 100, 50
# At this round-trip time the score is half of the best.
HALF_MS = 10


def locality(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """100 in a zone or region that has the data, 50 in another zone of a region of which a zone
    has it, else 0.
    """
    columns, data = view.columns, work.placement.data
    homes = _homes(view, data)

    def nearness(place: tuple[str, str, str]) -> int:
        region, zone, _ = place
        if region in data or zone in data:
            return NEAREST
        return SAME_REGION if region and region in homes.values() else 0

    table = table_of(work, "locality", columns.places.values, nearness)
    return table[columns.place[rows]].astype(np.float64)


def network(work: PendingWork, view: FleetSnapshot, rows: Rows, more: Ints | int) -> Floats:
    """100 in a region that has the data, 50 at 10 ms from it, 0 where no distance is stated."""
    columns = view.columns
    homes = _homes(view, work.placement.data)
    regions = {*homes.values(), *(it for it in work.placement.data if it not in homes)}

    def nearness(place: tuple[str, str, str]) -> int:
        times = [_latency_ms(view, place[0], it) for it in sorted(regions)]
        known = [it for it in times if it is not None]
        return round(100 * HALF_MS / (HALF_MS + min(known))) if known else 0

    table = table_of(work, "network", columns.places.values, nearness)
    return table[columns.place[rows]].astype(np.float64)


def states_data(work: PendingWork, view: FleetSnapshot) -> bool:
    return bool(work.placement.data)


def _homes(view: FleetSnapshot, data: tuple[str, ...]) -> Mapping[str, str]:
    """The region of each named zone, by the regions and by the nodes."""
    found = {zone: region for region, zone, _ in view.columns.places.values if zone in data}
    for region in view.all("regions"):
        found |= {zone: region.name for zone in region.spec.zones if zone in data}
    return found


def _latency_ms(view: FleetSnapshot, one: str, other: str) -> int | None:
    if one == other:
        return 0
    stated = (_stated_ms(view.region(one), other), _stated_ms(view.region(other), one))
    return max((it for it in stated if it is not None), default=None)


def _stated_ms(region: Region | None, other: str) -> int | None:
    return region.spec.latency_ms.get(other) if region is not None else None
