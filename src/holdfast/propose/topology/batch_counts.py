"""The topology rules while a batch of replicas is being placed: counts that grow as it goes.

`batch_placement.py` asks it before each placement and reports each one. It starts with the topology
counts and adds its own placements; the rules are those of `affinity.py`, applied to one domain.
"""

from __future__ import annotations

from enum import Flag, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.placement import Spread, Topology
from holdfast.observe.node_columns import Bools
from holdfast.propose.feasibility.node_verdicts import NodeVerdicts
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.topology.affinity import TopologyRules
from holdfast.propose.topology.topology_counts import TopologyTerm


class Effect(Flag):
    """What a placement may affect: other groups, or rows that were set aside."""

    NONE = 0
    GROUPS = auto()
    ROWS = auto()


class GroupDomains(Protocol):
    """The domains of a group of rows."""

    zone: int
    region: int


class _Even:
    """A required spread. `eligible` are the numbers of the domains that count."""

    __slots__ = ("counts", "emptiest", "least", "max_skew", "over")

    def __init__(self, rule: Spread, term: TopologyTerm, eligible: list[int]) -> None:
        self.over, self.max_skew = rule.over, rule.max_skew
        self.counts = dict(term.counts[rule.over])
        # How many eligible domains have as few as the emptiest.
        self.least: dict[int, int] = {}
        for place in eligible:
            count = self.counts.get(place, 0)
            self.least[count] = self.least.get(count, 0) + 1
        self.emptiest = min(self.least, default=0)

    def allows(self, place: int) -> bool:
        return self.counts.get(place, 0) + 1 - self.emptiest <= self.max_skew

    def placed(self, place: int) -> bool:
        """Count one more. Returns whether the minimum has grown. Used domains are eligible."""
        before = self.counts.get(place, 0)
        self.counts[place] = before + 1
        self.least[before] -= 1
        self.least[before + 1] = self.least.get(before + 1, 0) + 1
        if self.least[before]:
            return False
        del self.least[before]
        if before != self.emptiest:
            return False
        self.emptiest = min(self.least)
        return True


class _Near:
    """A required affinity or anti-affinity, and where the replicas are that it selects."""

    __slots__ = ("anti", "counts", "grows", "is_first", "within")

    def __init__(self, term: TopologyTerm, within: Topology, *, anti: bool, grows: bool) -> None:
        self.within, self.anti, self.grows = within, anti, grows
        self.counts = dict(term.counts[within])
        self.is_first = not anti and grows and term.total == 0

    def allows(self, place: int) -> bool:
        found = place in self.counts
        return not found if self.anti else found or self.is_first

    def placed(self, place: int) -> Effect:
        was_first = self.is_first
        if self.grows:
            self.counts[place] = self.counts.get(place, 0) + 1
            self.is_first = False
        return Effect.GROUPS if was_first else Effect.NONE


class BatchCounts:
    """See the module's docstring."""

    def __init__(
        self, view: FleetSnapshot, topology_rules: TopologyRules, verdicts: NodeVerdicts
    ) -> None:
        columns, topology_counts = view.columns, view.fleet.topology_counts
        own = topology_rules.own(topology_counts)
        self._limit = topology_rules.limit
        self._own = dict(own.counts[Topology.NODE])
        self._even: list[_Even] = []
        self._near: list[_Near] = []
        for rule in topology_rules.spreads:
            eligible = np.flatnonzero(
                topology_rules.eligible(rule.over, verdicts, columns)
            ).tolist()
            self._even.append(_Even(rule, own, eligible))
        for affinity, anti in topology_rules.affinities:
            term = topology_rules.term(topology_counts, affinity.selector)
            grows = topology_rules.grows(term)
            self._near.append(_Near(term, affinity.within, anti=anti, grows=grows))
        for term, within in topology_rules.repelling(topology_counts):
            self._near.append(_Near(term, within, anti=True, grows=topology_rules.grows(term)))
        by_row = Topology.NODE
        self._even_rows = [rule for rule in self._even if rule.over is by_row]
        self._near_rows = [rule for rule in self._near if rule.within is by_row]
        self._even_groups = [rule for rule in self._even if rule.over is not by_row]
        self._near_groups = [rule for rule in self._near if rule.within is not by_row]
        # Zones of one region are groups of their own, and share the counts of the region.
        asked = [rule.over for rule in self._even_groups]
        asked += [rule.within for rule in self._near_groups]
        is_shared = Topology.ZONE in asked and Topology.REGION in asked
        self._usual = Effect.GROUPS if is_shared else Effect.NONE

    @property
    def finest(self) -> Topology:
        """How rows have to be grouped: by zone, by region, or (node) not at all."""
        asked = [rule.over for rule in self._even_groups]
        asked += [rule.within for rule in self._near_groups]
        if Topology.ZONE in asked:
            return Topology.ZONE
        return Topology.REGION if asked else Topology.NODE

    @property
    def sets_aside(self) -> bool:
        """Whether a row that is refused may be allowed again in this batch."""
        return bool(self._even_rows)

    def never(self, rows: npt.NDArray[np.intp]) -> Bools:
        """Which rows are refused for the rest of this batch."""
        full = [row for row, count in self._own.items() if self._limit and count >= self._limit]
        refused = np.isin(rows, full)
        for rule in self._near_rows:
            found = np.isin(rows, list(rule.counts))
            if rule.anti:
                refused |= found
            elif not rule.is_first:
                refused |= ~found
        return refused

    def allows_row(self, row: int) -> bool:
        """Whether the node may get one more, apart from spreads over nodes."""
        if self._limit and self._own.get(row, 0) >= self._limit:
            return False
        return all(rule.allows(row) for rule in self._near_rows)

    def is_even(self, row: int) -> bool:
        """Whether spreads over nodes allow it at the moment."""
        return all(rule.allows(row) for rule in self._even_rows)

    def allows_group(self, group: GroupDomains) -> bool:
        """Whether the zone and the region may get one more."""
        return all(rule.allows(_place(rule.over, group)) for rule in self._even_groups) and all(
            rule.allows(_place(rule.within, group)) for rule in self._near_groups
        )

    def placed(self, row: int, group: GroupDomains) -> Effect:
        """Count one more placement. Returns what it may affect besides its own group."""
        self._own[row] = self._own.get(row, 0) + 1
        effect = self._usual
        for near in self._near_groups:
            effect |= near.placed(_place(near.within, group))
        for even in self._even_groups:
            if even.placed(_place(even.over, group)):
                effect |= Effect.GROUPS
        for near in self._near_rows:
            effect |= near.placed(row)
        for even in self._even_rows:
            if even.placed(row):
                effect |= Effect.ROWS
        return effect


def _place(topology: Topology, group: GroupDomains) -> int:
    return group.zone if topology is Topology.ZONE else group.region
