"""A scheduler: chooses nodes for pending replicas and asks the servers to bind them.

A host's shell and the simulator run it. It follows the plane with a cache, holds the lease of its
scope, decides on what it sees, and learns from each answer. All its state is in memory: a scheduler
that restarts reads everything from the servers. Several may run at once, on different scopes or as
standbys of one; the commit keeps them from taking the same place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.model.access.identity import scheduler as scheduler_identity
from holdfast.model.errors import HoldfastError, unreachable
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.kinds.schedulerpolicy import FairnessRules, SchedulerPolicy
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.machine import (
    Answered,
    Ask,
    Effects,
    Reply,
    Rng,
    Started,
    Stimulus,
    Wake,
    Woken,
)
from holdfast.model.meta import spec_of
from holdfast.model.preemption import is_requeued
from holdfast.model.pulse import Backlog
from holdfast.model.quota.charging import QUOTA_NAME, budget_of
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import AcquireLease, Bind, RenewLease, ReportPending, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache, Key, ObjectChange, is_for_cache_only
from holdfast.observe.inflight import Inflight
from holdfast.observe.leader_election import RENEW_TIMEOUT_MS, LeaderElection
from holdfast.observe.watch_events import Follow
from holdfast.propose.bind_operation import OpenBind
from holdfast.propose.binder import BINDS_MAX, Binder, RefusalReaction, reaction_to
from holdfast.propose.decide import propose
from holdfast.propose.decision_records import DecisionRecorder
from holdfast.propose.feasibility.fleet import Fleet
from holdfast.propose.feasibility.outcome import (
    BINDS_CAP,
    PENDING_CAP,
    BindGang,
    BindReplica,
    Decision,
    PlacementReport,
    Preempt,
    StayPending,
    Verdict,
    WakeEvent,
)
from holdfast.propose.feasibility.verdict_cache import VerdictCache
from holdfast.propose.filters import Filter
from holdfast.propose.fleet_snapshot import RULES, FleetSnapshot, limit_tenant, policy_in_force
from holdfast.propose.gang.gang_records import BY_GANG, members_of
from holdfast.propose.gang.rounds import GangRounds
from holdfast.propose.gang.steps import TOGETHER_MAX
from holdfast.propose.node_choice import salt_of
from holdfast.propose.plans import PLAN_REQUESTS_MAX, PlacementPlan, PlanCall, PlanRunner
from holdfast.propose.preemption.promises import plan_of, promise_of
from holdfast.propose.queue.bind_slots import BindSlots
from holdfast.propose.queue.fair_shares import FairShares
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
from holdfast.propose.reserved_starts import ReservedStarts
from holdfast.propose.scores import Scorer

# A step must not block its shell; the rest is decided in the next step.
DECISIONS_MAX = 1_024
# A search for victims, or for the places of a gang, costs as much as a hundred binds. The servers
# carry out what was found while the next ones are searched.
PLANS_PER_ROUND_MAX = 32
# While more than this many answers are awaited, a round waits for room for as many: deciding for
# many at once costs a tenth of deciding for each when its slot becomes free.
ROUND_MIN = 32
# The concurrent reports of pending reasons. They must not displace binds, which help people more.
NOTICES_MAX = 64
# A place that is only assumed to be taken may be free again in a moment. Reporting that each time
# would be a write for every bind of another replica; it is reported after this many tries (about
# three seconds).
UNSAID_MAX = 4

# A limit of binds in flight is reported if a replica waits for it longer than this.
BINDS_CAP_AFTER_MS = 5_000

# The kinds that a decision looks at. Rules first, so that work is never judged by incomplete rules.
FOLLOWED = (
    "tenants",
    "regions",
    "quotas",
    "priorityclasses",
    "schedulerpolicies",
    "nodes",
    "workloads",
    "reservations",
    "replicas",
)
# Workloads change with each step of their replicas; only the gangs among them matter here.
_ONLY = {"workloads": "spec.gang.minAvailable!="}
_WAKE = "scheduler"
# Without a policy in force.
NO_RULES = FairnessRules()


class _About(msgspec.Struct, frozen=True):
    """What a request in flight is about: a bind, a notice, a plan, or the workload whose budget is
    read; otherwise the lease.
    """

    bind: OpenBind | None = None
    notice: Key | None = None
    plan: PlanCall | None = None
    budget: Key | None = None


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
        gang_together_max: int = TOGETHER_MAX,
    ) -> None:
        self.identity = scheduler_identity(name).name
        self._rng, self._resync_ms = rng, resync_ms
        follows = [Follow(plural, fields=_ONLY.get(plural, "")) for plural in FOLLOWED]
        self.cache = Cache(follows, rng, resync_ms=resync_ms)
        self.cache.index(BY_GANG)
        self._share = share
        self.election = LeaderElection(scope or share.scope(name), self.identity, instance=name)
        self.fleet, self.shares = Fleet(), FairShares()
        self.queue = SchedulingQueue(rng, self.shares)
        self.verdict_cache = VerdictCache(filters, scorers)
        self._hints = QueueingHints(self.queue, self.fleet, self.verdict_cache, self.cache)
        self.notices, self.quota_usage = Notices(), QuotaUsage(self.shares)
        self._lanes = RecoveryLanes(self.fleet)
        self.starts = ReservedStarts(self.fleet, self.queue)
        self.recorder = DecisionRecorder(self.identity, self.fleet)
        self.binder = Binder(
            self.fleet,
            self.queue,
            self.notices,
            self.election,
            self.cache,
            self.quota_usage,
            self.recorder,
            BindSlots(),
        )
        self.plans = PlanRunner(
            self.fleet, self.queue, self.notices, self.quota_usage, self.recorder, rng
        )
        self.binder.is_planned = self.plans.has
        self._gangs = GangRounds(self.identity, gang_together_max)
        # How many plans may be open before the round ends.
        self._plans_most = 0
        # One slot is reserved for the lease: it must not wait behind many binds.
        slots = BINDS_MAX + NOTICES_MAX + PLAN_REQUESTS_MAX + 1
        self._inflight: Inflight[_About] = Inflight(slots)
        self._notices_sent = 0
        self._resync_at_ms = 0
        self._was_ready = False
        self._policy: SchedulerPolicy | None = None
        # Grows when a rule that decisions depend on has changed.
        self._rules = 0
        self._wake_ms: int | None = None

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        """Process one stimulus and return the effects to perform, in order."""
        knew = self.cache.is_ready
        rules = self._policy.spec.fairness if self._policy is not None else NO_RULES
        self.shares.begin(now, rules)
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
        found = backlog(self.queue, self.cache, self.fleet, self.verdict_cache, now)
        fairness = self.shares.reports(self._share.takes)
        starts = self.starts
        return msgspec.structs.replace(
            found,
            fairness=fairness,
            estimates=starts.settled,
            estimate_error_ms=starts.error_ms,
            preemptions=self.plans.preemptions(),
            in_turn=self.plans.swaps,
        )

    def _do_what_is_due(self, now: Instant) -> Effects:
        """Do all that is due, whatever the stimulus was: nothing here depends on one event."""
        effects: Effects = []
        request = self.election.due(now)
        if request is not None:
            effects.append(self._lease(request, now))
        self.binder.overdue(now)
        for bind, again in self.binder.due(now):
            effects.append(self._inflight.ask(again, _About(bind), now.monotonic_ms))
        self._resync(now)
        if self.shares.is_refresh_due:
            self.shares.refresh(self.fleet.columns.totals())
        view = self._view(now)
        freed, self.binder.freed = self.binder.freed | self.plans.freed, {}
        self.plans.freed = {}
        self.plans.freed_nodes(freed)
        effects += self._go_on_with_plans(view, now)
        refunded = [*self.binder.take_refunded(), *self.plans.refunded]
        self.plans.refunded = {}
        settled, self.binder.slots.freed = self.binder.slots.freed, {}
        self._hints.after_settled(settled)
        self._reopen(now)
        self._hints.after_releases(view, refunded, self.binder.doubted)
        self._hints.after_changes(view, freed, now)
        effects += self._decide(view, now)
        effects += self._go_on_with_plans(view, now)
        effects += self._publish(now)
        effects += self._read_budgets(now)
        effects += self.recorder.due(now.monotonic_ms)
        return [*effects, *self._wake(now)]

    def _go_on_with_plans(self, view: FleetSnapshot, now: Instant) -> list[Ask]:
        """Send what plans need now, and learn from those that were given up."""
        if self.election.term is not None and self.cache.is_ready:
            for plan in self._gangs.without_plan(view, self.election.term, self.plans, now):
                self.plans.start(plan, view, now)
        calls = self.plans.due(view, now)
        refused, self.plans.refused = self.plans.refused, []
        for plan, refusal in refused:
            self._learn(plan, refusal, now)
        return [
            self._inflight.ask(request, _About(plan=call), now.monotonic_ms)
            for call, request in calls
        ]

    def _learn(self, plan: PlacementPlan, refusal: Refusal, now: Instant) -> None:
        match reaction_to(refusal.reason):
            case RefusalReaction.ANOTHER_NODE if "node" in refusal.details:
                self.fleet.shun(refusal.details["node"], refusal, now.monotonic_ms)
            case RefusalReaction.LEASE_LOST:
                self.election.lost()
            case _ if refusal.reason is Reason.DISRUPTION_BUDGET:
                victim = self.fleet.evictables.get(refusal.details["victim"])
                known = self.cache.get("replicas", *victim.key) if victim is not None else None
                if known is not None:
                    self.fleet.budgets.refused((known.namespace, known.spec.workload))

    def _view(self, now: Instant) -> FleetSnapshot:
        return FleetSnapshot(
            self.cache,
            self.cache.revision,
            self.cache.age_ms(now),
            self.election.observation_age_max_ms,
            fleet=self.fleet,
            policy=self._policy,
            rules=self._rules,
            quota_usage=self.quota_usage,
        )

    # Answers -------------------------------------------------------------------------------------

    def _answered(self, stimulus: Answered, now: Instant) -> list[Ask]:
        sent = self._inflight.answered(stimulus.call)
        if sent is None:
            return []
        request, answer, about = sent.request, stimulus.body, sent.about
        if about.plan is not None:
            self.plans.answered(about.plan, request, answer, now)
            return []
        if about.budget is not None:
            self._budget_read(about.budget, answer)
            return []
        follow_up: Bind | Get | None = None
        match request:
            case ReportPending() if about.notice is not None:
                self._notices_sent -= 1
                self.notices.answered(about.notice, request, answer, now.monotonic_ms)
            case Bind() | Get() if about.bind is not None:
                if isinstance(request, Bind):
                    took_ms = now.monotonic_ms - sent.sent_ms
                    self.binder.record_latency(took_ms, failed=isinstance(answer, HoldfastError))
                follow_up = self.binder.answered(about.bind, request, answer, now)
            case Get() | AcquireLease() | RenewLease():
                acquire = self.election.answered(request, answer, sent.sent_ms, now)
                return [self._lease(acquire, now)] if acquire is not None else []
        if follow_up is None:
            return []
        return [self._inflight.ask(follow_up, about, now.monotonic_ms)]

    def _read_budgets(self, now: Instant) -> list[Ask]:
        """Read the workloads whose budgets have refused, where the requests of binds leave room."""
        return [
            self._inflight.ask(
                Get("workloads", key[1], key[0]), _About(budget=key), now.monotonic_ms
            )
            for key in self.fleet.budgets.to_read(self._bind_slots)
        ]

    def _budget_read(self, key: Key, answer: Reply) -> None:
        if not isinstance(answer, GetResult):
            self.fleet.budgets.failed(key)
            return
        found = answer.object if isinstance(answer.object, Workload) else None
        self.fleet.budgets.read(key, found, self.cache.all("replicas"))

    def _lease(self, request: Get | AcquireLease | RenewLease, now: Instant) -> Ask:
        about, now_ms = _About(), now.monotonic_ms
        return self._inflight.ask(request, about, now_ms, timeout_ms=RENEW_TIMEOUT_MS)

    # Changes -------------------------------------------------------------------------------------

    def _apply_change(self, change: ObjectChange, now: Instant) -> None:
        freed = self.fleet.notice(change)
        self.starts.notice(change)
        self.plans.notice(change)
        self.binder.freed |= dict.fromkeys(freed)
        if change.plural in ("replicas", "reservations"):
            is_less = self.quota_usage.notice(change.before, change.after)
            # Freed nodes count too: quotas may not be known here yet.
            if is_less or freed:
                self.binder.note_refund(change.object.namespace)
        if isinstance(change.object, Reservation):
            self._gangs.note(change, is_ours=self._share.takes(change.object.namespace))
        if change.plural == "replicas":
            self.shares.notice(change.before, change.after)
            self._replica(change, now)
        elif change.plural == "schedulerpolicies":
            self._policy = policy_in_force(self.cache.all("schedulerpolicies"))
            if spec_of(change.before) != spec_of(change.after):
                self.queue.wake_all()
        elif change.plural == "workloads" and spec_of(change.before) != spec_of(change.after):
            # Members may be known before their workload is, and a lower minimum may fit now.
            self.queue.wake_waiting_for(WakeEvent.TOPOLOGY)
        elif change.plural in RULES and spec_of(change.before) != spec_of(change.after):
            self._rules += 1
            if change.plural == "quotas":
                tenant = change.object.namespace
                limit_tenant(self.quota_usage, tenant, self.cache, self.fleet)
                self.binder.slots.limit(tenant, self.cache.get("quotas", tenant, QUOTA_NAME))
            self.queue.wake_waiting_for(WakeEvent.ALLOWANCE)

    def _replica(self, change: ObjectChange, now: Instant) -> None:
        before, after = change.before, change.after
        if isinstance(before, Replica):
            uid = before.metadata.uid
            same = isinstance(after, Replica) and after.metadata.uid == uid
            self.binder.seen(uid, after if isinstance(after, Replica) and same else None, now)
        if isinstance(after, Replica) and self._is_ours(after):
            if isinstance(before, Replica):
                self.notices.seen(before, after)
            self._enqueue(after, now)
        else:
            key = change.object.namespace, change.object.name
            self.queue.forget(key)
            self.notices.forget(key)

    def _enqueue(self, replica: Replica, now: Instant) -> None:
        key, number = (replica.namespace, replica.name), replica.status.transition_number
        workload = replica.spec.workload
        most = self.binder.slots.pending_per_workload(key[0])
        lane, first = self._lane(replica), is_requeued(replica)
        uid = replica.metadata.uid
        entry = self.queue.add(key, uid, number, lane, workload, most, first=first)
        if entry is None:
            whose, number = f"tenant {key[0]}", PENDING_PER_TENANT_MAX
            if most is not None and self.queue.is_capped(key[0], workload):
                whose, number = f"workload {workload}", most
            message = (
                f"{whose} already has {number} pending replicas; more are not considered until "
                "some are placed"
            )
            report = PlacementReport({PENDING_CAP: 1}, message, Verdict.WAITING, ())
            self.notices.say(replica, report, 0, self._resync_at_ms, now)

    def _reopen(self, now: Instant) -> None:
        """Queue more replicas of workloads of which half that were queued are placed."""
        if not self.queue.reopened:
            return
        reopened, self.queue.reopened = self.queue.reopened, {}
        for replica in self.cache.all("replicas"):
            whose = replica.metadata.namespace, replica.spec.workload
            if whose in reopened and self._is_ours(replica):
                self._enqueue(replica, now)

    def _lane(self, replica: Replica) -> Lane:
        found = self.cache.get(
            "priorityclasses", "", budget_of(replica.spec.template.priority_class)
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
        self.fleet.budgets.resync()
        for replica in self.cache.all("replicas"):
            if self._is_ours(replica):
                self._enqueue(replica, now)
        self.queue.wake_all()

    def _is_ours(self, replica: Replica) -> bool:
        """Whether this scheduler is responsible for placing a replica."""
        return is_waiting(replica) and self._share.takes(replica.metadata.namespace)

    # Deciding ------------------------------------------------------------------------------------

    @property
    def _bind_slots(self) -> int:
        return self._inflight.room - NOTICES_MAX - PLAN_REQUESTS_MAX - 1

    def _may_decide(self, now: Instant) -> bool:
        """Whether the cache is ready, the lease was acknowledged recently, and there is room."""
        if self.election.term is None or not self.election.is_acknowledged(now):
            return False
        # A bind that a change has settled may still have a request in flight.
        room = min(self.binder.room, self._bind_slots)
        if room < ROUND_MIN and len(self._inflight) > ROUND_MIN and not self.queue.has_urgent:
            # Every request is answered, or given up by the shell, so more room will follow.
            return False
        return room > 0 and self.cache.is_ready

    def _decide(self, view: FleetSnapshot, now: Instant) -> list[Ask]:
        """One round: as many decisions as there is room for, in the order of the queue."""
        effects: list[Ask] = []
        if not self._may_decide(now):
            return effects
        room = min(DECISIONS_MAX, self.binder.room, self._bind_slots)
        run: list[_Turn] = []
        salt = -1
        self._plans_most = len(self.plans) + PLANS_PER_ROUND_MAX
        for _ in range(room):
            turn = self._next_turn(now) if len(self.plans) < self._plans_most else None
            if turn is None:
                break
            if salt < 0:
                salt = salt_of(self._rng)
                self._gangs.begin_round()
                self._open_round(view, salt, now)
            is_alone = promise_of(view, turn[1]) is not None
            if run and (is_alone or run[0][0].class_key != turn[0].class_key):
                effects += self._place(view, run, salt, now)
                run = []
            if is_alone:
                effects += self._place(view, [turn], salt, now)
                continue
            entry, replica = turn
            self.shares.expect(entry.tenant, replica)
            run.append(turn)
            if self.binder.slots.is_limited(entry.tenant):
                # Whether the next one may be sent depends on this one.
                effects += self._place(view, run, salt, now)
                run = []
        if run:
            effects += self._place(view, run, salt, now)
        self.recorder.close()
        return effects

    def _open_round(self, view: FleetSnapshot, salt: int, now: Instant) -> None:
        term = self.election.term
        if term is not None:
            self.recorder.open(view, term, salt, self.cache.seen, now)

    def _next_turn(self, now: Instant) -> _Turn | None:
        """The next queue entry that still needs a node."""
        while (entry := self.queue.take(now.monotonic_ms)) is not None:
            replica: Replica | None = self.cache.get("replicas", *entry.key)
            if replica is None or not is_waiting(replica):
                self.queue.forget(entry.key)
            elif self.fleet.assumed(entry.uid) is not None or self.plans.has(entry.uid):
                # Its bind is in flight, or was accepted and the cache does not show it yet; or a
                # plan decides about it.
                self.queue.park(entry, ())
            elif not self._must_wait_for_binds(entry, replica, now):
                if entry.class_key is None:
                    entry.class_key = self.verdict_cache.key(replica)
                return entry, replica
        return None

    def _must_wait_for_binds(self, entry: QueueEntry, replica: Replica, now: Instant) -> bool:
        """Whether its tenant or workload has as many binds in flight as may be; then it waits."""
        limit = self.binder.slots.full(entry.tenant, entry.workload)
        if not limit:
            return False
        self.queue.park(entry, (WakeEvent.BINDS,))
        report = PlacementReport({BINDS_CAP: 1}, limit, Verdict.WAITING, (WakeEvent.BINDS,))
        # Most binds are settled in milliseconds, and each report is a write.
        self.notices.say(
            replica, report, entry.turns, self._resync_at_ms, now, after_ms=BINDS_CAP_AFTER_MS
        )
        return True

    def _place(self, view: FleetSnapshot, run: list[_Turn], salt: int, now: Instant) -> list[Ask]:
        """Place several replicas of one equivalence class."""
        effects: list[Ask] = []
        term = self.election.term
        if term is None:
            unreachable("a decision needs a lease term")
        if run[0][1].spec.gang:
            return self._place_gang(view, run, salt, term, now)
        while run:
            replicas = [it for _, it in run]
            closed = self.starts.closed_nodes(replicas, run[0][0].lane, now)
            decisions = propose(_without(view, closed), replicas, now, salt, self.verdict_cache)
            quota = self._quota_state(view, run[0][1])
            self.recorder.decided(run, decisions, quota, closed)
            for (entry, replica), decision in zip(run, decisions, strict=False):
                place = self._place_of(view, entry, replica, decision, term, now)
                if place is None:
                    continue
                self.starts.started(entry.uid, now)
                it = self.binder.start(entry, replica, place, term, now, self._rng)
                effects.append(self._inflight.ask(it.bind, _About(it), now.monotonic_ms))
            # There may be fewer decisions than replicas: what was just assumed matters to the rest.
            run = run[len(decisions) :]
            if len(self.plans) >= self._plans_most:
                for entry, _ in reversed(run):
                    self.queue.put_back(entry)
                break
        self.shares.forget_expected()
        return effects

    def _place_of(
        self,
        view: FleetSnapshot,
        entry: QueueEntry,
        replica: Replica,
        decision: Decision,
        term: Term,
        now: Instant,
    ) -> BindReplica | None:
        """Where to bind a replica; None if it waits, or if other work has to stop first."""
        place: BindReplica | None = None
        match decision:
            case BindReplica():
                place = decision
            case StayPending(report=report):
                place = self._lanes.place(view, replica, report, now)
                if place is None:
                    told = self._told(view, entry, replica, report, now)
                    self._wait(entry, replica, told, now)
            case Preempt(report=report):
                place = self._lanes.place(view, replica, report, now)
                if place is None:
                    self._preempt(view, replica, decision, term, now)
            case BindGang():
                unreachable(f"{replica.name} is of no gang, and was placed with one")
        return place

    def _told(
        self,
        view: FleetSnapshot,
        entry: QueueEntry,
        replica: Replica,
        report: PlacementReport,
        now: Instant,
    ) -> PlacementReport:
        """The report with the estimated start of a job, which is reserved from now on."""
        equivalence = self.verdict_cache.known(entry.class_key)
        return self.starts.with_estimate(view, replica, entry.lane, report, equivalence, now)

    def _preempt(
        self, view: FleetSnapshot, replica: Replica, found: Preempt, term: Term, now: Instant
    ) -> None:
        """Start the plan that makes room, or leave it to the next round if there are too many."""
        entry = self.queue.get((replica.namespace, replica.name))
        if entry is not None and not self.plans.room:
            self._wait(entry, replica, found.report, now)
            return
        plan = plan_of(self.identity, term, replica, found, view, now)
        self.plans.start(plan, view, now)

    def _place_gang(
        self, view: FleetSnapshot, run: list[_Turn], salt: int, term: Term, now: Instant
    ) -> list[Ask]:
        """Place the gang of these members: the first one's turn decides for all of them."""
        effects: list[Ask] = []
        waiting = [it for it in members_of(view, run[0][1]) if is_waiting(it)]
        closed = self.starts.closed_nodes(waiting, run[0][0].lane, now)
        decided = self._gangs.decide(
            _without(view, closed), run[0][1], now, salt, self.verdict_cache, self.plans
        )
        report: PlacementReport | None = None
        match decided:
            case StayPending():
                report = decided.report if not decided.is_underway else None
            case Preempt():
                self._preempt(view, run[0][1], decided, term, now)
                report = decided.report if decided.keys else None
            case BindGang() if decided.needed:
                plan = self._gangs.plan_of(decided, term, now)
                self.plans.start(plan, view, now)
            case BindGang():
                report = decided.rest
                for replica, place in decided.places:
                    entry = self.queue.get((replica.namespace, replica.name))
                    if entry is not None and entry.uid == replica.metadata.uid:
                        it = self.binder.start(entry, replica, place, term, now, self._rng)
                        effects.append(self._inflight.ask(it.bind, _About(it), now.monotonic_ms))
        leads = True
        for entry, replica in run:
            if self.plans.has(entry.uid):
                # Parked by its plan, which keeps how often it has failed.
                continue
            is_placed = self.fleet.assumed(entry.uid) is not None
            if is_placed or report is None:
                self.queue.park(entry, ())
            elif leads:
                # Its turn comes again for all of them.
                leads = False
                self._wait(entry, replica, report, now)
            else:
                self.queue.park(entry, ())
                if not report.in_question:
                    self.notices.say(replica, report, entry.turns, self._resync_at_ms, now)
        return effects

    @staticmethod
    def _quota_state(view: FleetSnapshot, replica: Replica) -> str:
        if view.quota_usage is None or not view.quota_usage.is_counting:
            return ""
        budget = budget_of(replica.spec.template.priority_class)
        return view.quota_usage.state(replica.namespace, view.capacity_class(budget), budget)

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
        moments += [self.recorder.next_ms, self.plans.next_ms]
        if self.election.term is not None:
            moments.append(self._gangs.next_ms)
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


def _without(view: FleetSnapshot, closed: tuple[str, ...]) -> FleetSnapshot:
    """The view for work that must leave these nodes alone."""
    if not closed:
        return view
    sites = (view.fleet.get(name) for name in closed)
    rows = tuple(site.row for site in sites if site is not None)
    return msgspec.structs.replace(view, closed=rows)
