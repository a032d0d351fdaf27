"""For how long replicas have been ready, as far as one's own clock can tell.

Part of controller:rollout. The moment in a replica's status is by the calendar of the server that
wrote it down. It is believed only of a replica that was ready when it was first seen: whatever
becomes ready while we watch is counted on our own clock, and no calendar that is set meanwhile
makes it older or younger.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from holdfast.model.kinds.replica import Replica
from holdfast.model.time import Instant, wall_ms
from holdfast.observe.cache import Key


class Sightings:
    """When the replicas of each workload were first seen to be ready as they are."""

    def __init__(self) -> None:
        self._first: dict[Key, dict[str, tuple[datetime | None, int]]] = {}

    def ready_ms(self, key: Key, replicas: Iterable[Replica], now: Instant) -> dict[str, int]:
        """For how long each of a workload's replicas has been as ready as it is, by uid."""
        before = self._first.get(key, {})
        first: dict[str, tuple[datetime | None, int]] = {}
        for it in replicas:
            uid, since = it.metadata.uid, it.status.ready_since
            known = before.get(uid)
            if known is None or known[0] != since:
                told_ms = _told_ms(since, now) if known is None else 0
                known = since, now.monotonic_ms - told_ms
            first[uid] = known
        self._first[key] = first
        return {uid: now.monotonic_ms - since_ms for uid, (_, since_ms) in first.items()}

    def forget(self, key: Key) -> None:
        """The workload is gone, or nothing is asked about it for now."""
        self._first.pop(key, None)


def _told_ms(since: datetime | None, now: Instant) -> int:
    return max(0, now.wall_ms - wall_ms(since)) if since is not None else 0
