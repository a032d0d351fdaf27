"""Runs all controllers of a plane as one machine: one cache for all, a lease and a queue for each.

Controllers that read other planes share a cache of each. Leases are of the own plane only: another
plane that cannot be reached stops no controller.

The host runs one runner or several; for each controller, the runner that holds its lease acts. The
others watch the same objects, so that they can take over at once. The controllers' requests go to
the authority under each one's own identity and term; the answer decides when a key is reconciled
again:

    Accepted                 once the cache shows the effect
    Refusal                  when an object of the key changes, or after a backoff
    Refusal StaleEpoch       likewise, and the lease counts as lost
    Unavailable              after a backoff
    OutcomeUnknown           the object is read; once the cache is as new as the read

A repetition has the same operation id and the same names, so it takes effect once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.correct.controller import (
    REQUESTS_PER_PLAN_MAX,
    Controller,
    key_of,
    operation,
)
from holdfast.correct.controller_worker import ControllerWorker
from holdfast.model.errors import invariant
from holdfast.model.machine import (
    Answered,
    Ask,
    Effects,
    Question,
    Reply,
    Rng,
    Stimulus,
    Wake,
    Woken,
)
from holdfast.model.nodes.heartbeat import HeartbeatQuery
from holdfast.model.observation_age import is_too_old
from holdfast.model.pulse import Beat
from holdfast.model.read_requests import Get
from holdfast.model.requests import Accepted, AcquireLease, Create, Request, Term, under_term
from holdfast.model.time import Instant, sooner
from holdfast.observe.cache import Cache, Key, ObjectChange, is_for_cache_only
from holdfast.observe.inflight import Inflight, InflightRequest
from holdfast.observe.leader_election import RENEW_TIMEOUT_MS, LeaseQuestion
from holdfast.observe.operation import RequestOperation
from holdfast.observe.snapshot import Snapshot
from holdfast.observe.watch_events import SERVERS, Follow, servers_of

ASKS_PER_CONTROLLER_MAX = 1_024
# No key is reconciled before there is room for this many requests: to compute a plan of hundreds of
# requests again for each answer, and send one request each time, costs more than all the rest.
ROOM_MIN = 256
# The reconciles of one step, so that no step takes long.
RECONCILES_PER_STEP_MAX = 64
# How soon to check again whether the cache has caught up, when no change of the key says so.
BEHIND_PAUSE_MS = 1_000
# Leases that are due within this time of each other are renewed together: servers commit requests
# that arrive together in one transaction.
LEASES_TOGETHER_MS = 500
QUESTION_TIMEOUT_MS = 2_000


class _Lease(msgspec.Struct, frozen=True):
    """A lease request of a worker."""

    worker: ControllerWorker


class _Question(msgspec.Struct, frozen=True):
    """A question of a worker to one server."""

    worker: ControllerWorker
    to: str


class _Write(msgspec.Struct, frozen=True):
    """A request of a plan, or the read that settles it when its answer was lost."""

    worker: ControllerWorker
    key: Key
    operation: RequestOperation


_About = _Lease | _Question | _Write


class ControllerRunner:
    """See the module's docstring. It owns the wake-ups `controllers` and those of its caches.

    `name` tells this process from others with the same controllers, also after restarts.
    `servers` are addresses that each lead to one server; everything but questions goes to any.
    """

    def __init__(
        self,
        controllers: Sequence[Controller],
        rng: Rng,
        *,
        name: str = "",
        servers: tuple[str, ...] = (SERVERS,),
        resync_ms: int = 60_000,
    ) -> None:
        names = [controller.name for controller in controllers]
        invariant(len(set(names)) == len(names), "a runner has each controller once")
        plurals = dict.fromkeys(plural for it in controllers for plural in it.follows)
        numbers = itertools.count(1)
        follows = [Follow(it) for it in plurals]
        self._cache = Cache(follows, rng, resync_ms=resync_ms, numbers=numbers)
        indexes = {(it.plural, it.name): it for one in controllers for it in one.indexes}
        for index in indexes.values():
            self._cache.index(index)
        of_planes: dict[str, dict[str, Follow]] = {}
        for plane, plural in (pair for it in controllers for pair in it.abroad):
            of_planes.setdefault(plane, {})[plural] = Follow(plural)
        # The caches of other planes.
        self._abroad = {
            plane: Cache(
                list(kinds.values()), rng, resync_ms=resync_ms, plane=plane, numbers=numbers
            )
            for plane, kinds in of_planes.items()
        }
        self._workers = [ControllerWorker(controller, rng, name) for controller in controllers]
        per_worker = ASKS_PER_CONTROLLER_MAX + len(servers) + 1
        self._asks: Inflight[_About] = Inflight(per_worker * len(controllers))
        self._servers, self._rng, self._resync_ms = servers, rng, resync_ms
        self._wake_ms: int | None = None
        # Plans that were not sent because the cache was too old.
        self.withheld = 0

    @property
    def cache(self) -> Cache:
        """The cache, for metrics and explanations."""
        return self._cache

    @property
    def workers(self) -> Sequence[ControllerWorker]:
        """One for each controller."""
        return self._workers

    def terms(self) -> dict[str, Term]:
        """The leases that are held as far as known, by the controller's name."""
        held = {it.controller.name: it.election.term for it in self._workers}
        return {name: term for name, term in held.items() if term is not None}

    def beats(self, now: Instant) -> tuple[Beat, ...]:
        """The counters of each controller."""
        return tuple(worker.beat(now) for worker in self._workers)

    def step(self, stimulus: Stimulus, now: Instant) -> Effects:
        """Process a stimulus; returns the effects, in order."""
        knew = self._cache.is_ready
        told = self._cache.step(stimulus, now)
        effects, changes = told.effects, told.changes
        listed = self._step_abroad(stimulus, effects, changes, now) if self._abroad else ()
        if knew and not changes and not listed and is_for_cache_only(stimulus):
            # The streams brought no change. What is due at a time has its own wake-up.
            return effects
        view = self._view(now)
        for plane in listed:
            self._add_readers(plane, view, now)
        concerned: Sequence[ControllerWorker] = self._workers
        match stimulus:
            case Answered():
                pending = self._asks.answered(stimulus.call)
                if pending is None:
                    return effects
                concerned = (pending.about.worker,)
                effects += self._answered(pending, stimulus.body, now)
            case Woken(name="controllers"):
                self._wake_ms = None
                effects += self._lease_together(now)
                concerned = [it for it in self._workers if it.is_due(now)]
            case _ if knew:
                # A change concerns workers with keys of it, and workers that wait for the cache.
                noticed = self._notice(changes, view, now)
                concerned = [
                    it
                    for it in self._workers
                    if it in noticed or it.is_due(now) or it.is_waiting(view, now)
                ]
            case _:
                self._notice(changes, view, now)
        for worker in concerned:
            effects += self._tend(worker, view, now)
            worker.due_ms = self._due_ms(worker, view, now)
        return [*effects, *self._tick(now)]

    def _step_abroad(
        self, stimulus: Stimulus, effects: Effects, changes: list[ObjectChange], now: Instant
    ) -> list[str]:
        """Let the caches of other planes process a stimulus, and add what comes of it.

        Returns the planes that were listed now for the first time.
        """
        listed = []
        for plane, cache in self._abroad.items():
            knew = cache.is_ready
            told = cache.step(stimulus, now)
            effects += told.effects
            changes += told.changes
            if cache.is_ready and not knew:
                listed.append(plane)
        return listed

    def _view(self, now: Instant) -> Snapshot:
        cache = self._cache
        abroad = {
            plane: Snapshot(it, it.revision, it.age_ms(now))
            for plane, it in self._abroad.items()
            if it.is_ready
        }
        return Snapshot(cache, cache.revision, cache.age_ms(now), abroad=abroad)

    # Reconciling ---------------------------------------------------------------------------------

    def _add_readers(self, plane: str, view: Snapshot, now: Instant) -> None:
        """Queue all keys of the controllers that read this plane: until now they saw none of it."""
        for worker in self._workers:
            reads = any(it == plane for it, _ in worker.controller.abroad)
            if reads and worker.election.term is not None:
                self._add(worker, worker.controller.all_keys(view), now)

    def _notice(
        self, changes: Sequence[ObjectChange], view: Snapshot, now: Instant
    ) -> list[ControllerWorker]:
        """Queue the keys that changes concern; returns the workers that have such keys. A worker
        without a lease lists all keys when it acquires it."""
        noticed: list[ControllerWorker] = []
        for worker in self._workers:
            if worker.election.term is None:
                continue
            follows, abroad = worker.controller.follows, worker.controller.abroad
            concerning = [
                it
                for it in changes
                if ((it.plane, it.plural) in abroad if it.plane else it.plural in follows)
            ]
            for change in concerning:
                self._add(worker, worker.controller.keys_of(change, view), now)
            if concerning:
                noticed.append(worker)
        return noticed

    @staticmethod
    def _add(worker: ControllerWorker, keys: Iterable[Key], now: Instant) -> None:
        for key in keys:
            worker.queue.add(key, now.monotonic_ms)

    def _lease_together(self, now: Instant) -> Effects:
        """Renew all leases that are due soon, if one is due now."""
        now_ms = now.monotonic_ms
        idle = [it for it in self._workers if not it.is_leasing]
        if not any(it.election.next_ms <= now_ms for it in idle):
            return []
        asked: Effects = []
        for worker in idle:
            request = worker.election.due(now, early_ms=LEASES_TOGETHER_MS)
            if request is not None:
                asked.append(self._lease(worker, request, now))
                worker.due_ms = now_ms
        return asked

    def _tend(self, worker: ControllerWorker, view: Snapshot, now: Instant) -> Effects:
        effects: Effects = []
        request = worker.election.due(now)
        if request is not None:
            effects.append(self._lease(worker, request, now))
        term = worker.term(view, now) if self._cache.is_ready else None
        if term is None:
            return effects
        if worker.listed_epoch != term.epoch or worker.resync_at_ms <= now.monotonic_ms:
            worker.refresh_memories(term, view)
            pause_ms = int(self._resync_ms * (0.75 + self._rng.random() / 2))
            worker.resync_at_ms = now.monotonic_ms + pause_ms
            self._add(worker, worker.controller.all_keys(view), now)
        for _ in range(RECONCILES_PER_STEP_MAX):
            if not _has_room(worker):
                break
            key = worker.queue.take(now.monotonic_ms)
            if key is None:
                break
            effects += self._look(worker, key, term, view, now)
        return effects

    def _look(
        self, worker: ControllerWorker, key: Key, term: Term, view: Snapshot, now: Instant
    ) -> Effects:
        """One reconcile, and the effects of its plan."""
        now_ms = now.monotonic_ms
        if worker.is_behind(key, view):
            worker.queue.done(key)
            worker.queue.add(key, now_ms + BEHIND_PAUSE_MS)
            return []
        plan = worker.controller.reconcile(view, key, term, now)
        again_ms = now_ms + plan.wake_after_ms if plan.wake_after_ms is not None else None
        asked = self._question(worker, plan.questions, now)
        requests = [("", it) for it in plan.requests]
        requests += [(it.plane, it.request) for it in plan.abroad]
        kept = [it for it in requests if _is_recent(it[0], worker, view)]
        if len(kept) < len(requests):
            self.withheld += 1
            requests, again_ms = kept, now_ms + BEHIND_PAUSE_MS
        if not requests:
            worker.vitals.looked(0, now)
            worker.queue.done(key)
            if again_ms is not None:
                worker.queue.add(key, again_ms)
            return asked
        most = min(REQUESTS_PER_PLAN_MAX, ASKS_PER_CONTROLLER_MAX - worker.asked)
        sent = [(plane, _grounded(it, plane, term, view)) for plane, it in requests[:most]]
        if len(sent) < len(requests):
            again_ms = now_ms
        operations = worker.takes_off(key, sent, again_ms, now)
        worker.vitals.looked(len(sent), now)
        writes = [_Write(worker, key, it) for it in operations]
        return [*asked, *(self._write(it.operation.request, it, now) for it in writes)]

    def _write(self, request: Request | Get, about: _Write, now: Instant) -> Ask:
        sender, to = about.worker.identity, servers_of(about.operation.plane)
        return self._asks.ask(request, about, now.monotonic_ms, to=to, sender=sender)

    def _question(
        self, worker: ControllerWorker, questions: Sequence[HeartbeatQuery], now: Instant
    ) -> Effects:
        """Ask every server that does not already owe this controller an answer."""
        asks: Effects = []
        for question in questions:
            for to in self._servers:
                if to in worker.questioned:
                    continue
                worker.questioned.add(to)
                ask = self._asks.ask(
                    question,
                    _Question(worker, to),
                    now.monotonic_ms,
                    to=to,
                    sender=worker.identity,
                    timeout_ms=QUESTION_TIMEOUT_MS,
                )
                asks.append(ask)
        return asks

    def _lease(self, worker: ControllerWorker, request: LeaseQuestion, now: Instant) -> Ask:
        worker.is_leasing = True
        return self._asks.ask(
            request,
            _Lease(worker),
            now.monotonic_ms,
            sender=worker.identity,
            timeout_ms=RENEW_TIMEOUT_MS,
        )

    # Answers -------------------------------------------------------------------------------------

    def _answered(self, pending: InflightRequest[_About], body: Reply, now: Instant) -> Effects:
        match pending.about:
            case _Lease(worker=worker):
                return self._leased(worker, pending.request, body, pending.sent_ms, now)
            case _Question(worker=worker, to=to):
                worker.questioned.discard(to)
                keys = worker.controller.answered(pending.request, to, body, pending.sent_ms, now)
                self._add(worker, keys, now)
            case _Write(worker=worker, key=key, operation=operation) as about:
                request = pending.request
                if not isinstance(request, Get):
                    sent_ms, to = pending.sent_ms, servers_of(operation.plane)
                    keys = worker.controller.answered(request, to, body, sent_ms, now)
                    self._add(worker, keys, now)
                read = worker.answered(key, operation, request, body, now)
                return [self._write(read, about, now)] if read is not None else []
        return []

    def _leased(
        self, worker: ControllerWorker, request: Question, answer: Reply, sent_ms: int, now: Instant
    ) -> Effects:
        worker.is_leasing = False
        if isinstance(request, AcquireLease) and isinstance(answer, Accepted):
            worker.lease_acquired(answer.revision, now)
        more = worker.election.answered(request, answer, sent_ms, now)
        return [self._lease(worker, more, now)] if more is not None else []

    # Time ----------------------------------------------------------------------------------------

    def _due_ms(self, worker: ControllerWorker, view: Snapshot, now: Instant) -> int | None:
        """When to tend a worker again, if nothing happens before."""
        due_ms = None if worker.is_leasing else worker.election.next_ms
        if not self._cache.is_ready or worker.election.term is None:
            return due_ms
        if worker.term(view, now) is None:
            return sooner(due_ms, max(worker.acts_at_ms, now.monotonic_ms + BEHIND_PAUSE_MS))
        due_ms = sooner(due_ms, worker.resync_at_ms)
        if _has_room(worker):
            due_ms = sooner(due_ms, worker.queue.next_ms)
        return due_ms

    def _tick(self, now: Instant) -> Effects:
        """The next wake-up, unless it is already set."""
        due = [it.due_ms for it in self._workers if it.due_ms is not None]
        if not due:
            return []
        at_ms = max(now.monotonic_ms + 1, min(due))
        if self._wake_ms == at_ms:
            return []
        self._wake_ms = at_ms
        return [Wake("controllers", at_ms)]


def _is_recent(plane: str, worker: ControllerWorker, view: Snapshot) -> bool:
    """Whether the cache of this plane is recent enough for requests that go there."""
    there = view.of(plane)
    age_max_ms = worker.election.observation_age_max_ms
    return there is not None and not is_too_old(there.age_ms, age_max_ms)


def _grounded(request: Request, plane: str, term: Term, view: Snapshot) -> Request:
    """The request with its preconditions: no controller writes without them.

    In its own plane it names its term. A create without an operation id is for the object that the
    cache of its plane lacks as of this revision: after that object was created and deleted, the
    same create is a new operation.
    """
    if isinstance(request, Create) and not request.operation:
        named = hashlib.blake2b(repr(key_of(request.object)).encode(), digest_size=12).hexdigest()
        kind = type(request.object).__name__
        there = view.abroad[plane] if plane else view
        done = operation(term.scope, named, there.revision, f"create-{kind}")
        request = msgspec.structs.replace(request, operation=done)
    return request if plane else under_term(request, term)


def _has_room(worker: ControllerWorker) -> bool:
    """Whether the next plan could be sent, or enough of it. Each answer makes room."""
    return worker.asked <= ASKS_PER_CONTROLLER_MAX - ROOM_MIN
