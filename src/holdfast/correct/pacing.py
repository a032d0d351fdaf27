"""Waits from a recorded timestamp, cooldowns and rate limits, all on the controller's own clock.

Other computers make the timestamps, and wall clocks are set forwards and back; a wait until a
timestamp plus a pause could take a month, or no time at all. So a wait is measured on the
controller's monotonic clock from when it first saw the timestamp: from then on it never takes
longer than its pause, whatever happens to wall clocks. Only wall clocks can tell how much of the
pause was over before that. They are read once, when the timestamp is first seen, and only where an
early end does no harm or the commit checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from datetime import datetime

from holdfast.correct.remembered import Remembered
from holdfast.model.kinds.reservation import Reservation
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.cache import Key
from holdfast.observe.snapshot import Snapshot


class MonotonicWaits(Remembered):
    """The starts of waits on the monotonic clock, by uid and purpose.

    At a resync it keeps those of the uids that `kept` returns.
    """

    def __init__(self, kept: Callable[[Snapshot], Container[str]]) -> None:
        self._kept = kept
        self._since: dict[tuple[str, str], tuple[datetime, int]] = {}

    def left_ms(
        self, uid: str, what: str, began: datetime, pause_ms: int, now: Instant, *, credit: bool
    ) -> int:
        """The rest of a pause that began at this timestamp; 0 when it is over.

        With `credit`, the time that has passed by the wall clock at the first sight counts.
        """
        key = uid, what
        known = self._since.get(key)
        if known is None or known[0] != began:
            passed_ms = now.wall_ms - wall_ms(began) if credit else 0
            known = began, now.monotonic_ms - min(max(0, passed_ms), pause_ms)
            self._since[key] = known
        return max(0, known[1] + pause_ms - now.monotonic_ms)

    def forget(self, uid: str, what: str) -> None:
        """Forget one wait."""
        self._since.pop((uid, what), None)

    def begin_term(self) -> None:
        self._since.clear()

    def resync(self, view: Snapshot) -> None:
        uids = self._kept(view)
        self._since = {key: since for key, since in self._since.items() if key[0] in uids}


def held_left_ms(held: Reservation, waits: MonotonicWaits, late_ms: int, now: Instant) -> int:
    """The rest of the time that a reservation is held, plus `late_ms`."""
    made, ends_ms = held.metadata.creation_timestamp, wall_ms(held.spec.deadline) + late_ms
    if made is None:
        return max(0, ends_ms - now.wall_ms)
    for_ms = ends_ms - wall_ms(made)
    return waits.left_ms(held.metadata.uid, "held", made, for_ms, now, credit=True)


# Pauses between two reconciles of something large, so that these never take most of the time.
#
# A reconcile takes a few microseconds per replica, and each change of thousands of replicas queues
# one. A reconcile is late by the pause at most: a second for ten thousand replicas.

REST_US_PER_REPLICA = 100


class Cooldowns(Remembered):
    """The time until which recently reconciled keys pause. A resync ends all pauses."""

    def __init__(self, us_per_replica: int = REST_US_PER_REPLICA) -> None:
        self._us_per_replica = us_per_replica
        self._until_ms: dict[Key, int] = {}

    def left_ms(self, key: Key, now: Instant) -> int:
        """The rest of a key's pause; 0 for a key that may be reconciled."""
        return max(0, self._until_ms.get(key, 0) - now.monotonic_ms)

    def rest(self, key: Key, replicas: int, now: Instant) -> None:
        """Start the pause of a key that was reconciled with this many replicas."""
        self._until_ms[key] = now.monotonic_ms + replicas * self._us_per_replica // 1_000

    def rest_for(self, key: Key, ms: int, now: Instant) -> None:
        """Let a key pause for at least `ms`."""
        until_ms = now.monotonic_ms + ms
        self._until_ms[key] = max(until_ms, self._until_ms.get(key, 0))

    def forget(self, key: Key) -> None:
        """Forget a key."""
        self._until_ms.pop(key, None)

    def begin_term(self) -> None:
        self._until_ms.clear()

    def resync(self, view: Snapshot) -> None:
        self._until_ms.clear()


# The rate of background work: a burst, then a number per second.
#
# Garbage collection and events must never take the plane's time from the work itself, least of all
# during an incident, when there is most to collect and to record.


class RateLimiter(Remembered):
    """A token bucket, in thousandths of a token on the controller's monotonic clock."""

    def __init__(self, per_s: int, burst: int) -> None:
        self._per_s, self._most = per_s, burst * 1_000
        self._left, self._at_ms = self._most, 0

    def begin_term(self) -> None:
        """A limit outlasts terms."""

    def resync(self, view: Snapshot) -> None:
        """It does not depend on the view."""

    def has(self, now: Instant, spare: int = 0) -> bool:
        """Whether one more may be done now and leave `spare` for what matters more."""
        passed_ms = max(0, now.monotonic_ms - self._at_ms)
        self._left = min(self._most, self._left + passed_ms * self._per_s)
        self._at_ms = max(self._at_ms, now.monotonic_ms)
        return self._left >= (spare + 1) * 1_000

    def takes(self, now: Instant, spare: int = 0) -> bool:
        """Take a token, if there is one; returns whether there was."""
        if not self.has(now, spare):
            return False
        self._left -= 1_000
        return True
