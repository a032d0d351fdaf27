"""The board: how all nodes stand to each sort of work, kept from one decision to the next.

A scheduler has one for its whole life; explain and what-if make their own. It holds nothing that
could not be computed anew, and forgets what was not asked for the longest when it grows too large.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.template import Template
from holdfast.propose.decision_view import View
from holdfast.propose.feasibility.equivalence_class import Alike, key_of
from holdfast.propose.feasibility.node_verdicts import Standing
from holdfast.propose.feasibility.outcome import FILTER_UNKNOWN, Hope, Report, Verdict
from holdfast.propose.filters import FILTERS, Filter
from holdfast.propose.scores import SCORERS, Scorer, weights_of
from holdfast.propose.topology.affinity import Company, has_company
from holdfast.propose.topology.topology_counts import kin_of

# Rows of all standings together. Each takes about 30 bytes: 800 sorts of work on 5,000 nodes.
CELLS_MAX = 4_000_000
SORTS_MIN = 16
# Workloads of which it is remembered to which sort their replicas belong.
WORKLOADS_MAX = 65_536

_Key = tuple[Hashable, Hashable]
_Recent = tuple[Template, dict[str, str], tuple[str, str], _Key]


class Board:
    """See the module's docstring. `filters` and `scorers` are those that users added."""

    def __init__(self, filters: Sequence[Filter] = (), scorers: Sequence[Scorer] = ()) -> None:
        self._added = {each.name: each for each in filters}
        self._scorers = (*SCORERS, *scorers)
        self._alikes: dict[Hashable, Alike] = {}
        # What is asked of nodes is the same for many sorts; kept as long as one of them is.
        self._standings: dict[Hashable, Standing] = {}
        self._users: dict[Hashable, int] = {}
        self._recent: dict[tuple[str, str, str], _Recent] = {}

    def alike(self, replica: Replica, view: View) -> Alike | Report:
        """How all nodes stand to work like this one, or why that cannot be said."""
        key = self.key(replica)
        alike = self._alikes.pop(key, None)
        if alike is None or alike.rules != view.rules or alike.policy is not view.policy:
            if alike is not None:
                self._left(alike)
            fresh = self._new(replica, view)
            if isinstance(fresh, Report):
                return fresh
            alike = fresh
            self._make_room(view)
            self._users[alike.of_nodes] = self._users.get(alike.of_nodes, 0) + 1
            self._standings[alike.of_nodes] = alike.standing
        # At the end again, as the last to be forgotten.
        self._alikes[key] = alike
        alike.standing.refresh(view)
        if alike.company is None and view.fleet.census.repelling(alike.kin):
            # It asks nothing of others, but somebody is there who has to stay away from it.
            alike.company = Company(alike.work, alike.kin, self._weights(view))
        return alike

    def known(self, key: Hashable) -> Alike | None:
        """What is kept of a sort of work, perhaps under rules that have changed since."""
        return self._alikes.get(key)

    def shapes(self, most: int) -> list[tuple[tuple[int, int], ...]]:
        """What the sorts that were asked for last take of each resource, every shape once."""
        found: dict[tuple[tuple[int, int], ...], None] = {}
        for alike in reversed(self._alikes.values()):
            found[alike.work.units] = None
            if len(found) == most:
                break
        return list(found)

    def key(self, replica: Replica) -> _Key:
        """What is equal for replicas that are alike."""
        spec = replica.spec
        whose = replica.namespace, spec.workload_uid, spec.revision
        known = self._recent.get(whose)
        labels, beside = replica.metadata.labels, (spec.region, spec.gang)
        if known is not None:
            template, known_labels, known_beside, key = known
            # Replicas of one workload are alike but for the rare one in the middle of a change.
            if template == spec.template and (known_labels, known_beside) == (labels, beside):
                return key
        if len(self._recent) >= WORKLOADS_MAX:
            self._recent.clear()
        key = key_of(replica)
        self._recent[whose] = spec.template, labels, beside, key
        return key

    def _new(self, replica: Replica, view: View) -> Alike | Report:
        filters = self._filters(view)
        if isinstance(filters, Report):
            return filters
        work, of_nodes = view.work(replica), self.key(replica)[0]
        weights = self._weights(view)
        standing = self._standings.get(of_nodes)
        if standing is None or not standing.is_of(view):
            standing = Standing(work, view, filters, self._scorers, weights)
        company = Company(work, kin_of(replica), weights) if has_company(work) else None
        return Alike(work, of_nodes, standing, company, view.rules, view.policy)

    def _weights(self, view: View) -> Mapping[str, int]:
        return weights_of(view.policy, self._scorers)

    def _filters(self, view: View) -> tuple[Filter, ...] | Report:
        """The hard rules, and what the policy adds to them by name."""
        named = view.policy.spec.filters if view.policy is not None else ()
        usual = {each.name for each in FILTERS}
        unknown = [name for name in named if name not in self._added and name not in usual]
        if unknown:
            # What cannot be checked is not done.
            return Report(
                {FILTER_UNKNOWN: 1},
                f"the policy in force asks for filter {unknown[0]}, which this scheduler lacks",
                Verdict.BLOCKED_BY,
                (Hope.ALLOWANCE,),
            )
        added = [self._added[name] for name in named if name in self._added]
        if not added:
            return FILTERS
        # Those that ask for the load stand together, so that the others are not asked each time.
        every = (*FILTERS, *added)
        first = next(place for place, each in enumerate(every) if each.by_load)
        rest = every[first:]
        return (
            *every[:first],
            *(each for each in rest if each.by_load),
            *(each for each in rest if not each.by_load),
        )

    def _make_room(self, view: View) -> None:
        sorts_max = max(SORTS_MIN, CELLS_MAX // max(1, view.columns.capacity))
        while len(self._alikes) >= sorts_max:
            self._left(self._alikes.pop(next(iter(self._alikes))))

    def _left(self, alike: Alike) -> None:
        """A sort is not kept any more; if it was the last to ask this of nodes, nor is that."""
        of_nodes = alike.of_nodes
        self._users[of_nodes] -= 1
        if not self._users[of_nodes]:
            del self._users[of_nodes], self._standings[of_nodes]
