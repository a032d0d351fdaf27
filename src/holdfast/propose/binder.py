"""Binds in flight: what each answer means for the fleet, the queue and the published reasons.

The scheduler starts a course for each proposal, sends the requests that the binder returns and
passes back the answers. As long as a course is not settled its place stays assumed, its replica is
not proposed anywhere else, and it takes one of the slots for concurrent binds. The number of slots
follows the servers: more while they answer quickly, fewer when they are late, since a request that
waits there longer than its timeout would have to be looked up again.
"""

from __future__ import annotations

import heapq
from enum import Enum, auto
from typing import Any

from holdfast.model.errors import HoldfastError, Rejected
from holdfast.model.kinds.replica import Replica
from holdfast.model.ledger import Amounts
from holdfast.model.machine import Rng
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Bind, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.observe.leader_election import LeaderElection
from holdfast.observe.watch_events import Get
from holdfast.propose.bind_operation import (
    SENDS_MAX,
    BindOutcome,
    BindPhase,
    Course,
    bind_of,
    outcome_in,
    outcome_of_bind,
    outcome_of_look,
)
from holdfast.propose.decision_records import DecisionRecorder
from holdfast.propose.decision_rounds import ACCEPTED, NOT_BOUND, OVERTAKEN
from holdfast.propose.decision_view import Objects, budget_of, capacity_class
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import (
    SCHEDULING_RETRYING,
    SERVERS_UNAVAILABLE,
    PlacementReport,
    Proposal,
    Verdict,
)
from holdfast.propose.feasibility.smallest_change import over_quota
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
    # An earlier run of this scheduler already did it: read the replica.
    LOOK = auto()
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
    Reason.OPERATION_REUSED: RefusalReaction.LOOK,
}


def reaction_to(reason: Reason) -> RefusalReaction:
    """How to continue after this refusal."""
    return _LESSONS.get(reason, RefusalReaction.PAUSE)


# The concurrent binds of one scheduler: at most when the servers answer quickly, and at least.
COURSES_MAX = 4_096
COURSES_MIN = 256
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
    ) -> None:
        self._fleet, self._queue, self._notices = fleet, queue, notices
        self._election, self._objects = election, objects
        self._quota_usage, self._recorder = quota_usage, recorder
        self._courses: dict[str, Course] = {}
        # The paused courses, by the end of the pause; entries of settled courses are void.
        self._pauses: list[tuple[int, str]] = []
        self._slots = COURSES_MIN
        self.freed: dict[str, None] = {}
        # Tenants whose quota has more room.
        self._refunded: dict[str, None] = {}
        # Groups that the commit refused although the quota has room as far as is known here.
        self.doubted: dict[GroupKey, None] = {}
        # When all entries are tried again; published with the reasons.
        self.resync_at_ms = 0

    @property
    def room(self) -> int:
        """How many more binds may be sent now."""
        return self._slots - len(self._courses)

    @property
    def next_ms(self) -> int | None:
        """When the next pause of a course ends."""
        while self._pauses and not self._is_pausing(*self._pauses[0]):
            heapq.heappop(self._pauses)
        return self._pauses[0][0] if self._pauses else None

    def _is_pausing(self, due_ms: int, uid: str) -> bool:
        course = self._courses.get(uid)
        pausing = BindPhase.TO_SEND, BindPhase.TO_LOOK
        return course is not None and course.due_ms == due_ms and course.phase in pausing

    def record_latency(self, took_ms: int, *, failed: bool = False) -> None:
        """Record how long the answer to a bind took, or that it failed."""
        if failed or took_ms > LATE_MS:
            self._slots = max(COURSES_MIN, self._slots - 4)
        else:
            self._slots = min(COURSES_MAX, self._slots + 1)

    def start(
        self, entry: QueueEntry, replica: Replica, proposal: Proposal, term: Term, now: Instant
    ) -> tuple[Course, Bind]:
        """Assume the placement. Returns the course and the request to send."""
        bind = bind_of(self._election.identity, replica, proposal, term)
        course = self._courses[entry.uid] = Course(entry.key, bind)
        traits = traits_of(replica)
        now_ms = now.monotonic_ms
        self._fleet.assume(entry.uid, entry.key, proposal.node, proposal.held, now_ms, traits)
        self._charge(entry.uid, replica, proposal.held.charge)
        return course, bind

    def _charge(self, uid: str, replica: Replica, charge: Amounts) -> None:
        if self._quota_usage.is_counting:
            of = capacity_class(self._objects, replica.spec.template.priority_class)
            self._quota_usage.assume(uid, replica.namespace, of, charge, budget_of(replica))

    def charge_assumed(self) -> None:
        """Charge all that is assumed to quotas, once quotas are counted."""
        for uid, assumed in self._fleet.all_assumed():
            replica: Replica | None = self._objects.get("replicas", *assumed.key)
            if replica is not None and replica.metadata.uid == uid:
                self._charge(uid, replica, assumed.held.charge)

    def due(self, now: Instant) -> list[tuple[Course, Bind | Get]]:
        """The requests to send now that pauses are over: the same bind again, or another read."""
        found: list[tuple[Course, Bind | Get]] = []
        while (due_ms := self.next_ms) is not None and due_ms <= now.monotonic_ms:
            course = self._courses[heapq.heappop(self._pauses)[1]]
            if course.phase is BindPhase.TO_SEND:
                course.phase = BindPhase.SENT
                course.sends += 1
                found.append((course, course.bind))
            else:
                found.append((course, self._look(course)))
        return found

    def _rest(self, course: Course, phase: BindPhase, tries: int, now: Instant, rng: Rng) -> int:
        """Pause a course. Returns until when."""
        until_ms = course.pause(phase, tries, now.monotonic_ms, rng.random())
        heapq.heappush(self._pauses, (until_ms, course.uid))
        return until_ms

    def answered(
        self, course: Course, request: Bind | Get, answer: Any, now: Instant, rng: Rng
    ) -> Get | None:
        """Process an answer. Returns the request to send right after it, if any."""
        if self._courses.get(course.uid) is not course:
            # The change of the replica arrived before the answer.
            return None
        judge = outcome_of_bind if isinstance(request, Bind) else outcome_of_look
        match judge(course, answer):
            case BindOutcome.COMMITTED:
                self._committed(course, now)
            case BindOutcome.REFUSED:
                if reaction_to(answer.reason) is RefusalReaction.LOOK:
                    return self._look(course)
                self._refused(course, answer, now)
            case BindOutcome.UNDONE:
                self._undone(course, answer, now)
            case BindOutcome.UNKNOWN:
                return self._look(course)
            case BindOutcome.ABSENT:
                self._absent(course, now, rng)
            case BindOutcome.OVERTAKEN:
                self._overtaken(course)
            case BindOutcome.UNREAD:
                self._rest(course, BindPhase.TO_LOOK, course.looks, now, rng)
                course.looks += 1
        return None

    def seen(self, uid: str, replica: Replica | None) -> None:
        """Process a change of a replica: it may show what an answer would have shown."""
        course = self._courses.get(uid)
        if course is None:
            if replica is None:
                self._give_up(uid)
            return
        # That the replica is unchanged says nothing: the cache may be behind.
        outcome = outcome_in(course, replica)
        if outcome is not BindOutcome.ABSENT:
            del self._courses[uid]
            is_ours = outcome is BindOutcome.COMMITTED
            entry = self._queue.get(course.key)
            if is_ours and entry is not None:
                self._trust(entry)
            self._recorder.settled(uid, ACCEPTED if is_ours else OVERTAKEN)
            self._give_up(uid)

    def overdue(self, now: Instant) -> None:
        """Give up assumptions that were never confirmed; those of courses are kept."""
        for uid in self._fleet.overdue(now.monotonic_ms):
            if uid in self._courses:
                self._fleet.renew(uid, now.monotonic_ms)
                continue
            assumed = self._fleet.assumed(uid)
            self._give_up(uid)
            entry = self._queue.get(assumed.key) if assumed is not None else None
            if entry is not None and entry.uid == uid:
                self._queue.wake(entry)

    # Outcomes of a bind --------------------------------------------------------------------------

    def _look(self, course: Course) -> Get:
        course.phase = BindPhase.LOOKING
        namespace, name = course.key
        return Get("replicas", name, namespace)

    def _committed(self, course: Course, now: Instant) -> None:
        """The bind is committed. The placement stays assumed until the cache shows it."""
        entry = self._end(course, ACCEPTED)
        self._fleet.renew(course.uid, now.monotonic_ms)
        self._notices.forget(course.key)
        if entry is not None:
            self._queue.park(entry, ())
            self._trust(entry)

    def _overtaken(self, course: Course) -> None:
        """The replica took another transition. Its next change will show which."""
        entry = self._end(course, OVERTAKEN)
        self._give_up(course.uid)
        if entry is not None:
            self._queue.park(entry, ())

    def _undone(self, course: Course, error: HoldfastError, now: Instant) -> None:
        """The bind did not happen, through no fault of ours."""
        entry = self._end(course, error.code, error.message)
        self._give_up(course.uid)
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

    def _absent(self, course: Course, now: Instant, rng: Rng) -> None:
        """The bind did not happen. Send it again, or after several copies, give it up."""
        course.looks = 0
        if course.sends < SENDS_MAX:
            until_ms = self._rest(course, BindPhase.TO_SEND, course.sends, now, rng)
            message = f"the answer to the bind to {course.bind.node} was lost; the bind is retried"
            self._say(course.key, SCHEDULING_RETRYING, message, course.sends, until_ms, now)
            return
        entry = self._end(course, NOT_BOUND)
        self._give_up(course.uid)
        if entry is not None:
            message = (
                f"{course.sends} answers to the bind to {course.bind.node} were lost and the "
                "replica is not bound; a node is chosen again"
            )
            self._pause(entry, SCHEDULING_RETRYING, message, now)

    def _refused(self, course: Course, refusal: Refusal, now: Instant) -> None:
        entry = self._end(course, refusal.reason.value, refusal.message)
        reaction = reaction_to(refusal.reason)
        if reaction is RefusalReaction.AWAIT_ALLOWANCE:
            # Nothing was released, so nothing must be woken by it.
            self._quota_usage.unassume(course.uid)
        self._give_up(course.uid)
        if reaction is RefusalReaction.ANOTHER_NODE:
            self._fleet.shun(course.bind.node, refusal, now.monotonic_ms)
        elif reaction is RefusalReaction.LEASE_LOST and course.bind.term == self._election.term:
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

    def _end(self, course: Course, result: str, message: str = "") -> QueueEntry | None:
        """Settle the course. Returns its replica's queue entry, if it is still that replica's."""
        del self._courses[course.uid]
        self._recorder.settled(course.uid, result, message)
        entry = self._queue.get(course.key)
        return entry if entry is not None and entry.uid == course.uid else None

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
