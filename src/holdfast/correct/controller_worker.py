"""One controller inside a runner: its lease, its queue, and its plans in flight.

A key whose plan is in flight is reconciled again only after all answers have arrived and the cache
shows their effects: a controller that decided on a cache without its own last step would repeat
that step, or take a contradicting one.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.correct.controller import Controller
from holdfast.model.errors import Unavailable
from holdfast.model.machine import Question, Reply, Rng
from holdfast.model.pulse import Beat
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Request, Term
from holdfast.model.time import Instant
from holdfast.observe.cache import Key
from holdfast.observe.leader_election import LeaderElection
from holdfast.observe.operation import Expected, Finish, RequestOperation, expected_after
from holdfast.observe.retry import RetryPolicy
from holdfast.observe.snapshot import Snapshot
from holdfast.observe.work_queue import FairWorkQueue

# One copy and one look: afterwards the key is reconciled on a cache that shows the outcome, and the
# same state makes the same request under the same id. So the operation itself sends nothing again.
WRITE_POLICY = RetryPolicy(
    tries_max=1, looks_max=1, deadline_ms=None, looks_at_once=True, repeats_undone=False
)


class Flight:
    """A plan in flight: how many answers are missing, and the effects of the others."""

    __slots__ = ("expected", "is_failed", "left", "look_again_ms", "since_ms")

    def __init__(self, left: int, look_again_ms: int | None, since_ms: int = 0) -> None:
        self.left, self.look_again_ms, self.since_ms = left, look_again_ms, since_ms
        self.is_failed = False
        # What the cache of each plane must show before the key is reconciled again.
        self.expected: list[tuple[str, Expected]] = []


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

    def answered(self, answer: Reply, now: Instant) -> None:
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


def _error_text(answer: Reply) -> str:
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
        self._rng = rng
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
        self._expected: dict[Key, list[tuple[str, Expected]]] = {}
        self._acquired_ms = self._acquired_revision = 0

    def is_due(self, now: Instant) -> bool:
        """Whether the runner has to tend it now."""
        return self.due_ms is not None and self.due_ms <= now.monotonic_ms

    def is_waiting(self, view: Snapshot, now: Instant) -> bool:
        """Whether it holds its lease but has not started its term, or may not act at present."""
        term = self.election.term
        if term is None:
            return False
        return term.epoch != self.listed_epoch or self.term(view, now) is None

    def lease_acquired(self, revision: int, now: Instant) -> None:
        """The lease was acquired at this revision."""
        self._acquired_ms, self._acquired_revision = now.monotonic_ms, revision

    def term(self, view: Snapshot, now: Instant) -> Term | None:
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

    def refresh_memories(self, term: Term, view: Snapshot) -> None:
        """Let its controller begin a term without its old memories, and rebuild the rest."""
        for memory in self.controller.remembers:
            if term.epoch != self.listed_epoch:
                memory.begin_term()
            memory.resync(view)
        self.listed_epoch = term.epoch

    def is_behind(self, key: Key, view: Snapshot) -> bool:
        """Whether the cache lacks effects of this key's last plan."""
        left = [it for it in self._expected.pop(key, ()) if not _is_met(it, view)]
        if left:
            self._expected[key] = left
        return bool(left)

    def is_settled(self, key: Key, view: Snapshot) -> bool:
        """Whether a key waits for nothing: not in the queue, not for answers or their effects."""
        is_open = key in self.queue or key in self.flights
        return not is_open and all(_is_met(it, view) for it in self._expected.get(key, ()))

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
        self,
        key: Key,
        requests: Sequence[tuple[str, Request]],
        look_again_ms: int | None,
        now: Instant,
    ) -> list[RequestOperation]:
        """Record that these requests of the key's plan are in flight, each to this plane."""
        self.flights[key] = Flight(len(requests), look_again_ms, now.monotonic_ms)
        self.asked += len(requests)
        now_ms = now.monotonic_ms
        return [
            RequestOperation(it, WRITE_POLICY, self._rng, now_ms, plane=plane)
            for plane, it in requests
        ]

    def answered(
        self, key: Key, operation: RequestOperation, sent: Question, answer: Reply, now: Instant
    ) -> Get | None:
        """Process the answer to a request, or to the read that followed a lost answer.

        Returns the read that settles an unknown outcome: nothing else is decided for this key
        before that is known. The cache must become as new as the read, so that it shows what
        happened. If the read failed too, the same request is sent again under the same id.
        """
        flight = self.flights[key]
        if not isinstance(sent, Get):
            self.vitals.answered(answer, now)
        call = operation.answered(sent, answer, now.monotonic_ms)
        match call:
            case Get():
                return call
            case Finish(body=Accepted(replayed=False)):
                pass
            case _:
                # Also after a replay: the cache has yet to receive the effect of the earlier copy.
                flight.is_failed = True
        match answer:
            case GetResult() | Accepted(replayed=False):
                after = expected_after(operation.request, answer)
                flight.expected += [(operation.plane, it) for it in after]
            case Refusal(reason=Reason.STALE_EPOCH) if not operation.plane:
                self.election.lost()
        self._landed(key, now)
        return None

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


def _is_met(expected: tuple[str, Expected], view: Snapshot) -> bool:
    plane, it = expected
    there = view.of(plane)
    return there is not None and it.is_met(there)
