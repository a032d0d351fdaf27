"""The greatest age of an observation on which components may act: a setting of the plane.

A snapshot never authorises anything, so its age is no matter of safety. It bounds waste and
surprise: on an old snapshot a scheduler proposes places that are taken, and a controller creates
what exists, and each such request costs a refused commit. Too small a bound makes a busy but
healthy plane stand still.

The setting is in `commit/context.PlaneSettings`, and the commit refuses what is older. Each
holder of a lease reads it there when it takes or renews the lease, so that schedulers and
controllers hold back what would be refused. Decisions record the one that applied.
"""

from __future__ import annotations

# Components ask for a bookmark every 2 s, and a server with too many streams sends one every 15 s
# at the latest. A snapshot that has missed two of these is cut off or far behind.
OBSERVATION_AGE_MAX_MS = 30_000
# Two bookmarks of an idle server. With less, one late packet would stop all placements.
AGE_MAX_LEAST_MS = 5_000
# Within this time a silent node is fenced under the usual settings, and a decision on an older
# snapshot would be about another plane.
AGE_MAX_MOST_MS = 300_000


def is_too_old(age_ms: int, age_max_ms: int) -> bool:
    """Whether nothing may be decided on an observation of this age."""
    return age_ms > age_max_ms
