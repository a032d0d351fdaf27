"""Topology rules: rules about where other replicas are. Spread, affinity, and the limit per node.

They are rules of the scheduler (`model/placement/spread.py`): enforced on what this scheduler sees,
its own assumptions included, and not guaranteed across concurrent schedulers. An anti-affinity
holds both ways: a replica that has one also keeps away those that it has to stay away from. Each
rule is evaluated for whole domains at once, from the topology counts; the model's functions say the
same for one domain, as text.

A spread compares with the emptiest domain that could take such work at all: one with a suitable
node that takes new work. A zone that is lost or closed for repair does not hold back the replicas
that have to run somewhere else.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from holdfast.model.kinds.placement import Spread, Topology
from holdfast.model.placement.spread import (
    affinity_refusal,
    crowd_refusal,
    repulsion_refusal,
    spread_refusal,
)
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.selection.selectors import LabelSelector
from holdfast.observe.node_columns import Bools, Codes, Floats, Ints, NodeColumns
from holdfast.propose.feasibility.node_verdicts import NodeVerdicts
from holdfast.propose.fleet_snapshot import FleetSnapshot, PendingWork
from holdfast.propose.scores import AFFINITY, SPREAD
from holdfast.propose.topology.topology_counts import ReplicaTraits, TopologyCounts, TopologyTerm

REASONS = (
    Reason.TOO_MANY_PER_NODE,
    Reason.SPREAD_VIOLATED,
    Reason.AFFINITY_UNMET,
    Reason.ANTI_AFFINITY_VIOLATED,
)
_CROWD, _SPREAD, _AFFINITY, _ANTI = range(1, 5)


def has_topology_rules(work: PendingWork) -> bool:
    """Whether work has any rule about other replicas. Others may have one about it."""
    placement = work.placement
    rules = placement.spread, placement.affinity, placement.anti_affinity
    return any(rules) or placement.max_per_node > 0


class TopologyRules:
    """The rules of one class of work. `ranks_domains` says that some of them rank domains."""

    def __init__(
        self, work: PendingWork, traits: ReplicaTraits, weights: Mapping[str, int]
    ) -> None:
        self._work, self._traits = work, traits
        placement = work.placement
        self.limit = placement.max_per_node
        self.spreads = [rule for rule in placement.spread if rule.required]
        affinities = [(rule, False) for rule in placement.affinity]
        affinities += [(rule, True) for rule in placement.anti_affinity]
        self.affinities = [(rule, anti) for rule, anti in affinities if rule.required]
        self._soft_spreads = [rule for rule in placement.spread if not rule.required]
        self._soft = [(rule, anti) for rule, anti in affinities if not rule.required]
        self._weights = {
            name: weights[name]
            for name, rules in ((SPREAD, self._soft_spreads), (AFFINITY, self._soft))
            if rules and name in weights
        }
        self._eligible: dict[Topology, Bools] = {}
        self._version = -1

    @property
    def weight(self) -> int:
        """The weight of these rules in the whole score."""
        return sum(self._weights.values())

    @property
    def ranks_domains(self) -> bool:
        return bool(self._weights)

    # Terms and domains ---------------------------------------------------------------------------

    def own(self, topology_counts: TopologyCounts) -> TopologyTerm:
        """The workload's own replicas."""
        return topology_counts.term(self._traits.namespace, self._traits.workload_uid, None)

    def term(self, topology_counts: TopologyCounts, selector: LabelSelector) -> TopologyTerm:
        return topology_counts.term(self._traits.namespace, "", selector)

    def repelling(self, topology_counts: TopologyCounts) -> list[tuple[TopologyTerm, Topology]]:
        """The terms of replicas with an anti-affinity to such work."""
        return topology_counts.repelling(self._traits)

    def grows(self, term: TopologyTerm) -> bool:
        """Whether such work itself counts for this term."""
        return term.takes(self._traits)

    def is_first(self, term: TopologyTerm) -> bool:
        """Whether no replica matches the affinity yet, and this work itself would."""
        return term.total == 0 and self.grows(term)

    def eligible(self, topology: Topology, verdicts: NodeVerdicts, columns: NodeColumns) -> Bools:
        """The domains that have a node which could take such work at all."""
        if self._version != verdicts.version:
            self._eligible.clear()
            self._version = verdicts.version
        found = self._eligible.get(topology)
        if found is None:
            ids = domain_numbers(topology, columns)[verdicts.takes_work(columns)]
            found = np.zeros(domain_count(topology, columns), np.bool_)
            found[ids] = True
            self._eligible[topology] = found
        return found

    # Hard rules ----------------------------------------------------------------------------------

    def codes(self, view: FleetSnapshot, verdicts: NodeVerdicts) -> Codes:
        """For each row 0, or the number of the reason that rules it out."""
        columns, topology_counts = view.columns, view.fleet.topology_counts
        codes: Codes = np.zeros(columns.count, np.uint8)
        if self.limit:
            here = domain_counts(self.own(topology_counts), Topology.NODE, columns)
            # Where there is no node yet, there is one domain and no row.
            codes[here[: columns.count] >= self.limit] = _CROWD
        for rule in self.spreads:
            bad = self.uneven_domains(rule, self.own(topology_counts), verdicts, columns)
            _refuse(codes, bad[domain_numbers(rule.over, columns)], _SPREAD)
        for affinity, anti in self.affinities:
            term = self.term(topology_counts, affinity.selector)
            if not anti and self.is_first(term):
                continue
            found = domain_counts(term, affinity.within, columns) > 0
            bad = found if anti else ~found
            _refuse(
                codes, bad[domain_numbers(affinity.within, columns)], _ANTI if anti else _AFFINITY
            )
        for term, within in self.repelling(topology_counts):
            bad = domain_counts(term, within, columns) > 0
            _refuse(codes, bad[domain_numbers(within, columns)], _ANTI)
        return codes

    def uneven_domains(
        self, rule: Spread, term: TopologyTerm, verdicts: NodeVerdicts, columns: NodeColumns
    ) -> Bools:
        """The domains where one more replica would break a spread."""
        counts = domain_counts(term, rule.over, columns)
        eligible = self.eligible(rule.over, verdicts, columns)
        emptiest = int(counts[eligible].min()) if eligible.any() else 0
        return counts + 1 - emptiest > rule.max_skew

    def refusal(self, view: FleetSnapshot, verdicts: NodeVerdicts, row: int) -> Refusal | None:
        """The refusal for one node, by the model's functions, with a message."""
        columns, topology_counts = view.columns, view.fleet.topology_counts
        own = self.own(topology_counts)
        refusal = crowd_refusal(self.limit, own.counts[Topology.NODE].get(row, 0))
        for rule in self.spreads:
            refusal = refusal or self._spread_refusal(rule, view, verdicts, row)
        for affinity, anti in self.affinities:
            if refusal is None:
                place = int(domain_numbers(affinity.within, columns)[row])
                here = topology_counts.labels_in(self._traits.namespace, affinity.within, place)
                first = self.is_first(self.term(topology_counts, affinity.selector))
                refusal = affinity_refusal(affinity, here, anti=anti, first=first)
        for topology in Topology:
            if refusal is None:
                place = int(domain_numbers(topology, columns)[row])
                rules = topology_counts.aparts_in(self._traits.namespace, topology, place)
                refusal = repulsion_refusal(rules, dict(self._traits.labels))
        return refusal

    def _spread_refusal(
        self, rule: Spread, view: FleetSnapshot, verdicts: NodeVerdicts, row: int
    ) -> Refusal | None:
        columns = view.columns
        own = self.own(view.fleet.topology_counts).counts[rule.over]
        eligible = np.flatnonzero(self.eligible(rule.over, verdicts, columns)).tolist()
        place = int(domain_numbers(rule.over, columns)[row])

        def named(number: int) -> str:
            if rule.over is Topology.NODE:
                return view.fleet.at(number).name if number == row else f"#{number}"
            if rule.over is Topology.ZONE:
                region, zone = columns.zones.values[number]
                return f"{region}/{zone}" if region else zone
            return columns.regions.values[number]

        counts = {named(number): count for number, count in own.items()}
        return spread_refusal(rule, counts, [named(number) for number in eligible], named(place))

    # Soft rules ----------------------------------------------------------------------------------

    def soft_scores(self, view: FleetSnapshot, verdicts: NodeVerdicts) -> dict[str, Floats]:
        """How good each row is by where others are: from 0 to 100 for each of the two rules."""
        found = {}
        if SPREAD in self._weights:
            found[SPREAD] = self._evenness(view, verdicts)
        if AFFINITY in self._weights:
            found[AFFINITY] = self._nearness(view)
        return found

    def weighted_sum(self, soft_scores: Mapping[str, Floats]) -> Floats | float:
        """The weighted sum of these."""
        total: Floats | float = 0.0
        for name, part in soft_scores.items():
            total = total + self._weights[name] * part
        return total

    def _evenness(self, view: FleetSnapshot, verdicts: NodeVerdicts) -> Floats:
        """100 in the emptiest domain, half of that with one more, and so on; the mean of all."""
        columns = view.columns
        total = np.zeros(columns.count, np.float64)
        for rule in self._soft_spreads:
            counts = domain_counts(self.own(view.fleet.topology_counts), rule.over, columns)
            eligible = self.eligible(rule.over, verdicts, columns)
            emptiest = int(counts[eligible].min()) if eligible.any() else 0
            score = 100.0 / (1.0 + np.maximum(counts - emptiest, 0))
            total += score[domain_numbers(rule.over, columns)]
        return total / len(self._soft_spreads)

    def _nearness(self, view: FleetSnapshot) -> Floats:
        """The weight of the soft rules that are met, of all of them."""
        columns = view.columns
        total = np.zeros(columns.count, np.float64)
        for rule, anti in self._soft:
            term = self.term(view.fleet.topology_counts, rule.selector)
            found = domain_counts(term, rule.within, columns) > 0
            kept = ~found if anti else found
            total += rule.weight * kept[domain_numbers(rule.within, columns)]
        return total * (100.0 / sum(rule.weight for rule, _ in self._soft))


def domain_numbers(topology: Topology, columns: NodeColumns) -> Ints:
    """For each row the number of its domain."""
    match topology:
        case Topology.NODE:
            return np.arange(columns.count)
        case Topology.ZONE:
            return columns.zone[columns.all]
        case Topology.REGION:
            return columns.region[columns.all]


def domain_count(topology: Topology, columns: NodeColumns) -> int:
    """The number of domains; at least one, so that rows without a domain yet have one."""
    sizes = {
        Topology.NODE: columns.count,
        Topology.ZONE: len(columns.zones),
        Topology.REGION: len(columns.regions),
    }
    return max(1, sizes[topology])


def domain_counts(term: TopologyTerm, topology: Topology, columns: NodeColumns) -> Ints:
    """How many replicas each domain has."""
    counts: Ints = np.zeros(domain_count(topology, columns), np.int64)
    there = term.counts[topology]
    if there:
        counts[list(there)] = list(there.values())
    return counts


def _refuse(codes: Codes, bad: Bools, code: int) -> None:
    codes[bad & (codes == 0)] = code
