"""The verdict cache: the node verdicts for each class of work, kept from one decision to the next.

A scheduler has one for its lifetime; explain and what-if make their own. It holds nothing that
could not be recomputed, and drops the least recently used classes when it grows too large.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Template
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass, key_of
from holdfast.propose.feasibility.node_verdicts import NodeVerdicts
from holdfast.propose.feasibility.outcome import FILTER_UNKNOWN, PlacementReport, Verdict, WakeEvent
from holdfast.propose.filters import FILTERS, Filter
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.scores import SCORERS, Scorer, intent_of, weights_of
from holdfast.propose.topology.affinity import TopologyRules, has_topology_rules
from holdfast.propose.topology.topology_counts import traits_of

# Rows of all verdicts together. Each takes about 30 bytes: 800 classes of work on 5,000 nodes.
CELLS_MAX = 4_000_000
CLASSES_MIN = 16
# The workloads for which the class of their replicas is remembered.
WORKLOADS_MAX = 65_536

_Key = tuple[Hashable, Hashable]
_Recent = tuple[Template, dict[str, str], tuple[str, str], _Key]


class VerdictCache:
    """See the module's docstring. `filters` and `scorers` are those that users added."""

    def __init__(self, filters: Sequence[Filter] = (), scorers: Sequence[Scorer] = ()) -> None:
        self._added = {each.name: each for each in filters}
        self._scorers = (*SCORERS, *scorers)
        self._classes: dict[Hashable, EquivalenceClass] = {}
        # Many classes ask the same of nodes; the verdicts are kept as long as one class uses them.
        self._verdicts: dict[Hashable, NodeVerdicts] = {}
        self._users: dict[Hashable, int] = {}
        self._recent: dict[tuple[str, str, str, bool], _Recent] = {}

    def like_this(self) -> VerdictCache:
        """An empty cache with the same filters and scorers, for another fleet."""
        made = VerdictCache()
        made._added, made._scorers = self._added, self._scorers
        return made

    def reasons(self) -> frozenset[str]:
        """For what its filters, those included that users added, rule nodes out."""
        filters = (*FILTERS, *self._added.values())
        return frozenset(str(it) for each in filters for it in each.reasons if it)

    def class_of(self, replica: Replica, view: FleetSnapshot) -> EquivalenceClass | PlacementReport:
        """The class of this replica with current verdicts, or why it cannot be evaluated."""
        key = self.key(replica)
        equivalence = self._classes.pop(key, None)
        if equivalence is None or not equivalence.verdicts.is_of(view):
            if equivalence is not None:
                self._drop(equivalence)
            fresh = self._new(replica, view)
            if isinstance(fresh, PlacementReport):
                return fresh
            equivalence = fresh
            self._make_room(view)
            self._users[equivalence.of_nodes] = self._users.get(equivalence.of_nodes, 0) + 1
            self._verdicts[equivalence.of_nodes] = equivalence.verdicts
        # Moved to the end, as the last to be dropped.
        self._classes[key] = equivalence
        equivalence.verdicts.refresh(view)
        if not has_topology_rules(equivalence.work):
            # It has no rule about others, but a replica may exist with an anti-affinity to it.
            if not view.fleet.topology_counts.repelling(equivalence.traits):
                equivalence.topology_rules = None
            elif equivalence.topology_rules is None:
                equivalence.topology_rules = TopologyRules(
                    equivalence.work, equivalence.traits, self._weights(view, replica)
                )
        return equivalence

    def known(self, key: Hashable) -> EquivalenceClass | None:
        """The cached class under a key, perhaps under rules that have changed since."""
        return self._classes.get(key)

    def shapes(self, most: int) -> list[tuple[tuple[int, int], ...]]:
        """The demands of the most recently used classes by resource, each different one once."""
        found: dict[tuple[tuple[int, int], ...], None] = {}
        for equivalence in reversed(self._classes.values()):
            found[equivalence.work.units] = None
            if len(found) == most:
                break
        return list(found)

    def key(self, replica: Replica) -> _Key:
        """The key of the replica's class."""
        spec = replica.spec
        # Replacements are weighed by another intent than the replicas before them.
        whose = replica.namespace, spec.workload_uid, spec.revision, spec.incarnation > 0
        known = self._recent.get(whose)
        labels, beside = replica.metadata.labels, (spec.region, spec.gang)
        if known is not None:
            template, known_labels, known_beside, key = known
            # Replicas of one workload have one key, except in the middle of a change.
            if template == spec.template and (known_labels, known_beside) == (labels, beside):
                return key
        if len(self._recent) >= WORKLOADS_MAX:
            self._recent.clear()
        key = key_of(replica)
        self._recent[whose] = spec.template, labels, beside, key
        return key

    def _new(self, replica: Replica, view: FleetSnapshot) -> EquivalenceClass | PlacementReport:
        filters = self._filters(view)
        if isinstance(filters, PlacementReport):
            return filters
        work, of_nodes = view.work(replica), self.key(replica)[0]
        weights = self._weights(view, replica)
        verdicts = self._verdicts.get(of_nodes)
        if verdicts is None or not verdicts.is_of(view):
            verdicts = NodeVerdicts(work, view, filters, self._scorers, weights)
        topology_rules = (
            TopologyRules(work, traits_of(replica), weights) if has_topology_rules(work) else None
        )
        return EquivalenceClass(work, of_nodes, verdicts, topology_rules)

    def _weights(self, view: FleetSnapshot, replica: Replica) -> Mapping[str, int]:
        return weights_of(view.policy, self._scorers, intent_of(replica))

    def _filters(self, view: FleetSnapshot) -> tuple[Filter, ...] | PlacementReport:
        """The built-in filters, and those that the policy adds by name."""
        named = view.policy.spec.filters if view.policy is not None else ()
        usual = {each.name for each in FILTERS}
        unknown = [name for name in named if name not in self._added and name not in usual]
        if unknown:
            # A rule that cannot be checked must not be skipped.
            return PlacementReport(
                {FILTER_UNKNOWN: 1},
                f"the policy in force names filter {unknown[0]}, which this scheduler lacks",
                Verdict.BLOCKED_BY,
                (WakeEvent.ALLOWANCE,),
            )
        added = [self._added[name] for name in named if name in self._added]
        if not added:
            return FILTERS
        # Filters that depend on the load are adjacent, so that the others are not evaluated again.
        every = (*FILTERS, *added)
        first = next(place for place, each in enumerate(every) if each.by_load)
        rest = every[first:]
        return (
            *every[:first],
            *(each for each in rest if each.by_load),
            *(each for each in rest if not each.by_load),
        )

    def _make_room(self, view: FleetSnapshot) -> None:
        classes_max = max(CLASSES_MIN, CELLS_MAX // max(1, view.columns.capacity))
        while len(self._classes) >= classes_max:
            self._drop(self._classes.pop(next(iter(self._classes))))

    def _drop(self, equivalence: EquivalenceClass) -> None:
        """Drop the verdicts of a class that is dropped, unless another class uses them."""
        of_nodes = equivalence.of_nodes
        self._users[of_nodes] -= 1
        if not self._users[of_nodes]:
            del self._users[of_nodes], self._verdicts[of_nodes]
