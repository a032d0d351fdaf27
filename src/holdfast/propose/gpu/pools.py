"""Pools: the nodes of the fleet that have devices of one class, ready to be packed.

The fleet has one `GpuPools` and passes it each new replica. A pool reads the logs of the fleet's
columns on demand, and updates what changed since. Nodes that take no new work at the moment count
as having nothing free.

An old or briefly inconsistent snapshot only leads to a worse ranking.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np
import numpy.typing as npt

from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.kinds.template import Template
from holdfast.model.placement import fit
from holdfast.model.quantity import Resource
from holdfast.observe import node_columns as fleets
from holdfast.propose.gpu.class_columns import (
    AMOUNT_MAX,
    DEVICES_MAX,
    NO_NODE,
    WHOLE_MILLI,
    ClassColumns,
    GpuDemand,
    GpuNode,
)
from holdfast.propose.gpu.demand_mix import TYPICAL_MAX, LearnedMix, Mix, typical_mix
from holdfast.propose.gpu.policies import UNFIT, GpuPolicy, Ranking

# The device classes that are packed. Devices of further classes are placed without regard to
# others, as they would be without this package.
CLASSES_MAX = 8
# The packing policies that are kept ready at once, such as those of a policy and its successor.
POLICIES_MAX = 4
# The spare rows for new nodes, in addition to a share of the existing ones.
SPARE_MIN = 8

# Memory is counted in this power of two.
MIB = 20

Make = Callable[[ClassColumns, Mix], GpuPolicy]
_OPEN = fleets.gate_number(NodePhase.READY, draining=False, cordoned=False)


def demand_for(wanted: fit.Demand, device_class: str) -> GpuDemand:
    """A demand as seen by the nodes with devices of this class.

    Several requests for one class count as whole devices of any model: a rank may be rough, and the
    model's own search assigns the devices.
    """
    cpu = min(wanted.amounts.get(Resource.CPU.value, 0), AMOUNT_MAX)
    memory = min(-(-wanted.amounts.get(Resource.MEMORY.value, 0) >> MIB), AMOUNT_MAX)
    asked = [request for request in wanted.devices if request.device_class == device_class]
    if not asked:
        return GpuDemand(cpu, memory=memory)
    if len(asked) > 1:
        count = sum(request.count for request in asked)
        return GpuDemand(cpu, WHOLE_MILLI, min(count, DEVICES_MAX), memory=memory)
    (one,) = asked
    count = min(one.count, DEVICES_MAX)
    return GpuDemand(cpu, one.milli, count, one.models, memory, one.memory)


class GpuPool:
    """See the module's docstring.

    `rows` has the row in the fleet for each row here, or -1; `there` are the rows that have one.
    """

    def __init__(self, fleet: fleets.NodeColumns, device_class: str) -> None:
        self._fleet, self.device_class = fleet, device_class
        self._node_at = self._load_at = -1
        resources = Resource.CPU, Resource.MEMORY
        self._numbers = [fleet.resources.number(resource.value) for resource in resources]
        self._own: dict[int, int] = {}
        self._places: dict[int, tuple[int, ...]] = {}
        self._spare: list[int] = []
        self._policies: dict[Make, tuple[ClassColumns, Mix, GpuPolicy]] = {}
        self._ranked: tuple[GpuPolicy, GpuDemand, int, Ranking] | None = None
        # Grow whenever the columns are replaced, and their ticks start over; and with each round.
        self.version = 0
        self.weighted_sum = 0
        self._begin()

    def _begin(self) -> None:
        """Make new columns of all nodes that have such devices now."""
        fleet = self._fleet
        self._node_at, self._load_at = fleet.node_log.end, fleet.load_log.end
        kinds = fleet.devices.kind[: fleet.count]
        rows = np.flatnonzero(self._is_ours()[kinds].any(axis=1)).tolist() if fleet.count else []
        self._places = {row: self._places_of(row) for row in rows}
        spare = SPARE_MIN + len(rows) // 8
        self.columns = ClassColumns(
            [self._node(row) for row in rows], fleet.devices.types, spare=spare
        )
        self._own = {row: own for own, row in enumerate(rows)}
        self._spare = list(range(len(rows), len(rows) + spare))
        self.rows: npt.NDArray[np.intp] = np.array([*rows, *[-1] * spare], np.intp)
        self.there: npt.NDArray[np.intp] = np.arange(len(rows), dtype=np.intp)
        self._policies.clear()
        self._ranked = None
        self.version += 1

    # Following the fleet -------------------------------------------------------------------------

    def refresh(self) -> None:
        """Apply what changed since the last time."""
        fleet = self._fleet
        if self._node_at == fleet.node_log.end and self._load_at == fleet.load_log.end:
            return
        nodes, loads = fleet.node_log.since(self._node_at), fleet.load_log.since(self._load_at)
        if nodes is None or loads is None:
            self._begin()
            return
        self._node_at, self._load_at = fleet.node_log.end, fleet.load_log.end
        if len(nodes):
            for row in dict.fromkeys(nodes.tolist()):
                if not self._placed(row):
                    self._begin()
                    return
        for row in dict.fromkeys(loads.tolist()):
            own = self._own.get(row)
            if own is not None:
                self.columns.state(own, *self._free(row))

    def _placed(self, row: int) -> bool:
        """Apply the current state of a node. Returns whether that was possible in these columns."""
        places, own = self._places_of(row), self._own.get(row)
        if not places:
            if own is not None:
                del self._own[row], self._places[row]
                self._spare.append(own)
                self.rows[own] = -1
                self.there = np.flatnonzero(self.rows >= 0)
                self.columns.place(own, NO_NODE)
            return True
        self._places[row] = places
        node = self._node(row)
        if not self.columns.has_room_for(node) or (own is None and not self._spare):
            return False
        if own is None:
            own = self._own[row] = self._spare.pop()
            self.rows[own] = row
            self.there = np.flatnonzero(self.rows >= 0)
        self.columns.place(own, node)
        return True

    def _is_ours(self) -> npt.NDArray[np.bool_]:
        """By type of device, whether it is of this class."""
        types = self._fleet.devices.types
        ours = [slot is not None and slot.device_class == self.device_class for slot in types]
        return np.array(ours, np.bool_)

    def _places_of(self, row: int) -> tuple[int, ...]:
        """The positions of this class's devices in the fleet's columns, in the order of names."""
        kinds, types = self._fleet.devices.kind[row].tolist(), self._fleet.devices.types
        found = [
            place
            for place, kind in enumerate(kinds)
            if (slot := types[kind]) is not None and slot.device_class == self.device_class
        ]
        return tuple(found[:DEVICES_MAX])

    def _node(self, row: int) -> GpuNode:
        kinds = self._fleet.devices.kind[row].tolist()
        return GpuNode(*self._free(row), tuple(kinds[place] for place in self._places[row]))

    def _free(self, row: int) -> tuple[int, int, tuple[int, ...]]:
        """What is free on a node: CPU, memory, and of each device."""
        fleet, places = self._fleet, self._places[row]
        if fleet.gate[row] != _OPEN or not fleet.live[row]:
            return 0, 0, (0,) * len(places)
        free = fleet.devices.free[row].tolist()
        cpu, memory = (int(fleet.free[number, row]) for number in self._numbers)
        # Double counting for a moment, or a node that shrank, can make this negative.
        bounded = tuple(min(WHOLE_MILLI, max(0, free[place])) for place in places)
        return min(max(0, cpu), AMOUNT_MAX), min(max(0, memory >> MIB), AMOUNT_MAX), bounded

    # Questions -----------------------------------------------------------------------------------

    def rank(self, make: Make, mix: Mix, demand: GpuDemand) -> Ranking:
        """Rank the rows here for a demand, by this packing policy."""
        kept = self._policies.get(make)
        if kept is None or kept[0] is not self.columns or kept[1] is not mix:
            self._policies.pop(make, None)
            if len(self._policies) >= POLICIES_MAX:
                del self._policies[next(iter(self._policies))]
            kept = self._policies[make] = self.columns, mix, make(self.columns, mix)
        policy, tick = kept[2], self.columns.tick
        ranked = self._ranked
        if ranked is None or ranked[0] is not policy or ranked[1:3] != (demand, tick):
            ranked = self._ranked = policy, demand, tick, policy.rank(demand)
        return ranked[3]

    def reweigh(self) -> None:
        """Drop state that depends on earlier questions, so that a round can be replayed."""
        for _, _, policy in self._policies.values():
            policy.reweigh()
        self._ranked = None
        self.weighted_sum += 1

    def has(self, row: int) -> bool:
        """Whether this row of the fleet is one of these nodes."""
        return row in self._own

    def devices(self, row: int, demand: GpuDemand, ranking: Ranking) -> list[str]:
        """The devices of this node that the demand should take, by name; fewer if too few suit."""
        own, places = self._own[row], self._places[row]
        if ranking.scores[own] == UNFIT:
            # For example by its rounding of memory: then its choice of devices must not be used.
            return []
        if demand.is_fraction:
            chosen = [int(ranking.devices[own])]
        else:
            chosen = self.columns.idle_devices(demand, own)
        return [self._fleet.devices.name(row, places[at]) for at in chosen if at >= 0]


class GpuPools:
    """All pools of a fleet, and the typical demands of each."""

    def __init__(self, fleet: fleets.NodeColumns) -> None:
        self._fleet = fleet
        self._pools: dict[str, GpuPool] = {}
        self._types = 0
        self._learned: dict[str, LearnedMix] = {}
        self._stated_mixes: tuple[SchedulerPolicy | None, dict[str, Mix]] = (None, {})
        self._told: Mapping[str, Mix] = {}

    def copy(self, fleet: fleets.NodeColumns) -> GpuPools:
        """Pools of a copy of the columns, with the same typical demands."""
        made = GpuPools(fleet)
        made._learned = {of: learned.copy() for of, learned in self._learned.items()}
        made._told = self._told
        return made

    def see(self, template: Template) -> None:
        """Count the demand of a new replica as part of the typical demands."""
        if not template.devices:
            return
        wanted = fit.demand_of(template)
        for device_class in dict.fromkeys(request.device_class for request in wanted.devices):
            learned = self._learned.get(device_class)
            if learned is None:
                if len(self._learned) >= CLASSES_MAX:
                    continue
                learned = self._learned[device_class] = LearnedMix()
            learned.see(demand_for(wanted, device_class))

    def refresh_all(self) -> Collection[GpuPool]:
        """The updated pools, in the order in which their classes were first seen."""
        types = self._fleet.devices.types
        for slot in types[self._types :]:
            device_class = slot.device_class if slot is not None else ""
            is_new = device_class and device_class not in self._pools
            if is_new and len(self._pools) < CLASSES_MAX:
                self._pools[device_class] = GpuPool(self._fleet, device_class)
        self._types = len(types)
        for pool in self._pools.values():
            pool.refresh()
        return self._pools.values()

    def all(self) -> Collection[GpuPool]:
        """The pools as of the last refresh."""
        return self._pools.values()

    def get(self, device_class: str) -> GpuPool | None:
        return self._pools.get(device_class)

    def begin_round(self) -> dict[str, Mix]:
        """Weigh all stocks again, and return the learned mixes: a round can be replayed by them."""
        for pool in self._pools.values():
            pool.reweigh()
        return {of: self._learned[of].mix for of in self._pools if of in self._learned}

    def use_mixes(self, mixes: Mapping[str, Mix]) -> None:
        """Use the mixes that another process had learned, instead of those seen here."""
        self._told = mixes

    def mix(self, device_class: str, policy: SchedulerPolicy | None) -> Mix:
        """The typical demands: as the policy states them, or else as learned."""
        if self._stated_mixes[0] is not policy:
            self._stated_mixes = policy, _stated_mixes(policy)
        given = self._stated_mixes[1].get(device_class)
        if given is not None:
            return given
        if device_class in self._told:
            return self._told[device_class]
        learned = self._learned.get(device_class)
        return learned.mix if learned is not None else ()


def _stated_mixes(policy: SchedulerPolicy | None) -> dict[str, Mix]:
    counts: dict[str, dict[GpuDemand, float]] = {}
    for each in policy.spec.demands if policy is not None else ():
        wanted = fit.demand_of(Template(resources=each.resources, devices=each.devices))
        for device_class in dict.fromkeys(request.device_class for request in wanted.devices):
            of = counts.setdefault(device_class, {})
            demand = demand_for(wanted, device_class)
            of[demand] = of.get(demand, 0.0) + each.weight
    return {of: typical_mix(each, most=TYPICAL_MAX) for of, each in counts.items()}
