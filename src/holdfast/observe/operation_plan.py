"""A plan: operations in steps, of which each waits for the evidence of the one before.

Preemption is such a plan: stop the victims and reserve their place, await their Released, bind. A
gang is one too: reserve a place for each member, commit the gang, bind each. The scheduler runs its
plans with `propose/plans.py`. Requirements E5 and F6 hold for each operation
(`observe/operation.py`), and for the order: a step is sent only when

- all operations of the step before have ended with success,
- the snapshot has caught up with them and is not too old, since the next requests are made from it,
- and what the step awaits is true in that snapshot.

A plan is kept in memory only. Each step makes its requests from the snapshot, and none for what is
shown there as done; so a process that restarts makes the plan again and continues where the store
is. If an operation of a step fails, the others are still followed to their outcome, the plan ends
with the reason, and its owner decides again. What was reserved for it has a deadline of its own.

The owner calls `due` after each answer, change and pause, sends what it returns, and passes the
answers back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any

import msgspec

from holdfast.model.errors import invariant
from holdfast.model.machine import Question, Reply, Rng
from holdfast.model.operation_evidence import settling_read
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Request
from holdfast.observe.operation import (
    Expected,
    Finish,
    GiveUp,
    NextCall,
    Pause,
    RequestOperation,
    expected_after,
)
from holdfast.observe.retry import RetryPolicy
from holdfast.observe.snapshot import Snapshot

# A step of a gang has a request for each of its members.
REQUESTS_PER_STEP_MAX = 1_024


class AwaitProgress(Enum):
    """How far a snapshot shows what is awaited."""

    NOT_YET = auto()
    MET = auto()
    # It cannot come true any more.
    IMPOSSIBLE = auto()


class AwaitShown(msgspec.Struct, frozen=True, gc=False):
    """A snapshot shows what this function looks for, named by `what`."""

    what: str
    progress: Callable[[Any], AwaitProgress]


class PlanStep(msgspec.Struct, frozen=True):
    """Requests that are sent together once everything in `awaits` is true.

    `requests` makes them from the snapshot, without those whose effect it shows. The id of each is
    derived from what it names, so that the same intention has the same id after a restart. The
    snapshot is of the type that the owner of the plan passes to `due`.
    """

    name: str
    requests: Callable[[Any], Sequence[Request]]
    awaits: tuple[AwaitShown, ...] = ()


class PlanDone(msgspec.Struct, frozen=True, gc=False):
    """All steps took effect."""


class PlanGivenUp(msgspec.Struct, frozen=True):
    """The plan ended in this step, for this reason. Steps before it took effect."""

    step: str
    reason: str
    end: GiveUp | None = None


class OperationPlan:
    """See the module's docstring. No step begins after `deadline_ms`; what was sent is followed to
    its outcome all the same.
    """

    def __init__(
        self, steps: Sequence[PlanStep], policy: RetryPolicy, rng: Rng, deadline_ms: int
    ) -> None:
        self._steps, self._policy, self._rng = steps, policy, rng
        self._deadline_ms = deadline_ms
        self._at = 0
        self._is_begun = False
        self._numbers = 0
        # The operations of this step without an outcome, and when their pauses end.
        self._open: dict[int, RequestOperation] = {}
        self._pauses: dict[int, int] = {}
        self._calls: list[tuple[int, Request | Get]] = []
        self._expected: list[Expected] = []
        self._failure: GiveUp | None = None
        self.end: PlanDone | PlanGivenUp | None = None

    @property
    def next_ms(self) -> int | None:
        """When `due` has to be called, if nothing happens before."""
        if self.end is not None:
            return None
        waits = self._pauses.values() if self._open else (self._deadline_ms,)
        return min(waits, default=None)

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of all that was sent is known and seen: it waits for evidence."""
        return not self._open and not self._expected

    def due(self, snapshot: Snapshot, now_ms: int) -> list[tuple[int, Request | Get]]:
        """What to send now, each with the number under which its answer is passed back."""
        self._settle_by(snapshot, now_ms)
        for number in [it for it, due_ms in self._pauses.items() if due_ms <= now_ms]:
            del self._pauses[number]
            self._follow(number, self._open[number].resume(now_ms), now_ms)
        while self.end is None and not self._open and self._is_at_next_step(snapshot, now_ms):
            self._begin(self._steps[self._at], snapshot, now_ms)
        calls, self._calls = self._calls, []
        return calls

    def answered(self, number: int, sent: Question, answer: Reply, now_ms: int) -> None:
        """Process the answer to what `due` returned under this number."""
        operation = self._open.get(number)
        if operation is not None:
            # Otherwise the snapshot showed the outcome before.
            self._follow(number, operation.answered(sent, answer, now_ms), now_ms)

    def _settle_by(self, snapshot: Snapshot, now_ms: int) -> None:
        for number, operation in list(self._open.items()):
            it = settling_read(operation.request)
            if it is None:
                continue
            end = operation.seen(snapshot.get(it.plural, it.namespace, it.name), now_ms)
            if end is not None:
                self._pauses.pop(number, None)
                self._follow(number, end, now_ms)

    def _follow(self, number: int, call: NextCall, now_ms: int) -> None:
        """Note what an operation of this step does next, or its outcome."""
        operation = self._open[number]
        match call:
            case Pause(duration_ms=duration_ms):
                self._pauses[number] = now_ms + duration_ms
            case Finish(body=body):
                del self._open[number]
                self._expected += _shown_after(operation.request, body)
            case GiveUp():
                del self._open[number]
                self._failure = self._failure or call
            case Get():
                self._calls.append((number, call))
            case _ if self._failure is not None:
                # The plan has failed, so another copy would be for nothing.
                del self._open[number]
            case _:
                self._calls.append((number, call))

    def _is_at_next_step(self, snapshot: Snapshot, now_ms: int) -> bool:
        """Whether the next step may begin now. Otherwise it waits, or the plan has ended."""
        step = self._steps[self._at]
        if self._failure is not None:
            error = self._failure.error
            reason = (
                f"{error.reason}: {error.message}" if isinstance(error, Refusal) else str(error)
            )
            self.end = PlanGivenUp(step.name, reason, self._failure)
            return False
        self._expected = [it for it in self._expected if not it.is_met(snapshot)]
        if self._is_begun and not self._expected:
            self._at, self._is_begun = self._at + 1, False
            if self._at == len(self._steps):
                self.end = PlanDone()
                return False
            step = self._steps[self._at]
        waits = "the snapshot has not caught up" if self._expected else ""
        if snapshot.is_too_old:
            waits = "the snapshot is too old to decide on"
        for awaited in () if waits else step.awaits:
            match awaited.progress(snapshot):
                case AwaitProgress.IMPOSSIBLE:
                    self.end = PlanGivenUp(step.name, f"{awaited.what} cannot come true any more")
                    return False
                case AwaitProgress.NOT_YET:
                    waits = waits or f"{awaited.what} is not true yet"
        if waits and now_ms >= self._deadline_ms:
            self.end = PlanGivenUp(step.name, f"the deadline has passed, and {waits}")
        return not waits and self.end is None

    def _begin(self, step: PlanStep, snapshot: Snapshot, now_ms: int) -> None:
        requests = step.requests(snapshot)
        invariant(len(requests) <= REQUESTS_PER_STEP_MAX, f"step {step.name} is too large")
        if requests and now_ms >= self._deadline_ms:
            self.end = PlanGivenUp(step.name, "the deadline has passed")
            return
        self._is_begun = True
        for request in requests:
            self._numbers += 1
            operation = RequestOperation(request, self._policy, self._rng, now_ms)
            self._open[self._numbers] = operation
            self._calls.append((self._numbers, request))


def _shown_after(request: Request, body: object) -> Sequence[Expected]:
    """What the snapshot must show before the next step is made from it.

    An answer may come without the object: after a replay, or because its sender watches it anyway.
    Then the object, or everything, must be as new as the answer.
    """
    it = settling_read(request)
    if it is None or not isinstance(body, Accepted | GetResult):
        return ()
    found = expected_after(request, body)
    if found:
        return found
    may_be_gone = not request.creates_subject
    return (Expected(it.plural, it.namespace, it.name, body.revision, may_be_gone),)
