"""One operation, from its first copy until its outcome is known: a machine without I/O.

The scheduler's binds, the controllers' requests, the agent's reports and the client of people use
it. One `OperationMachine` accompanies one request; its owner performs what each step returns, and
passes back the result. The rules (requirement E5):

- It did not happen (Unavailable): pause, longer each time and with jitter, then send again, or give
  up where the owner decides again. What the server asks for (Retry-After) is respected.
- It may have happened (OutcomeUnknown): never send again before having *looked*: read the object
  and see whether it remembers the operation (`model/operation_evidence.py`). Only when it does not,
  the same request is sent again under the same id, so that all copies together take effect at most
  once. No other candidate is tried before that.
- It was refused: that is the answer, unless an earlier copy may have caused the refusal; then it is
  looked up first. A caller that can decide again on a fresh read does so after a Conflict.
- A snapshot that shows the outcome settles it like a look, whenever that comes.

Copies, looks and time are bounded by a `RetryPolicy` (`observe/retry.py`). An owner that gives up
in doubt reports OutcomeUnknown, never "it failed". When the outcome is known, `Expected` says when
a snapshot has caught up with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, StrEnum, auto
from typing import Any

import msgspec

from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.errors import (
    Conflict,
    Expired,
    HoldfastError,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    invariant,
    unreachable,
)
from holdfast.model.machine import Question, Reply, Rng
from holdfast.model.meta import Object
from holdfast.model.operation_evidence import Evidence, evidence_in, settling_read
from holdfast.model.read_requests import Get, GetResult
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Request
from holdfast.observe.retry import HELD_BACK_MS, LASTING, Budget, RetryPolicy
from holdfast.observe.snapshot import Snapshot


class Nature(StrEnum):
    """What kind of request this is, for its retries.

    READ may simply be repeated. WRITE depends only on what it states itself. CHANGE is computed by
    the caller from what it reads, so it can be computed again.
    """

    READ = "Read"
    WRITE = "Write"
    CHANGE = "Change"


# Stimuli ------------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, gc=False):
    """The operation begins."""


class Replied(msgspec.Struct, frozen=True):
    """A copy was accepted."""

    body: Any


class Failed(msgspec.Struct, frozen=True):
    """A copy, or the fresh read before it, was refused or ended with an error."""

    error: HoldfastError | Refusal
    retry_after_ms: int = 0


class Looked(msgspec.Struct, frozen=True):
    """The object was read, or a snapshot showed more than ABSENT.

    `body` is what success would have returned.
    """

    evidence: Evidence
    body: Any = None


class LookFailed(msgspec.Struct, frozen=True):
    """The object could not be read."""

    error: HoldfastError
    retry_after_ms: int = 0


class Paused(msgspec.Struct, frozen=True, gc=False):
    """The pause is over."""


Stimulus = Begun | Replied | Failed | Looked | LookFailed | Paused

# Effects ------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send the request. `fresh` means: read first, and compute the request from that."""

    timeout_ms: int
    fresh: bool = False


class LookForOperation(msgspec.Struct, frozen=True, gc=False):
    """Read the object, linearizably, and look for the operation in its record of operations."""

    timeout_ms: int


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Wait. `sends` says that the next copy follows, if no snapshot shows the outcome before."""

    duration_ms: int
    sends: bool = False


class Finish(msgspec.Struct, frozen=True):
    """It took effect. `tries` copies were sent; `looked` says that the answer itself was lost."""

    body: Any
    tries: int
    looked: bool = False


class Why(Enum):
    """Why an operation was given up."""

    # It was decided against.
    REFUSED = auto()
    # It did not happen, by a fault.
    UNDONE = auto()
    # The object has changed without it, so it cannot happen any more.
    OVERTAKEN = auto()
    # All answers were lost, and the last look showed no trace.
    NO_TRACE = auto()
    # It may have happened.
    UNKNOWN = auto()


class GiveUp(msgspec.Struct, frozen=True):
    """It ends without success, for this reason."""

    error: HoldfastError | Refusal
    tries: int
    why: Why


NextAction = Send | LookForOperation | Pause | Finish | GiveUp


class _Next(StrEnum):
    """What follows the pause."""

    SEND = "Send"
    LOOK = "Look"


class OperationMachine:
    """One operation. See the module's docstring.

    `budget` is shared by all operations of a client; a machine bounds its own by their number.
    """

    __slots__ = (
        "_began_ms",
        "_budget",
        "_failures",
        "_fresh",
        "_in_doubt",
        "_is_waiting",
        "_looks",
        "_nature",
        "_next",
        "_policy",
        "_refusal",
        "_rng",
        "_tries",
        "_trouble",
    )

    def __init__(
        self, policy: RetryPolicy, nature: Nature, rng: Rng, budget: Budget | None = None
    ) -> None:
        self._policy, self._nature, self._rng = policy, nature, rng
        self._budget = budget
        self._began_ms = 0
        self._tries = 0
        self._looks = 0
        self._failures = 0
        self._fresh = nature is Nature.CHANGE
        # A copy was sent that may still take effect, whatever the result of later ones.
        self._in_doubt = False
        # The error to report if the current look finds nothing: then the refusal is the answer.
        self._refusal: Rejected | Expired | Refusal | None = None
        self._next = _Next.SEND
        self._is_waiting = False
        # The last error, for a request that waits in vain for the budget.
        self._trouble: HoldfastError = _UNSENT

    @property
    def tries(self) -> int:
        """How many copies were sent."""
        return self._tries

    def step(self, stimulus: Stimulus, now_ms: int) -> NextAction:
        """Process what happened, and return the one thing to do next."""
        match stimulus:
            case Begun():
                self._began_ms = now_ms
                if self._budget is not None:
                    self._budget.sent_first()
                return self._send(now_ms)
            case Replied(body=body):
                self._was_answered()
                return Finish(body, self._tries)
            case Failed(error=error, retry_after_ms=after_ms):
                return self._failed(error, after_ms, now_ms)
            case Looked(evidence=evidence, body=body):
                return self._looked(evidence, body, now_ms)
            case LookFailed(error=error, retry_after_ms=after_ms):
                if self._is_lasting(error):
                    return self._give_up(error)
                self._was_not_answered(error)
                return self._pause(_Next.LOOK, error, after_ms, now_ms)
            case Paused():
                if not self._may_spend(now_ms):
                    return self._hold_back(now_ms)
                self.end()
                return self._send(now_ms) if self._next is _Next.SEND else self._look(now_ms)

    def end(self) -> None:
        """Stop waiting. A caller that leaves before the last step must call this."""
        if self._is_waiting and self._budget is not None:
            self._is_waiting = False
            self._budget.waited()

    def _hold_back(self, now_ms: int) -> NextAction:
        budget = self._budget
        if budget is not None and not self._is_waiting:
            if not budget.wait():
                many = f"{budget.waiting} requests of this client are already waiting to be retried"
                return self._give_up(Unavailable(f"{self._trouble.message}; {many}"))
            self._is_waiting = True
        pause_ms = self._policy.pause(self._failures, 0, self._rng)
        return self._wait(self._trouble, max(HELD_BACK_MS, pause_ms), now_ms)

    def _was_answered(self) -> None:
        if self._budget is not None:
            self._budget.answered(was_again=self._tries + self._looks > 1)

    def _was_not_answered(self, error: HoldfastError) -> None:
        # Any other error is an answer.
        if self._budget is not None and isinstance(error, Unavailable | OutcomeUnknown):
            self._budget.failed()

    def _failed(self, error: HoldfastError | Refusal, after_ms: int, now_ms: int) -> NextAction:
        if isinstance(error, Rejected | Expired | Refusal):
            code = error.reason if isinstance(error, Refusal) else error.code
            is_reused = code == Reason.OPERATION_REUSED and not self._has_looked_enough
            if self._in_doubt or is_reused:
                # Our own earlier copy, or one of an earlier process, may have caused the refusal.
                self._refusal = error
                return self._look(now_ms)
            return self._refused(error, now_ms)
        if self._is_lasting(error):
            return self._give_up(error)
        self._was_not_answered(error)
        if self._nature is Nature.READ:
            return self._pause(_Next.SEND, error, after_ms, now_ms)
        if isinstance(error, Unavailable):
            if self._policy.repeats_undone:
                return self._pause(_Next.SEND, error, after_ms, now_ms)
            if not self._in_doubt:
                return self._give_up(error)
        self._in_doubt = True
        if self._policy.looks_at_once:
            return self._look(now_ms)
        return self._pause(_Next.LOOK, error, after_ms, now_ms)

    def _refused(self, error: Rejected | Expired | Refusal, now_ms: int) -> NextAction:
        if isinstance(error, Conflict) and self._nature is Nature.CHANGE:
            self._fresh = True
            return self._pause(_Next.SEND, error, 0, now_ms)
        return GiveUp(error, self._tries, Why.REFUSED)

    def _looked(self, evidence: Evidence, body: Any, now_ms: int) -> NextAction:
        if evidence is Evidence.DONE:
            self._was_answered()
            return Finish(body, self._tries, looked=True)
        if evidence is Evidence.OVERTAKEN:
            return GiveUp(_overtaken(), self._tries, Why.OVERTAKEN)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            return self._refused(refusal, now_ms)
        self._fresh = self._nature is Nature.CHANGE
        if not self._may_try(now_ms):
            return GiveUp(_lost(), self._tries, Why.NO_TRACE)
        if self._policy.looks_at_once:
            return self._pause(_Next.SEND, _lost(), 0, now_ms)
        # The look followed a pause already, and the server was reached.
        return self._send(now_ms)

    def _send(self, now_ms: int) -> NextAction:
        invariant(self._tries < self._policy.tries_max, "tries_max was exceeded")
        self._tries += 1
        fresh, self._fresh = self._fresh, False
        return Send(self._time(now_ms), fresh)

    def _look(self, now_ms: int) -> NextAction:
        if self._has_looked_enough:
            return self._give_up(_lost())
        self._looks += 1
        return LookForOperation(self._time(now_ms))

    def _pause(self, then: _Next, error: HoldfastError, after_ms: int, now_ms: int) -> NextAction:
        self._failures += 1
        if then is _Next.SEND and self._tries >= self._policy.tries_max:
            return self._give_up(error)
        if then is _Next.LOOK and self._has_looked_enough:
            return self._give_up(_lost())
        self._next, self._trouble = then, error
        return self._wait(error, self._policy.pause(self._failures, after_ms, self._rng), now_ms)

    def _wait(self, error: HoldfastError, pause_ms: int, now_ms: int) -> NextAction:
        if self._left_ms(now_ms) <= pause_ms:
            return self._give_up(error)
        return Pause(pause_ms, sends=self._next is _Next.SEND)

    def _may_spend(self, now_ms: int) -> bool:
        # A conflict is not the fault of a server: it was answered, and is decided again.
        if self._budget is None or isinstance(self._trouble, Rejected):
            return True
        return self._budget.spend(now_ms)

    def _may_try(self, now_ms: int) -> bool:
        return self._left_ms(now_ms) > 0 and self._tries < self._policy.tries_max

    @property
    def _has_looked_enough(self) -> bool:
        looks_max = self._policy.looks_max
        return looks_max is not None and self._looks >= looks_max

    def _give_up(self, error: HoldfastError) -> GiveUp:
        self.end()
        if not self._in_doubt:
            return GiveUp(error, self._tries, Why.UNDONE)
        if not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"an earlier try may have taken effect; then: {error.message}")
        return GiveUp(error, self._tries, Why.UNKNOWN)

    def _is_lasting(self, error: HoldfastError) -> bool:
        """Whether repeating is in vain. A look without a deadline goes on until a person acts."""
        is_in_vain = isinstance(error, Unavailable) and error.code in LASTING
        return is_in_vain and self._policy.deadline_ms is not None

    def _left_ms(self, now_ms: int) -> int:
        deadline_ms = self._policy.deadline_ms
        if deadline_ms is None:
            return _UNLIMITED_MS
        return deadline_ms - (now_ms - self._began_ms)

    def _time(self, now_ms: int) -> int:
        return max(1, min(self._policy.try_ms, self._left_ms(now_ms)))


# Longer than any pause or try.
_UNLIMITED_MS = 1 << 53
# Never raised, so one serves all operations.
_UNSENT = Unavailable("no request was sent yet")


def _lost() -> OutcomeUnknown:
    return OutcomeUnknown("the answer was lost, and no trace of the operation was found in time")


def _overtaken() -> Conflict:
    return Conflict("the object has changed without the operation")


# Typed requests. ---------------------------------------------------------------------------------


class RequestOperation:
    """A typed request of a machine as an operation: what to send next, from the replies.

    Its owner sends what it gets, the request itself or the read of its subject, and passes back
    what comes. Both go to the same `plane`, the own one if that is empty.
    """

    __slots__ = ("_machine", "plane", "request")

    def __init__(
        self, request: Request, policy: RetryPolicy, rng: Rng, now_ms: int, *, plane: str = ""
    ) -> None:
        self.request, self.plane = request, plane
        self._machine = OperationMachine(policy, Nature.WRITE, rng)
        self._machine.step(_BEGUN, now_ms)

    @property
    def tries(self) -> int:
        """How many copies were sent, with the first one, which the owner sends at once."""
        return self._machine.tries

    def answered(self, sent: Question, answer: Reply, now_ms: int) -> NextCall:
        """Process the reply to the request, or to the read of its subject."""
        stimulus: Stimulus
        match answer:
            case Refusal() | HoldfastError() if isinstance(sent, Get):
                stimulus = LookFailed(answer.error() if isinstance(answer, Refusal) else answer)
            case Refusal() | HoldfastError():
                stimulus = Failed(answer)
            case Accepted():
                stimulus = Replied(answer)
            case GetResult(object=found):
                stimulus = Looked(evidence_in(self.request, found), answer)
            case _:
                unreachable(f"{type(answer).__name__} answers no request")
        return self._call(self._machine.step(stimulus, now_ms), now_ms)

    def seen(self, found: Object | None, now_ms: int) -> Finish | GiveUp | None:
        """The end, if a snapshot shows it. That nothing has changed there says nothing."""
        evidence = evidence_in(self.request, found)
        if evidence is Evidence.ABSENT:
            return None
        action = self._machine.step(Looked(evidence), now_ms)
        return action if isinstance(action, Finish | GiveUp) else None

    def resume(self, now_ms: int) -> NextCall:
        """Continue after a pause."""
        return self._call(self._machine.step(_PAUSED, now_ms), now_ms)

    def _call(self, action: NextAction, now_ms: int) -> NextCall:
        match action:
            case Send():
                return self.request
            case LookForOperation():
                read = settling_read(self.request)
                if read is not None:
                    return read
                # No object remembers it, and its preconditions let one copy take effect at most.
                return self._call(self._machine.step(Looked(Evidence.ABSENT), now_ms), now_ms)
            case _:
                return action


# What the owner of a typed request does next: send the request, read its subject, wait, or end.
NextCall = Request | Get | Pause | Finish | GiveUp
_BEGUN, _PAUSED = Begun(), Paused()


# Catching up. ------------------------------------------------------------------------------------


class Expected(msgspec.Struct, frozen=True, gc=False):
    """A snapshot must show this object at this revision before anything is decided on it.

    `may_be_gone` says that the object existed before, or was read as missing: a snapshot without it
    has then caught up. One without an object that was just created has not.
    """

    plural: str
    namespace: str
    name: str
    revision: int
    may_be_gone: bool

    def is_met(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot shows the object, or is complete up to that revision."""
        if snapshot.revision >= self.revision:
            return True
        found: Object | None = snapshot.get(self.plural, self.namespace, self.name)
        if found is None:
            return self.may_be_gone
        return object_revision(found.metadata.resource_version) >= self.revision


def expected_after(request: Request, answer: Accepted | GetResult) -> Sequence[Expected]:
    """What a snapshot will show after an accepted request, or after the look for a lost answer."""
    it = settling_read(request)
    if it is None:
        return ()
    may_be_gone = not request.creates_subject
    if isinstance(answer, GetResult):
        if answer.object is None:
            return (_expected(it, answer.revision, may_be_gone=True),)
        version = answer.object.metadata.resource_version
        return (_expected(it, object_revision(version), may_be_gone=may_be_gone),)
    if not may_be_gone and not answer.objects:
        # A server need not return a created object: it is as requested, at the answer's revision.
        return (_expected(it, answer.revision, may_be_gone=may_be_gone),)
    return [
        _expected(it, object_revision(version), may_be_gone=may_be_gone)
        for obj in answer.objects
        if (obj.namespace, obj.name) == (it.namespace, it.name)
        and (version := obj.metadata.resource_version)
    ]


def _expected(it: Get, revision: int, *, may_be_gone: bool) -> Expected:
    return Expected(it.plural, it.namespace, it.name, revision, may_be_gone)
