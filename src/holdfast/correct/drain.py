"""controller:drain: evicts all work from nodes with `spec.drain`, and from others what a NoExecute
taint sends away.

It owns evictions for Drain and Taint, and the condition Drained of a node. The commit keeps new
work away from the node, from the write of `spec.drain` on.

    Bound, Running                    -> Evict, as far as the budget of its workload has room
    no room, before the deadline      -> waits, and the condition names the workloads
    past the deadline                 -> Evict: budgets no longer apply
    replica of a per-node workload    -> Evict, once nothing else is left
    Stopping, Unknown, Failed,
    Succeeded, reservations           -> nothing: their owners, agents and fences end them
    nothing left                      -> Drained is True
    the drain is cancelled            -> the condition is removed; evictions are not undone
    a NoExecute taint, not tolerated  -> Evict, as far as budgets have room; with tolerationSeconds
                                         when these are over; never for a per-node workload, whose
                                         controller follows taints itself

The controller checks the budgets in its cache first, so that one reconcile requests as many
evictions as can succeed and repeats none that cannot. The commit decides, and refuses evictions of
a drain that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.correct.controller import (
    BY_NODE,
    BY_WORKLOAD,
    REQUESTS_PER_PLAN_MAX,
    Controller,
    ReconcilePlan,
    step_id,
)
from holdfast.correct.remembered import Notes, names_of
from holdfast.model.kinds.node import DRAINED, Node, NodePhase
from holdfast.model.kinds.placement import TaintEffect
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.workload import Workload, WorkloadType
from holdfast.model.lifecycle import MAY_RUN, Actor, Cause, State
from holdfast.model.meta import Condition, ConditionStatus, condition, with_condition
from holdfast.model.placement.disruption import (
    allowed_missing,
    desired_of,
    is_available,
    is_missing,
)
from holdfast.model.placement.taint_eviction import StayEnds, stay_ends
from holdfast.model.quota.charging import is_active
from holdfast.model.requests import Evict, Request, Term, Update, target
from holdfast.model.time import Instant, rfc3339, sooner, timestamp, wall_ms
from holdfast.observe.cache import Key, ObjectChange
from holdfast.observe.indexer import Index
from holdfast.observe.snapshot import Snapshot

# A node's condition Drained: what is left, and for which workloads the drain waits.
#
# Users and `holdfast drain` read it. It contains nothing that depends on the time, so that a drain
# that waits writes nothing.

# A message names this many; of the others it gives the number.
NAMED_MAX = 4

_OUT_OF_CONTACT = (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


class RemainingWork(msgspec.Struct):
    """What is left on a node.

    `first` is evicted first; `last`, of per-node workloads, when nothing else is left;
    `reservations` are held by others. `waits` has the workloads for which the drain waits, and why.
    """

    first: list[Replica]
    last: list[Replica]
    reservations: list[str]
    waits: dict[Key, str] = {}

    @property
    def is_empty(self) -> bool:
        return not self.first and not self.last and not self.reservations


def drained_condition(node: Node, left: RemainingWork) -> Condition:
    """The condition for what is left."""
    status = ConditionStatus.TRUE if left.is_empty else ConditionStatus.FALSE
    generation = node.metadata.generation
    return Condition(
        DRAINED, status, generation, reason=_reason(node, left), message=_message(node, left)
    )


def _reason(node: Node, left: RemainingWork) -> str:
    if left.is_empty:
        return "Empty"
    if node.status.phase in _OUT_OF_CONTACT:
        return "NodeOutOfContact"
    there = left.first or left.last
    is_stuck = all(it.status.state is not State.STOPPING for it in there)
    if left.waits and is_stuck:
        return "WaitingForBudgets"
    return "Draining" if there else "WaitingForReservations"


def _message(node: Node, left: RemainingWork) -> str:
    if left.is_empty:
        return "no work and no reservation is left"
    there = [*left.first, *left.last]
    stopping = sum(it.status.state is State.STOPPING for it in there)
    parts = [f"{len(there)} replicas left, {stopping} of them stopping"]
    if left.first and left.last:
        parts.append(f"{len(left.last)} of per-node workloads are evicted last")
    if left.waits:
        waits = (f"{tenant}/{name} ({why})" for (tenant, name), why in sorted(left.waits.items()))
        parts.append(f"waits for {_join(waits)}")
    if left.reservations:
        parts.append(f"reserved: {_join(sorted(left.reservations))}")
    deadline = node.spec.drain.deadline if node.spec.drain is not None else None
    if deadline is not None:
        parts.append(f"budgets apply until {rfc3339(wall_ms(deadline))}")
    return "; ".join(parts)


def _join(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - NAMED_MAX
    return ", ".join((*every[:NAMED_MAX], *((f"{more} more",) if more > 0 else ())))


# How many replicas of a workload may be evicted now, by the cache.
#
# The ledger that decides cannot be watched; it says the same as the replicas themselves
# (`model/placement/disruption.py`).


class DisruptionRoom:
    """What is left of each disruption budget during one reconcile."""

    def __init__(self, view: Snapshot) -> None:
        self._view = view
        # How many more may be evicted, or None without a budget; and a message about it.
        self._left: dict[Key, int | None] = {}
        self._reasons: dict[Key, str] = {}

    def take(self, replica: Replica) -> bool:
        """Take one eviction from its workload's budget; returns whether there was one."""
        key = replica.namespace, replica.spec.workload
        if key not in self._left:
            self._left[key] = self._look(key, replica)
        left = self._left[key]
        if left is None:
            return True
        if left <= 0:
            return False
        self._left[key] = left - 1
        return True

    def reason(self, replica: Replica) -> str:
        """Why no more replicas of its workload may be evicted."""
        return self._reasons.get((replica.namespace, replica.spec.workload), "")

    def _look(self, key: Key, replica: Replica) -> int | None:
        workload: Workload | None = self._view.get("workloads", *key)
        if workload is None or workload.metadata.uid != replica.spec.workload_uid:
            # The cache lacks the workload; the authority decides.
            return None
        allowed = allowed_missing(workload.spec.disruption, workload.spec.replicas)
        if allowed is None:
            return None
        uid, desired = workload.metadata.uid, desired_of(workload)
        mine = [
            it
            for it in self._view.found(BY_WORKLOAD, f"{key[0]}/{key[1]}")
            if it.spec.workload_uid == uid
        ]
        if desired is not None:
            gone = max(0, desired - sum(is_available(it) for it in mine))
        else:
            gone = sum(is_missing(workload.spec.type, it) for it in mine)
        self._reasons[key] = f"{max(gone, allowed)} of {allowed} allowed are missing"
        return allowed - gone


# Deadlines are on the authority's wall clock, which acts two seconds late itself. With one second
# more, a controller's clock may be a little ahead without a refused request.
LATE_MS = 3_000
# The progress of a node is written at most this often; its end, at once.
TELL_EVERY_MS = 1_000
# How soon to reconcile again when the cache may lack what was bound before the drain began.
UNTOLD_PAUSE_MS = 1_000

_STOPPABLE = (State.BOUND, State.RUNNING)


def _claimed_nodes(held: Reservation) -> Iterable[str]:
    if not is_active(held):
        return ()
    return dict.fromkeys(it.node for it in held.status.claims if it.node and not it.consumed)


BY_CLAIM = Index("reservations", "claimed node", _claimed_nodes)


class DrainController(Controller):
    """See the module's docstring. A key is a node."""

    actor = Actor.DRAIN
    follows = ("nodes", "replicas", "workloads", "reservations")
    indexes = (BY_NODE, BY_WORKLOAD, BY_CLAIM)

    def __init__(self) -> None:
        # The workloads for which each draining node waits, and when its progress was last written.
        self._waits: Notes[str, frozenset[Key]] = Notes(names_of("nodes"))
        self._told_ms: Notes[str, int] = Notes(names_of("nodes"))
        self.remembers = (self._waits, self._told_ms)

    def keys_of(self, change: ObjectChange, view: Snapshot) -> Iterable[Key]:
        """The draining nodes that a change concerns: of work on them, or that they wait for."""
        match change.object:
            case Node() as node:
                return (("", node.name),) if _concerns(change.before, change.after) else ()
            case Replica() as replica:
                binding = replica.status.binding
                names = [binding.node] if binding is not None else []
                return self._keys(view, [*names, *self._waiting(_workload_of(replica))])
            case Reservation():
                claimed = [
                    name
                    for it in (change.before, change.after)
                    if isinstance(it, Reservation)
                    for name in _claimed_nodes(it)
                ]
                return self._keys(view, claimed)
        return self._keys(view, self._waiting((change.object.namespace, change.object.name)))

    def _waiting(self, workload: Key) -> list[str]:
        return [name for name, waits in self._waits.items() if workload in waits]

    @staticmethod
    def _keys(view: Snapshot, names: Iterable[str]) -> list[Key]:
        return [("", name) for name in dict.fromkeys(names) if _is_draining(view, name)]

    def all_keys(self, view: Snapshot) -> Iterable[Key]:
        return [("", it.name) for it in view.all("nodes") if _concerns(None, it)]

    def reconcile(self, view: Snapshot, key: Key, term: Term, now: Instant) -> ReconcilePlan:
        node: Node | None = view.get("nodes", *key)
        if node is None or node.spec.drain is None:
            self._waits.pop(key[1], None)
            self._told_ms.pop(key[1], None)
            if node is None:
                return ReconcilePlan()
            if condition(node.status.conditions, DRAINED) is not None:
                return ReconcilePlan((_without(node),))
            return self._expelled(view, node, term, now)
        deadline = node.spec.drain.deadline
        left_ms = wall_ms(deadline) + LATE_MS - now.wall_ms if deadline is not None else None
        is_late = left_ms is not None and left_ms <= 0
        left = _left(view, node)
        goes = list(_going(view, left, None if is_late else DisruptionRoom(view)))
        self._waits[node.name] = frozenset(left.waits)
        evidence = f"drain of node {node.name}: {node.spec.drain.reason or 'no reason given'}"
        requests: list[Request] = [
            Evict(target(it), Cause.DRAIN, evidence, term, step_id(self.identity, it, "stop-Drain"))
            for it in goes[:REQUESTS_PER_PLAN_MAX]
        ]
        wake_ms = None if is_late else left_ms
        if left.is_empty and not view.knows_all_of(node):
            return ReconcilePlan(tuple(requests), wake_after_ms=sooner(wake_ms, UNTOLD_PAUSE_MS))
        updates, pause_ms = self._status_updates(node, drained_condition(node, left), now)
        return ReconcilePlan((*requests, *updates), wake_after_ms=sooner(wake_ms, pause_ms))

    def _expelled(self, view: Snapshot, node: Node, term: Term, now: Instant) -> ReconcilePlan:
        """Evictions of what the node's NoExecute taints send away."""
        room, waits = DisruptionRoom(view), dict[Key, None]()
        requests: list[Request] = []
        wake_ms: int | None = None
        for replica, ends in _sent_away(view, node):
            left_ms = wall_ms(ends.at) + LATE_MS - now.wall_ms if ends.at is not None else 0
            if left_ms > 0:
                wake_ms = sooner(wake_ms, left_ms)
            elif is_available(replica) and not room.take(replica):
                waits[_workload_of(replica)] = None
            else:
                taint = f"{ends.taint.key}={ends.taint.value}"
                why = f"taint {taint}:NoExecute of node {node.name}"
                operation = step_id(self.identity, replica, "stop-Taint")
                requests.append(Evict(target(replica), Cause.TAINT, why, term, operation))
        if waits:
            self._waits[node.name] = frozenset(waits)
        return ReconcilePlan(tuple(requests[:REQUESTS_PER_PLAN_MAX]), wake_after_ms=wake_ms)

    def _status_updates(
        self, node: Node, said: Condition, now: Instant
    ) -> tuple[tuple[Update, ...], int | None]:
        """The update of the condition, if it differs and was not written just now."""
        before = node.status.conditions
        after = with_condition(before, said, timestamp(now.wall_ms))
        if after is before:
            return (), None
        was = condition(before, DRAINED)
        pause_ms = self._told_ms.get(node.name, 0) + TELL_EVERY_MS - now.monotonic_ms
        if was is not None and was.status is said.status and pause_ms > 0:
            return (), pause_ms
        self._told_ms[node.name] = now.monotonic_ms
        return (_with_conditions(node, after),), None


def _is_draining(view: Snapshot, name: str) -> bool:
    """Whether work has to leave a node."""
    node: Node | None = view.get("nodes", "", name)
    return node is not None and (node.spec.drain is not None or _expels(node))


def _expels(node: Node) -> bool:
    return any(it.effect is TaintEffect.NO_EXECUTE for it in node.spec.taints)


def _sent_away(view: Snapshot, node: Node) -> Iterator[tuple[Replica, StayEnds]]:
    """The running work that a taint of the node does not let stay, now or later."""
    for replica in view.found(BY_NODE, node.name) if _expels(node) else ():
        binding = replica.status.binding
        if replica.status.state not in _STOPPABLE or binding is None or _is_last(view, replica):
            continue
        tolerations = replica.spec.template.placement.tolerations
        ends = stay_ends(node.spec.taints, tolerations, binding.at)
        if ends is not None:
            yield replica, ends


def _concerns(before: Any, after: Any) -> bool:
    """Whether a change of a node is about its drain or its condition Drained."""
    if not isinstance(after, Node):
        return before is not None
    said = condition(after.status.conditions, DRAINED)
    if not isinstance(before, Node):
        return after.spec.drain is not None or said is not None or _expels(after)
    if before.spec.taints != after.spec.taints:
        return True
    told = condition(before.status.conditions, DRAINED)
    # The condition states the generation that it was observed at.
    was = before.spec.drain, told, before.status.phase, before.metadata.generation
    now = after.spec.drain, said, after.status.phase, after.metadata.generation
    is_open = any(it is not None for it in (before.spec.drain, after.spec.drain, told, said))
    return is_open and was != now


def _workload_of(replica: Replica) -> Key:
    return replica.namespace, replica.spec.workload


def _left(view: Snapshot, node: Node) -> RemainingWork:
    """What is left on a node, by the order of eviction."""
    there: list[Replica] = [
        it for it in view.found(BY_NODE, node.name) if it.status.state in MAY_RUN
    ]
    held = [f"{it.namespace}/{it.name}" for it in view.found(BY_CLAIM, node.name)]
    last = [it for it in there if _is_last(view, it)]
    kept = {it.metadata.uid for it in last}
    return RemainingWork(
        first=[it for it in there if it.metadata.uid not in kept], last=last, reservations=held
    )


def _is_last(view: Snapshot, replica: Replica) -> bool:
    """Whether it serves the other work on its node, and so is evicted after it."""
    workload: Workload | None = view.get("workloads", *_workload_of(replica))
    return workload is not None and workload.spec.type is WorkloadType.PER_NODE


def _going(view: Snapshot, left: RemainingWork, room: DisruptionRoom | None) -> Iterator[Replica]:
    """The replicas to evict now. Those that have to wait are noted; without `room` none has to."""
    for replica in left.first or left.last:
        if replica.status.state not in _STOPPABLE:
            continue
        key = _workload_of(replica)
        if room is not None and is_available(replica) and not room.take(replica):
            left.waits[key] = room.reason(replica)
            continue
        yield replica


def _with_conditions(node: Node, conditions: tuple[Condition, ...]) -> Update:
    status = msgspec.structs.replace(node.status, conditions=conditions)
    return Update(msgspec.structs.replace(node, status=status), "status")


def _without(node: Node) -> Update:
    """The update that removes the condition Drained."""
    rest = tuple(it for it in node.status.conditions if it.type != DRAINED)
    return _with_conditions(node, rest)
