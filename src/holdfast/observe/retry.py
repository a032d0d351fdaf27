"""What to do after a request failed: a machine, so that the simulator sees every retry storm.

`host/client` runs it with real sockets and clocks. One `RequestAttempts` accompanies one request
from the first try to its end. It takes the result of each try and returns one effect at a time. The
rules (requirement E5):

- It did not happen (Unavailable): pause, longer each time and with jitter, then send again. What
  the server asks for (Retry-After) is respected.
- It may have happened (OutcomeUnknown): never send again before having *looked*: read the object
  and see whether it records the operation. Only when it does not, the same operation is sent again
  under the same id, so that both together take effect at most once.
- It was refused for being stale (Conflict): read again and decide again, where the caller can.
- Any other refusal is an answer, and so is Unavailable for a reason that only a person can remove.

Tries, looks and time are bounded. A caller that gives up while in doubt reports OutcomeUnknown,
never "it failed".

All requests of one client share a `Budget`: when servers fail, retries stay a tenth of all that is
sent, however many requests wait to be sent again. The number of waiting requests is bounded too:
beyond it a request fails at once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from holdfast.model.errors import (
    Conflict,
    Expired,
    HoldfastError,
    OutcomeUnknown,
    Rejected,
    Unavailable,
    invariant,
)
from holdfast.model.machine import Rng
from holdfast.model.refusal import Reason
from holdfast.model.time import Instant


class RetryPolicy(msgspec.Struct, frozen=True, gc=False):
    """The limits of one request.

    `deadline_ms` covers everything from the first try on, `try_ms` one try or one look. A pause
    starts at `pause_ms` and doubles up to `pause_max_ms`. Half of it is random, so that requests
    that failed together do not come back together.
    """

    tries_max: int = 6
    looks_max: int = 12
    deadline_ms: int = 30_000
    try_ms: int = 10_000
    pause_ms: int = 50
    pause_max_ms: int = 5_000

    def pause(self, failures: int, retry_after_ms: int, rng: Rng) -> int:
        """How long to wait after this many failures, and not less than the server asks for."""
        full = min(self.pause_max_ms, self.pause_ms << min(failures - 1, 20))
        chance = int(rng.random() * full / 2)
        return max(1, full // 2 + chance, retry_after_ms + chance if retry_after_ms else 0)


DEFAULT_POLICY = RetryPolicy()
# A request that waits for the budget checks no more often than this.
HELD_BACK_MS = 100
# Unavailable for one of these reasons stays so until a person acts, however long a client waits.
LASTING = frozenset({Reason.RECORD_UNREADABLE})
# A watch is never abandoned: it is retried as long as its component lives.
FOLLOW_POLICY = RetryPolicy(pause_ms=100, pause_max_ms=5_000)


class Budget:
    """How much one client may retry: a few at first, then a tenth of what it sends.

    Once several requests in a row were answered, the servers are healthy: then a retry that was
    answered earns its token back, so that other waiting requests may follow. While some are
    answered and others not, retries earn nothing: the servers are overloaded. Single probes find
    out when they are healthy, less and less often.

    `waiting_max` bounds the requests that wait for the budget. While servers are stuck, a busy
    client would collect thousands that all give up in the end, and checking them is work too.
    """

    RESERVE = 10
    PER_CENT = 10
    WAITING_MAX = 256
    PROBE_MIN_MS = 250
    PROBE_MAX_MS = 5_000
    # This many answers in a row mean that the servers are healthy.
    WELL_AFTER = 20
    _ONE = 100

    def __init__(
        self,
        reserve: int = RESERVE,
        per_cent: int = PER_CENT,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._most, self._per_cent = reserve * self._ONE, per_cent
        self._waiting_max = waiting_max
        self.waiting = 0
        self._left = self._most
        self._spent_ms = 0
        self._probe_ms = self.PROBE_MIN_MS
        self._answers_in_row = 0
        # The number of retries, and how often one had to wait.
        self.spent = 0
        self.held_back = 0

    def sent_first(self) -> None:
        """Record that a request was sent for the first time."""
        self._left = min(self._most, self._left + self._per_cent)

    def answered(self, *, was_again: bool) -> None:
        """Record that a request was answered, perhaps a retry."""
        self._answers_in_row += 1
        if not was_again:
            return
        self._probe_ms = max(self.PROBE_MIN_MS, self._probe_ms // 4)
        if self._answers_in_row >= self.WELL_AFTER:
            self._left = min(self._most, self._left + self._ONE)

    def failed(self) -> None:
        """Record that a server did not answer, or was overloaded."""
        self._answers_in_row = 0

    def spend(self, now_ms: int) -> bool:
        """Take a token for one retry. Returns whether it is allowed now."""
        if self._left >= self._ONE:
            self._left -= self._ONE
        elif now_ms - self._spent_ms >= self._probe_ms:
            self._probe_ms = min(self.PROBE_MAX_MS, 2 * self._probe_ms)
        else:
            self.held_back += 1
            return False
        self._spent_ms = now_ms
        self.spent += 1
        return True

    def wait(self) -> bool:
        """Join the waiting requests, until `waited`. Returns whether there is room."""
        if self.waiting >= self._waiting_max:
            return False
        self.waiting += 1
        return True

    def waited(self) -> None:
        """Leave the waiting requests: the retry was allowed, or given up."""
        self.waiting -= 1


class Nature(StrEnum):
    """What kind of request this is, for its retries.

    READ may simply be repeated. WRITE depends only on what it states itself. CHANGE is computed by
    the caller from what it reads, so it can be computed again.
    """

    READ = "Read"
    WRITE = "Write"
    CHANGE = "Change"


# Stimuli ------------------------------------------------------------------------------------------


class RequestStarted(msgspec.Struct, frozen=True, gc=False):
    """The request starts."""


class Replied(msgspec.Struct, frozen=True):
    """A try succeeded."""

    body: Any


class Failed(msgspec.Struct, frozen=True):
    """A try, or the fresh read before it, ended with an error."""

    error: HoldfastError
    retry_after_ms: int = 0


class Looked(msgspec.Struct, frozen=True):
    """The object was read: `body` is what success would have returned; None means no trace."""

    body: Any = None


class LookFailed(msgspec.Struct, frozen=True):
    """The object could not be read."""

    error: HoldfastError
    retry_after_ms: int = 0


class Paused(msgspec.Struct, frozen=True, gc=False):
    """The pause is over."""


Stimulus = RequestStarted | Replied | Failed | Looked | LookFailed | Paused

# Effects ------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send the request. `fresh` means: read first, and compute the request from that."""

    timeout_ms: int
    fresh: bool = False


class LookForOperation(msgspec.Struct, frozen=True, gc=False):
    """Read the object, linearizably, and look for the operation in its record of operations."""

    timeout_ms: int


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Wait."""

    duration_ms: int


class Finish(msgspec.Struct, frozen=True):
    """Return this result. `tries` were sent, and `looked` says that the answer itself was lost."""

    body: Any
    tries: int
    looked: bool = False


class GiveUp(msgspec.Struct, frozen=True):
    """Raise this."""

    error: HoldfastError
    tries: int


Effect = Send | LookForOperation | Pause | Finish | GiveUp


class _Next(StrEnum):
    """What follows the pause."""

    SEND = "Send"
    LOOK = "Look"


class RequestAttempts:
    """One request from its first try to its end. See the module's docstring."""

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
        # A try was sent that may still take effect, whatever the result of later ones.
        self._in_doubt = False
        # The error to report if the current look finds nothing: then the refusal is the answer.
        self._refusal: Rejected | None = None
        self._next = _Next.SEND
        self._is_waiting = False
        # The last error, for a request that waits in vain for the budget.
        self._trouble: HoldfastError = Unavailable("no request was sent yet")

    def step(self, stimulus: Stimulus, now: Instant) -> Effect:
        """Process what happened, and return the one thing to do next."""
        match stimulus:
            case RequestStarted():
                self._began_ms = now.monotonic_ms
                if self._budget is not None:
                    self._budget.sent_first()
                return self._send(now)
            case Replied(body=body):
                self._was_answered()
                return Finish(body, self._tries)
            case Failed(error=error, retry_after_ms=after_ms):
                return self._failed(error, after_ms, now)
            case Looked(body=body):
                return self._looked(body, now)
            case LookFailed(error=error, retry_after_ms=after_ms):
                if _is_lasting(error):
                    return self._give_up(error)
                self._was_not_answered(error)
                return self._pause(_Next.LOOK, error, after_ms, now)
            case Paused():
                if not self._may_spend(now):
                    return self._hold_back(now)
                self.end()
                return self._send(now) if self._next is _Next.SEND else self._look(now)

    def end(self) -> None:
        """Stop waiting. A caller that leaves before the last step must call this."""
        if self._is_waiting and self._budget is not None:
            self._is_waiting = False
            self._budget.waited()

    def _hold_back(self, now: Instant) -> Effect:
        budget = self._budget
        if budget is not None and not self._is_waiting:
            if not budget.wait():
                many = f"{budget.waiting} requests of this client are already waiting to be retried"
                return self._give_up(Unavailable(f"{self._trouble.message}; {many}"))
            self._is_waiting = True
        pause_ms = self._policy.pause(self._failures, 0, self._rng)
        return self._wait(self._trouble, max(HELD_BACK_MS, pause_ms), now)

    def _was_answered(self) -> None:
        if self._budget is not None:
            self._budget.answered(was_again=self._tries + self._looks > 1)

    def _was_not_answered(self, error: HoldfastError) -> None:
        # Any other error is an answer.
        if self._budget is not None and isinstance(error, Unavailable | OutcomeUnknown):
            self._budget.failed()

    def _failed(self, error: HoldfastError, after_ms: int, now: Instant) -> Effect:
        if _is_lasting(error):
            return self._give_up(error)
        self._was_not_answered(error)
        if self._nature is Nature.READ:
            if isinstance(error, Rejected | Expired):
                return GiveUp(error, self._tries)
            return self._pause(_Next.SEND, error, after_ms, now)
        match error:
            case OutcomeUnknown():
                self._in_doubt = True
                return self._pause(_Next.LOOK, error, after_ms, now)
            case Unavailable():
                return self._pause(_Next.SEND, error, after_ms, now)
            case Rejected() if self._in_doubt or error.code == Reason.OPERATION_REUSED:
                # Our own earlier try may have caused the refusal.
                self._refusal = error
                return self._look(now)
            case Rejected():
                return self._refused(error, now)
            case _:
                return GiveUp(error, self._tries)

    def _refused(self, error: Rejected, now: Instant) -> Effect:
        if isinstance(error, Conflict) and self._nature is Nature.CHANGE:
            self._fresh = True
            return self._pause(_Next.SEND, error, 0, now)
        return GiveUp(error, self._tries)

    def _looked(self, body: Any, now: Instant) -> Effect:
        if body is not None:
            self._was_answered()
            return Finish(body, self._tries, looked=True)
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            return self._refused(refusal, now)
        self._fresh = self._nature is Nature.CHANGE
        # The look followed a pause already, and the server was reached.
        return self._send(now) if self._may_try(now) else self._give_up(_lost())

    def _send(self, now: Instant) -> Effect:
        invariant(self._tries < self._policy.tries_max, "tries_max was exceeded")
        self._tries += 1
        fresh, self._fresh = self._fresh, False
        return Send(self._time(now), fresh)

    def _look(self, now: Instant) -> Effect:
        if self._looks >= self._policy.looks_max:
            return self._give_up(_lost())
        self._looks += 1
        return LookForOperation(self._time(now))

    def _pause(self, then: _Next, error: HoldfastError, after_ms: int, now: Instant) -> Effect:
        self._failures += 1
        if then is _Next.SEND and self._tries >= self._policy.tries_max:
            return self._give_up(error)
        self._next, self._trouble = then, error
        return self._wait(error, self._policy.pause(self._failures, after_ms, self._rng), now)

    def _wait(self, error: HoldfastError, pause_ms: int, now: Instant) -> Effect:
        spent_ms = now.monotonic_ms - self._began_ms
        if spent_ms + pause_ms >= self._policy.deadline_ms:
            return self._give_up(error)
        return Pause(pause_ms)

    def _may_spend(self, now: Instant) -> bool:
        # A conflict is not the fault of a server: it was answered, and is decided again.
        if self._budget is None or isinstance(self._trouble, Rejected):
            return True
        return self._budget.spend(now.monotonic_ms)

    def _may_try(self, now: Instant) -> bool:
        in_time = now.monotonic_ms - self._began_ms < self._policy.deadline_ms
        return in_time and self._tries < self._policy.tries_max

    def _give_up(self, error: HoldfastError) -> GiveUp:
        self.end()
        if self._in_doubt and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"an earlier try may have taken effect; then: {error.message}")
        return GiveUp(error, self._tries)

    def _time(self, now: Instant) -> int:
        left_ms = self._policy.deadline_ms - (now.monotonic_ms - self._began_ms)
        return max(1, min(self._policy.try_ms, left_ms))


def _is_lasting(error: HoldfastError) -> bool:
    return isinstance(error, Unavailable) and error.code in LASTING


def _lost() -> OutcomeUnknown:
    return OutcomeUnknown("the answer was lost, and no trace of the operation was found in time")
