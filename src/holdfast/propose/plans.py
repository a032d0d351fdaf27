"""Plans in flight: decisions that take several transactions, beside the binds.

A preemption stops victims and waits for their proof of stop; a gang reserves a place for each
member and is then committed. Each is a `PlacementPlan`: steps of requests, of which each waits for
the evidence of the one before (`observe/operation_plan.py`), and what is assumed meanwhile.
The scheduler owns one `PlanRunner`:

- `start` assumes the places of a plan in the fleet and in the quota usage, and parks its replicas.
  Until the plan has ended nothing else is decided about them (`has`), and each says in its status
  what it waits for.
- `due` returns the requests to send now; `answered` takes the answers, `notice` and `freed` what
  the cache shows. Only the plans that an event concerns are asked.
- A plan that is done ends its assumptions, and its replicas are decided again at once: by then the
  snapshot shows what the plan made, a promise or a reservation, and the decision binds them to it.
- A plan that is given up first undoes what it made (`undo`), then its replicas back off with the
  reason. `refused` has the refusals that the scheduler learns from.

Nothing here survives the process, and nothing needs to: a decision looks at the reservations of its
replica first, so a scheduler that starts makes the same plan again from where the store is. What
no scheduler takes up ends at its deadline.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import TypeVar

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.lifecycle import State
from holdfast.model.machine import Question, Reply, Rng
from holdfast.model.placement.fit import Allocation
from holdfast.model.pulse import AGES_MAX, PreemptionCount
from holdfast.model.quota.charging import budget_of
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Request
from holdfast.model.time import Instant
from holdfast.observe.cache import ObjectChange
from holdfast.observe.operation_plan import (
    OperationPlan,
    PlanDone,
    PlanGivenUp,
    PlanStep,
)
from holdfast.observe.retry import RetryPolicy
from holdfast.propose.bind_operation import BIND_POLICY
from holdfast.propose.decision_records import DecisionRecorder
from holdfast.propose.decision_rounds import ACCEPTED
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import PLAN_ENDED, PlacementReport, Verdict
from holdfast.propose.fleet_snapshot import FleetSnapshot, charge_assumed
from holdfast.propose.queue.pending_reasons import Notices
from holdfast.propose.queue.quota_usage import QuotaUsage
from holdfast.propose.queue.scheduling_queue import QueueEntry, SchedulingQueue
from holdfast.propose.topology.topology_counts import traits_of

N = TypeVar("N", bound=Hashable)

# The plans of one scheduler at once, and their requests in flight. Binds have slots of their own.
PLANS_MAX = 2_048
PLAN_REQUESTS_MAX = 512
# As for binds: an outcome is looked up until it is known, and what did not happen is decided again.
PLAN_POLICY: RetryPolicy = BIND_POLICY
# An undo that could not be sent in this time is left to the deadline of what it would have undone.
UNDO_MS = 60_000


# How a preemption ended: the place is free for it, the commit refused it, or it was given up.
MADE, REFUSED, GIVEN_UP = "Made", "Refused", "GivenUp"
_OUTCOMES: dict[type[object], str] = {Refusal: REFUSED}


class PlannedPlace(msgspec.Struct, frozen=True):
    """A place that a plan takes for a replica.

    `victims` is what is stopped for it, by uid. Then the place is promised: it counts as taken as
    far as the victims do not hold it still, as in the node's ledger.
    """

    replica: Replica
    node: str
    held: Allocation
    victims: Mapping[str, Allocation] = {}


class PlacementPlan(msgspec.Struct, frozen=True):
    """One decision that takes several transactions.

    name: the object that it is about, such as the replica or the gang; one plan at a time has it.
    replicas: what it decides about; all wait in the queue.
    waits: what the replicas wait for, as it is published.
    objects: the objects (plural, namespace, name) whose changes concern it, besides its replicas.
    deadline_ms: no step begins later, by the monotonic clock.
    undo: what gives back what was made, if the plan is given up.
    swaps: whether it stops work of a workload that stopped its own before.
    """

    name: tuple[str, str, str]
    replicas: tuple[Replica, ...]
    places: tuple[PlannedPlace, ...]
    steps: tuple[PlanStep, ...]
    waits: Callable[[FleetSnapshot, Instant], PlacementReport]
    deadline_ms: int
    objects: tuple[tuple[str, str, str], ...] = ()
    undo: tuple[PlanStep, ...] = ()
    swaps: bool = False


def gang_plan_name(namespace: str, gang: str) -> tuple[str, str, str]:
    """The name of a plan about a gang."""
    return "gang", namespace, gang


class PlanCall(msgspec.Struct, frozen=True, gc=False):
    """Which request of which plan an answer belongs to; `is_undo` says that it is of its undo."""

    serial: int
    is_undo: bool
    number: int


class _OpenPlan:
    """A plan with its operations; `given_up` is why it is being undone."""

    __slots__ = ("due_ms", "given_up", "operations", "plan", "serial")

    def __init__(self, serial: int, plan: PlacementPlan, operations: OperationPlan) -> None:
        self.serial, self.plan, self.operations = serial, plan, operations
        self.due_ms: int | None = None
        self.given_up: PlanGivenUp | None = None


class PlanRunner:
    """See the module's docstring."""

    def __init__(
        self,
        fleet: Fleet,
        queue: SchedulingQueue,
        notices: Notices,
        quota_usage: QuotaUsage,
        recorder: DecisionRecorder,
        rng: Rng,
    ) -> None:
        self._fleet, self._queue, self._notices = fleet, queue, notices
        self._quota_usage, self._recorder, self._rng = quota_usage, recorder, rng
        self._open: dict[int, _OpenPlan] = {}
        self._names: dict[tuple[str, str, str], int] = {}
        # The plan of each replica, by uid.
        self._of_replica: dict[str, int] = {}
        # The plans that a change of an object, or of the load of a node, concerns.
        self._by_object: dict[tuple[str, str, str], dict[int, None]] = {}
        self._by_node: dict[str, dict[int, None]] = {}
        # Plans to ask again: now, and when the snapshot is fresh again.
        self._touched: dict[int, None] = {}
        self._stale: dict[int, None] = {}
        self._pauses: list[tuple[int, int]] = []
        self._unsent: deque[tuple[PlanCall, Request | Get]] = deque()
        self._sent = 0
        self._serial = 0
        # Refusals that ended a plan, for the scheduler to learn from; it empties the list.
        self.refused: list[tuple[PlacementPlan, Refusal]] = []
        # How plans that stop work ended, by the priority class of that for which they did, and how
        # many of them swapped two workloads.
        self.outcomes: dict[tuple[str, str], int] = {}
        self.swaps = 0
        # Nodes and tenants that have more room since a place is not assumed any more. The scheduler
        # empties both.
        self.freed: dict[str, None] = {}
        self.refunded: dict[str, None] = {}

    @property
    def room(self) -> int:
        """How many more plans may be started."""
        return PLANS_MAX - len(self._open)

    def __len__(self) -> int:
        return len(self._open)

    def has(self, uid: str) -> bool:
        """Whether an open plan decides about this replica."""
        return uid in self._of_replica

    def is_running(self, name: tuple[str, str, str]) -> bool:
        """Whether a plan of this name is open."""
        return name in self._names

    # Starting ------------------------------------------------------------------------------------

    def start(self, plan: PlacementPlan, view: FleetSnapshot, now: Instant) -> None:
        """Begin a plan. Its requests follow with `due`."""
        self._serial += 1
        operations = OperationPlan(plan.steps, PLAN_POLICY, self._rng, plan.deadline_ms)
        it = self._open[self._serial] = _OpenPlan(self._serial, plan, operations)
        self._names[plan.name] = it.serial
        for replica in plan.replicas:
            self._of_replica[replica.metadata.uid] = it.serial
            entry = self._entry(replica)
            if entry is not None:
                failures = entry.failures
                self._queue.park(entry, ())
                # If the plan is given up, the pause after it is longer than the one before.
                entry.failures = failures
        for place in plan.places:
            self._assume(place, view, now)
            self._by_node.setdefault(place.node, {})[it.serial] = None
        for about in _watched(plan):
            self._by_object.setdefault(about, {})[it.serial] = None
        self._touched[it.serial] = None

    def _entry(self, replica: Replica) -> QueueEntry | None:
        entry = self._queue.get((replica.namespace, replica.name))
        return entry if entry is not None and entry.uid == replica.metadata.uid else None

    def _assume(self, place: PlannedPlace, view: FleetSnapshot, now: Instant) -> None:
        replica, uid = place.replica, place.replica.metadata.uid
        key = replica.namespace, replica.name
        if place.victims:
            self._fleet.promise(uid, place.node, place.held, place.victims)
        elif place.held.charge:
            traits = traits_of(replica)
            self._fleet.assume(uid, key, place.node, place.held, now.monotonic_ms, traits)
        charge_assumed(self._quota_usage, replica, place.held.charge, view)

    # What happens --------------------------------------------------------------------------------

    def notice(self, change: ObjectChange) -> None:
        """Note a change that the cache shows."""
        if not self._open:
            return
        obj = change.object
        if isinstance(obj, Reservation) and change.after is not None:
            # From here on the reservation itself says what it holds.
            uid = obj.spec.owner.uid
            if uid in self._of_replica:
                self._end_assumption(uid)
        is_reserved = isinstance(obj, Replica) and obj.status.state is State.RESERVED
        if is_reserved and obj.metadata.uid in self._of_replica:
            # From here on its claim says what it holds.
            self._end_assumption(obj.metadata.uid)
        about = change.plural, obj.namespace, obj.name
        self._touched |= self._by_object.get(about, {})

    def freed_nodes(self, nodes: Iterable[str]) -> None:
        """Note that these nodes may have more room."""
        for node in nodes if self._by_node else ():
            self._touched |= self._by_node.get(node, {})

    def answered(self, call: PlanCall, sent: Question, answer: Reply, now: Instant) -> None:
        """Process the answer to what `due` returned with this call."""
        self._sent -= 1
        it = self._open.get(call.serial)
        if it is not None and call.is_undo == (it.given_up is not None):
            it.operations.answered(call.number, sent, answer, now.monotonic_ms)
            self._touched[it.serial] = None

    @property
    def next_ms(self) -> int | None:
        """When a pause or the deadline of a plan ends."""
        while self._pauses and not self._is_pausing(*self._pauses[0]):
            heapq.heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    def _is_pausing(self, due_ms: int, serial: int) -> bool:
        it = self._open.get(serial)
        return it is not None and it.due_ms == due_ms

    def due(self, view: FleetSnapshot, now: Instant) -> list[tuple[PlanCall, Request | Get]]:
        """The requests to send now, at most as many as may be in flight."""
        if not view.is_too_old and self._stale:
            self._touched |= self._stale
            self._stale = {}
        while (next_ms := self.next_ms) is not None and next_ms <= now.monotonic_ms:
            self._touched[heapq.heappop(self._pauses)[1]] = None
        touched, self._touched = self._touched, {}
        for serial in touched:
            it = self._open.get(serial)
            if it is not None:
                self._go_on(it, view, now)
        calls: list[tuple[PlanCall, Request | Get]] = []
        while self._unsent and self._sent < PLAN_REQUESTS_MAX:
            calls.append(self._unsent.popleft())
            self._sent += 1
        return calls

    def _go_on(self, it: _OpenPlan, view: FleetSnapshot, now: Instant) -> None:
        if view.is_too_old:
            self._stale[it.serial] = None
        requests = it.operations.due(view, now.monotonic_ms)
        is_undo = it.given_up is not None
        self._unsent += [
            (PlanCall(it.serial, is_undo, number), request) for number, request in requests
        ]
        match it.operations.end:
            case PlanDone():
                self._ended(it, it.given_up, view, now)
            case PlanGivenUp() as end if it.given_up is None and it.plan.undo:
                it.given_up = end
                until_ms = now.monotonic_ms + UNDO_MS
                it.operations = OperationPlan(it.plan.undo, PLAN_POLICY, self._rng, until_ms)
                self._go_on(it, view, now)
            case PlanGivenUp() as end:
                self._ended(it, it.given_up or end, view, now)
            case None:
                self._wait(it, view, now)

    def _wait(self, it: _OpenPlan, view: FleetSnapshot, now: Instant) -> None:
        """Set the next wake-up, and publish what its replicas wait for."""
        due_ms = it.operations.next_ms
        if due_ms is not None and due_ms != it.due_ms:
            it.due_ms = due_ms
            heapq.heappush(self._pauses, (due_ms, it.serial))
        if not it.operations.is_settled:
            # A request changes its replica, and a report about the one before would be refused.
            return
        report = it.plan.waits(view, now)
        for replica in it.plan.replicas:
            self._publish(replica, report, it.plan.deadline_ms, view, now)

    def _publish(
        self,
        replica: Replica,
        report: PlacementReport,
        until_ms: int,
        view: FleetSnapshot,
        now: Instant,
    ) -> None:
        entry = self._entry(replica)
        # As it is now: the plan's own requests have changed it.
        current: Replica | None = view.get("replicas", replica.namespace, replica.name)
        if entry is not None and current is not None and current.metadata.uid == entry.uid:
            self._notices.say(current, report, entry.turns, until_ms, now)

    # The end -------------------------------------------------------------------------------------

    def _ended(
        self, it: _OpenPlan, end: PlanGivenUp | None, view: FleetSnapshot, now: Instant
    ) -> None:
        self._forget(it)
        error = end.end.error if end is not None and end.end is not None else None
        if isinstance(error, Refusal):
            self.refused.append((it.plan, error))
        if any(place.victims for place in it.plan.places):
            self._count(it.plan, MADE if end is None else _OUTCOMES.get(type(error), GIVEN_UP))
        for replica in it.plan.replicas:
            uid = replica.metadata.uid
            self._end_assumption(uid)
            entry = self._entry(replica)
            if end is None:
                self._recorder.settled(uid, ACCEPTED)
                if entry is not None:
                    self._queue.again(entry)
                continue
            reason = _reason_of(error)
            self._recorder.settled(uid, reason, end.reason)
            if entry is not None:
                message = f"step {end.step!r} of {it.plan.name[0]} was given up: {end.reason}"
                report = PlacementReport({reason: 1}, message, Verdict.WAITING, ())
                until_ms = self._queue.failed(entry, now.monotonic_ms)
                self._publish(replica, report, until_ms, view, now)

    def _count(self, plan: PlacementPlan, outcome: str) -> None:
        name = budget_of(plan.replicas[0].spec.template.priority_class)
        if (name, outcome) in self.outcomes or len(self.outcomes) < AGES_MAX:
            self.outcomes[name, outcome] = self.outcomes.get((name, outcome), 0) + 1
        self.swaps += plan.swaps and outcome == MADE

    def preemptions(self) -> tuple[PreemptionCount, ...]:
        """How the preemptions of this scheduler ended since it started, for operators."""
        return tuple(PreemptionCount(*what, number) for what, number in self.outcomes.items())

    def _forget(self, it: _OpenPlan) -> None:
        del self._open[it.serial], self._names[it.plan.name]
        for replica in it.plan.replicas:
            self._of_replica.pop(replica.metadata.uid, None)
        for about in _watched(it.plan):
            _take_out(self._by_object, about, it.serial)
        for place in it.plan.places:
            _take_out(self._by_node, place.node, it.serial)

    def _end_assumption(self, uid: str) -> None:
        for node in (self._fleet.withdraw(uid), self._fleet.unassume(uid)):
            if node is not None:
                self.freed[node] = None
        tenant = self._quota_usage.unassume(uid)
        if tenant is not None:
            self.refunded[tenant] = None


def _take_out(table: dict[N, dict[int, None]], name: N, serial: int) -> None:
    serials = table.get(name, {})
    serials.pop(serial, None)
    if not serials:
        table.pop(name, None)


def _reason_of(error: Refusal | HoldfastError | None) -> str:
    if isinstance(error, Refusal):
        return error.reason.value
    return error.code if error is not None else PLAN_ENDED


def _watched(plan: PlacementPlan) -> list[tuple[str, str, str]]:
    mine = [("replicas", it.namespace, it.name) for it in plan.replicas]
    return [*mine, *plan.objects]
