"""The search for victims: the node where making room costs least, and what to stop there.

It asks first of all nodes at once, by columns: where nothing but load is in the way, how far up in
priority would everything have to stop until the work fits? Of the nodes that get by with the least
priority a few are examined exactly. There everything legal is imagined gone, and then given back,
the most valuable first, as long as the work still fits beside it: what is not given back are the
victims, and each of them is needed. Members of a gang beyond its minimum are given back one by
one, the others, wherever they run, as a whole.

`has_place` decides in the end, on a snapshot of that node without the victims. So nothing is
stopped for a place that the rules would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CapacityClass, PriorityClass
from holdfast.model.placement.fit import Allocation, claim, sums_of
from holdfast.model.preemption import (
    Contender,
    Extent,
    Loss,
    eviction_refusal,
    extent_refusal,
    less_hard,
    preempts_refusal,
    turn_refusal,
)
from holdfast.model.quota.ledger import Amounts, DisruptionLedger, QuotaLedger
from holdfast.model.refusal import Refusal
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.node_columns import Bools, Ints, Level
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.feasibility.node_state import NodeState
from holdfast.propose.feasibility.outcome import PlacementReport, Preempt
from holdfast.propose.filters.free_resources import resource_codes
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.gang.gang_records import running_gang
from holdfast.propose.node_choice import ranks
from holdfast.propose.preemption.evictables import Evictable
from holdfast.propose.preemption.known_budgets import budget_refusal, without

# How many nodes are examined exactly, the most promising first.
NODES_EXAMINED_MAX = 4

HasPlace = Callable[[FleetSnapshot, Replica], bool]


class Room(msgspec.Struct, frozen=True):
    """What has to stop on one node, and what that costs."""

    site: NodeState
    held: Allocation
    victims: tuple[Evictable, ...]

    @property
    def cost(self) -> tuple[tuple[Loss, ...], int]:
        """The victims' losses, the greatest first: one important victim is worse than two minor."""
        return tuple(sorted((it.loss for it in self.victims), reverse=True)), len(self.victims)


class VictimUnit(msgspec.Struct, frozen=True):
    """Candidates that stop together or not at all: one, or all but the spare members of a gang.

    `ends` is the gang that ends with them.
    """

    victims: tuple[Evictable, ...]
    ends: tuple[str, str, str] | None = None

    @property
    def rank(self) -> tuple[Loss, str]:
        """What is lost, to be compared with other units."""
        return max((it.loss, it.uid) for it in self.victims)


class GangDemand(msgspec.Struct, frozen=True):
    """What else a search for one member of a gang has to know: how many start together, on which
    rows, and what stops for those before it.
    """

    count: int
    among: Bools | None
    stopped: tuple[Evictable, ...]


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
        gang: GangDemand | None = None,
    ) -> None:
        self._view, self._equivalence, self._salt = view, equivalence, salt
        self._has_place = has_place
        self._among = gang.among if gang is not None else None
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
            times(work.demand.amounts, gang.count if gang is not None else 1),
        )
        is_counting = usage is not None and usage.is_counting
        self._ledger = usage.ledger(work.namespace) if is_counting and usage else QuotaLedger()
        self._stopped = gang.stopped if gang is not None else ()
        for it in self._stopped:
            if it.of is CapacityClass.HARD:
                self._ledger = less_hard(self._ledger, it.tenant, it.held.charge)
        self._borrowers = usage.borrowers(work.namespace) if is_counting and usage else []

    def best(self, report: PlacementReport) -> Preempt | None:
        """The place where making room costs least, if there is one."""
        room = self.least()
        return self._preempt(room, report) if room is not None else None

    def least(self) -> Room | None:
        """What has to stop where making room costs least."""
        found = [room for row in self._rows() if (room := self._room_at(row)) is not None]
        for room in sorted(found, key=lambda it: it.cost):
            if self._is_proven(room):
                return room
        return None

    def with_reason(self, report: PlacementReport) -> PlacementReport:
        """The report of work for which nothing may be stopped, with the reason where stopping
        would have helped: on the node that came closest.
        """
        miss = report.nearest_miss
        site = self._view.fleet.get(miss.node) if miss is not None else None
        if site is None:
            return report
        there = sorted(self._view.fleet.evictables.on(site.row), key=lambda it: (it.loss, it.uid))
        if not self._least_by_sums(site.row, [VictimUnit((it,)) for it in there]):
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
        if self._among is not None:
            may &= self._among
        # Nothing is stopped where a job is about to start.
        may[list(view.closed)] = False
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
        kept = [
            it
            for uid in self._view.fleet.budgets.used_up()
            for it in evictables.of_workload(uid)
            if it.loss.is_ready
        ]
        yield from evictables.below(self._preemptor.priority, kept)
        if self._borrowers:
            yield evictables.held_by(self._borrowers, kept)

    # One node ------------------------------------------------------------------------------------

    def _room_at(self, row: int) -> Room | None:
        """What would have to stop on one node."""
        site, evictables = self._view.fleet.at(row), self._view.fleet.evictables
        if site.node is None or site.shunned is not None:
            return None
        legal = [self._weighed(it) for it in evictables.on(row) if self._is_legal(it)]
        # The most valuable first: it is kept if the rest suffices.
        units = self._within_budgets(sorted(self._units(legal), key=lambda it: it.rank))[::-1]
        demand = self._equivalence.work.demand
        if demand.devices or demand.ports:
            victims = self._least_by_claim(site, units)
        else:
            victims = self._least_by_sums(row, units)
        # The commit judges them in this order.
        victims.sort(key=lambda it: (it.loss, it.uid))
        extent = extent_of([row], victims, self._preemptor.tenant)
        if extent_refusal(extent) is not None or not self._are_legal(victims):
            return None
        held = claim(site.without(it.uid for it in victims), demand)
        return None if isinstance(held, Refusal) else Room(site, held, tuple(victims))

    def _is_legal(self, it: Evictable) -> bool:
        if self._refusal(it) is not None:
            return False
        ledger = self._view.fleet.budgets.get(it.workload_uid)
        return ledger is None or budget_refusal(ledger, is_ready=it.loss.is_ready) is None

    def _units(self, legal: list[Evictable]) -> list[VictimUnit]:
        """What may stop on one node: single candidates, spare members of gangs, and gangs as a
        whole with their members elsewhere.
        """
        units, gangs = [], dict[tuple[str, str, str], list[Evictable]]()
        for it in legal:
            if it.gang[2]:
                gangs.setdefault(it.gang, []).append(it)
            else:
                units.append(VictimUnit((it,)))
        for key, here in gangs.items():
            units += self._units_of_gang(key, sorted(here, key=lambda it: (it.loss, it.uid)))
        return units

    def _units_of_gang(
        self, key: tuple[str, str, str], here: list[Evictable]
    ) -> Iterable[VictimUnit]:
        gang = running_gang(self._view, key)
        if gang is None:
            return
        spare = len(here) if gang.spare is None else gang.spare
        for it in here[:spare]:
            yield VictimUnit((_alone(it),))
        if here[spare:]:
            row, members = here[0].row, self._view.fleet.evictables.gang(here[0])
            others = [it for it in members if it.row != row]
            found = {it.uid for it in (*here, *others)}
            if gang.placed <= found and all(self._is_legal(it) for it in others):
                yield VictimUnit((*here[spare:], *others), ends=key)

    def _refusal(self, it: Evictable) -> Refusal | None:
        """Why this one may not be stopped, by the rule of the commit. Budgets are left out: one
        scheduler knows of them and another not yet, and they would take turns with what they say.
        """
        is_borrower = it.of is CapacityClass.HARD and it.tenant in self._borrowers
        victim = it.contender(self._preemptor.cohort if is_borrower else "")
        return turn_refusal(self._displaced, it.workload_uid, self._ago_ms) or eviction_refusal(
            self._preemptor, victim, self._ledger
        )

    def _weighed(self, it: Evictable) -> Evictable:
        """The candidate with what is known of its workload's budget."""
        if self._view.fleet.budgets.get(it.workload_uid) is None:
            return it
        return msgspec.structs.replace(it, loss=msgspec.structs.replace(it.loss, has_budget=True))

    def _within_budgets(self, units: list[VictimUnit]) -> list[VictimUnit]:
        """Those that the budgets of their workloads allow together, the least valuable of each,
        beside what stops for the members before.
        """
        budgets = self._view.fleet.budgets
        left: dict[str, DisruptionLedger] = {}
        kept = []
        for unit in (*(VictimUnit((it,)) for it in self._stopped), *units):
            workload = unit.victims[0].workload_uid
            ledger = left.get(workload) or budgets.get(workload)
            after = ledger
            if ledger is not None:
                after = without(ledger, [it.loss.is_ready for it in unit.victims])
            if after is not None:
                left[workload] = after
            if ledger is None or after is not None:
                kept.append(unit)
        stopped = {it.uid for it in self._stopped}
        return [it for it in kept if it.victims[0].uid not in stopped]

    def _are_legal(self, victims: list[Evictable]) -> bool:
        """Whether each is legal once those before it are gone: a borrower gives back its share."""
        ledger = self._ledger
        for it in victims:
            if it.of is not CapacityClass.HARD:
                continue
            victim = it.contender(self._preemptor.cohort)
            if eviction_refusal(self._preemptor, victim, ledger) is not None:
                return False
            ledger = less_hard(ledger, it.tenant, it.held.charge)
        return True

    def _least_by_sums(self, row: int, units: list[VictimUnit]) -> list[Evictable]:
        """The victims that are needed, where only sums matter."""
        columns = self._view.columns
        here = [it for unit in units for it in unit.victims if it.row == row]
        sums = {it.uid: sums_of(it.held) for it in here}
        spare: dict[str, int] = {}
        for number, wanted in self._equivalence.work.units:
            resource = columns.resources.values[number]
            gone = sum(held.get(resource, 0) for held in sums.values())
            spare[resource] = int(columns.free[number, row]) + gone - wanted
        if any(left < 0 for left in spare.values()):
            return []

        def is_needed(victims: tuple[Evictable, ...]) -> bool:
            held = [sums[it.uid] for it in victims if it.uid in sums]
            holds = {r: sum(it.get(r, 0) for it in held) for r in spare}
            if any(amount > spare[resource] for resource, amount in holds.items()):
                return True
            for resource, amount in holds.items():
                spare[resource] -= amount
            return False

        return _needed(units, is_needed)

    def _least_by_claim(self, site: NodeState, units: list[VictimUnit]) -> list[Evictable]:
        """The same where devices or ports matter, by the commit's own function."""
        demand = self._equivalence.work.demand
        gone = {it.uid for unit in units for it in unit.victims}
        if isinstance(claim(site.without(gone), demand), Refusal):
            return []

        def is_needed(victims: tuple[Evictable, ...]) -> bool:
            fewer = gone - {it.uid for it in victims}
            if isinstance(claim(site.without(fewer), demand), Refusal):
                return True
            gone.intersection_update(fewer)
            return False

        return _needed(units, is_needed)

    # The proof -----------------------------------------------------------------------------------

    def _is_proven(self, room: Room) -> bool:
        """Whether a decision on a snapshot without the victims would place the work there."""
        view, equivalence = self._view, self._equivalence
        replica = equivalence.work.replica
        if equivalence.topology_rules is None:
            gone = (it.uid for it in room.victims)
            return self._has_place(view.only_without(room.site.name, gone), replica)
        found = [view.get("replicas", *it.key) for it in room.victims]
        return self._has_place(view.without(*(it for it in found if it is not None)), replica)

    def _preempt(self, room: Room, report: PlacementReport) -> Preempt:
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


def _needed(
    units: Iterable[VictimUnit], is_needed: Callable[[tuple[Evictable, ...]], bool]
) -> list[Evictable]:
    """The candidates of the units that are needed. With a gang that ends its spare members stop
    too, and they come after it.
    """
    victims: list[Evictable] = []
    ended: set[tuple[str, str, str]] = set()
    for unit in units:
        if unit.victims[0].gang in ended:
            victims += unit.victims
        elif is_needed(unit.victims):
            victims += unit.victims
            ended |= {unit.ends} if unit.ends is not None else set()
    return victims


def _alone(it: Evictable) -> Evictable:
    """A spare member: its gang goes on without it."""
    return msgspec.structs.replace(it, loss=msgspec.structs.replace(it.loss, in_gang=False))


def extent_of(rows: Sequence[int], victims: Sequence[Evictable], tenant: str) -> Extent:
    """How much a preemption of this tenant touches that promises a place on each of these rows."""
    return Extent(
        len(rows),
        len({*rows} | {it.row for it in victims}),
        len(victims),
        len({it.workload_uid for it in victims}),
        len({it.gang for it in victims if it.gang[2]}),
        len({it.tenant for it in victims} | {tenant}),
    )


def times(amounts: Amounts, count: int) -> Amounts:
    """The amounts of as many replicas."""
    return {resource: units * count for resource, units in amounts.items()}


def may_preempt(view: FleetSnapshot, equivalence: EquivalenceClass) -> bool:
    """Whether the priority class of this work preempts."""
    name = equivalence.work.budget
    found: PriorityClass | None = view.get("priorityclasses", "", name)
    return preempts_refusal(found, name) is None
