"""When a lease may be taken: the one rule of all candidates, each by its own clock.

Components elect leaders with it (`observe/leader_election.py`), servers keep the lease `authority`
and their own (`commit/server.py`). A lease protects nothing by itself: the commit compares its
epoch, and refuses what an earlier holder sends once another one holds it. So the rule only has to
keep candidates from taking a lease from a holder that still renews it.
"""

from __future__ import annotations

import msgspec

from holdfast.model.kinds.lease import LeaseSpec

# How long a lease lasts. A holder keeps it when its server hangs: it renews every 2 s, gives up on
# a renewal without an answer after another 2 s, and has 2 s left for the next at another server.
LEASE_MS = 6_000
# A holder renews three times in the life of its lease, so that one lost renewal costs nothing.
RENEWALS_PER_LEASE = 3


class LeaseSighting(msgspec.Struct, frozen=True, gc=False):
    """A held lease as it was last seen to change, by the observer's own clock."""

    epoch: int
    renewals: int
    holder: str
    since_ms: int


class LeaseObserver:
    """What one candidate has seen of one lease that others hold."""

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen: LeaseSighting | None = None

    def forget(self) -> None:
        """Count from the next sighting: the candidate held the lease meanwhile."""
        self.seen = None

    def may_take(self, spec: LeaseSpec | None, now_ms: int, *, inherits: bool = False) -> bool:
        """Whether the lease as just read may be taken.

        It may if it has no holder, or was not renewed for its whole duration since this observer
        first saw it so. `inherits` says that its holder is an earlier process of the candidate,
        which needs it no more.
        """
        if spec is None or not spec.holder or inherits:
            return True
        seen = self.seen
        if seen is None or (seen.epoch, seen.renewals) != (spec.epoch, spec.renewals):
            self.seen = LeaseSighting(spec.epoch, spec.renewals, spec.holder, now_ms)
            return False
        return now_ms - seen.since_ms >= spec.duration_ms
