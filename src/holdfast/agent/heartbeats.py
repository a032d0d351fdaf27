"""The heartbeats of the node: when to send one, and until when it lets work run.

The agent sends what `due` returns and passes the answer back. A deadline follows from one thing
only: a server acknowledged, for this incarnation, a heartbeat that was sent at a known time. It
counts from the sending, never from the answer, which may have taken an hour to arrive.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.node import GONE
from holdfast.model.machine import Reply, Rng
from holdfast.model.nodes.fence import FenceTiming, limit_timing
from holdfast.model.nodes.heartbeat import ProgressNotes, Renew, Renewed
from holdfast.model.refusal import Reason, Refusal

# A plane whose timing is set to zero must not make its agents spin.
RENEW_EVERY_MIN_MS = 100
# A heartbeat whose answer takes longer is worth little; the next one is in flight by then.
RENEW_TIMEOUT_MS = 5_000
RETRY_MIN_MS = 250
# A heartbeat without an answer is repeated once, and the next repetition has to be earned by this
# many heartbeats: a lost message or a dead server costs no more, and when all heartbeats fail,
# repetitions would only overload a plane that is coming back. The next heartbeat is due anyway.
RENEWALS_PER_RETRY = 10
# Heartbeats do not wait for each other: one that hangs must not delay the next one.
RENEWALS_MAX = 3
_DOUBLINGS_MAX = 8
# Work that starts this close to its deadline starts in vain.
LAUNCH_MARGIN_PER_CENT = 10

NOTHING = ProgressNotes()


class Life(msgspec.Struct, frozen=True, gc=False):
    """The uid and the incarnation of a node."""

    uid: str
    incarnation: int


class Echo(StrEnum):
    """What the answer to a heartbeat means."""

    ACKNOWLEDGED = "acknowledged"
    # No answer, a mark, or an answer about an incarnation that is no longer ours.
    NOTHING = "nothing"
    # The servers may know a newer state of the node: read it.
    DOUBT = "doubt"
    # This incarnation has ended: the node was fenced, or has another one.
    OVER = "over"


class NodeHeartbeats:
    """See the module's docstring. Times are readings of the machine's monotonic clock."""

    def __init__(self, node: str, rng: Rng) -> None:
        self._node, self._rng = node, rng
        self._life: Life | None = None
        self._next_ms = 0
        # When the last heartbeat was sent.
        self._sent_ms = 0
        self._on_way = 0
        self._failures = 0
        # The heartbeats since the last repetition, up to the cost of one.
        self._earned = RENEWALS_PER_RETRY
        self.timing = FenceTiming()
        # What the node's record allows, as far as known; what the plane wants instead, and since
        # when it has wanted the same.
        self.cap: FenceTiming | None = None
        self.wanted: FenceTiming | None = None
        self._wanted_ms = 0
        # Until when work of this incarnation may run; None until the first acknowledgement.
        self.deadline_ms: int | None = None

    @property
    def next_ms(self) -> int | None:
        """When `due` has something to send next."""
        return self._next_ms if self._life is not None else None

    def begin(self, life: Life, now_ms: int) -> None:
        """Start heartbeats for this incarnation. Acknowledgements for another one are void."""
        if life != self._life:
            self.deadline_ms = None
        self._life, self._next_ms, self._failures = life, now_ms, 0

    def end(self) -> None:
        """This incarnation is over: no more heartbeats, and no late answer counts."""
        self._life = self.deadline_ms = None

    def may_launch(self, now_ms: int) -> bool:
        """Whether work that starts now has time to run before its deadline."""
        if self.deadline_ms is None:
            return False
        margin_ms = self.timing.self_stop_after_ms * LAUNCH_MARGIN_PER_CENT // 100
        return self.deadline_ms - now_ms > margin_ms

    @property
    def _every_ms(self) -> int:
        return max(RENEW_EVERY_MIN_MS, self.timing.renew_every_ms)

    @property
    def timeout_ms(self) -> int:
        return min(RENEW_TIMEOUT_MS, self._every_ms)

    def is_due(self, now_ms: int) -> bool:
        """Whether `due` has something to send now."""
        return self._life is not None and now_ms >= self._next_ms

    def due(self, now_ms: int, said: ProgressNotes = NOTHING) -> Renew | None:
        """The heartbeat to send now, if one is due, with `said` as its report."""
        if self._life is None or now_ms < self._next_ms:
            return None
        self._sent_ms, self._next_ms = now_ms, now_ms + self._every_ms
        self._earned = min(RENEWALS_PER_RETRY, self._earned + 1)
        if self._on_way >= RENEWALS_MAX:
            return None
        self._on_way += 1
        return Renew(self._node, self._life.uid, self._life.incarnation, said)

    def answered(self, renew: Renew, answer: Reply, sent_ms: int, now_ms: int) -> Echo:
        """Process the answer to a heartbeat that was sent at `sent_ms`."""
        self._on_way -= 1
        life = self._life
        if life is None or (renew.uid, renew.incarnation) != (life.uid, life.incarnation):
            return Echo.NOTHING
        if isinstance(answer, Renewed) and answer.acknowledges(renew):
            self._failures = 0
            if answer.wanted != self.wanted:
                self.wanted, self._wanted_ms = answer.wanted, now_ms
            timing = limit_timing(answer.timing, self.cap)
            if timing != self.timing:
                # The plane may want heartbeats more often than before.
                self.timing = timing
                self._next_ms = min(self._next_ms, self._sent_ms + self._every_ms)
            until_ms = sent_ms + self.timing.self_stop_after_ms
            # Answers may overtake each other: the latest acknowledged sending counts.
            if self.deadline_ms is None or until_ms > self.deadline_ms:
                self.deadline_ms = until_ms
            return Echo.ACKNOWLEDGED
        if not isinstance(answer, HoldfastError) or self._may_repeat():
            self._sooner(now_ms)
        match answer:
            case Renewed(uid=uid, incarnation=incarnation, phase=phase):
                if uid != life.uid or incarnation > life.incarnation:
                    return Echo.OVER
                is_over = incarnation == life.incarnation and phase in GONE
                return Echo.OVER if is_over else Echo.NOTHING
            case Refusal(reason=Reason.NODE_MISSING | Reason.STALE_INCARNATION | Reason.MISSING):
                return Echo.DOUBT
        return Echo.NOTHING

    def limit(self, cap: FenceTiming | None) -> None:
        """From now on no acknowledgement grants more than this, however late it arrives."""
        self.cap, self.timing = cap, limit_timing(self.timing, cap)

    def wanted_for_ms(self, now_ms: int) -> int:
        """How long all acknowledgements have wanted the same timing."""
        return now_ms - self._wanted_ms

    def _may_repeat(self) -> bool:
        """Whether a heartbeat without an answer may be repeated before the next one is due."""
        if self._earned < RENEWALS_PER_RETRY:
            return False
        self._earned = self._failures = 0
        return True

    def _sooner(self, now_ms: int) -> None:
        """Not acknowledged: try again sooner than usual, with jitter, since all agents lose a
        server at once."""
        most_ms = RETRY_MIN_MS << min(self._failures, _DOUBLINGS_MAX)
        self._failures += 1
        pause_ms = int(min(self._every_ms, most_ms) * (0.5 + self._rng.random() / 2))
        self._next_ms = min(self._next_ms, now_ms + pause_ms)
