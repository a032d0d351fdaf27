"""Where a recovery lane finds room: nodes that the work fits, by what the picture says is free.

Used by `reserves.py`. Whether something fits is asked of the functions that the commit asks, on a
ledger that is added up from the replicas and reservations of a node; the commit decides on the real
one. Nodes with few replicas of the work itself come first, so that what takes these away leaves the
lane.
"""

from __future__ import annotations

from holdfast.correct.controller import BY_NODE, BY_WORKLOAD, View
from holdfast.correct.drain import BY_CLAIM
from holdfast.correct.each_node import belongs, takes
from holdfast.model.errors import RecordsDisagree
from holdfast.model.fit import Held, claim, demand_of, taken
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Claim, Intent, Reservation
from holdfast.model.kinds.workload import Workload
from holdfast.model.ledger import NodeLedger, mirrored
from holdfast.model.lifecycle import CHARGED

# So many nodes are added up in one search.
NODES_MAX = 256

_GONE = (NodePhase.FENCED, NodePhase.LOST)


def is_useful(view: View, workload: Workload, held: Claim) -> bool:
    """Whether a place that is held could still be bound into.

    A node that is silent for a moment keeps it: being moved costs somebody else's room.
    """
    node: Node | None = view.get("nodes", "", held.node)
    wanted = demand_of(workload.spec.template)
    if node is None or node.status.phase in _GONE or not _is_meant(workload, node):
        return False
    is_open = node.spec.drain is None and not node.spec.cordoned
    is_same = held.charge == wanted.amounts and held.ports == wanted.ports
    return is_open and is_same and belongs(workload, node)


def _is_meant(workload: Workload, node: Node) -> bool:
    """Whether a node lies where the work is to recover."""
    recovery = workload.spec.recovery
    return recovery is not None and (not recovery.regions or node.spec.region in recovery.regions)


class Places:
    """One search for places."""

    def __init__(self, view: View, workload: Workload, kept: list[Claim]) -> None:
        self._view, self._workload = view, workload
        self._demand = demand_of(workload.spec.template)
        # How many replicas and places of its own each node has.
        self._own: dict[str, int] = {}
        mine: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
        homes = [it.status.binding.node for it in mine if it.status.binding is not None]
        for name in (*homes, *(it.node for it in kept)):
            self._own[name] = self._own.get(name, 0) + 1

    def find(self, count: int) -> list[Claim]:
        """So many more places, or as many as there are."""
        found: list[Claim] = []
        ledgers: dict[str, NodeLedger | None] = {}
        nodes = self._nodes()
        for _ in range(count):
            nodes.sort(key=self._rank)
            place = self._first(nodes, ledgers)
            if place is None:
                break
            found.append(place)
            self._own[place.node] = self._own.get(place.node, 0) + 1
        return found

    def _nodes(self) -> list[Node]:
        view, workload = self._view, self._workload
        fits = [
            it
            for it in view.all("nodes")
            if _is_meant(workload, it) and belongs(workload, it) and takes(view, workload, it)
        ]
        fits.sort(key=self._rank)
        return fits[:NODES_MAX]

    def _rank(self, node: Node) -> tuple[int, int, str]:
        recovery = self._workload.spec.recovery
        regions = recovery.regions if recovery is not None else ()
        order = regions.index(node.spec.region) if node.spec.region in regions else len(regions)
        return order, self._own.get(node.name, 0), node.name

    def _first(self, nodes: list[Node], ledgers: dict[str, NodeLedger | None]) -> Claim | None:
        for node in nodes:
            if node.name not in ledgers:
                ledgers[node.name] = added_up(self._view, node)
            ledger = ledgers[node.name]
            held = claim(ledger, self._demand) if ledger is not None else None
            if ledger is not None and isinstance(held, Held):
                ledgers[node.name] = taken(ledger, held, f"new/{self._own.get(node.name, 0)}")
                return Claim(
                    node=node.name, charge=held.charge, devices=held.devices, ports=held.ports
                )
        return None


def added_up(view: View, node: Node) -> NodeLedger | None:
    """A node's ledger, as far as the picture tells.

    Kinds arrive on streams of their own, so that the picture may contradict itself for a moment;
    then it says nothing about this node. Nor does it while a preemption empties it.
    """
    try:
        return _added_up(view, node)
    except RecordsDisagree:
        return None


def _added_up(view: View, node: Node) -> NodeLedger | None:
    ledger = mirrored(node, None)
    for replica in view.found(BY_NODE, node.name):
        binding = replica.status.binding
        if replica.status.state in CHARGED and binding is not None:
            held = Held(binding.charge, binding.devices, binding.ports)
            ledger = taken(ledger, held, replica.metadata.uid)
    reservations: list[Reservation] = view.found(BY_CLAIM, node.name)
    for reservation in reservations:
        if reservation.spec.intent is Intent.PREEMPTION:
            return None
        for number, it in enumerate(reservation.status.claims):
            if it.node == node.name and not it.consumed:
                held = Held(it.charge, it.devices, it.ports)
                ledger = taken(ledger, held, f"{reservation.metadata.uid}/{number}")
    return ledger
