"""All controllers of a plane in one machine: one picture for all, a lease and a queue for each.

The shell runs one team or several; for each controller the one whose team holds its lease acts.
The others follow the same news, so that they can take over at once. What the controllers decide
goes to the authority under each one's own identity and term, and comes back here as an answer:

    Accepted                 the key is looked at again once the picture shows it
    Refusal                  again when there is news of it, or after a pause that grows
    Refusal StaleEpoch       likewise, and the lease is taken for lost
    Unavailable              again after a pause that grows
    OutcomeUnknown           the object is read; again once the picture is as new as what was read

A repetition has the same operation id and the same names, so it takes effect once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.correct.controller import (
    REQUESTS_PER_PLAN_MAX,
    Controller,
    View,
    key_of,
    operation,
    sooner,
)
from holdfast.correct.controller_worker import ControllerWorker
from holdfast.model.errors import invariant
from holdfast.model.machine import Answered, Ask, Rng, Wake, Woken
from holdfast.model.pulse import Beat
from holdfast.model.requests import Accepted, AcquireLease, Create, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache, Key, ObjectChange, is_for_cache_only
from holdfast.observe.inflight import Inflight, InflightRequest
from holdfast.observe.leader_election import RENEW_TIMEOUT_MS
from holdfast.observe.watch_events import SERVERS, Follow

# Servers give a sign of life every 15 s at the latest. A picture that has not heard two of them is
# no ground to do anything on: what is missing from it may just not have been told.
PICTURE_AGE_MAX_MS = 30_000
ASKS_PER_CONTROLLER_MAX = 1_024
# Nothing is looked at before there is room for so many requests: a plan of hundreds that is made
# anew for each answer, and of which one request is sent each time, costs more than all the rest.
ROOM_MIN = 256
# What one step may look at, so that no step takes long.
RECONCILES_PER_STEP_MAX = 64
# How soon to see whether the picture has caught up, when no news of the key says so.
BEHIND_PAUSE_MS = 1_000
# Leases that are due within this time of each other are tended together: servers write down at once
# what comes at once.
LEASES_TOGETHER_MS = 500
QUESTION_TIMEOUT_MS = 2_000


class _Lease(msgspec.Struct, frozen=True):
    """What the tenure of a member asked."""

    member: ControllerWorker


class _Question(msgspec.Struct, frozen=True):
    """What a member asked one server."""

    member: ControllerWorker
    to: str


class _Write(msgspec.Struct, frozen=True):
    """A request of a plan."""

    member: ControllerWorker
    key: Key


class _Settle(msgspec.Struct, frozen=True):
    """The read that tells what became of a request whose outcome is unknown."""

    member: ControllerWorker
    key: Key
    request: Any


class ControllerRunner:
    """See the module's docstring. It owns the wake-ups `team` and, by its cache, `cache`.

    `name` tells this process from others with the same controllers, in all its lives.
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
        invariant(len(set(names)) == len(names), "a team has each controller once")
        plurals = dict.fromkeys(plural for it in controllers for plural in it.follows)
        self._cache = Cache([Follow(it) for it in plurals], rng, resync_ms=resync_ms)
        indexes = {(it.plural, it.name): it for one in controllers for it in one.indexes}
        for index in indexes.values():
            self._cache.index(index.plural, index.name, index.of)
        self._members = [ControllerWorker(controller, rng, name) for controller in controllers]
        per_member = ASKS_PER_CONTROLLER_MAX + len(servers) + 1
        self._asks: Inflight[Any] = Inflight(per_member * len(controllers))
        self._servers, self._rng, self._resync_ms = servers, rng, resync_ms
        self._wake_ms: int | None = None
        # Plans that were not sent because the picture was too old.
        self.withheld = 0

    @property
    def cache(self) -> Cache:
        """The picture, for metrics and explanations."""
        return self._cache

    def terms(self) -> dict[str, Term]:
        """The leases that are held as far as is known, by the controller's name."""
        held = {it.controller.name: it.election.term for it in self._members}
        return {name: term for name, term in held.items() if term is not None}

    def beats(self, now: Instant) -> tuple[Beat, ...]:
        """The heartbeat of each controller."""
        return tuple(member.beat(now) for member in self._members)

    def step(self, stimulus: Any, now: Instant) -> list[Any]:
        """Take in a stimulus; what to do, in order."""
        knew = self._cache.is_ready
        told = self._cache.step(stimulus, now)
        if knew and not told.changes and is_for_cache_only(stimulus):
            # The streams told nothing new. What is due at a time has a wake-up of its own.
            return told.effects
        effects, view = told.effects, View(self._cache, now)
        concerned: Sequence[ControllerWorker] = self._members
        match stimulus:
            case Answered():
                pending = self._asks.answered(stimulus.call)
                if pending is None:
                    return effects
                concerned = (pending.about.member,)
                effects += self._answered(pending, stimulus.body, now)
            case Woken(name="team"):
                self._wake_ms = None
                effects += self._lease_together(now)
                concerned = [it for it in self._members if it.is_due(now)]
            case _ if knew:
                # News concern whom they give something to look at, and whoever waits for them.
                noticed = self._notice(told.changes, view, now)
                concerned = [
                    it
                    for it in self._members
                    if it in noticed or it.is_due(now) or it.is_waiting(view, now)
                ]
            case _:
                self._notice(told.changes, view, now)
        for member in concerned:
            effects += self._tend(member, view, now)
            member.due_ms = self._due_ms(member, view, now)
        return [*effects, *self._tick(now)]

    # Looking -------------------------------------------------------------------------------------

    def _notice(
        self, changes: Sequence[ObjectChange], view: View, now: Instant
    ) -> list[ControllerWorker]:
        """Have the keys looked at that news concern; by whom. Who holds no lease lists all keys
        later."""
        noticed: list[ControllerWorker] = []
        for member in self._members:
            if member.election.term is None:
                continue
            follows = member.controller.follows
            concerning = [change for change in changes if change.plural in follows]
            for change in concerning:
                self._add(member, member.controller.keys_of(change, view), now)
            if concerning:
                noticed.append(member)
        return noticed

    @staticmethod
    def _add(member: ControllerWorker, keys: Iterable[Key], now: Instant) -> None:
        for key in keys:
            member.queue.add(key, now.monotonic_ms)

    def _lease_together(self, now: Instant) -> list[Any]:
        """Tend all leases that are due soon, if one is due now."""
        now_ms = now.monotonic_ms
        idle = [it for it in self._members if not it.is_leasing]
        if not any(it.election.next_ms <= now_ms for it in idle):
            return []
        asked: list[Any] = []
        for member in idle:
            request = member.election.due(now, early_ms=LEASES_TOGETHER_MS)
            if request is not None:
                asked.append(self._lease(member, request, now))
                member.due_ms = now_ms
        return asked

    def _tend(self, member: ControllerWorker, view: View, now: Instant) -> list[Any]:
        effects: list[Any] = []
        request = member.election.due(now)
        if request is not None:
            effects.append(self._lease(member, request, now))
        term = member.term(view, now) if self._cache.is_ready else None
        if term is None:
            return effects
        if member.listed_epoch != term.epoch or member.resync_at_ms <= now.monotonic_ms:
            member.listed_epoch = term.epoch
            pause_ms = int(self._resync_ms * (0.75 + self._rng.random() / 2))
            member.resync_at_ms = now.monotonic_ms + pause_ms
            self._add(member, member.controller.all_keys(view), now)
        for _ in range(RECONCILES_PER_STEP_MAX):
            if not _has_room(member):
                break
            key = member.queue.take(now.monotonic_ms)
            if key is None:
                break
            effects += self._look(member, key, term, view, now)
        return effects

    def _look(
        self, member: ControllerWorker, key: Key, term: Term, view: View, now: Instant
    ) -> Sequence[Any]:
        """One reconcile, and the effects of its plan."""
        now_ms = now.monotonic_ms
        if member.is_behind(key, view):
            member.queue.done(key)
            member.queue.add(key, now_ms + BEHIND_PAUSE_MS)
            return ()
        plan = member.controller.reconcile(view, key, term, now)
        again_ms = now_ms + plan.wake_after_ms if plan.wake_after_ms is not None else None
        asked = self._question(member, plan.questions, now)
        requests = plan.requests
        if requests and view.age_ms > PICTURE_AGE_MAX_MS:
            self.withheld += 1
            requests, again_ms = (), now_ms + BEHIND_PAUSE_MS
        if not requests:
            member.vitals.looked(0, now)
            member.queue.done(key)
            if again_ms is not None:
                member.queue.add(key, again_ms)
            return asked
        most = min(REQUESTS_PER_PLAN_MAX, ASKS_PER_CONTROLLER_MAX - member.asked)
        sent = [_grounded(it, term, view) for it in requests[:most]]
        if len(sent) < len(requests):
            again_ms = now_ms
        member.takes_off(key, len(sent), again_ms, now_ms)
        member.vitals.looked(len(sent), now)
        about = _Write(member, key)
        return [
            *asked,
            *(self._asks.ask(it, about, now_ms, sender=member.identity) for it in sent),
        ]

    def _question(
        self, member: ControllerWorker, questions: Sequence[Any], now: Instant
    ) -> list[Any]:
        """Ask every server that does not owe this controller an answer already."""
        asks: list[Ask] = []
        for question in questions:
            for to in self._servers:
                if to in member.questioned:
                    continue
                member.questioned.add(to)
                ask = self._asks.ask(
                    question,
                    _Question(member, to),
                    now.monotonic_ms,
                    to=to,
                    sender=member.identity,
                    timeout_ms=QUESTION_TIMEOUT_MS,
                )
                asks.append(ask)
        return asks

    def _lease(self, member: ControllerWorker, request: Any, now: Instant) -> Ask:
        member.is_leasing = True
        return self._asks.ask(
            request,
            _Lease(member),
            now.monotonic_ms,
            sender=member.identity,
            timeout_ms=RENEW_TIMEOUT_MS,
        )

    # Answers -------------------------------------------------------------------------------------

    def _answered(self, pending: InflightRequest[Any], body: Any, now: Instant) -> list[Any]:
        match pending.about:
            case _Lease(member=member):
                return self._leased(member, pending.request, body, pending.sent_ms, now)
            case _Question(member=member, to=to):
                member.questioned.discard(to)
                news = member.controller.answered(pending.request, to, body, pending.sent_ms, now)
                self._add(member, news, now)
            case _Write(member=member, key=key):
                request, sent_ms = pending.request, pending.sent_ms
                news = member.controller.answered(request, SERVERS, body, sent_ms, now)
                self._add(member, news, now)
                get = member.written(key, request, body, now)
                if get is not None:
                    settle = _Settle(member, key, request)
                    now_ms = now.monotonic_ms
                    return [self._asks.ask(get, settle, now_ms, sender=member.identity)]
            case _Settle(member=member, key=key, request=request):
                member.settled(key, request, body, now)
        return []

    def _leased(
        self, member: ControllerWorker, request: Any, answer: Any, sent_ms: int, now: Instant
    ) -> list[Any]:
        member.is_leasing = False
        if isinstance(request, AcquireLease) and isinstance(answer, Accepted):
            member.took_office(answer.revision, now)
        more = member.election.answered(request, answer, sent_ms, now)
        return [self._lease(member, more, now)] if more is not None else []

    # Time ----------------------------------------------------------------------------------------

    def _due_ms(self, member: ControllerWorker, view: View, now: Instant) -> int | None:
        """When to look after a member again, if nothing happens before."""
        due_ms = None if member.is_leasing else member.election.next_ms
        if not self._cache.is_ready or member.election.term is None:
            return due_ms
        if member.term(view, now) is None:
            return sooner(due_ms, max(member.acts_at_ms, now.monotonic_ms + BEHIND_PAUSE_MS))
        due_ms = sooner(due_ms, member.resync_at_ms)
        if _has_room(member):
            due_ms = sooner(due_ms, member.queue.next_ms)
        return due_ms

    def _tick(self, now: Instant) -> list[Any]:
        """The next wake-up, unless it is set already."""
        due = [it.due_ms for it in self._members if it.due_ms is not None]
        if not due:
            return []
        at_ms = max(now.monotonic_ms + 1, min(due))
        if self._wake_ms == at_ms:
            return []
        self._wake_ms = at_ms
        return [Wake("team", at_ms)]


def _grounded(request: Any, term: Term, view: View) -> Any:
    """The request with what it rests on: no controller writes without it.

    It names its term. A create that names no operation is about the object that the picture lacks
    as of this revision: decided once more after that object was made and deleted, it is another.
    """
    if isinstance(request, Create) and not request.operation:
        named = hashlib.blake2b(repr(key_of(request.object)).encode(), digest_size=12).hexdigest()
        kind = type(request.object).__name__
        done = operation(term.scope, named, view.revision, f"create-{kind}")
        return msgspec.structs.replace(request, operation=done, term=term)
    is_missing = getattr(request, "term", term) is None
    return msgspec.structs.replace(request, term=term) if is_missing else request


def _has_room(member: ControllerWorker) -> bool:
    """Whether the next plan could be sent, or enough of it. Each answer makes room."""
    return member.asked <= ASKS_PER_CONTROLLER_MAX - ROOM_MIN
