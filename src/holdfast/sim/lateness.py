"""Requests that take effect long after their senders have turned to other things.

Every world with servers has these hazards: what a paused server held comes when it wakes, and what
a network held comes whenever it likes, longer after than any time-out, once or beside the first.
"""

from __future__ import annotations

from holdfast.sim.plan import Hazard

# So long a server stands still: longer than any time-out, and than most leases.
PAUSED_MS = (20_000, 60_000)


def late_requests(share: float) -> Hazard:
    """What a network held, in this part of all seeds: for worlds that pause servers themselves."""
    return Hazard("late", 60, for_ms=(2_000, 60_000), amount=(20, 300), share=share)


def lateness(share: float) -> tuple[Hazard, ...]:
    """These hazards in this part of all seeds."""
    return (
        Hazard("pause", 60, for_ms=PAUSED_MS, amount=(1, 40), only="server", share=share),
        late_requests(share),
    )


LATENESS = lateness(0.5)
# For worlds that have another matter, and show it best where nothing else goes wrong.
SELDOM_LATE = lateness(0.25)
