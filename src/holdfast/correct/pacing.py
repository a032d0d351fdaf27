"""Waits that began at a moment which is written down, counted on our own clock.

Stamps are made by other computers, and calendars are set forwards and back; a wait until a stamp
plus a pause could take a month, or no time at all. So a wait is counted on the controller's
monotonic clock from when it first saw the stamp: it is never longer than its own pause from then
on, whatever becomes of any calendar. How much of the pause was over before that, only the calendars
can say. They are asked once, when the stamp is first seen, where an early end does no harm or is
checked by the commit.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime

from holdfast.model.kinds.reservation import Reservation
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.cache import Key


class MonotonicWaits:
    """Since when, on our own clock, things wait: by their uid and what they wait for."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[datetime, int]] = {}

    def left_ms(
        self, uid: str, what: str, began: datetime, pause_ms: int, now: Instant, *, credit: bool
    ) -> int:
        """How much is left of a pause that began at this stamp; 0 when it is over.

        With `credit`, what has passed by the calendar when it is first seen counts.
        """
        key = uid, what
        known = self._since.get(key)
        if known is None or known[0] != began:
            told_ms = now.wall_ms - wall_ms(began) if credit else 0
            known = began, now.monotonic_ms - min(max(0, told_ms), pause_ms)
            self._since[key] = known
        return max(0, known[1] + pause_ms - now.monotonic_ms)

    def forget(self, uid: str, what: str) -> None:
        """It waits no more."""
        self._since.pop((uid, what), None)

    def forget_all_but(self, uids: Container[str]) -> None:
        """Forget those that are gone."""
        self._since = {key: since for key, since in self._since.items() if key[0] in uids}


def held_left_ms(held: Reservation, waits: MonotonicWaits, late_ms: int, now: Instant) -> int:
    """How much is left of the time that a reservation is held for, and so much more."""
    made, ends_ms = held.metadata.creation_timestamp, wall_ms(held.spec.deadline) + late_ms
    if made is None:
        return max(0, ends_ms - now.wall_ms)
    for_ms = ends_ms - wall_ms(made)
    return waits.left_ms(held.metadata.uid, "held", made, for_ms, now, credit=True)


# Pauses between two looks at something large, so that looking never takes most of the time.
#
# A look takes a few microseconds for each replica, and each of thousands of replicas brings news
# that ask for one. What is seen is late by the pause at most: a second for ten thousand replicas.

REST_US_PER_REPLICA = 100


class Cooldowns:
    """Until when the keys rest that were looked at lately."""

    def __init__(self, us_per_replica: int = REST_US_PER_REPLICA) -> None:
        self._us_per_replica = us_per_replica
        self._until_ms: dict[Key, int] = {}

    def left_ms(self, key: Key, now: Instant) -> int:
        """For how long a key still rests; 0 for one that may be looked at."""
        return max(0, self._until_ms.get(key, 0) - now.monotonic_ms)

    def rest(self, key: Key, replicas: int, now: Instant) -> None:
        """It was looked at, with so many replicas."""
        self._until_ms[key] = now.monotonic_ms + replicas * self._us_per_replica // 1_000

    def rest_for(self, key: Key, ms: int, now: Instant) -> None:
        """Let it rest for at least so long."""
        until_ms = now.monotonic_ms + ms
        self._until_ms[key] = max(until_ms, self._until_ms.get(key, 0))

    def forget(self, key: Key) -> None:
        """It is gone."""
        self._until_ms.pop(key, None)

    def clear(self) -> None:
        """Look at everything as soon as it is asked for."""
        self._until_ms.clear()


# How fast a controller does what nobody waits for: some at once, then so many a second.
#
# What clears up or tells people must never take the plane's time from the work itself, least of all
# during an incident, when there is most to clear up and to tell.


class RateLimiter:
    """Acts at a rate, counted in thousandths on the controller's monotonic clock."""

    def __init__(self, per_s: int, burst: int) -> None:
        self._per_s, self._most = per_s, burst * 1_000
        self._left, self._at_ms = self._most, 0

    def has(self, now: Instant, spare: int = 0) -> bool:
        """Whether one more might be done now and leave so many to spare for what matters more."""
        passed_ms = max(0, now.monotonic_ms - self._at_ms)
        self._left = min(self._most, self._left + passed_ms * self._per_s)
        self._at_ms = max(self._at_ms, now.monotonic_ms)
        return self._left >= (spare + 1) * 1_000

    def takes(self, now: Instant, spare: int = 0) -> bool:
        """Do one more, if there is one to take."""
        if not self.has(now, spare):
            return False
        self._left -= 1_000
        return True
