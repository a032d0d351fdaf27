"""The search for victims: the node where making room costs least, and what to stop there.

It asks first of all nodes at once, by columns: where nothing but load is in the way, how far up in
priority would everything have to stop until the work fits? Of the nodes that get by with the least
priority a few are examined exactly. There everything legal is imagined gone, and then given back,
the most valuable first, as long as the work still fits beside it: what is not given back are the
victims, and each of them is needed.

`has_place` decides in the end, on a snapshot of that node without the victims. So nothing is
stopped for a place that the rules would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass
from holdfast.model.ledger import QuotaLedger
from holdfast.model.placement.fit import Allocation, claim, sums_of
from holdfast.model.preemption import (
    VICTIMS_MAX,
    Contender,
    Loss,
    eviction_refusal,
    less_hard,
    preempts_refusal,
    turn_refusal,
)
from holdfast.model.refusal import Refusal
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.node_columns import Ints, Level
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.outcome import PlacementReport, Preempt
from holdfast.propose.filters.free_resources import resource_codes
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.node_choice import ranks
from holdfast.propose.preemption.evictables import Evictable

# How many nodes are examined exactly, the most promising first.
NODES_EXAMINED_MAX = 4

HasPlace = Callable[[FleetSnapshot, Replica], bool]


class _Room(msgspec.Struct, frozen=True):
    """What has to stop on one node, and what that costs."""

    site: NodeState
    held: Allocation
    victims: tuple[Evictable, ...]

    @property
    def cost(self) -> tuple[tuple[Loss, ...], int]:
        """The victims' losses, the greatest first: one important victim is worse than two minor."""
        return tuple(sorted((it.loss for it in self.victims), reverse=True)), len(self.victims)


class VictimSearch:
    """One search, for one replica of an equivalence class on one snapshot."""

    def __init__(
        self,
        view: FleetSnapshot,
        equivalence: EquivalenceClass,
        replica: Replica,
        salt: int,
        now: Instant,
        has_place: HasPlace,
    ) -> None:
        self._view, self._equivalence, self._salt = view, equivalence, salt
        self._has_place = has_place
        self._displaced = replica.status.displaced
        at = self._displaced.at if self._displaced is not None else None
        self._ago_ms = max(0, now.wall_ms - wall_ms(at)) if at is not None else 0
        work = equivalence.work
        usage = view.quota_usage
        cohort = usage.cohort_of(work.namespace) if usage is not None else ""
        self._preemptor = Contender(
            work.namespace,
            work.replica.spec.priority,
            view.capacity_class(work.priority_class),
            cohort,
            work.demand.amounts,
        )
        is_counting = usage is not None and usage.is_counting
        self._ledger = usage.ledger(work.namespace) if is_counting and usage else QuotaLedger()
        self._borrowers = usage.borrowers(work.namespace) if is_counting and usage else []

    def best(self, report: PlacementReport) -> Preempt | None:
        """The place where making room costs least, if there is one."""
        found = [room for row in self._rows() if (room := self._room_at(row)) is not None]
        for room in sorted(found, key=lambda it: it.cost):
            if self._is_proven(room):
                return self._preempt(room, report)
        return None

    def explained(self, report: PlacementReport) -> PlacementReport:
        """The report of work for which nothing may be stopped, with the reason where stopping
        would have helped: on the node that came closest.
        """
        miss = report.nearest_miss
        site = self._view.fleet.get(miss.node) if miss is not None else None
        if site is None:
            return report
        there = sorted(self._view.fleet.evictables.on(site.row), key=lambda it: (it.loss, it.uid))
        if not self._least_by_sums(site.row, there):
            return report
        refusals = (self._refusal(it) for it in there)
        why = next((it.message for it in refusals if it is not None), "")
        if not why:
            return report
        message = f"{report.message}; other work on node {site.name} would make room, but {why}"
        return msgspec.structs.replace(report, message=message)

    # All nodes at once ---------------------------------------------------------------------------

    def _rows(self) -> list[int]:
        """The most promising rows: the least priority first, then the least to free."""
        view, verdicts = self._view, self._equivalence.verdicts
        columns, work = view.columns, self._equivalence.work
        may = verdicts.takes_work(columns) & (verdicts.code[columns.all] != 0)
        if self._equivalence.topology_rules is not None:
            may &= self._equivalence.topology_rules.codes(view, verdicts) == 0
        rows = np.flatnonzero(may)
        if not len(rows):
            return []
        empty = resource_codes(work, view, rows, Level.EMPTY)
        rows = rows[empty == 0] if empty is not None else rows
        numbers = [number for number, _ in work.units]
        wanted = np.array([units for _, units in work.units], np.int64)[:, None]
        free = columns.free[numbers][:, rows].copy()
        lacking = np.maximum(wanted - free, 0)
        level = np.where((free >= wanted).all(axis=0), 0, -1)
        for number, sums in enumerate(self._levels(), start=1):
            free += sums[numbers][:, rows]
            level[(level < 0) & (free >= wanted).all(axis=0)] = number
        could = level >= 0
        rows, level, lacking = rows[could], level[could], lacking[:, could]
        cost = (lacking / np.maximum(wanted, 1)).max(axis=0, initial=0.0)
        order = np.lexsort((ranks(columns.lot[rows], self._salt), cost, level))
        found: list[int] = rows[order[:NODES_EXAMINED_MAX]].tolist()
        return found

    def _levels(self) -> Iterable[Ints]:
        """What stopping each further level of work would free, by resource and row."""
        evictables = self._view.fleet.evictables
        yield from evictables.below(self._preemptor.priority)
        if self._borrowers:
            yield self._borrowed()

    def _borrowed(self) -> npt.NDArray[np.int64]:
        """What the tenants hold that have borrowed from the preemptor's tenant."""
        columns = self._view.columns
        sums = np.zeros(columns.total.shape, np.int64)
        for tenant in self._borrowers:
            for it in self._view.fleet.evictables.committed(tenant):
                for resource, units in sums_of(it.held).items():
                    sums[columns.resources.number(resource), it.row] += units
        return sums

    # One node ------------------------------------------------------------------------------------

    def _room_at(self, row: int) -> _Room | None:
        """What would have to stop on one node."""
        site, evictables = self._view.fleet.at(row), self._view.fleet.evictables
        if site.node is None or site.shunned is not None:
            return None
        legal = [it for it in evictables.on(row) if self._is_legal(it)]
        # The most valuable first: it is kept if the rest suffices.
        legal.sort(key=lambda it: (it.loss, it.uid), reverse=True)
        demand = self._equivalence.work.demand
        if demand.devices or demand.ports:
            victims = self._least_by_claim(site, legal)
        else:
            victims = self._least_by_sums(row, legal)
        if not victims or len(victims) > VICTIMS_MAX or not self._are_legal(victims):
            return None
        held = claim(site.without(it.uid for it in victims), demand)
        return None if isinstance(held, Refusal) else _Room(site, held, tuple(victims))

    def _is_legal(self, it: Evictable) -> bool:
        if it.gang[2]:
            # Stopping a member ends its gang: only a gang that is here alone is kept whole.
            members = self._view.fleet.evictables.gang(it)
            if any(member.row != it.row for member in members):
                return False
        return self._refusal(it) is None

    def _refusal(self, it: Evictable) -> Refusal | None:
        """Why this one may not be stopped, by the rule of the commit."""
        is_borrower = it.of is CapacityClass.HARD and it.tenant in self._borrowers
        victim = it.contender(self._preemptor.cohort if is_borrower else "")
        return turn_refusal(self._displaced, it.workload_uid, self._ago_ms) or eviction_refusal(
            self._preemptor, victim, self._ledger
        )

    def _are_legal(self, victims: list[Evictable]) -> bool:
        """Whether each is legal once those before it are gone: a borrower gives back its share."""
        ledger = self._ledger
        for it in sorted(victims, key=lambda it: (it.loss, it.uid)):
            if it.of is not CapacityClass.HARD:
                continue
            victim = it.contender(self._preemptor.cohort)
            if eviction_refusal(self._preemptor, victim, ledger) is not None:
                return False
            ledger = less_hard(ledger, it.tenant, it.held.charge)
        return True

    def _least_by_sums(self, row: int, legal: list[Evictable]) -> list[Evictable]:
        """The victims that are needed, where only sums matter."""
        columns = self._view.columns
        wanted = self._equivalence.work.units
        sums = {it.uid: sums_of(it.held) for it in legal}
        spare: dict[str, int] = {}
        for number, units in wanted:
            resource = columns.resources.values[number]
            gone = sum(held.get(resource, 0) for held in sums.values())
            spare[resource] = int(columns.free[number, row]) + gone - units
        if any(units < 0 for units in spare.values()):
            return []
        victims: list[Evictable] = []
        for group in self._together(legal):
            holds = {r: sum(sums[it.uid].get(r, 0) for it in group) for r in spare}
            if all(units <= spare[resource] for resource, units in holds.items()):
                for resource, units in holds.items():
                    spare[resource] -= units
            else:
                victims += group
        return victims

    def _least_by_claim(self, site: NodeState, legal: list[Evictable]) -> list[Evictable]:
        """The same where devices or ports matter, by the commit's own function."""
        demand = self._equivalence.work.demand
        gone = {it.uid for it in legal}
        if isinstance(claim(site.without(gone), demand), Refusal):
            return []
        for group in self._together(legal):
            fewer = gone - {it.uid for it in group}
            if not isinstance(claim(site.without(fewer), demand), Refusal):
                gone = fewer
        return [it for it in legal if it.uid in gone]

    def _together(self, legal: list[Evictable]) -> list[list[Evictable]]:
        """The candidates in their order, with the members of a gang as one."""
        groups: dict[object, list[Evictable]] = {}
        for it in legal:
            groups.setdefault(it.gang if it.gang[2] else it.uid, []).append(it)
        return list(groups.values())

    # The proof -----------------------------------------------------------------------------------

    def _is_proven(self, room: _Room) -> bool:
        """Whether a decision on a snapshot without the victims would place the work there."""
        view, equivalence = self._view, self._equivalence
        replica = equivalence.work.replica
        if equivalence.topology_rules is None:
            gone = (it.uid for it in room.victims)
            return self._has_place(view.only_without(room.site.name, gone), replica)
        found = [view.get("replicas", *it.key) for it in room.victims]
        return self._has_place(view.without(*(it for it in found if it is not None)), replica)

    def _preempt(self, room: _Room, report: PlacementReport) -> Preempt:
        view = self._view
        found = [view.get("replicas", *it.key) for it in room.victims]
        graces = [it.spec.template.grace_seconds for it in found if isinstance(it, Replica)]
        return Preempt(
            room.site.name,
            room.site.uid,
            room.held,
            {it.uid: it.held for it in room.victims},
            tuple(it.key for it in room.victims),
            report,
            view.revision,
            view.age_ms,
            max(graces, default=0),
        )


def may_preempt(view: FleetSnapshot, equivalence: EquivalenceClass) -> bool:
    """Whether the priority class of this work preempts."""
    name = equivalence.work.budget
    found: PriorityClass | None = view.get("priorityclasses", "", name)
    return preempts_refusal(found, name) is None
