"""Why no node is feasible for some work: the reasons with their counts, and the nearest miss.

`proposals.py` calls this when no node is feasible. The text must not change with every bind in
flight, so assumptions do not count for it; `in_question` says that a place is only assumed to be
taken.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from holdfast.model.kinds.replica import Replica
from holdfast.model.placement.fit import claim
from holdfast.model.quota.ledger import NodeGate
from holdfast.model.refusal import Refusal
from holdfast.observe.node_columns import Codes, Floats, Ints, Level
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.node_verdicts import NO_NODE
from holdfast.propose.feasibility.outcome import NO_NODES, Miss, PlacementReport, Verdict, WakeEvent
from holdfast.propose.feasibility.smallest_change import a_node, change_at, without_obstacle
from holdfast.propose.filters import Filter, first_refusal
from holdfast.propose.fleet_snapshot import Candidate, FleetSnapshot
from holdfast.propose.topology import affinity

# Whether a replica would get a node on a snapshot.
HasPlace = Callable[[FleetSnapshot, Replica], bool]
# The changes of one node that are named. More than that is another node.
CHANGES_MAX = 4

_ALLOWED_BY_PEOPLE = ("residency", "tenancy")
_RESOURCES, _SHUNNED, _TOPOLOGY = "resources", "shunned", "topology"


def candidate_at(view: FleetSnapshot, site: NodeState) -> Candidate:
    """One node as the rules see it."""
    gate: NodeGate = site.empty.gate
    return Candidate(site, gate, view.region(gate.region), site.shunned)


def code_counts(
    view: FleetSnapshot,
    equivalence: EquivalenceClass,
    code: Codes | None = None,
    tally: Ints | None = None,
) -> dict[str, int]:
    """How many nodes each reason rules out, topology rules excepted."""
    verdicts = equivalence.verdicts
    if code is None or tally is None:
        code, tally = verdicts.code[view.columns.all], verdicts.tally
    counts: dict[str, int] = {}
    for number in np.flatnonzero(tally).tolist():
        if number in (0, NO_NODE):
            continue
        _, reason = verdicts.meanings[number]
        if reason:
            counts[reason] = counts.get(reason, 0) + int(tally[number])
            continue
        # Nodes that are avoided for a moment, each for the reason of its own refusal.
        for row in np.flatnonzero(code == number).tolist():
            shunned = view.fleet.at(row).shunned
            if shunned is not None:
                counts[shunned.reason.value] = counts.get(shunned.reason.value, 0) + 1
    return counts


def explain_unschedulable(
    view: FleetSnapshot, equivalence: EquivalenceClass, has_place: HasPlace
) -> PlacementReport:
    """The report for work that no node can take; `has_place` is that of `proposals.py`."""
    topology_counts = view.fleet.topology_counts
    columns = view.columns
    found_on = columns.node_log.end, columns.load_log.end, topology_counts.changes
    if equivalence.unschedulable is not None and equivalence.unschedulable[0] == found_on:
        return equivalence.unschedulable[1]
    report = _Search(view, equivalence, has_place).report()
    equivalence.unschedulable = found_on, report
    return report


class _Search:
    """One evaluation of all nodes, without what is only assumed."""

    def __init__(
        self, view: FleetSnapshot, equivalence: EquivalenceClass, has_place: HasPlace
    ) -> None:
        self.view, self.equivalence, self.has_place = view, equivalence, has_place
        verdicts, columns = equivalence.verdicts, view.columns
        self.code: Codes = verdicts.code[columns.all].copy()
        # The topology rules come after all filters.
        self.topology_rules: Codes = np.zeros(columns.count, np.uint8)
        if equivalence.topology_rules is not None:
            self.topology_rules = np.where(
                self.code == 0, equivalence.topology_rules.codes(view, verdicts), 0
            )
        self.is_question = False
        self._look_past_assumptions()
        self.tally: Ints = np.bincount(self.code, minlength=256)
        self.place: Ints = verdicts.places[self.code]
        self.place[self.topology_rules != 0] = len(verdicts.filters)

    def _look_past_assumptions(self) -> None:
        """Evaluate resources again without what is only assumed."""
        verdicts, columns = self.equivalence.verdicts, self.view.columns
        place = next(i for i, each in enumerate(verdicts.filters) if each.name == _RESOURCES)
        base = next(i for i, meaning in enumerate(verdicts.meanings) if meaning[0] == place)
        reasons = len(verdicts.filters[place].reasons)
        is_full = (self.code >= base) & (self.code < base + reasons)
        rows = np.flatnonzero(is_full & (columns.assumed[columns.all] > 0))
        if not len(rows):
            return
        judge = verdicts.filters[place].judge
        lasting = judge(self.equivalence.work, self.view, rows, Level.SETTLED)
        if lasting is not None:
            self.is_question = bool((lasting == 0).any())
            self.code[rows] = np.where(lasting == 0, self.code[rows], lasting + base - 1)

    def report(self) -> PlacementReport:
        rows = np.flatnonzero(self.code != NO_NODE)
        if not len(rows):
            return PlacementReport(
                {NO_NODES: 1},
                "there are no nodes",
                Verdict.NOT_WITH_THIS_FLEET,
                (WakeEvent.NODES,),
                smallest_change=a_node(self.equivalence.work),
            )
        counts = sorted(self._counts().items(), key=lambda entry: (-entry[1], entry[0]))
        counted = ", ".join(f"{count} {reason}" for reason, count in counts)
        names = self._names()
        wake_events = [WakeEvent.NODES]
        if names.intersection(_ALLOWED_BY_PEOPLE):
            wake_events.append(WakeEvent.ALLOWANCE)
        if self.topology_rules.any():
            wake_events.append(WakeEvent.TOPOLOGY)
        could_be = self._fits_in_time()
        nearest, change = self._nearest(rows, could_be=could_be)
        return PlacementReport(
            dict(counts),
            f"none of {len(rows)} nodes can take it: {counted}",
            Verdict.WAITING if could_be else Verdict.NOT_WITH_THIS_FLEET,
            tuple(wake_events),
            nearest,
            try_soon=_SHUNNED in names,
            in_question=self.is_question,
            nodes=len(rows),
            smallest_change=change,
        )

    def _filter(self, place: int) -> Filter | None:
        filters = self.equivalence.verdicts.filters
        return filters[place] if place < len(filters) else None

    def _name(self, place: int) -> str:
        found = self._filter(place)
        return found.name if found is not None else _TOPOLOGY

    def _names(self) -> set[str]:
        """The names of the filters that rule nodes out."""
        meanings = self.equivalence.verdicts.meanings
        codes = [code for code in np.flatnonzero(self.tally).tolist() if code not in (0, NO_NODE)]
        names = {self._name(meanings[code][0]) for code in codes}
        return names | {_TOPOLOGY} if self.topology_rules.any() else names

    def _counts(self) -> dict[str, int]:
        counts = code_counts(self.view, self.equivalence, self.code, self.tally)
        for index, why in enumerate(affinity.REASONS):
            count = int(np.count_nonzero(self.topology_rules == index + 1))
            if count:
                counts[why.value] = counts.get(why.value, 0) + count
        return counts

    def _fits_in_time(self) -> bool:
        """Whether some node could take it, if it were empty and ready."""
        filters = self.equivalence.verdicts.filters
        # By position: the filters, then the topology rules; and last, as position -1, empty rows.
        passing = np.array([*(each.passes for each in filters), True, False], np.bool_)
        rows = np.flatnonzero(passing[self.place])
        if not len(rows):
            return False
        judge = next(each.judge for each in filters if each.name == _RESOURCES)
        codes = judge(self.equivalence.work, self.view, rows, Level.EMPTY)
        return codes is None or bool((codes == 0).any())

    # The nearest miss ----------------------------------------------------------------------------

    def _nearest(self, rows: Ints, *, could_be: bool) -> tuple[Miss, str]:
        """The node that passed most filters, and of those the one that lacks least; and the change.

        Ties are broken by the lots, so that a scheduler that learned of the nodes in another order
        says the same.
        """
        furthest = int(self.place[rows].max())
        among = rows[self.place[rows] == furthest]
        lacks = self._lack(among)
        among = among[lacks == lacks.min()]
        row = int(among[self.view.columns.lot[among].argmin()])
        site = self.view.fleet.at(row)
        # A filter that users added has reasons of its own.
        reason = self.equivalence.verdicts.meanings[self.code[row]][1]
        refusal = self._words(furthest, site)
        if refusal is None:
            return Miss(site.name, reason, ""), ""
        miss = Miss(site.name, reason or refusal.reason.value, refusal.message)
        return miss, self._changes(site, furthest, refusal, could_be=could_be)

    def _changes(self, site: NodeState, place: int, refusal: Refusal, *, could_be: bool) -> str:
        """What has to change until the node could take the work: mostly one thing.

        Each change is tried on a snapshot of that node by the function that decides. Where other
        nodes matter too, or where a change is not one of the node, only the first is named.
        """
        equivalence, work = self.equivalence, self.equivalence.work
        changes = [change_at(work, site.name, refusal, site.settled, could_be=could_be)]
        if equivalence.topology_rules is not None or changes[0] == a_node(work):
            return changes[0]
        candidate, filters = candidate_at(self.view, site), equivalence.verdicts.filters
        if first_refusal(work, candidate, filters[place + 1 :]) is None:
            # Nothing else is in the way: full nodes are asked this all the time.
            return changes[0]
        view = self.view.only(site.name)
        for _ in range(CHANGES_MAX - 1):
            supposed = without_obstacle(view, site.node, work, refusal) if site.node else None
            if supposed is None or self.has_place(supposed, work.replica):
                break
            view, site = supposed, supposed.fleet.at(0)
            found = first_refusal(work, candidate_at(view, site), filters)
            if found is None or found[1].reason is refusal.reason:
                break
            refusal = found[1]
            if isinstance(claim(site.empty, work.demand), Refusal):
                return a_node(work)
            changes.append(change_at(work, site.name, refusal, site.settled, could_be=True))
        return ", and ".join(changes)

    def _words(self, place: int, site: NodeState) -> Refusal | None:
        """The refusal of the rule itself for this node."""
        found, equivalence, view = self._filter(place), self.equivalence, self.view
        if found is None:
            if equivalence.topology_rules is None:
                return None
            return equivalence.topology_rules.refusal(view, equivalence.verdicts, site.row)
        if found.name == _RESOURCES:
            lasting = claim(site.settled, equivalence.work.demand)
            if isinstance(lasting, Refusal):
                return lasting
        return found.rule(equivalence.work, candidate_at(view, site))

    def _lack(self, rows: Ints) -> Floats:
        """How much of a resource is missing at worst: 0 for nothing, 1 for all of it.

        Devices are assigned one by one, and sums say nothing about them.
        """
        worst = np.zeros(len(rows), np.float64)
        for resource, units in self.equivalence.work.units:
            free = self.view.columns.left(resource, rows, Level.SETTLED)
            worst = np.maximum(worst, (units - free) / units)
        return np.minimum(worst, 1.0)
