"""Pauses between two looks at something large, so that looking never takes most of the time.

A look takes a few microseconds for each replica, and each of thousands of replicas brings news that
ask for one. What is seen is late by the pause at most: a second for ten thousand replicas.
"""

from __future__ import annotations

from holdfast.model.time import Instant
from holdfast.observe.cache import Key

REST_US_PER_REPLICA = 100


class Rests:
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
