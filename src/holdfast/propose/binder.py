"""Binds in flight: what each answer means for the fleet, the queue and the published reasons.

The scheduler starts an operation for each proposal, sends the requests that the binder returns and
passes back the answers. As long as a bind is not settled its place stays assumed, its replica is
not proposed anywhere else, and it takes one of the slots for concurrent binds. The number of slots
follows the servers: more while they answer quickly, fewer when they are late, since a request that
waits there longer than its timeout would have to be looked up again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum, auto

from holdfast.model.errors import HoldfastError, Rejected, unreachable
from holdfast.model.kinds.replica import Replica
from holdfast.model.machine import Reply, Rng
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Bind, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.observe.leader_election import LeaderElection
from holdfast.observe.operation import (
    Finish,
    GiveUp,
    NextCall,
    Pause,
    RequestOperation,
    Why,
)
from holdfast.observe.snapshot import Objects
from holdfast.propose.bind_operation import BIND_POLICY, OpenBind, bind_of
from holdfast.propose.decision_records import DecisionRecorder
from holdfast.propose.decision_rounds import ACCEPTED, NOT_BOUND, OVERTAKEN
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import (
    SCHEDULING_RETRYING,
    SERVERS_UNAVAILABLE,
    BindReplica,
    PlacementReport,
    Verdict,
)
from holdfast.propose.feasibility.smallest_change import over_quota
from holdfast.propose.fleet_snapshot import charge_assumed
from holdfast.propose.queue.bind_slots import BindSlots
from holdfast.propose.queue.pending_reasons import Notices
from holdfast.propose.queue.quota_usage import QuotaUsage
from holdfast.propose.queue.scheduling_queue import GroupKey, QueueEntry, SchedulingQueue
from holdfast.propose.topology.topology_counts import traits_of

# How to continue after a refused bind. Each reason leads to exactly one reaction.
#
# The scheduler looks here after each refusal; a test covers all reasons, so that a new one cannot
# be forgotten.


class RefusalReaction(Enum):
    """How to continue after a refusal."""

    # Our state of that node is wrong: avoid it for a moment and try the next node at once.
    ANOTHER_NODE = auto()
    # Our state of the replica is wrong, or it needs no place: wait for its next change.
    AWAIT_CHANGE = auto()
    # A person has to allow it first.
    AWAIT_ALLOWANCE = auto()
    # We no longer hold the lease of our scope.
    LEASE_LOST = auto()
    # Nothing is known except that it failed now: pause.
    PAUSE = auto()


_ANOTHER_NODE = (
    Reason.NODE_MISSING,
    Reason.NODE_NOT_READY,
    Reason.NODE_CORDONED,
    Reason.NODE_DRAINING,
    Reason.NODE_CHANGED,
    Reason.HEARTBEAT_LATE,
    Reason.NODE_FULL,
    Reason.DEVICE_TAKEN,
    Reason.DEVICE_MISSING,
    Reason.PORT_TAKEN,
    Reason.PORT_NOT_OFFERED,
    Reason.TAINTED,
    Reason.REGION_MISMATCH,
    Reason.ZONE_MISMATCH,
    Reason.POOL_MISMATCH,
    Reason.SELECTOR_MISMATCH,
    Reason.RESIDENCY_FORBIDDEN,
    Reason.RESIDENCY_UNKNOWN,
    Reason.TENANCY_FORBIDDEN,
    Reason.PROTECTED_CAPACITY,
    Reason.ISOLATION_TOO_WEAK,
    Reason.USER_NOT_ALLOWED,
    Reason.HOST_NETWORK_NOT_ALLOWED,
    Reason.IMAGE_NOT_ALLOWED,
    Reason.NODE_OF_ANOTHER_TENANT,
    Reason.SPREAD_VIOLATED,
    Reason.AFFINITY_UNMET,
    Reason.ANTI_AFFINITY_VIOLATED,
    Reason.TOO_MANY_PER_NODE,
    Reason.NODE_QUARANTINED,
)
_AWAIT_NEWS = (
    Reason.STALE_REPLICA,
    Reason.STALE_OBJECT,
    Reason.WRONG_STATE,
    Reason.MISSING,
    Reason.TERMINATING,
)
_AWAIT_ALLOWANCE = (
    Reason.QUOTA_EXCEEDED,
    Reason.QUOTA_UNKNOWN,
    Reason.COHORT_EXHAUSTED,
    Reason.CLAIMED_BY_LENDERS,
    Reason.PRIORITY_BUDGET_EXCEEDED,
    Reason.GRANT_EXPIRED,
    Reason.GRANT_EXCEEDED,
    Reason.TENANT_SUSPENDED,
)
_LEASE_LOST = (Reason.STALE_EPOCH, Reason.EPOCH_REQUIRED, Reason.NOT_OWNER)

_LESSONS: dict[Reason, RefusalReaction] = {
    **dict.fromkeys(_ANOTHER_NODE, RefusalReaction.ANOTHER_NODE),
    **dict.fromkeys(_AWAIT_NEWS, RefusalReaction.AWAIT_CHANGE),
    **dict.fromkeys(_AWAIT_ALLOWANCE, RefusalReaction.AWAIT_ALLOWANCE),
    **dict.fromkeys(_LEASE_LOST, RefusalReaction.LEASE_LOST),
}


def reaction_to(reason: Reason) -> RefusalReaction:
    """How to continue after this refusal."""
    return _LESSONS.get(reason, RefusalReaction.PAUSE)


# The concurrent binds of one scheduler: at most when the servers answer quickly, and at least.
BINDS_MAX = 4_096
BINDS_MIN = 256
# An answer that took longer than this is late.
LATE_MS = 1_000
# Each refusal brings a fresher snapshot, so a fourth conflict means contention: pause instead.
CONFLICTS_MAX = 3


class Binder:
    """See the module's docstring. `freed` collects nodes that may have more room than before."""

    def __init__(
        self,
        fleet: Fleet,
        queue: SchedulingQueue,
        notices: Notices,
        election: LeaderElection,
        objects: Objects,
        quota_usage: QuotaUsage,
        recorder: DecisionRecorder,
        slots: BindSlots,
    ) -> None:
        self._fleet, self._queue, self._notices = fleet, queue, notices
        self._election, self._objects = election, objects
        self._quota_usage, self._recorder = quota_usage, recorder
        self.slots = slots
        self._open: dict[str, OpenBind] = {}
        # The paused binds, by the end of the pause; entries of settled ones are void.
        self._pauses: list[tuple[int, str]] = []
        self._slots = BINDS_MIN
        self.freed: dict[str, None] = {}
        # Tenants whose quota has more room.
        self._refunded: dict[str, None] = {}
        # Groups that the commit refused although the quota has room as far as is known here.
        self.doubted: dict[GroupKey, None] = {}
        # When all entries are tried again; published with the reasons.
        self.resync_at_ms = 0
        # Whether a plan has assumed the place of a replica, by uid; its plan ends that.
        self.is_planned: Callable[[str], bool] = lambda _uid: False

    @property
    def room(self) -> int:
        """How many more binds may be sent now."""
        return self._slots - len(self._open)

    @property
    def next_ms(self) -> int | None:
        """When the next pause of a bind ends."""
        while self._pauses and not self._is_pausing(*self._pauses[0]):
            heapq.heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    def _is_pausing(self, due_ms: int, uid: str) -> bool:
        it = self._open.get(uid)
        return it is not None and it.due_ms == due_ms

    def record_latency(self, took_ms: int, *, failed: bool = False) -> None:
        """Record how long the answer to a bind took, or that it failed."""
        if failed or took_ms > LATE_MS:
            self._slots = max(BINDS_MIN, self._slots - 4)
        else:
            self._slots = min(BINDS_MAX, self._slots + 1)

    def start(
        self,
        entry: QueueEntry,
        replica: Replica,
        proposal: BindReplica,
        term: Term,
        now: Instant,
        rng: Rng,
    ) -> OpenBind:
        """Assume the placement. Returns the bind to send."""
        bind = bind_of(self._election.identity, replica, proposal, term)
        operation = RequestOperation(bind, BIND_POLICY, rng, now.monotonic_ms)
        it = self._open[entry.uid] = OpenBind(entry.key, bind, operation)
        self.slots.begin(entry.uid, entry.tenant, entry.workload)
        traits = traits_of(replica)
        now_ms = now.monotonic_ms
        self._fleet.assume(entry.uid, entry.key, proposal.node, proposal.held, now_ms, traits)
        charge_assumed(self._quota_usage, replica, proposal.held.charge, self._objects)
        return it

    def due(self, now: Instant) -> list[tuple[OpenBind, Bind | Get]]:
        """The requests to send now that pauses are over: the same bind again, or another read."""
        found: list[tuple[OpenBind, Bind | Get]] = []
        while (due_ms := self.next_ms) is not None and due_ms <= now.monotonic_ms:
            it = self._open[heapq.heappop(self._pauses)[1]]
            it.due_ms = None
            call = self._follow(it, it.operation.resume(now.monotonic_ms), now)
            if call is not None:
                found.append((it, call))
        return found

    def answered(
        self, it: OpenBind, request: Bind | Get, answer: Reply, now: Instant
    ) -> Bind | Get | None:
        """Process an answer. Returns the request to send right after it, if any."""
        if self._open.get(it.uid) is not it:
            # The change of the replica arrived before the answer.
            return None
        return self._follow(it, it.operation.answered(request, answer, now.monotonic_ms), now)

    def _follow(self, it: OpenBind, call: NextCall, now: Instant) -> Bind | Get | None:
        """Do what the operation says next. Returns the request to send, if any."""
        match call:
            case Bind() | Get():
                return call
            case Pause():
                self._rest(it, call, now)
            case Finish():
                self._committed(it, now)
            case GiveUp(why=Why.OVERTAKEN):
                self._overtaken(it)
            case GiveUp(why=Why.NO_TRACE):
                self._untraced(it, now)
            case GiveUp(why=Why.REFUSED, error=Refusal() as refusal):
                self._refused(it, refusal, now)
            case GiveUp(why=Why.REFUSED | Why.UNDONE, error=HoldfastError() as error):
                self._undone(it, error, now)
            case _:
                unreachable(f"a bind does not end with {call!r}")
        return None

    def _rest(self, it: OpenBind, pause: Pause, now: Instant) -> None:
        it.due_ms = now.monotonic_ms + pause.duration_ms
        heapq.heappush(self._pauses, (it.due_ms, it.uid))
        if pause.sends:
            message = f"the answer to the bind to {it.bind.node} was lost; the bind is retried"
            tries = it.operation.tries
            self._say(it.key, SCHEDULING_RETRYING, message, tries, it.due_ms, now)

    def seen(self, uid: str, replica: Replica | None, now: Instant) -> None:
        """Process a change of a replica: it may show what an answer would have shown."""
        it = self._open.get(uid)
        if it is None:
            if replica is None:
                self._give_up(uid)
            return
        end = it.operation.seen(replica, now.monotonic_ms)
        if end is not None:
            del self._open[uid]
            self.slots.end(uid)
            is_ours = isinstance(end, Finish)
            entry = self._queue.get(it.key)
            if is_ours and entry is not None:
                self._trust(entry)
            self._recorder.settled(uid, ACCEPTED if is_ours else OVERTAKEN)
            self._give_up(uid)

    def overdue(self, now: Instant) -> None:
        """Give up assumptions that were never confirmed; those of open binds are kept."""
        for uid in self._fleet.overdue(now.monotonic_ms):
            if uid in self._open or self.is_planned(uid):
                self._fleet.renew(uid, now.monotonic_ms)
                continue
            assumed = self._fleet.assumed(uid)
            self._give_up(uid)
            entry = self._queue.get(assumed.key) if assumed is not None else None
            if entry is not None and entry.uid == uid:
                self._queue.wake(entry)

    # Outcomes of a bind --------------------------------------------------------------------------

    def _committed(self, it: OpenBind, now: Instant) -> None:
        """The bind is committed. The placement stays assumed until the cache shows it."""
        entry = self._end(it, ACCEPTED)
        self._fleet.renew(it.uid, now.monotonic_ms)
        self._notices.forget(it.key)
        if entry is not None:
            self._queue.park(entry, ())
            self._trust(entry)

    def _overtaken(self, it: OpenBind) -> None:
        """The replica took another transition. Its next change will show which."""
        entry = self._end(it, OVERTAKEN)
        self._give_up(it.uid)
        if entry is not None:
            self._queue.park(entry, ())

    def _undone(self, it: OpenBind, error: HoldfastError, now: Instant) -> None:
        """The bind did not happen, through no fault of ours."""
        entry = self._end(it, error.code, error.message)
        self._give_up(it.uid)
        if entry is None:
            return
        if isinstance(error, Rejected):
            self._pause(entry, error.code, error.message, now)
        elif entry.failures:
            message = "the servers could not be reached to bind the replica; it is tried again"
            self._pause(entry, SERVERS_UNAVAILABLE, message, now)
        else:
            # Servers that come back should not have to write down first that they were away for a
            # moment.
            self._queue.failed(entry, now.monotonic_ms)

    def _untraced(self, it: OpenBind, now: Instant) -> None:
        """All copies were lost, and the replica is not bound."""
        entry = self._end(it, NOT_BOUND)
        self._give_up(it.uid)
        if entry is not None:
            message = (
                f"{it.operation.tries} answers to the bind to {it.bind.node} were lost and the "
                "replica is not bound; a node is chosen again"
            )
            self._pause(entry, SCHEDULING_RETRYING, message, now)

    def _refused(self, it: OpenBind, refusal: Refusal, now: Instant) -> None:
        entry = self._end(it, refusal.reason.value, refusal.message)
        reaction = reaction_to(refusal.reason)
        if reaction is RefusalReaction.AWAIT_ALLOWANCE:
            # Nothing was released, so nothing must be woken by it.
            self._quota_usage.unassume(it.uid)
        self._give_up(it.uid)
        if reaction is RefusalReaction.ANOTHER_NODE:
            self._fleet.shun(it.bind.node, refusal, now.monotonic_ms)
        elif reaction is RefusalReaction.LEASE_LOST and it.bind.term == self._election.term:
            # A refusal of an earlier term of ours says nothing about the current one.
            self._election.lost()
        if entry is None:
            return
        if reaction is RefusalReaction.ANOTHER_NODE and entry.conflicts + 1 < CONFLICTS_MAX:
            self._queue.again(entry)
        elif reaction is RefusalReaction.AWAIT_CHANGE:
            self._queue.park(entry, ())
        elif reaction is RefusalReaction.AWAIT_ALLOWANCE:
            self._blocked(entry, refusal, now)
        else:
            self._pause(entry, refusal.reason.value, refusal.message, now)

    def _end(self, it: OpenBind, result: str, message: str = "") -> QueueEntry | None:
        """Settle an open bind. Returns its replica's queue entry, if it is still that replica's."""
        del self._open[it.uid]
        self.slots.end(it.uid)
        self._recorder.settled(it.uid, result, message)
        entry = self._queue.get(it.key)
        return entry if entry is not None and entry.uid == it.uid else None

    def _give_up(self, uid: str) -> None:
        node = self._fleet.unassume(uid)
        if node is not None:
            self.freed[node] = None
        tenant = self._quota_usage.unassume(uid)
        if tenant is not None:
            self.note_refund(tenant)

    def note_refund(self, tenant: str) -> None:
        """Record that a tenant is charged less than before."""
        self._refunded[tenant] = None

    def _trust(self, entry: QueueEntry) -> None:
        """Trust a group again: the servers accepted one of it, so they may accept the others."""
        group_key = entry.tenant, entry.class_key
        if group_key in self.doubted:
            del self.doubted[group_key]
            self.note_refund(entry.tenant)

    def take_refunded(self) -> list[str]:
        """The tenants whose quota has more room since the last call."""
        refunded, self._refunded = list(self._refunded), {}
        return refunded

    # Published reasons ---------------------------------------------------------------------------

    def _pause(self, entry: QueueEntry, reason: str, message: str, now: Instant) -> None:
        until_ms = self._queue.failed(entry, now.monotonic_ms)
        self._say(entry.key, reason, message, entry.turns, until_ms, now)

    def _blocked(self, entry: QueueEntry, refusal: Refusal, now: Instant) -> None:
        report = over_quota(refusal, entry.tenant)
        self._queue.park(entry, report.wake_events)
        self.doubted[entry.tenant, entry.class_key] = None
        self._publish(entry.key, report, entry.turns, self.resync_at_ms, now)

    def _say(
        self, key: Key, reason: str, message: str, attempts: int, until_ms: int, now: Instant
    ) -> None:
        report = PlacementReport({reason: 1}, message, Verdict.WAITING, ())
        self._publish(key, report, attempts, until_ms, now)

    def _publish(
        self, key: Key, report: PlacementReport, attempts: int, until_ms: int, now: Instant
    ) -> None:
        replica = self._objects.get("replicas", *key)
        if isinstance(replica, Replica):
            self._notices.say(replica, report, attempts, until_ms, now)
