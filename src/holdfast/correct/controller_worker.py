"""One controller in its team: its lease, its queue, and what of its plans is on its way.

A key whose plan is on its way is not looked at again before all answers are there, nor before the
picture shows what they brought about: a controller that decided on a picture without its own last
step would take that step again, or another one.
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

# A plan on its way, and when the picture has caught up with what came of it.
#
# A request names one object. What became of it is known from its answer or, when that is lost, from
# a read of that object; and the picture has caught up once it shows the object so, or its end.


class Expected(msgspec.Struct, frozen=True, gc=False):
    """The picture has to show this object as of this revision before its key is looked at.

    `may_be_gone` says that the object was known, or known not to be there: a picture without it has
    then caught up. One without an object that was just made has not.
    """

    plural: str
    namespace: str
    name: str
    revision: int
    may_be_gone: bool

    def is_met(self, view: View) -> bool:
        """Whether it shows it, or has been told whole past that revision."""
        if view.revision >= self.revision:
            return True
        found: Object | None = view.get(self.plural, self.namespace, self.name)
        if found is None:
            return self.may_be_gone
        return object_revision(found.metadata.resource_version) >= self.revision


class Flight:
    """A plan on its way: how many answers are missing, and what came of the others."""

    __slots__ = ("expected", "is_failed", "left", "look_again_ms", "since_ms")

    def __init__(self, left: int, look_again_ms: int | None, since_ms: int = 0) -> None:
        self.left, self.look_again_ms, self.since_ms = left, look_again_ms, since_ms
        self.is_failed = False
        self.expected: list[Expected] = []


def subject(request: Any) -> Get:
    """The question for the one object that a request changes."""
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
    """What an accepted request lets us expect to see."""
    it = subject(request)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    if not may_be_gone and not answer.objects:
        # A server need not repeat an object that is new: it is as it was asked for, since then.
        return [Expected(it.plural, it.namespace, it.name, answer.revision, may_be_gone)]
    return [
        Expected(it.plural, it.namespace, it.name, object_revision(version), may_be_gone)
        for obj in answer.objects
        if (obj.namespace, obj.name) == (it.namespace, it.name)
        and (version := obj.metadata.resource_version)
    ]


def after_reading(request: Any, found: GetResult) -> Expected:
    """What a read after a request without an answer lets us expect to see."""
    it, obj = subject(request), found.object
    if obj is None:
        return Expected(it.plural, it.namespace, it.name, found.revision, may_be_gone=True)
    since = object_revision(obj.metadata.resource_version)
    may_be_gone = not isinstance(request, Create | HoldCapacity)
    return Expected(it.plural, it.namespace, it.name, since, may_be_gone)


# How a controller is doing, in numbers that only grow, for metrics and for whoever asks.
#
# Its heartbeat is the lease of its scope, which it renews under its own name and everybody can
# read. That says that it lives; these say what it does: whether it still looks, and what becomes of
# what it asks for. Kept by `member.py`, told by `Team.beats`, brought to the servers by
# `host/component/pulse_sender.py`.

# As many different reasons of refusals are told apart as there are codes; a bound all the same.
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
        # How often it looked at a key, and when it last did by the process's own clock.
        self.looks, self.last_look_ms = 0, 0
        # Requests, and what became of them; refusals by reason.
        self.sent = self.accepted = self.down = self.unknown = 0
        self.refused: dict[str, int] = {}
        # What last went wrong, and when.
        self.last_error, self.last_error_ms = "", 0

    def looked(self, requests: int, now: Instant) -> None:
        """It looked at a key, and sends so many requests."""
        self.looks += 1
        self.last_look_ms = now.monotonic_ms
        self.sent += requests

    def answered(self, answer: Any, now: Instant) -> None:
        """One of its requests was answered."""
        if not isinstance(answer, Accepted):
            self.last_error, self.last_error_ms = _said(answer), now.monotonic_ms
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


def _said(answer: Any) -> str:
    """What went wrong, in a sentence."""
    if isinstance(answer, Refusal):
        return f"{answer.reason}: {answer.message}"[:SENTENCE_MAX]
    return f"{type(answer).__name__}: {answer}"[:SENTENCE_MAX]


# After taking office a controller looks on for so long, unless it knows that its picture holds all
# that its predecessor did.
LOOK_ON_MS = 2_000


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
        # Whether the tenure waits for an answer, and which servers have yet to answer a question.
        self.is_leasing = False
        self.questioned: set[str] = set()
        self.listed_epoch = 0
        self.resync_at_ms = 0
        # When its team looks after it again, if nothing happens before.
        self.due_ms: int | None = None
        self._expected: dict[Key, list[Expected]] = {}
        self._office_ms = self._office_revision = 0

    def is_due(self, now: Instant) -> bool:
        """Whether its team has to look after it now."""
        return self.due_ms is not None and self.due_ms <= now.monotonic_ms

    def is_waiting(self, view: View, now: Instant) -> bool:
        """Whether it holds its lease and has yet to begin its term, or may not act at present."""
        term = self.election.term
        if term is None:
            return False
        return term.epoch != self.listed_epoch or self.term(view, now) is None

    def took_office(self, revision: int, now: Instant) -> None:
        """The lease was acquired at this revision."""
        self._office_ms, self._office_revision = now.monotonic_ms, revision

    def term(self, view: View, now: Instant) -> Term | None:
        """The term to act under, if it may act now."""
        if not self.election.is_acknowledged(now):
            return None
        if now.monotonic_ms < self.acts_at_ms and view.revision < self._office_revision:
            return None
        return self.election.term

    @property
    def acts_at_ms(self) -> int:
        """From when it acts in its present office at the latest."""
        return self._office_ms + LOOK_ON_MS

    def is_behind(self, key: Key, view: View) -> bool:
        """Whether the picture lacks what this key's last plan brought about."""
        left = [it for it in self._expected.pop(key, ()) if not it.is_met(view)]
        if left:
            self._expected[key] = left
        return bool(left)

    def beat(self, now: Instant) -> Beat:
        """Its heartbeat."""
        vitals, term, now_ms = self.vitals, self.election.term, now.monotonic_ms
        # Flights are in the order in which they took off.
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
        """So many requests of this key's plan are sent."""
        self.flights[key] = Flight(requests, look_again_ms, since_ms)
        self.asked += requests

    def written(self, key: Key, request: Any, answer: Any, now: Instant) -> Get | None:
        """Take in the answer to a request; what to read first, when it leaves us in the dark."""
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
                # What was done before is in the news that the picture has not had yet.
                flight.is_failed = True
            case _:
                # It may have happened. Nothing else is decided for this key before that is known.
                invariant(isinstance(answer, HoldfastError), f"{answer!r} is no answer")
                return subject(request)
        self._landed(key, now)
        return None

    def settled(self, key: Key, request: Any, answer: Any, now: Instant) -> None:
        """Take in what was read after a request without an answer.

        The picture must become as new as that, so that it shows what happened. If nothing could be
        read either, the same request goes out again under the same id.
        """
        flight = self.flights[key]
        flight.is_failed = True
        if isinstance(answer, GetResult):
            flight.expected.append(after_reading(request, answer))
        self._landed(key, now)

    def _landed(self, key: Key, now: Instant) -> None:
        """One request of this key's plan is over; give the key back after the last one."""
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
