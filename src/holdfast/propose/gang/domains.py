"""Domains: groups of nodes with the same value of a label, one of which a gang is placed in.

`member_places.py` asks which domain to try first. A domain is counted by how many members it could
take now, or could take if nothing ran there; both are upper bounds, and placing the members
decides.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.placement import Topology
from holdfast.observe.feature_columns import NONE
from holdfast.observe.node_columns import Bools, Ints
from holdfast.propose.feasibility.equivalence_class import EquivalenceClass
from holdfast.propose.fleet_snapshot import FleetSnapshot
from holdfast.propose.preemption.victim_search import may_preempt

_Rows = npt.NDArray[np.intp]


class Domain(msgspec.Struct, frozen=True):
    """The nodes with one value of a label, and how many members they could take."""

    name: str
    rows: Bools
    room: int


def numbers_of(view: FleetSnapshot, within: str) -> tuple[Ints, list[str]]:
    """The number of each row's domain, -1 where it is in none, and the names by number.

    `zone` and `region` are those of the node itself, as in `spread`.
    """
    columns = view.columns
    if within == Topology.ZONE:
        names = ["/".join(it) if it[1] else "" for it in columns.zones.values]
        numbers = columns.zone[columns.all].copy()
    elif within == Topology.REGION:
        names = list(columns.regions.values)
        numbers = columns.region[columns.all].copy()
    else:
        labels = columns.facts.label(within)
        return np.where(columns.live[columns.all], labels.column[columns.all], NONE), labels.values
    unnamed = [number for number, name in enumerate(names) if not name]
    numbers[np.isin(numbers, unnamed)] = NONE
    return numbers, names


def domain_of(view: FleetSnapshot, within: str, node: str) -> Bools | None:
    """The rows of the domain that a node is in; None if it is in none."""
    site = view.fleet.get(node)
    numbers, _ = numbers_of(view, within)
    if site is None or numbers[site.row] == NONE:
        return None
    found: Bools = numbers == numbers[site.row]
    return found


def domains(view: FleetSnapshot, within: str, room: Ints, wanted: int) -> list[Domain]:
    """The domains that could take any member, the best first: one that takes all that are wanted
    and has the least left afterwards; otherwise the one that takes most.
    """
    numbers, names = numbers_of(view, within)
    there = (numbers != NONE) & (room > 0)
    found = []
    for number in np.unique(numbers[there]).tolist():
        rows = numbers == number
        found.append(Domain(names[number], rows, int(np.minimum(room[rows], wanted).sum())))
    return sorted(found, key=lambda it: (-min(it.room, wanted), it.room, it.name))


def room_by_row(view: FleetSnapshot, equivalence: EquivalenceClass) -> Ints:
    """How many members each node could take now, each taken by itself."""
    columns, verdicts = view.columns, equivalence.verdicts
    is_open = verdicts.code[columns.all] == 0
    if equivalence.topology_rules is not None:
        is_open &= equivalence.topology_rules.codes(view, verdicts) == 0
    return _counted(equivalence, columns.free[:, columns.all], is_open)


def empty_room_by_row(view: FleetSnapshot, equivalence: EquivalenceClass) -> Ints:
    """How many members each node could take if nothing ran on it and it were ready."""
    columns, verdicts = view.columns, equivalence.verdicts
    passes = np.array([*(each.passes for each in verdicts.filters), True, False], np.bool_)
    code = verdicts.code[columns.all]
    # By position of the filter; feasible rows and rows without a node have position -1.
    could = passes[verdicts.places[code]] | (code == 0)
    return _counted(equivalence, columns.total[:, columns.all], could)


def returned_room_by_row(view: FleetSnapshot, equivalence: EquivalenceClass) -> Ints:
    """How many such replicas each node could take if all that the tenant's cohort has borrowed
    were given back, and for work that preempts also what it may stop.
    """
    columns, work, usage = view.columns, equivalence.work, view.quota_usage
    evictables = view.fleet.evictables
    borrowers = usage.borrowers(work.namespace) if usage is not None else []
    amounts = columns.free[:, columns.all] + evictables.held_by(borrowers)[:, columns.all]
    if may_preempt(view, equivalence):
        for sums in evictables.below(work.replica.spec.priority):
            amounts += sums[:, columns.all]
    return _counted(equivalence, amounts, equivalence.verdicts.takes_work(columns))


def _counted(equivalence: EquivalenceClass, amounts: Ints, is_open: Bools) -> Ints:
    limit = equivalence.work.placement.max_per_node
    room = np.full(amounts.shape[1], limit or np.iinfo(np.int32).max, np.int64)
    for resource, units in equivalence.work.units:
        room = np.minimum(room, amounts[resource] // units)
    return np.where(is_open, np.maximum(room, 0), 0)
