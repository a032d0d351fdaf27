"""controller:reserves: reserves capacity in advance for the recovery of workloads.

It owns the recovery reservation (lane) of each workload with `recovery.reserve`, and the condition
RecoveryReserved that says how much of it is held.

    fewer claims held than wanted          -> hold more, on nodes of its recovery regions
    a claim that is no longer useful       -> released, and held elsewhere by the same request: its
                                              node is drained, cordoned, fenced, gone or unfit, or
                                              the template needs something else by now
    half of the time is over               -> renew
    nothing is wanted, or the workload is
    in deletion                            -> release

A replacement replica binds into the lane when it finds no other room
(`propose/queue/recovery_lanes.py`); then the claim is held again. controller:repair ends lanes that
are not renewed until their deadline.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    BY_WORKLOAD,
    Controller,
    ReconcilePlan,
    key_of,
    operation,
)
from holdfast.correct.drain import BY_CLAIM
from holdfast.correct.remembered import Notes, keys_of
from holdfast.correct.workload.each_node import belongs, is_same_home, takes
from holdfast.model.errors import RecordsDisagree
from holdfast.model.kinds.node import GONE, Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import (
    Claim,
    Intent,
    Reservation,
    ReservationOwner,
)
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import CHARGED, Actor
from holdfast.model.meta import Condition, ConditionStatus, with_condition
from holdfast.model.placement.fit import (
    Allocation,
    claim,
    demand_of,
    recovery_shortage,
    sums_of,
    take_allocation,
)
from holdfast.model.placement.placement_rules import closed_refusal
from holdfast.model.quota.charging import is_active, is_recovery
from holdfast.model.quota.ledger import NodeLedger, gate_of, mirror_node
from holdfast.model.requests import DropReservation, HoldCapacity, Request, Term, Update
from holdfast.model.time import Instant, sooner, timestamp, wall_ms
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.snapshot import Snapshot

# Where a recovery lane finds room: nodes that the work fits, by the free capacity in the cache.
#
# The search uses the same fit functions as the commit, on a ledger that is summed up from the
# replicas and reservations of a node; the commit decides on the real one. Nodes with few replicas
# of the workload itself come first, so that a failure that takes its replicas spares the lane.

# One search sums up this many nodes.
NODES_MAX = 256


def is_useful(view: Snapshot, workload: Workload, held: Claim) -> bool:
    """Whether a replica could still bind into a claim.

    A node that is silent for a moment keeps its claim: moving it takes room from other work.
    """
    node: Node | None = view.get("nodes", "", held.node)
    wanted = demand_of(workload.spec.template)
    if node is None or node.status.phase in GONE or not _is_meant(workload, node):
        return False
    is_open = closed_refusal(gate_of(node)) is None
    is_same = held.charge == wanted.amounts and held.ports == wanted.ports
    return is_open and is_same and belongs(workload, node)


def _is_meant(workload: Workload, node: Node) -> bool:
    """Whether a node is in the recovery regions of the workload."""
    recovery = workload.spec.recovery
    return recovery is not None and (not recovery.regions or node.spec.region in recovery.regions)


class LaneSearch:
    """One search for claims."""

    def __init__(self, view: Snapshot, workload: Workload, kept: list[Claim]) -> None:
        self._view, self._workload = view, workload
        self._demand = demand_of(workload.spec.template)
        # The number of the workload's own replicas and claims on each node.
        self._own: dict[str, int] = {}
        mine: list[Replica] = view.found(BY_WORKLOAD, f"{workload.namespace}/{workload.name}")
        homes = [it.status.binding.node for it in mine if it.status.binding is not None]
        for name in (*homes, *(it.node for it in kept)):
            self._own[name] = self._own.get(name, 0) + 1

    def find(self, count: int) -> list[Claim]:
        """Up to `count` more claims."""
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
                ledgers[node.name] = summed_ledger(self._view, node)
            ledger = ledgers[node.name]
            held = claim(ledger, self._demand) if ledger is not None else None
            if ledger is None or not isinstance(held, Allocation):
                continue
            if recovery_shortage(ledger, sums_of(held)) is None:
                ledgers[node.name] = take_allocation(
                    ledger, held, f"new/{self._own.get(node.name, 0)}", recovery=True
                )
                return Claim(
                    node=node.name, charge=held.charge, devices=held.devices, ports=held.ports
                )
        return None


def summed_ledger(view: Snapshot, node: Node) -> NodeLedger | None:
    """A node's ledger, summed up from the cache; None if the cache cannot tell.

    Each kind has its own watch stream, so the cache may contradict itself for a moment. It cannot
    tell while a preemption empties the node either.
    """
    try:
        return _sum_ledger(view, node)
    except RecordsDisagree:
        return None


def _sum_ledger(view: Snapshot, node: Node) -> NodeLedger | None:
    ledger = mirror_node(node, None)
    for replica in view.found(BY_NODE, node.name):
        binding = replica.status.binding
        if replica.status.state in CHARGED and binding is not None:
            held = Allocation(binding.charge, binding.devices, binding.ports)
            ledger = take_allocation(ledger, held, replica.metadata.uid)
    reservations: list[Reservation] = view.found(BY_CLAIM, node.name)
    for reservation in reservations:
        if reservation.spec.intent is Intent.PREEMPTION:
            return None
        for number, it in enumerate(reservation.status.claims):
            if it.node == node.name and not it.consumed:
                held = Allocation(it.charge, it.devices, it.ports)
                owner, lane = f"{reservation.metadata.uid}/{number}", is_recovery(reservation)
                ledger = take_allocation(ledger, held, owner, recovery=lane)
    return ledger


RESERVED = "RecoveryReserved"
# How long a lane is held without a renewal; it is renewed when half of that is over.
HELD_FOR_S = 3_600
RENEWED_MS = HELD_FOR_S * 500
# A search reads many nodes, so there is one at most this often.
SEARCH_EVERY_MS = 5_000
# The claims of one lane; a transaction compares the node of each.
PLACES_MAX = 32


class ReservesController(Controller):
    """See the module's docstring. A key is a workload."""

    actor = Actor.RESERVES
    follows = ("workloads", "replicas", "nodes", "reservations", "tenants", "regions")
    indexes = (BY_NODE, BY_WORKLOAD, BY_CLAIM)

    def __init__(self) -> None:
        self._searched_ms: Notes[Key, int] = Notes(keys_of("workloads"))
        self.remembers = (self._searched_ms,)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """A lane concerns its workload, a node the lanes on it. Room that appears elsewhere is
        found by the next search."""
        match change.object:
            case Workload() as workload:
                is_relevant = _relevant(change.before) != _relevant(change.after)
                return (key_of(workload),) if is_relevant else ()
            case Reservation() as held if held.spec.intent is Intent.RECOVERY:
                return ((held.namespace, held.spec.owner.name),)
            case Node() as node if not is_same_home(change.before, change.after):
                return [
                    (it.namespace, it.spec.owner.name)
                    for it in view.found(BY_CLAIM, node.name)
                    if it.spec.intent is Intent.RECOVERY
                ]
        return ()

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        wanted = [key_of(it) for it in view.all("workloads") if _wanted(it)]
        lanes = [it for it in view.all("reservations") if self._is_own(it)]
        return dict.fromkeys((*wanted, *((it.namespace, it.spec.owner.name) for it in lanes)))

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        workload: Workload | None = view.get("workloads", *key)
        last: Reservation | None = view.get(
            "reservations", key[0], f"{key[1]}-{Intent.RECOVERY.value}"
        )
        held = last if last is not None and self._is_own(last) else None
        if workload is None or not _wanted(workload):
            return self._ended(view, held, workload, term)
        if held is not None and held.spec.owner.uid != workload.metadata.uid:
            return ReconcilePlan((self._drop(held, "it belongs to a deleted workload", term),))
        there = [it for it in held.status.claims if not it.consumed] if held is not None else []
        kept = [it for it in there if is_useful(view, workload, it)][: _wanted(workload)]
        found, pause_ms = self._search(view, key, workload, kept, now)
        claims = (*kept, *found)
        left_ms = wall_ms(held.spec.deadline) - now.wall_ms if held is not None else 0
        requests: list[Request] = []
        if list(claims) != there or (held is not None and left_ms < RENEWED_MS):
            requests.append(self._hold(workload, last, claims, term, now))
        requests += _status_updates(workload, there, now)
        if not requests and held is not None:
            pause_ms = sooner(pause_ms, max(1, left_ms - RENEWED_MS))
        return ReconcilePlan(tuple(requests), wake_after_ms=pause_ms)

    def _is_own(self, held: Reservation) -> bool:
        """Whether it is an active lane of this controller."""
        return is_active(held) and held.status.by == self.identity

    def _search(
        self, view: Snapshot, key: Key, workload: Workload, kept: list[Claim], now: Instant
    ) -> tuple[list[Claim], int | None]:
        """More claims, and when to search again for those that were not found."""
        lacks = _wanted(workload) - len(kept)
        if lacks <= 0:
            return [], None
        pause_ms = self._searched_ms.get(key, -SEARCH_EVERY_MS) + SEARCH_EVERY_MS
        pause_ms -= now.monotonic_ms
        if pause_ms > 0:
            return [], pause_ms
        self._searched_ms[key] = now.monotonic_ms
        found = LaneSearch(view, workload, kept).find(lacks)
        return found, SEARCH_EVERY_MS if len(found) < lacks else None

    def _hold(
        self,
        workload: Workload,
        last: Reservation | None,
        claims: tuple[Claim, ...],
        term: Term,
        now: Instant,
    ) -> HoldCapacity | DropReservation:
        """The request for a lane with these claims. A lane without claims is released.

        `last` is the present lane or one that has ended; its version changes with the success.
        """
        if not claims and last is not None:
            return self._drop(last, "none of its claims is usable", term)
        metadata = workload.metadata
        owner = ReservationOwner("Workload", workload.name, metadata.uid, metadata.generation)
        since = last.metadata.resource_version if last is not None else f"in-{term.epoch}"
        # To the minute, so that a repetition is identical.
        deadline = timestamp(now.wall_ms // 60_000 * 60_000) + timedelta(seconds=HELD_FOR_S)
        return HoldCapacity(
            workload.namespace,
            owner,
            Intent.RECOVERY,
            claims,
            deadline,
            term,
            operation=operation(
                self.identity, metadata.uid, since, f"hold-{len(claims)}-until-{wall_ms(deadline)}"
            ),
        )

    def _ended(
        self, view: Snapshot, held: Reservation | None, workload: Workload | None, term: Term
    ) -> ReconcilePlan:
        """Release the lane of a workload that no longer wants one."""
        requests: list[Request] = []
        if held is not None and (workload is not None or view.knows_all_of(held)):
            requests.append(self._drop(held, "the workload no longer wants it", term))
        known = workload.status.conditions if workload is not None else ()
        rest = tuple(it for it in known if it.type != RESERVED)
        if workload is not None and len(rest) < len(known):
            requests.append(_with_conditions(workload, rest))
        return ReconcilePlan(tuple(requests))

    def _drop(self, held: Reservation, reason: str, term: Term) -> DropReservation:
        uid, since = held.metadata.uid, held.metadata.resource_version
        return DropReservation(
            held.namespace,
            held.name,
            uid,
            reason,
            term,
            operation=operation(self.identity, uid, since, "drop"),
        )


def _wanted(workload: Workload) -> int:
    """The number of claims to hold for it."""
    recovery = workload.spec.recovery
    is_going = workload.metadata.deletion_timestamp is not None
    if recovery is None or not recovery.reserve or not recovery.eligible or is_going:
        return 0
    stated = workload.spec.replicas if recovery.replicas is None else recovery.replicas
    return min(stated, PLACES_MAX)


def _relevant(workload: Any) -> Any:
    """The parts of a workload that its lane depends on."""
    if not isinstance(workload, Workload):
        return None
    reserved = [it for it in workload.status.conditions if it.type == RESERVED]
    return _wanted(workload), workload.spec.template, workload.spec.recovery, reserved


def _status_updates(workload: Workload, there: list[Claim], now: Instant) -> list[Update]:
    """The update of the condition, if it differs."""
    wanted, have = _wanted(workload), len(there)
    condition = Condition(
        RESERVED,
        ConditionStatus.TRUE if have >= wanted else ConditionStatus.FALSE,
        workload.metadata.generation,
        reason="Held" if have >= wanted else "NoRoom",
        message=f"capacity for {have} of {wanted} replicas is reserved"
        + ("" if have >= wanted else "; no node in its recovery regions has room for more"),
    )
    before = workload.status.conditions
    after = with_condition(before, condition, timestamp(now.wall_ms))
    return [] if after is before else [_with_conditions(workload, after)]


def _with_conditions(workload: Workload, conditions: tuple[Condition, ...]) -> Update:
    status = msgspec.structs.replace(workload.status, conditions=conditions)
    return Update(msgspec.structs.replace(workload, status=status), "status")
