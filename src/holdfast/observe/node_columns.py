"""All nodes as columns of numbers, one row each: what a decision asks of thousands at once.

`propose/feasibility/fleet.py` keeps them up to date from the changes of the cache and from what the
scheduler assumes; filters and scorers read them. A change touches one row and is noted in a log, so
that a reader that computed something for all rows recomputes the changed ones only.

What has few different values (places, taints, protections, gates, types of devices) is a number for
the value, so that a rule of the model is evaluated once per value instead of once per node. The
sums are those of the node's ledger, as far as they are known: see
`propose/feasibility/node_state.py`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum, auto
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.node import Node, NodePhase, Protection
from holdfast.model.kinds.placement import Isolation, Taint
from holdfast.model.placement.fit import Allocation, sums_of
from holdfast.model.placement.placement_rules import labels_of
from holdfast.model.quantity import Resource, capacity
from holdfast.model.quota.ledger import NodeLedger
from holdfast.observe.feature_columns import DeviceColumns, FactColumns

# The rows that changed, in order, so that a reader only checks those since its last check.

# A reader that is further behind than this recomputes everything, which costs no more.
LOG_MAX = 65_536


class ChangeLog:
    """Changed rows by a position that only grows. Old positions are dropped."""

    __slots__ = ("_count", "_first", "_rows")

    def __init__(self) -> None:
        self._rows: npt.NDArray[np.intp] = np.zeros(2 * LOG_MAX, np.intp)
        self._count = 0
        self._first = 0

    @property
    def end(self) -> int:
        """The position of the next change."""
        return self._first + self._count

    def begin(self) -> ChangeLog:
        """A log of what changes from here on: no reader of this one has read it."""
        made = ChangeLog()
        made._first = self.end
        return made

    def note(self, row: int) -> None:
        """Record that this row has changed."""
        if self._count == len(self._rows):
            self._rows[:LOG_MAX] = self._rows[LOG_MAX:]
            self._first += LOG_MAX
            self._count = LOG_MAX
        self._rows[self._count] = row
        self._count += 1

    def since(self, position: int) -> npt.NDArray[np.intp] | None:
        """The rows noted from this position on, some perhaps twice; None if that was dropped."""
        if position < self._first:
            return None
        return self._rows[position - self._first : self._count]


# Fixed ports that are taken or not offered, by row. Little work asks for one: no column is kept.


class PortRows:
    """How often each port is taken on each row, and how often by what is only assumed."""

    __slots__ = ("_lent", "_sharing", "_taken")

    def __init__(self) -> None:
        self._taken: dict[str, dict[int, int]] = {}
        self._lent: dict[str, dict[int, int]] = {}
        # The nodes that do not offer every port.
        self._sharing: dict[int, NodeLedger] = {}

    def copy(self) -> PortRows:
        made = PortRows()
        made._taken = {port: dict(rows) for port, rows in self._taken.items()}
        made._lent = {port: dict(rows) for port, rows in self._lent.items()}
        made._sharing = dict(self._sharing)
        return made

    def place(self, row: int, empty: NodeLedger | None) -> None:
        """Set the node of this row, or None if there is none."""
        if empty is not None and empty.port_share is not None:
            self._sharing[row] = empty
        else:
            self._sharing.pop(row, None)

    def not_offered(self, port: str) -> list[int]:
        """The rows whose nodes never offer this port."""
        return [row for row, empty in self._sharing.items() if not empty.offers(port)]

    def change(self, row: int, ports: Iterable[str], sign: int) -> None:
        """Take these ports, or give them back with -1."""
        _count(self._taken, row, ports, sign)

    def lend(self, row: int, ports: Iterable[str], sign: int) -> None:
        """Count these ports as only assumed."""
        _count(self._lent, row, ports, sign)

    def clear(self, row: int) -> None:
        """Forget which ports are taken on this row."""
        for table in (self._taken, self._lent):
            for port in [port for port, rows in table.items() if row in rows]:
                _count(table, row, (port,), -table[port][row])

    def taken(self, port: str, *, settled: bool) -> list[int]:
        """The rows where a port is taken; `settled` leaves out what is only assumed."""
        rows = self._taken.get(port, {})
        if not settled:
            return list(rows)
        lent = self._lent.get(port, {})
        return [row for row, count in rows.items() if count > lent.get(row, 0)]


def _count(table: dict[str, dict[int, int]], row: int, ports: Iterable[str], sign: int) -> None:
    for port in ports:
        rows = table.setdefault(port, {})
        rows[row] = rows.get(row, 0) + sign
        if not rows[row]:
            del rows[row]
            if not rows:
                del table[port]


__all__ = ["Bools", "Codes", "Floats", "Interned", "Ints", "Level", "Lots", "NodeColumns", "Rows"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Lots = npt.NDArray[np.uint64]
# The rows that a question is about: all of them, or some by number.
Rows = slice | npt.NDArray[np.intp]

ROWS_MIN = 64
_PHASES = {phase: index for index, phase in enumerate(NodePhase)}

V = TypeVar("V", bound=Hashable)


class Level(Enum):
    """What counts as taken: everything, all but what is only assumed, or nothing."""

    NOW = auto()
    SETTLED = auto()
    EMPTY = auto()


class Interned(Generic[V]):
    """Numbers for values: equal values have the same number, from 0 in the order of first use.

    They are kept for good. A plane has few zones and taints, however often its nodes change.
    """

    __slots__ = ("_numbers", "values")

    def __init__(self) -> None:
        self.values: list[V] = []
        self._numbers: dict[V, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def copy(self) -> Interned[V]:
        made: Interned[V] = Interned()
        made.values, made._numbers = list(self.values), dict(self._numbers)
        return made

    def number(self, value: V) -> int:
        """The number of this value, a new one if it has none."""
        found = self._numbers.get(value)
        if found is None:
            found = self._numbers[value] = len(self.values)
            self.values.append(value)
        return found

    def known(self, value: V) -> int | None:
        """The number of this value, or None if it has none."""
        return self._numbers.get(value)


def gate_number(phase: NodePhase, *, draining: bool, cordoned: bool) -> int:
    """One number for everything that decides whether a node takes new work."""
    return _PHASES[phase] * 4 + draining * 2 + cordoned


def lot_of(name: str) -> int:
    """A pseudo-random number for a node; two nodes share one with a chance of 1 in 10^12."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")


_BY_ROW = (
    *("live", "shunned", "place", "zone", "region", "gate", "taints", "protection"),
    *("isolation", "assumed", "cost", "lot", "total", "free", "lent", "inverse"),
)
_NUMBERED = (
    *("resources", "places", "zones", "regions"),
    *("taints_seen", "protections", "isolations"),
)


class NodeColumns:
    """See the module's docstring. Rows from 0 to `count` belong, or once belonged, to a node."""

    def __init__(self) -> None:
        self.count = 0
        self._spare: list[int] = []
        self.resources: Interned[str] = Interned()
        for resource in (Resource.CPU, Resource.MEMORY, Resource.DISK, Resource.REPLICAS):
            self.resources.number(resource.value)
        self.places: Interned[tuple[str, str, str]] = Interned()
        self.zones: Interned[tuple[str, str]] = Interned()
        self.regions: Interned[str] = Interned()
        self.taints_seen: Interned[tuple[Taint, ...]] = Interned()
        self.protections: Interned[Protection | None] = Interned()
        self.isolations: Interned[Isolation | None] = Interned()
        self.live: Bools = np.zeros(ROWS_MIN, np.bool_)
        self.shunned: Bools = np.zeros(ROWS_MIN, np.bool_)
        self.place: Ints = np.zeros(ROWS_MIN, np.int64)
        self.zone: Ints = np.zeros(ROWS_MIN, np.int64)
        self.region: Ints = np.zeros(ROWS_MIN, np.int64)
        self.gate: Ints = np.zeros(ROWS_MIN, np.int64)
        self.taints: Ints = np.zeros(ROWS_MIN, np.int64)
        self.protection: Ints = np.zeros(ROWS_MIN, np.int64)
        self.isolation: Ints = np.zeros(ROWS_MIN, np.int64)
        # How many allocations each tenant has on a row.
        self.tenants: dict[int, dict[str, int]] = {}
        self.assumed: Ints = np.zeros(ROWS_MIN, np.int64)
        self.cost: Floats = np.zeros(ROWS_MIN, np.float64)
        # Ties are broken by this number. It belongs to the node and not to its row, so that a
        # replay that learned of the nodes in another order makes the same decision.
        self.lot: Lots = np.zeros(ROWS_MIN, np.uint64)
        kinds = len(self.resources)
        # By resource, then by row: each question is about all rows of one resource.
        self.total: Ints = np.zeros((kinds, ROWS_MIN), np.int64)
        self.free: Ints = np.zeros((kinds, ROWS_MIN), np.int64)
        self.lent: Ints = np.zeros((kinds, ROWS_MIN), np.int64)
        # One over the total: shares are computed far more often than totals change.
        self.inverse: Floats = np.zeros((kinds, ROWS_MIN), np.float64)
        self.devices = DeviceColumns(ROWS_MIN)
        self.facts = FactColumns(ROWS_MIN)
        self.ports = PortRows()
        # Rows whose node was replaced or changed, and rows where only the load changed.
        self.node_log, self.load_log = ChangeLog(), ChangeLog()

    def copy(self) -> NodeColumns:
        """Columns that may change while these do not. Their logs start empty."""
        made = copy.copy(self)
        for name in (*_BY_ROW, *_NUMBERED, "_spare", "devices", "facts", "ports"):
            setattr(made, name, getattr(self, name).copy())
        made.tenants = {row: dict(counts) for row, counts in self.tenants.items()}
        made.node_log, made.load_log = self.node_log.begin(), self.load_log.begin()
        return made

    @property
    def all(self) -> slice:
        """All rows, including those without a node at the moment."""
        return slice(0, self.count)

    @property
    def capacity(self) -> int:
        return len(self.live)

    # Rows ----------------------------------------------------------------------------------------

    def add(self) -> int:
        """A row for a node that is not known yet."""
        if self._spare:
            return self._spare.pop()
        if self.count == self.capacity:
            self._grow()
        self.count += 1
        self._clear_zone(self.count - 1)
        return self.count - 1

    def _clear_zone(self, row: int) -> None:
        """Put an unregistered node in no zone: what runs there counts for none."""
        self.zone[row] = self.zones.number(("", ""))
        self.region[row] = self.regions.number("")

    def drop(self, row: int) -> None:
        """Free the row of a node that is gone and on which nothing is held."""
        self.absent(row)
        self.restate(row, (), ())
        self._spare.append(row)

    def absent(self, row: int) -> None:
        """Mark the node of this row as not registered: nothing is placed there."""
        self.live[row] = self.shunned[row] = False
        self._clear_zone(row)
        self.total[:, row] = 0
        self.facts.place(row, {}, ())
        self.devices.place(row, {})
        self.ports.place(row, None)
        self.node_log.note(row)

    def place_node(self, row: int, node: Node, empty: NodeLedger) -> None:
        """Set the node of this row. Call `restate` after it for what is held there."""
        gate = empty.gate
        self.live[row] = True
        self.place[row] = self.places.number((gate.region, gate.zone, gate.pool))
        self.zone[row] = self.zones.number((gate.region, gate.zone))
        self.region[row] = self.regions.number(gate.region)
        self.gate[row] = gate_number(gate.phase, draining=gate.draining, cordoned=gate.cordoned)
        self.taints[row] = self.taints_seen.number(gate.taints)
        self.protection[row] = self.protections.number(gate.protected_for)
        self.isolation[row] = self.isolations.number(gate.isolation)
        self.lot[row] = lot_of(node.metadata.name)
        self.cost[row] = capacity(Resource.CPU, node.spec.cost_per_hour) / 1000.0
        self.total[:, row] = 0
        for resource, units in empty.allocatable.items():
            number = self._resource(resource)
            self.total[number, row] = units
        self.inverse[:, row] = 1.0 / np.maximum(self.total[:, row], 1)
        self.facts.place(row, labels_of(node), node.status.images)
        self.devices.place(row, empty.devices)
        self.ports.place(row, empty)
        self.node_log.note(row)

    def images(self, row: int, node: Node) -> None:
        """Set the images on the node: they only affect scores, not whether work fits."""
        self.facts.place(row, labels_of(node), node.status.images)
        self.node_log.note(row)

    def shun(self, row: int, *, shunned: bool) -> None:
        self.shunned[row] = shunned
        self.node_log.note(row)

    # What is taken -------------------------------------------------------------------------------

    def restate(
        self,
        row: int,
        held: Iterable[Allocation],
        assumed: Iterable[Allocation],
        promised: NodeLedger | None = None,
    ) -> None:
        """Recompute the row from all that is held; `promised` is the ledger if promises exist."""
        self.free[:, row] = self.total[:, row]
        self.lent[:, row] = self.assumed[row] = 0
        self.devices.clear(row)
        self.ports.clear(row)
        self.tenants.pop(row, None)
        for each in held:
            self.take(row, each, 1)
        for each in assumed:
            self.lend(row, each, 1)
        if promised is not None:
            for number, resource in enumerate(self.resources.values):
                self.free[number, row] = promised.free(resource)
            self.devices.promise(row, promised.devices)
            self.ports.change(row, promised.promised_ports, 1)
        self.load_log.note(row)

    def take(self, row: int, held: Allocation, sign: int) -> None:
        """Add an allocation to the node, or remove it with -1."""
        for resource, units in sums_of(held).items():
            # Looked up first: it may replace the arrays.
            number = self._resource(resource)
            self.free[number, row] -= sign * units
        if held.devices:
            self.devices.take(row, held.devices, sign)
        if held.ports:
            self.ports.change(row, held.ports, sign)
        if held.tenant:
            self._count(row, held.tenant, sign)
        self.load_log.note(row)

    def _count(self, row: int, tenant: str, sign: int) -> None:
        counts = self.tenants.setdefault(row, {})
        counts[tenant] = counts.get(tenant, 0) + sign
        if not counts[tenant]:
            del counts[tenant]

    def lend(self, row: int, held: Allocation, sign: int) -> None:
        """The same as `take`, for an allocation that is only assumed."""
        self.take(row, held, sign)
        for resource, units in sums_of(held).items():
            self.lent[self.resources.number(resource), row] += sign * units
        if held.devices:
            self.devices.lend(row, held.devices, sign)
        if held.ports:
            self.ports.lend(row, held.ports, sign)
        self.assumed[row] += sign

    def left(self, resource: int, rows: Rows, level: Level = Level.NOW) -> Ints:
        """How much of a resource is free in these rows."""
        if level is Level.EMPTY:
            return self.total[resource, rows]
        free = self.free[resource, rows]
        return free + self.lent[resource, rows] if level is Level.SETTLED else free

    def totals(self) -> dict[str, int]:
        """The amounts of all nodes together, by resource and device class."""
        sums = self.total[:, self.live].sum(axis=1)
        found = {name: int(sums[number]) for number, name in enumerate(self.resources.values)}
        for name, units in self.devices.totals().items():
            found[name] = found.get(name, 0) + units
        return found

    def units(self, amounts: Mapping[str, int], but: frozenset[str]) -> list[tuple[int, int]]:
        """Amounts by the number of their resource, without those that are zero."""
        return [
            (self._resource(resource), units)
            for resource, units in amounts.items()
            if units and resource not in but
        ]

    # Inside --------------------------------------------------------------------------------------

    def _resource(self, resource: str) -> int:
        number = self.resources.number(resource)
        if number >= len(self.total):
            more = np.zeros((1, self.capacity), np.int64)
            self.total = np.concatenate([self.total, more])
            self.free = np.concatenate([self.free, more])
            self.lent = np.concatenate([self.lent, more])
            self.inverse = np.concatenate([self.inverse, more + 1.0])
        return number

    def _grow(self) -> None:
        rows = self.capacity + self.capacity // 2
        for name in _BY_ROW:
            setattr(self, name, wider(getattr(self, name), rows))
        self.devices.grow(rows)
        self.facts.grow(rows)


def wider(column: npt.NDArray[np.generic], rows: int) -> npt.NDArray[np.generic]:
    """The same column with room for more rows, which are zero."""
    more = np.zeros((*column.shape[:-1], rows), column.dtype)
    more[..., : column.shape[-1]] = column
    return more
