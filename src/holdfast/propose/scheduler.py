"""A scheduler: finds places for pending replicas and asks the servers to make them true.

A host's shell and the simulator run it. It follows the plane with a cache, holds the lease of its
scope, decides on what it sees, and learns from each answer. All it knows is memory: a scheduler
that starts anew reads it all from the servers. Several may run at once, on scopes of their own or
standing by on one; the commit keeps them from taking the same place.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.identity import scheduler as scheduler_identity
from holdfast.model.kinds.quota import Quota
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Ask, Rng, Started, Wake, Woken
from holdfast.model.requests import AcquireLease, Bind, RenewLease, ReportPending
from holdfast.model.time import Instant
from holdfast.observe.asks import Asks
from holdfast.observe.cache import Cache, Change, Key, is_streams
from holdfast.observe.news import Follow, Get
from holdfast.observe.tenure import Tenure
from holdfast.propose.binder import COURSES_MAX, Binder
from holdfast.propose.course import Course
from holdfast.propose.decide import SNAPSHOT_AGE_MAX_MS, could_take, propose
from holdfast.propose.fleet import Fleet
from holdfast.propose.notices import Notices
from holdfast.propose.queue import Entry, Lane, Queue
from holdfast.propose.report import Hope, Report
from holdfast.propose.view import PRIORITY_NAME, QUOTA_NAME, View, policy_in_force

# A step must not keep its shell waiting; what is left is decided in the next one.
DECISIONS_MAX = 32
# Reports on their way at once. They must not crowd out binds, which help people more.
NOTICES_MAX = 16
# When so many nodes changed at once, looking at each for everybody who waits costs more than
# letting everybody look for himself.
NODES_LOOKED_AT_MAX = 16
# One release of a tenant's work makes room for few; those that get nothing wait for the next.
WOKEN_PER_RELEASE = 4

# A place that is only assumed to be taken may be free again in a moment. Saying so each time would
# be a write for every bind of somebody else; after so many tries (about three seconds) it is said.
UNSAID_MAX = 4

# All that a decision looks at. Rules first, so that work is not judged by less than there is.
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
    """What a request on its way is about: a bind's course, or a notice; else the lease."""

    course: Course | None = None
    notice: Key | None = None


class Scheduler:
    """See the module's docstring. It takes replicas in state Pending of every tenant."""

    def __init__(self, name: str, rng: Rng, *, scope: str = "", resync_ms: int = 60_000) -> None:
        self.identity = scheduler_identity(name).name
        self._rng, self._resync_ms = rng, resync_ms
        follows = [Follow(plural) for plural in FOLLOWED]
        self.cache = Cache(follows, rng, resync_ms=resync_ms)
        self.tenure = Tenure(scope or f"scheduler:{name}", self.identity, instance=name)
        self.fleet, self.queue = Fleet(), Queue(rng)
        self.notices = Notices(self.identity)
        self.binder = Binder(self.fleet, self.queue, self.notices, self.tenure, self.cache)
        # One slot is the lease's own: what is most needed must not wait for what is many.
        self._asks: Asks[_About] = Asks(COURSES_MAX + NOTICES_MAX + 1)
        self._notices_sent = 0
        self._resync_at_ms = 0
        self._was_ready = False
        self._wake_ms: int | None = None

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        """Take in one stimulus and return the effects to perform, in order."""
        knew = self.cache.is_ready
        told = self.cache.step(stimulus, now)
        effects = told.effects
        if knew and not told.changes and is_streams(stimulus) and self._is_unwaited:
            # The streams told nothing new. What is due at a time has a wake-up of its own.
            return effects
        match stimulus:
            case Started():
                self._resync_at_ms = now.monotonic_ms + self._resync_ms
            case Woken(name=name) if name == _WAKE:
                self._wake_ms = None
            case Answered():
                effects += self._answered(stimulus, now)
        for change in told.changes:
            self._noticed(change)
        effects += self._tend(now)
        return effects

    @property
    def _is_unwaited(self) -> bool:
        """Whether nobody waits for the picture to become younger."""
        return not self.queue.parked(Hope.FRESHNESS)

    def _tend(self, now: Instant) -> list[Any]:
        """All that is due, whatever the stimulus was: nothing here depends on being told."""
        effects: list[Any] = []
        request = self.tenure.due(now)
        if request is not None:
            effects.append(self._asks.ask(request, _About(), now.monotonic_ms))
        self.binder.overdue(now)
        for course, again in self.binder.due(now):
            effects.append(self._asks.ask(again, _About(course), now.monotonic_ms))
        self._resync(now)
        view = self._view(now)
        self._wake_parked(view, now)
        effects += self._decide(view, now)
        effects += self._publish(now)
        return [*effects, *self._wake(now)]

    def _view(self, now: Instant) -> View:
        policy = policy_in_force(list(self.cache.all("schedulerpolicies")))
        return View(self.fleet, self.cache, self.cache.revision, self.cache.age_ms(now), policy)

    # Answers -------------------------------------------------------------------------------------

    def _answered(self, stimulus: Answered, now: Instant) -> list[Ask]:
        sent = self._asks.answered(stimulus.call)
        if sent is None:
            return []
        request, answer, about = sent.request, stimulus.body, sent.about
        follow_up: AcquireLease | Get | None = None
        match request:
            case ReportPending() if about.notice is not None:
                self._notices_sent -= 1
                self.notices.answered(about.notice, request, answer, now.monotonic_ms)
            case Bind() | Get() if about.course is not None:
                follow_up = self.binder.answered(about.course, request, answer, now, self._rng)
            case Get() | AcquireLease() | RenewLease():
                follow_up = self.tenure.answered(request, answer, sent.sent_ms, now)
        if follow_up is None:
            return []
        return [self._asks.ask(follow_up, about, now.monotonic_ms)]

    # News ----------------------------------------------------------------------------------------

    def _noticed(self, change: Change) -> None:
        freed = self.fleet.notice(change)
        self.binder.freed |= dict.fromkeys(freed)
        if freed and change.plural != "nodes":
            self._wake_tenant(change.object.namespace)
        if change.plural == "replicas":
            self._replica(change)
        elif change.plural in _ALLOWANCE and _spec(change.before) != _spec(change.after):
            for entry in self.queue.parked(Hope.ALLOWANCE):
                self.queue.wake(entry)
        elif change.plural == "schedulerpolicies" and _spec(change.before) != _spec(change.after):
            self.queue.wake_all()

    def _replica(self, change: Change) -> None:
        before, after = change.before, change.after
        if isinstance(before, Replica):
            uid = before.metadata.uid
            same = isinstance(after, Replica) and after.metadata.uid == uid
            self.binder.seen(uid, after if isinstance(after, Replica) and same else None)
        if isinstance(after, Replica) and is_waiting(after):
            self._enqueue(after)
        else:
            key = change.object.namespace, change.object.name
            self.queue.forget(key)
            self.notices.forget(key)

    def _enqueue(self, replica: Replica) -> None:
        key, number = (replica.namespace, replica.name), replica.status.transition_number
        self.queue.add(key, replica.metadata.uid, number, self._lane(replica))

    def _lane(self, replica: Replica) -> Lane:
        found = self.cache.get(
            "priorityclasses", "", replica.spec.template.priority_class or PRIORITY_NAME
        )
        return bool(found is not None and found.spec.urgent), replica.spec.priority

    def _resync(self, now: Instant) -> None:
        """Queue anew whatever the cache says is pending: nothing that was missed stays missed."""
        is_first = self.cache.is_ready and not self._was_ready
        if not is_first and now.monotonic_ms < self._resync_at_ms:
            return
        self._was_ready = self.cache.is_ready
        if not is_first:
            self._resync_at_ms = now.monotonic_ms + self._resync_ms
        self.binder.resync_at_ms = self._resync_at_ms
        for replica in self.cache.all("replicas"):
            if is_waiting(replica):
                self._enqueue(replica)
        self.queue.wake_all()

    # Waking --------------------------------------------------------------------------------------

    def _wake_parked(self, view: View, now: Instant) -> None:
        """Give those another turn whom the news of this step may help."""
        if view.age_ms <= SNAPSHOT_AGE_MAX_MS:
            for entry in self.queue.parked(Hope.FRESHNESS):
                self.queue.wake(entry)
        freed, self.binder.freed = self.binder.freed, {}
        if not freed:
            return
        everybody = len(freed) > NODES_LOOKED_AT_MAX
        for entry in self.queue.parked(Hope.NODES):
            replica: Replica = self.cache.get("replicas", *entry.key)
            if everybody or any(could_take(view, replica, node, now) for node in freed):
                self.queue.wake(entry)

    def _wake_tenant(self, tenant: str) -> None:
        """A tenant gave something back: its quota, and its cohort's, has room again."""
        woken = 0
        for entry in self.queue.parked(Hope.ALLOWANCE):
            if woken < WOKEN_PER_RELEASE and self._share_quota(entry.tenant, tenant):
                self.queue.wake(entry)
                woken += 1

    def _share_quota(self, one: str, other: str) -> bool:
        quotas: list[Quota | None] = [
            self.cache.get("quotas", name, QUOTA_NAME) for name in (one, other)
        ]
        cohorts = {quota.spec.cohort if quota is not None else "" for quota in quotas}
        return one == other or (len(cohorts) == 1 and "" not in cohorts)

    # Deciding ------------------------------------------------------------------------------------

    def _may_decide(self, now: Instant) -> bool:
        """Whether it knows the plane, was lately told that the lease is its own, and has room."""
        has_lease = self.tenure.term is not None and self.tenure.is_acknowledged(now)
        # A course that news have settled may still have a request on its way.
        has_room = self.binder.room > 0 and self._asks.room > NOTICES_MAX + 1
        return has_lease and self.cache.is_ready and has_room

    def _decide(self, view: View, now: Instant) -> list[Ask]:
        effects: list[Ask] = []
        for _ in range(DECISIONS_MAX):
            entry = self.queue.take(now.monotonic_ms) if self._may_decide(now) else None
            if entry is None:
                break
            effects += self._place(view, entry, now)
        return effects

    def _place(self, view: View, entry: Entry, now: Instant) -> list[Ask]:
        """One replica's turn."""
        replica: Replica | None = self.cache.get("replicas", *entry.key)
        term = self.tenure.term
        if replica is None or term is None or not is_waiting(replica):
            self.queue.forget(entry.key)
            return []
        if self.fleet.assumed(entry.uid) is not None:
            # Its bind is on its way, or was accepted and only the cache does not show it yet.
            self.queue.park(entry, ())
            return []
        decision = propose(view, replica, now, self._rng)
        if isinstance(decision, Report):
            self._wait(entry, replica, decision, now)
            return []
        course, bind = self.binder.start(entry, replica, decision, term, now)
        return [self._asks.ask(bind, _About(course), now.monotonic_ms)]

    def _wait(self, entry: Entry, replica: Replica, report: Report, now: Instant) -> None:
        """There is no place now: wait for what could help, and let people know."""
        if report.in_question and entry.failures < UNSAID_MAX:
            self.queue.failed(entry, now.monotonic_ms)
            return
        next_ms = self._resync_at_ms
        if report.try_soon:
            next_ms = self.queue.failed(entry, now.monotonic_ms)
        else:
            self.queue.park(entry, report.hopes)
        self.notices.say(replica, report, entry.turns, next_ms, now)

    # Publishing and timers -----------------------------------------------------------------------

    def _publish(self, now: Instant) -> list[Ask]:
        due = self.notices.due(NOTICES_MAX - self._notices_sent, now.monotonic_ms)
        self._notices_sent += len(due)
        return [
            self._asks.ask(request, _About(notice=key), now.monotonic_ms) for key, request in due
        ]

    def _wake(self, now: Instant) -> list[Wake]:
        """The one wake-up of the scheduler itself, when there is something new to set it to."""
        now_ms = now.monotonic_ms
        moments = [self._resync_at_ms, self.fleet.next_ms, self.binder.next_ms]
        if self._notices_sent < NOTICES_MAX:
            moments.append(self.notices.next_ms)
        if self.tenure.next_ms > now_ms:
            # Otherwise its question is on its way, and the answer comes by itself.
            moments.append(self.tenure.next_ms)
        if self._may_decide(now):
            moments.append(now_ms if self.queue.has_ready else self.queue.next_ms)
        at_ms = max(now_ms + 1, min(moment for moment in moments if moment is not None))
        if at_ms == self._wake_ms:
            return []
        self._wake_ms = at_ms
        return [Wake(_WAKE, at_ms)]


def is_waiting(replica: Replica) -> bool:
    """Whether a replica needs a place: pending, and nobody has asked for its end."""
    is_pending = replica.status.state is State.PENDING
    return is_pending and replica.metadata.deletion_timestamp is None


def _spec(obj: Any) -> Any:
    return getattr(obj, "spec", None)
