"""How the capacity of a plane is used: what is busy, and why each idle part is idle.

`holdfast capacity` reads the objects and calls `capacity_shares`; no component decides by the
result. Every allocatable unit is counted in exactly one column, so all idle capacity has a reason:

    busy        held by work that runs, or that may still run
    starting    held by work that is placed and not ready yet: startup headroom
    reserve     held by reservations: recovery, gangs, preemptions
    closed      free on nodes that take no new work at the moment
    fragments   free on open nodes, in pieces that fit none of the plane's workloads
    usable      free for at least one of the plane's workloads

A piece is judged as a whole, because a node with free processors and no free memory fits nothing.
The sums are kept by region, zone and pool and never added across them: free capacity in the wrong
zone is useless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Intent, Reservation
from holdfast.model.kinds.tenant import CapacityClass
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import CHARGED, Stage, State
from holdfast.model.placement.fit import Demand, choose_devices, demand_of, shortage, sums_of
from holdfast.model.placement.placement_rules import gate_refusal
from holdfast.model.quantity import MILLI, Resource, capacity, demand
from holdfast.model.quota.charging import is_active, is_recovery
from holdfast.model.quota.ledger import Amounts, NodeLedger, add, allocatable_of
from holdfast.model.refusal import Refusal
from holdfast.propose.feasibility.fleet import of_replica, of_reservation
from holdfast.propose.feasibility.node_state import NodeState

# Every shape is compared with every node; more shapes would not change the result much.
SHAPES_MAX = 512
_GETTING_READY = (Stage.ADMITTED, Stage.QUEUED, Stage.SCHEDULED, Stage.BOUND, Stage.STARTING)


class CapacityShare(msgspec.Struct, frozen=True):
    """One resource in one zone of one pool. The module docstring explains the columns."""

    region: str
    zone: str
    pool: str
    resource: str
    total: int
    busy: int = 0
    starting: int = 0
    reserve: int = 0
    closed: int = 0
    fragments: int = 0
    usable: int = 0


class CapacityAmounts(msgspec.Struct, frozen=True):
    """What is known of one resource in one zone of one pool. No two of these are ever added.

    physical: what the nodes have.
    allocatable: less what their systems reserve, with their overcommit.
    requested: by work that is placed.
    limited: the most that this work may use; CPU without a limit is not in it.
    observed: what it used when it was last sampled; None if no sample of these nodes is known.
    hard, reclaimable: what is committed to work and reservations, by capacity class.
    recoverable: the part of it that is reserved for recovery.
    """

    region: str
    zone: str
    pool: str
    resource: str
    physical: int = 0
    allocatable: int = 0
    requested: int = 0
    limited: int = 0
    observed: int | None = None
    hard: int = 0
    reclaimable: int = 0
    recoverable: int = 0


def capacity_amounts(
    nodes: Sequence[Node], replicas: Iterable[Replica], reservations: Iterable[Reservation]
) -> list[CapacityAmounts]:
    """What is known of the capacity of these nodes, by region, zone, pool and resource."""
    sums: dict[tuple[str, str, str], dict[str, Amounts]] = {}
    places = {it.name: (it.spec.region, it.spec.zone, it.spec.pool) for it in nodes}

    def count(node: str, what: str, amounts: Amounts) -> None:
        place = sums.setdefault(places[node], {})
        place[what] = add(place.get(what, {}), amounts)

    for node in nodes:
        counts = Counter(it.device_class for it in node.spec.devices)
        devices = {it: MILLI * number for it, number in counts.items()}
        has = {it: capacity(it, amount) for it, amount in node.spec.capacity.items()}
        count(node.name, "physical", {**has, **devices})
        count(node.name, "allocatable", {**allocatable_of(node), **devices})
        if node.status.used:
            seen = {it: capacity(it, amount) for it, amount in node.status.used.items()}
            # A zero is known as well, and distinct from nothing known.
            count(node.name, "observed", seen)
            sums[places[node.name]].setdefault("sampled", {}).update(dict.fromkeys(seen, 1))
    for replica in replicas:
        binding = replica.status.binding
        if binding is None or replica.status.state not in CHARGED or binding.node not in places:
            continue
        count(binding.node, "requested", binding.charge)
        count(binding.node, binding.capacity_class or CapacityClass.HARD.value, binding.charge)
        count(binding.node, "limited", _limits(replica, binding.charge))
    for held in reservations:
        is_counted = is_active(held) and held.spec.intent is not Intent.PREEMPTION
        for claim in held.status.claims if is_counted else ():
            if claim.consumed or claim.node not in places:
                continue
            count(claim.node, held.spec.capacity_class.value, claim.charge)
            if is_recovery(held):
                count(claim.node, "recoverable", claim.charge)
    return [
        _amounts_of(place, resource, found)
        for place, found in sorted(sums.items(), key=lambda item: item[0])
        for resource in sorted(found["physical"])
    ]


def _amounts_of(
    place: tuple[str, str, str], resource: str, found: Mapping[str, Amounts]
) -> CapacityAmounts:
    amounts = {it: found.get(it, {}).get(resource, 0) for it in _SUMMED}
    is_sampled = resource in found.get("sampled", {})
    observed = found.get("observed", {}).get(resource, 0) if is_sampled else None
    known = CapacityAmounts(*place, resource, observed=observed)
    return msgspec.structs.replace(known, **amounts)


_SUMMED = (
    *("physical", "allocatable", "requested", "limited"),
    *("hard", "reclaimable", "recoverable"),
)


def _limits(replica: Replica, charge: Amounts) -> Amounts:
    """The most that a replica may use, as its node limits it."""
    of = replica.spec.template
    found = {
        resource.value: demand(resource, limit) for resource, limit in of.limits.amounts.items()
    }
    for resource in (Resource.MEMORY, Resource.DISK):
        # Without a limit, its node limits these to the request.
        found[resource.value] = found[resource.value] or charge.get(resource.value, 0)
    devices = {it.device_class: charge.get(it.device_class, 0) for it in of.devices}
    return {**found, **devices}


class _Sums(msgspec.Struct):
    """The amounts of one zone of one pool, by column and resource."""

    columns: dict[str, Amounts] = {}

    def take(self, column: str, amounts: Amounts) -> None:
        self.columns[column] = add(self.columns.get(column, {}), amounts)

    def share(self, region: str, zone: str, pool: str, resource: str) -> CapacityShare:
        amounts = {column: it.get(resource, 0) for column, it in self.columns.items()}
        return CapacityShare(region, zone, pool, resource, amounts.pop("total"), **amounts)


def shapes_of(workloads: Iterable[Workload]) -> tuple[Demand, ...]:
    """The distinct demands of one replica of each workload, at most SHAPES_MAX."""
    found: dict[bytes, Demand] = {}
    for workload in workloads:
        shape = demand_of(workload.spec.template)
        found.setdefault(msgspec.msgpack.encode(shape, order="sorted"), shape)
        if len(found) == SHAPES_MAX:
            break
    return tuple(found.values())


def capacity_shares(
    nodes: Sequence[Node],
    replicas: Iterable[Replica],
    reservations: Iterable[Reservation],
    shapes: Sequence[Demand],
) -> list[CapacityShare]:
    """The use of the capacity of these nodes, by region, zone, pool and resource."""
    sites = {node.name: NodeState(node.name, row) for row, node in enumerate(nodes)}
    starting: dict[str, Amounts] = {}
    for node in nodes:
        sites[node.name].place(node)
    for replica in replicas:
        for where, held in of_replica(replica).items():
            if where.node not in sites:
                continue
            getattr(sites[where.node], where.attribute)[where.owner] = held
            if where.attribute == "held" and _is_starting(replica):
                starting[where.node] = add(starting.get(where.node, {}), sums_of(held))
    reserve: dict[str, Amounts] = {}
    for reservation in reservations:
        for where, held in of_reservation(reservation).items():
            if where.node not in sites:
                continue
            getattr(sites[where.node], where.attribute)[where.owner] = held
            if where.attribute in ("held", "recovery"):
                reserve[where.node] = add(reserve.get(where.node, {}), sums_of(held))
    sums: dict[tuple[str, str, str], _Sums] = {}
    for node in nodes:
        spec = node.spec
        into = sums.setdefault((spec.region, spec.zone, spec.pool), _Sums())
        name = node.name
        _count(into, sites[name].settled, starting.get(name, {}), reserve.get(name, {}), shapes)
    return [
        it.share(*place, resource)
        for place, it in sorted(sums.items(), key=lambda item: item[0])
        for resource in it.columns["total"]
    ]


def _is_starting(replica: Replica) -> bool:
    status = replica.status
    if status.state is State.RUNNING:
        return status.stage in _GETTING_READY
    return status.state is State.BOUND


def _count(
    into: _Sums, ledger: NodeLedger, starting: Amounts, held: Amounts, shapes: Sequence[Demand]
) -> None:
    """Adds each unit of a node to its column.

    An overfull node, whose capacity was lowered, counts as what it holds, or the columns would not
    add up.
    """
    free = _free(ledger)
    total = _total(ledger)
    column = _column(ledger, shapes)
    for resource, stated in total.items():
        used = ledger.used.get(resource, 0)
        waits, kept = starting.get(resource, 0), held.get(resource, 0)
        left = max(0, min(free.get(resource, 0), stated - used))
        promised = max(0, stated - used - left)
        into.take("total", {resource: max(stated, used)})
        into.take("busy", {resource: used - waits - kept})
        into.take("starting", {resource: waits})
        into.take("reserve", {resource: kept + promised})
        into.take(column, {resource: left})


def _total(ledger: NodeLedger) -> Amounts:
    total = {name: units for name, units in ledger.allocatable.items() if name != Resource.REPLICAS}
    for slot in ledger.devices.values():
        if not slot.absent:
            total[slot.device_class] = total.get(slot.device_class, 0) + MILLI
    return total


def _free(ledger: NodeLedger) -> Amounts:
    free = {name: ledger.free(name) for name in ledger.allocatable}
    for slot in ledger.devices.values():
        free[slot.device_class] = free.get(slot.device_class, 0) + slot.free()
    return free


def _column(ledger: NodeLedger, shapes: Sequence[Demand]) -> str:
    """The column for the free piece of a node."""
    if gate_refusal(ledger.gate) is not None:
        return "closed"
    if shapes and not any(_fits(ledger, shape) for shape in shapes):
        return "fragments"
    return "usable"


def _fits(ledger: NodeLedger, shape: Demand) -> bool:
    if shortage(ledger, shape) is not None:
        return False
    return not isinstance(choose_devices(ledger, shape), Refusal)
