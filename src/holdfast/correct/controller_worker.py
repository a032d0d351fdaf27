"""One controller inside a runner: its lease, its queue, and its plans in flight.

A key whose plan is in flight is reconciled again only after all answers have arrived and the cache
shows their effects: a controller that decided on a cache without its own last step would repeat
that step, or take a contradicting one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.correct.controller import Controller, View
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.errors import HoldfastError, Unavailable, invariant, unreachable
from holdfast.model.machine import Rng
from holdfast.model.meta import Object
from holdfast.model.pulse import Beat
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.requests import (
    Accepted,
    Create,
    DropReservation,
    Evict,
    HoldCapacity,
    JudgeNode,
    Move,
    Patch,
    Remove,
    ReportStage,
    Term,
    Unreserve,
    Update,
)
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.observe.leader_election import LeaderElection
from holdfast.observe.watch_events import Get, GetResult
from holdfast.observe.work_queue import FairWorkQueue

# A plan in flight, and when the cache has caught up with its effects.
#
# A request names one object. Its outcome is known from its answer or, when that is lost, from a
# read of that object; the cache has caught up once it shows the object at that revision, or gone.


class Expected(msgspec.Struct, frozen=True, gc=False):
    """The cache must show this object at this revision before its key is reconciled.

    `may_be_gone` says that the object existed before, or was read as missing: a cache without it
    has then caught up. A cache without an object that was just created has not.
    """

    plural: str
    namespace: str
    name: str
    revision: int
    may_be_gone: bool

    def is_met(self, view: View) -> bool:
        """Whether the cache shows the object, or is complete up to that revision."""
        if view.revision >= self.revision:
            return True
        found: Object | None = view.get(self.plural, self.namespace, self.name)
        if found is None:
            return self.may_be_gone
        return object_revision(found.metadata.resource_version) >= self.revision


class Flight:
    """A plan in flight: how many answers are missing, and the effects of the others."""

    __slots__ = ("expected", "is_failed", "left", "look_again_ms", "since_ms")

    def __init__(self, left: int, look_again_ms: int | None, since_ms: int = 0) -> None:
        self.left, self.look_again_ms, self.since_ms = left, look_again_ms, since_ms
        self.is_failed = False
        self.expected: list[Expected] = []


def subject(request: Any) -> Get:
    """The read of the one object that a request changes."""
    match request:
        case (
            Move(target=target)
            | Evict(target=target)
            | ReportStage(target=target)
            | Unreserve(target=target)
        ):
            return Get("replicas", target.name, target.namespace)
        case JudgeNode(node=node):
            return Get("nodes", node)
        case HoldCapacity(namespace=namespace, owner=owner, intent=intent):
            return Get("reservations", f"{owner.name}-{intent.value}", namespace)
        case DropReservation(namespace=namespace, reservation=reservation):
            return Get("reservations", reservation, namespace)
        case Create(object=obj) | Update(object=obj):
            return Get(kind_of(obj).plural, obj.name, obj.namespace)
    if not isinstance(request, Remove | Patch):
        unreachable(f"no controller sends {type(request).__name__}")
    return Get(request.plural, request.name, request.namespace)


def after_writing(request: Any, answer: Accepted) -> list[Expected]:
    """What the cache will show after an accepted request."""
    it = subject(request)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    if not may_be_gone and not answer.objects:
        # A server need not return a created object: it is as requested, at the answer's revision.
        return [Expected(it.plural, it.namespace, it.name, answer.revision, may_be_gone)]
    return [
        Expected(it.plural, it.namespace, it.name, object_revision(version), may_be_gone)
        for obj in answer.objects
        if (obj.namespace, obj.name) == (it.namespace, it.name)
        and (version := obj.metadata.resource_version)
    ]


def after_reading(request: Any, found: GetResult) -> Expected:
    """What the cache will show after a read that followed a request without an answer."""
    it, obj = subject(request), found.object
    if obj is None:
        return Expected(it.plural, it.namespace, it.name, found.revision, may_be_gone=True)
    since = object_revision(obj.metadata.resource_version)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    return Expected(it.plural, it.namespace, it.name, since, may_be_gone)


# The health of a controller as counters that only grow, for metrics and `holdfast status`.
#
# The lease of its scope shows that the controller is alive; these counters show what it does:
# whether it still reconciles, and the outcomes of its requests. `ControllerRunner.beats` returns
# them, and `host/component/pulse_sender.py` sends them to the servers.

# There are fewer reason codes of refusals than this; it is a bound all the same.
REASONS_MAX = 100
SENTENCE_MAX = 240


class Vitals:
    """The counts of one controller since its process began."""

    __slots__ = (
        "accepted",
        "down",
        "last_error",
        "last_error_ms",
        "last_look_ms",
        "looks",
        "refused",
        "sent",
        "unknown",
    )

    def __init__(self) -> None:
        # The number of reconciles, and the time of the last one by the process's own clock.
        self.looks, self.last_look_ms = 0, 0
        # Requests and their outcomes; refusals by reason.
        self.sent = self.accepted = self.down = self.unknown = 0
        self.refused: dict[str, int] = {}
        # The last error and its time.
        self.last_error, self.last_error_ms = "", 0

    def looked(self, requests: int, now: Instant) -> None:
        """Count a reconcile that sends this many requests."""
        self.looks += 1
        self.last_look_ms = now.monotonic_ms
        self.sent += requests

    def answered(self, answer: Any, now: Instant) -> None:
        """Count the answer to a request."""
        if not isinstance(answer, Accepted):
            self.last_error, self.last_error_ms = _error_text(answer), now.monotonic_ms
        match answer:
            case Accepted():
                self.accepted += 1
            case Refusal(reason=reason):
                name = str(reason)
                if name in self.refused or len(self.refused) < REASONS_MAX:
                    self.refused[name] = self.refused.get(name, 0) + 1
            case Unavailable():
                self.down += 1
            case _:
                self.unknown += 1


def _error_text(answer: Any) -> str:
    """The error in one sentence."""
    if isinstance(answer, Refusal):
        return f"{answer.reason}: {answer.message}"[:SENTENCE_MAX]
    return f"{type(answer).__name__}: {answer}"[:SENTENCE_MAX]


# After it has acquired its lease a controller waits this long before it acts, unless its cache is
# known to hold all writes of its predecessor.
TAKEOVER_WAIT_MS = 2_000


class ControllerWorker:
    """See the module's docstring."""

    def __init__(self, controller: Controller, rng: Rng, instance: str = "") -> None:
        self.controller = controller
        self.identity = controller.identity
        scope = f"controller:{controller.name}"
        self.election = LeaderElection(scope, self.identity, instance=instance)
        self.queue: FairWorkQueue[Key] = FairWorkQueue(rng, controller.flow_of)
        self.flights: dict[Key, Flight] = {}
        self.asked = 0
        self.vitals = Vitals()
        # Whether a lease request is in flight, and which servers have yet to answer a question.
        self.is_leasing = False
        self.questioned: set[str] = set()
        self.listed_epoch = 0
        self.resync_at_ms = 0
        # When the runner tends it again, if nothing happens before.
        self.due_ms: int | None = None
        self._expected: dict[Key, list[Expected]] = {}
        self._acquired_ms = self._acquired_revision = 0

    def is_due(self, now: Instant) -> bool:
        """Whether the runner has to tend it now."""
        return self.due_ms is not None and self.due_ms <= now.monotonic_ms

    def is_waiting(self, view: View, now: Instant) -> bool:
        """Whether it holds its lease but has not started its term, or may not act at present."""
        term = self.election.term
        if term is None:
            return False
        return term.epoch != self.listed_epoch or self.term(view, now) is None

    def lease_acquired(self, revision: int, now: Instant) -> None:
        """The lease was acquired at this revision."""
        self._acquired_ms, self._acquired_revision = now.monotonic_ms, revision

    def term(self, view: View, now: Instant) -> Term | None:
        """The term to act under; None while it may not act."""
        if not self.election.is_acknowledged(now):
            return None
        if now.monotonic_ms < self.acts_at_ms and view.revision < self._acquired_revision:
            return None
        return self.election.term

    @property
    def acts_at_ms(self) -> int:
        """When it starts to act under its present lease at the latest."""
        return self._acquired_ms + TAKEOVER_WAIT_MS

    def is_behind(self, key: Key, view: View) -> bool:
        """Whether the cache lacks effects of this key's last plan."""
        left = [it for it in self._expected.pop(key, ()) if not it.is_met(view)]
        if left:
            self._expected[key] = left
        return bool(left)

    def beat(self, now: Instant) -> Beat:
        """Its counters, for the pulse of its process."""
        vitals, term, now_ms = self.vitals, self.election.term, now.monotonic_ms
        # Flights are in the order in which they were sent.
        oldest = next(iter(self.flights.values()), None)
        waits_ms = [oldest.since_ms] if oldest is not None else []
        due_ms = self.queue.next_ms
        if due_ms is not None and term is not None:
            waits_ms.append(due_ms)
        return Beat(
            scope=self.election.scope,
            epoch=term.epoch if term is not None else 0,
            looks=vitals.looks,
            looked_ago_ms=max(0, now_ms - vitals.last_look_ms) if vitals.looks else None,
            waiting=len(self.queue) + len(self.flights),
            overdue_ms=max(0, now_ms - min(waits_ms, default=now_ms)),
            sent=vitals.sent,
            accepted=vitals.accepted,
            down=vitals.down,
            unknown=vitals.unknown,
            refused=dict(vitals.refused),
            last_error=vitals.last_error,
            last_error_ago_ms=max(0, now_ms - vitals.last_error_ms) if vitals.last_error else None,
        )

    def takes_off(
        self, key: Key, requests: int, look_again_ms: int | None, since_ms: int = 0
    ) -> None:
        """Record that this many requests of the key's plan are in flight."""
        self.flights[key] = Flight(requests, look_again_ms, since_ms)
        self.asked += requests

    def written(self, key: Key, request: Any, answer: Any, now: Instant) -> Get | None:
        """Process the answer to a request; returns the read that settles an unknown outcome."""
        flight = self.flights[key]
        self.vitals.answered(answer, now)
        match answer:
            case Accepted(replayed=False):
                flight.expected += after_writing(request, answer)
            case Refusal(reason=reason):
                flight.is_failed = True
                if reason is Reason.STALE_EPOCH:
                    self.election.lost()
            case Accepted() | Unavailable():
                # The cache has not received the effect of the earlier, identical request yet.
                flight.is_failed = True
            case _:
                # It may have happened. Nothing else is decided for this key before that is known.
                invariant(isinstance(answer, HoldfastError), f"unknown type of answer: {answer!r}")
                return subject(request)
        self._landed(key, now)
        return None

    def settled(self, key: Key, request: Any, answer: Any, now: Instant) -> None:
        """Process the read that followed a request without an answer.

        The cache must become as new as the read, so that it shows what happened. If the read failed
        too, the same request is sent again under the same id.
        """
        flight = self.flights[key]
        flight.is_failed = True
        if isinstance(answer, GetResult):
            flight.expected.append(after_reading(request, answer))
        self._landed(key, now)

    def _landed(self, key: Key, now: Instant) -> None:
        """One request of this key's plan is over; requeue the key after the last one."""
        flight = self.flights[key]
        self.asked -= 1
        flight.left -= 1
        if flight.left:
            return
        del self.flights[key]
        if flight.expected:
            self._expected[key] = flight.expected
        if flight.is_failed:
            self.queue.failed(key, now.monotonic_ms)
            return
        self.queue.done(key)
        if flight.look_again_ms is not None:
            self.queue.add(key, flight.look_again_ms)
