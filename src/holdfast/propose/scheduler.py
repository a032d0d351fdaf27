"""A scheduler: chooses nodes for pending replicas and asks the servers to bind them.

A host's shell and the simulator run it. It follows the plane with a cache, holds the lease of its
scope, decides on what it sees, and learns from each answer. All its state is in memory: a scheduler
that restarts reads everything from the servers. Several may run at once, on different scopes or as
standbys of one; the commit keeps them from taking the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.model.access.identity import scheduler as scheduler_identity
from holdfast.model.errors import HoldfastError, unreachable
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.schedulerpolicy import SchedulerPolicy
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Ask, Rng, Started, Wake, Woken
from holdfast.model.pulse import Backlog
from holdfast.model.requests import AcquireLease, Bind, RenewLease, ReportPending
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache, Key, ObjectChange, is_for_cache_only
from holdfast.observe.inflight import Inflight
from holdfast.observe.leader_election import RENEW_TIMEOUT_MS, LeaderElection
from holdfast.observe.watch_events import Follow, Get
from holdfast.propose.bind_operation import Course
from holdfast.propose.binder import COURSES_MAX, Binder
from holdfast.propose.decision_records import DecisionRecorder
from holdfast.propose.decision_view import (
    PRIORITY_NAME,
    QUOTA_NAME,
    View,
    budget_of,
    policy_in_force,
)
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import (
    PENDING_CAP,
    PlacementReport,
    Proposal,
    Verdict,
    WakeEvent,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import Filter
from holdfast.propose.node_choice import salt_of
from holdfast.propose.proposals import propose_batch
from holdfast.propose.queue.pending_reasons import Notices
from holdfast.propose.queue.queueing_hints import QueueingHints
from holdfast.propose.queue.quota_usage import QuotaUsage
from holdfast.propose.queue.recovery_lanes import RecoveryLanes
from holdfast.propose.queue.scheduling_queue import (
    PENDING_PER_TENANT_MAX,
    Lane,
    QueueEntry,
    SchedulingQueue,
    backlog,
)
from holdfast.propose.queue.shard import EVERYTHING, SchedulerShare
from holdfast.propose.scores import Scorer

# A step must not block its shell; the rest is decided in the next step.
DECISIONS_MAX = 1_024
# While more than this many answers are awaited, a round waits for room for as many: deciding for
# many at once costs a tenth of deciding for each when its slot becomes free.
ROUND_MIN = 32
# The concurrent reports of pending reasons. They must not displace binds, which help people more.
NOTICES_MAX = 64
# A place that is only assumed to be taken may be free again in a moment. Reporting that each time
# would be a write for every bind of another replica; it is reported after this many tries (about
# three seconds).
UNSAID_MAX = 4

# The kinds that a decision looks at. Rules first, so that work is never judged by incomplete rules.
FOLLOWED = (
    "tenants",
    "regions",
    "quotas",
    "priorityclasses",
    "schedulerpolicies",
    "nodes",
    "reservations",
    "replicas",
)
_ALLOWANCE = ("tenants", "regions", "quotas", "priorityclasses")
_WAKE = "scheduler"


class _About(msgspec.Struct, frozen=True):
    """What a request in flight is about: a bind's course, or a notice; otherwise the lease."""

    course: Course | None = None
    notice: Key | None = None


# A queue entry whose turn it is, and its replica.
_Turn = tuple[QueueEntry, Replica]


class Scheduler:
    """See the module's docstring. It handles replicas in state Pending of the tenants of its share.

    `scope` names the lease if that should not follow from the share.
    """

    def __init__(
        self,
        name: str,
        rng: Rng,
        *,
        scope: str = "",
        share: SchedulerShare = EVERYTHING,
        resync_ms: int = 60_000,
        filters: Sequence[Filter] = (),
        scorers: Sequence[Scorer] = (),
    ) -> None:
        self.identity = scheduler_identity(name).name
        self._rng, self._resync_ms = rng, resync_ms
        follows = [Follow(plural) for plural in FOLLOWED]
        self.cache = Cache(follows, rng, resync_ms=resync_ms)
        self._share = share
        self.election = LeaderElection(scope or share.scope(name), self.identity, instance=name)
        self.fleet, self.queue = Fleet(), SchedulingQueue(rng)
        self.verdict_cache = VerdictCache(filters, scorers)
        self._hints = QueueingHints(self.queue, self.fleet, self.verdict_cache, self.cache)
        self.notices, self.quota_usage = Notices(), QuotaUsage()
        self._lanes = RecoveryLanes(self.fleet)
        self.recorder = DecisionRecorder(self.identity, self.fleet)
        self.binder = Binder(
            self.fleet,
            self.queue,
            self.notices,
            self.election,
            self.cache,
            self.quota_usage,
            self.recorder,
        )
        # One slot is reserved for the lease: it must not wait behind many binds.
        self._inflight: Inflight[_About] = Inflight(COURSES_MAX + NOTICES_MAX + 1)
        self._notices_sent = 0
        self._resync_at_ms = 0
        self._was_ready = False
        self._policy: SchedulerPolicy | None = None
        # Grows when a rule that decisions depend on has changed.
        self._rules = 0
        self._wake_ms: int | None = None

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        """Process one stimulus and return the effects to perform, in order."""
        knew = self.cache.is_ready
        update = self.cache.step(stimulus, now)
        effects = update.effects
        if knew and not update.changes and is_for_cache_only(stimulus) and self._needs_no_freshness:
            # Nothing changed. What is due at a certain time has a wake-up of its own.
            return effects
        match stimulus:
            case Started():
                self._resync_at_ms = now.monotonic_ms + self._resync_ms
            case Woken(name=name) if name == _WAKE:
                self._wake_ms = None
            case Answered():
                effects += self._answered(stimulus, now)
        for change in update.changes:
            self._apply_change(change, now)
        effects += self._do_what_is_due(now)
        return effects

    @property
    def _needs_no_freshness(self) -> bool:
        """Whether no replica waits for a fresher snapshot."""
        return not self.queue.waiting_for(WakeEvent.FRESHNESS)

    def backlog(self, now: Instant) -> Backlog:
        """What waits, and the free capacity: for operators."""
        return backlog(self.queue, self.cache, self.fleet, self.verdict_cache, now)

    def _do_what_is_due(self, now: Instant) -> list[Any]:
        """Do all that is due, whatever the stimulus was: nothing here depends on one event."""
        effects: list[Any] = []
        request = self.election.due(now)
        if request is not None:
            effects.append(self._lease(request, now))
        self.binder.overdue(now)
        for course, again in self.binder.due(now):
            effects.append(self._inflight.ask(again, _About(course), now.monotonic_ms))
        self._resync(now)
        view = self._view(now)
        freed, self.binder.freed = self.binder.freed, {}
        refunded = self.binder.take_refunded()
        self._hints.after_releases(view, refunded, self.binder.doubted)
        self._hints.after_changes(view, freed, now)
        effects += self._decide(view, now)
        effects += self._publish(now)
        effects += self.recorder.due(now.monotonic_ms)
        return [*effects, *self._wake(now)]

    def _view(self, now: Instant) -> View:
        cache = self.cache
        age_ms = cache.age_ms(now)
        rules, quota_usage = self._rules, self.quota_usage
        return View(self.fleet, cache, cache.revision, age_ms, self._policy, rules, quota_usage)

    # Answers -------------------------------------------------------------------------------------

    def _answered(self, stimulus: Answered, now: Instant) -> list[Ask]:
        sent = self._inflight.answered(stimulus.call)
        if sent is None:
            return []
        request, answer, about = sent.request, stimulus.body, sent.about
        follow_up: Get | None = None
        match request:
            case ReportPending() if about.notice is not None:
                self._notices_sent -= 1
                self.notices.answered(about.notice, request, answer, now.monotonic_ms)
            case Bind() | Get() if about.course is not None:
                if isinstance(request, Bind):
                    took_ms = now.monotonic_ms - sent.sent_ms
                    self.binder.record_latency(took_ms, failed=isinstance(answer, HoldfastError))
                follow_up = self.binder.answered(about.course, request, answer, now, self._rng)
            case Get() | AcquireLease() | RenewLease():
                acquire = self.election.answered(request, answer, sent.sent_ms, now)
                return [self._lease(acquire, now)] if acquire is not None else []
        if follow_up is None:
            return []
        return [self._inflight.ask(follow_up, about, now.monotonic_ms)]

    def _lease(self, request: Get | AcquireLease | RenewLease, now: Instant) -> Ask:
        about, now_ms = _About(), now.monotonic_ms
        return self._inflight.ask(request, about, now_ms, timeout_ms=RENEW_TIMEOUT_MS)

    # Changes -------------------------------------------------------------------------------------

    def _apply_change(self, change: ObjectChange, now: Instant) -> None:
        freed = self.fleet.notice(change)
        self.binder.freed |= dict.fromkeys(freed)
        if change.plural in ("replicas", "reservations"):
            is_less = self.quota_usage.notice(change.before, change.after)
            # Freed nodes count too: quotas may not be known here yet.
            if is_less or freed:
                self.binder.note_refund(change.object.namespace)
        if change.plural == "replicas":
            self._replica(change, now)
        elif change.plural == "schedulerpolicies":
            self._policy = policy_in_force(list(self.cache.all("schedulerpolicies")))
            if _spec(change.before) != _spec(change.after):
                self.queue.wake_all()
        elif change.plural in _ALLOWANCE and _spec(change.before) != _spec(change.after):
            self._rules += 1
            if change.plural == "quotas":
                self._apply_quota(change.object.namespace)
            self.queue.wake_waiting_for(WakeEvent.ALLOWANCE)

    def _apply_quota(self, tenant: str) -> None:
        """Apply a change of a tenant's quota."""
        if self.quota_usage.limit(tenant, self.cache.get("quotas", tenant, QUOTA_NAME)):
            self.quota_usage.recount(self.cache.all("replicas"), self.cache.all("reservations"))
            self.binder.charge_assumed()

    def _replica(self, change: ObjectChange, now: Instant) -> None:
        before, after = change.before, change.after
        if isinstance(before, Replica):
            uid = before.metadata.uid
            same = isinstance(after, Replica) and after.metadata.uid == uid
            self.binder.seen(uid, after if isinstance(after, Replica) and same else None)
        if isinstance(after, Replica) and self._is_ours(after):
            self._enqueue(after, now)
        else:
            key = change.object.namespace, change.object.name
            self.queue.forget(key)
            self.notices.forget(key)

    def _enqueue(self, replica: Replica, now: Instant) -> None:
        key, number = (replica.namespace, replica.name), replica.status.transition_number
        entry = self.queue.add(key, replica.metadata.uid, number, self._lane(replica))
        if entry is None:
            message = (
                f"tenant {key[0]} already has {PENDING_PER_TENANT_MAX} pending replicas; more are "
                "not considered until some are placed"
            )
            report = PlacementReport({PENDING_CAP: 1}, message, Verdict.WAITING, ())
            self.notices.say(replica, report, 0, self._resync_at_ms, now)

    def _lane(self, replica: Replica) -> Lane:
        found = self.cache.get(
            "priorityclasses", "", replica.spec.template.priority_class or PRIORITY_NAME
        )
        return bool(found is not None and found.spec.urgent), replica.spec.priority

    def _resync(self, now: Instant) -> None:
        """Queue again all that is pending in the cache: no missed event stays missed."""
        is_first = self.cache.is_ready and not self._was_ready
        if not is_first and now.monotonic_ms < self._resync_at_ms:
            return
        self._was_ready = self.cache.is_ready
        if not is_first:
            self._resync_at_ms = now.monotonic_ms + self._resync_ms
        self.binder.resync_at_ms = self._resync_at_ms
        self.binder.doubted.clear()
        for replica in self.cache.all("replicas"):
            if self._is_ours(replica):
                self._enqueue(replica, now)
        self.queue.wake_all()

    def _is_ours(self, replica: Replica) -> bool:
        """Whether this scheduler is responsible for placing a replica."""
        return is_waiting(replica) and self._share.takes(replica.metadata.namespace)

    # Deciding ------------------------------------------------------------------------------------

    def _may_decide(self, now: Instant) -> bool:
        """Whether the cache is ready, the lease was acknowledged recently, and there is room."""
        if self.election.term is None or not self.election.is_acknowledged(now):
            return False
        # A course that a change has settled may still have a request in flight.
        room = min(self.binder.room, self._inflight.room - NOTICES_MAX - 1)
        if room < ROUND_MIN and len(self._inflight) > ROUND_MIN and not self.queue.has_urgent:
            # Every request is answered, or given up by the shell, so more room will follow.
            return False
        return room > 0 and self.cache.is_ready

    def _decide(self, view: View, now: Instant) -> list[Ask]:
        """One round: as many decisions as there is room for, in the order of the queue."""
        effects: list[Ask] = []
        if not self._may_decide(now):
            return effects
        room = min(DECISIONS_MAX, self.binder.room, self._inflight.room - NOTICES_MAX - 1)
        run: list[_Turn] = []
        salt = -1
        for _ in range(room):
            turn = self._next_turn(now)
            if turn is None:
                break
            if salt < 0:
                salt = salt_of(self._rng)
                self._open_round(view, salt, now)
            if run and run[0][0].class_key != turn[0].class_key:
                effects += self._place(view, run, salt, now)
                run = []
            run.append(turn)
        if run:
            effects += self._place(view, run, salt, now)
        self.recorder.close()
        return effects

    def _open_round(self, view: View, salt: int, now: Instant) -> None:
        term = self.election.term
        if term is not None:
            self.recorder.open(view, term, salt, self.cache.seen, now)

    def _next_turn(self, now: Instant) -> _Turn | None:
        """The next queue entry that still needs a node."""
        while (entry := self.queue.take(now.monotonic_ms)) is not None:
            replica: Replica | None = self.cache.get("replicas", *entry.key)
            if replica is None or not is_waiting(replica):
                self.queue.forget(entry.key)
            elif self.fleet.assumed(entry.uid) is not None:
                # Its bind is in flight, or was accepted and the cache does not show it yet.
                self.queue.park(entry, ())
            else:
                if entry.class_key is None:
                    entry.class_key = self.verdict_cache.key(replica)
                return entry, replica
        return None

    def _place(self, view: View, run: list[_Turn], salt: int, now: Instant) -> list[Ask]:
        """Place several replicas of one equivalence class."""
        effects: list[Ask] = []
        term = self.election.term
        if term is None:
            unreachable("a decision needs a lease term")
        while run:
            decisions = propose_batch(view, [it for _, it in run], now, salt, self.verdict_cache)
            self.recorder.decided(run, decisions, self._quota_state(view, run[0][1]))
            for (entry, replica), decision in zip(run, decisions, strict=False):
                place: Proposal | None
                if isinstance(decision, PlacementReport):
                    place = self._lanes.place(view, replica, decision, now)
                    if place is None:
                        self._wait(entry, replica, decision, now)
                        continue
                else:
                    place = decision
                course, bind = self.binder.start(entry, replica, place, term, now)
                effects.append(self._inflight.ask(bind, _About(course), now.monotonic_ms))
            # There may be fewer decisions than replicas: what was just assumed matters to the rest.
            run = run[len(decisions) :]
        return effects

    @staticmethod
    def _quota_state(view: View, replica: Replica) -> str:
        if view.quota_usage is None or not view.quota_usage.is_counting:
            return ""
        of = view.capacity_class(replica.spec.template.priority_class)
        return view.quota_usage.state(replica.namespace, of, budget_of(replica))

    def _wait(
        self, entry: QueueEntry, replica: Replica, report: PlacementReport, now: Instant
    ) -> None:
        """No node is feasible now: wait for an event that could help, and publish the reasons."""
        if report.in_question and entry.failures < UNSAID_MAX:
            self.queue.failed(entry, now.monotonic_ms)
            return
        next_ms = self._resync_at_ms
        if report.try_soon:
            next_ms = self.queue.failed(entry, now.monotonic_ms)
        else:
            self.queue.park(entry, report.wake_events)
        self.notices.say(replica, report, entry.turns, next_ms, now)

    # Publishing and timers -----------------------------------------------------------------------

    def _publish(self, now: Instant) -> list[Ask]:
        term = self.election.term
        if term is None:
            return []
        due = self.notices.due(NOTICES_MAX - self._notices_sent, now.monotonic_ms, term)
        self._notices_sent += len(due)
        return [
            self._inflight.ask(request, _About(notice=key), now.monotonic_ms)
            for key, request in due
        ]

    def _wake(self, now: Instant) -> list[Wake]:
        """The scheduler's own wake-up, if its time has changed."""
        now_ms = now.monotonic_ms
        moments = [self._resync_at_ms, self.fleet.next_ms, self.binder.next_ms]
        moments.append(self.recorder.next_ms)
        if self._notices_sent < NOTICES_MAX and self.election.term is not None:
            moments.append(self.notices.next_ms)
        if self.election.next_ms > now_ms:
            # Otherwise its request is in flight, and the answer will come.
            moments.append(self.election.next_ms)
        if self._may_decide(now):
            moments.append(now_ms if self.queue.has_ready else self.queue.next_ms)
        at_ms = max(now_ms + 1, min(moment for moment in moments if moment is not None))
        if at_ms == self._wake_ms:
            return []
        self._wake_ms = at_ms
        return [Wake(_WAKE, at_ms)]


def is_waiting(replica: Replica) -> bool:
    """Whether a replica needs a node: it is pending and not being deleted."""
    is_pending = replica.status.state is State.PENDING
    return is_pending and replica.metadata.deletion_timestamp is None


def _spec(obj: Any) -> Any:
    return getattr(obj, "spec", None)
