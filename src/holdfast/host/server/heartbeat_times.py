"""When each node was last heard by this server or by its peers, for answers that show it.

Heartbeats write nothing, so no stored object says when the last one came;
`commit/heartbeat_intake.py` remembers it. Its report covers all nodes, so readers share one for a
second.
"""

from __future__ import annotations

from holdfast.host.process import clock
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.heartbeat import HeartbeatQuery, HeartbeatReport

SHARED_MS = 1_000
TIMEOUT_S = 2.0
# A caller that may read nodes need not be one that may ask for all heartbeats: the server asks.
_ASKER = Identity("heartbeat-times", groups=(ADMINS,))


class HeartbeatTimes:
    """The last report, with the moment when it was made. One for each server."""

    def __init__(self) -> None:
        self._taken_ms: int | None = None
        self._times_ms: dict[str, int] = {}

    async def times_ms(self, renewals: Shell | None) -> dict[str, int]:
        """The wall time of the last heartbeat of each node; nothing of nodes that were not heard.

        A server that cannot say it now says what it knew last.
        """
        is_old = self._taken_ms is None or clock.monotonic_ms() - self._taken_ms >= SHARED_MS
        if renewals is None or not is_old:
            return self._times_ms
        try:
            report = await renewals.ask(_ASKER, HeartbeatQuery(), TIMEOUT_S)
        except HoldfastError:
            return self._times_ms
        if isinstance(report, HeartbeatReport):
            now = clock.now()
            self._taken_ms = now.monotonic_ms
            self._times_ms = {node: now.wall_ms - age for node, age in report.ages_ms.items()}
        return self._times_ms
