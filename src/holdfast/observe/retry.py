"""How often and how soon to try again: the pauses of one operation, and the budget of a client.

`observe/operation.py` decides what to do after each outcome, within these limits.

All requests of one client share a `Budget`: when servers fail, retries stay a tenth of all that is
sent, however many requests wait to be sent again. The number of waiting requests is bounded too:
beyond it a request fails at once.
"""

from __future__ import annotations

import msgspec

from holdfast.model.machine import Rng
from holdfast.model.refusal import Reason


class RetryPolicy(msgspec.Struct, frozen=True, gc=False):
    """The limits of one operation.

    `deadline_ms` covers everything from the first try on, `try_ms` one try or one look; None means
    no limit. A pause starts at `pause_ms` and doubles up to `pause_max_ms`. Half of it is random,
    so that requests that failed together do not come back together.

    `looks_at_once`: after a lost answer the look comes at once, and the pause before the next copy;
    otherwise the pause comes before the look. `repeats_undone`: a copy that certainly did not
    happen is sent again; otherwise the operation ends, and its owner decides on what it sees then.
    """

    tries_max: int = 6
    looks_max: int | None = 12
    deadline_ms: int | None = 30_000
    try_ms: int = 10_000
    pause_ms: int = 50
    pause_max_ms: int = 5_000
    looks_at_once: bool = False
    repeats_undone: bool = True

    def pause(self, failures: int, retry_after_ms: int, rng: Rng) -> int:
        """How long to wait after this many failures, and not less than the server asks for."""
        full = min(self.pause_max_ms, self.pause_ms << min(failures - 1, 20))
        chance = int(rng.random() * full / 2)
        return max(1, full // 2 + chance, retry_after_ms + chance if retry_after_ms else 0)


# For people and programs at a client: a server that lost an answer is probably in trouble, so the
# look comes after a pause, and a waiting caller wants the request repeated rather than an error.
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
