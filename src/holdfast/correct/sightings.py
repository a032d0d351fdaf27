"""For how long replicas have been ready, as far as one's own clock can tell.

Part of controller:rollout. The moment in a replica's status is by the clock of the server that
wrote it down. A clock that is ahead of ours would make us wait for that moment; whoever has watched
a replica be ready for long enough itself need not believe it.
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
        before, first = self._first.get(key, {}), {}
        for it in replicas:
            uid, since = it.metadata.uid, it.status.ready_since
            known = before.get(uid)
            first[uid] = known if known and known[0] == since else (since, now.monotonic_ms)
        self._first[key] = first
        return {
            uid: max(now.monotonic_ms - seen_ms, _told_ms(since, now))
            for uid, (since, seen_ms) in first.items()
        }

    def forget(self, key: Key) -> None:
        """The workload is gone, or nothing is asked about it for now."""
        self._first.pop(key, None)


def _told_ms(since: datetime | None, now: Instant) -> int:
    return now.wall_ms - wall_ms(since) if since is not None else now.wall_ms
