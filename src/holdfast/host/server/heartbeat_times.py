"""When each node was last heard by this server or by its peers, for answers that show it.

Heartbeats write nothing, so no stored object says when the last one came;
`commit/heartbeat_intake.py` remembers it. Its report covers all nodes, so readers share one for a
second.
"""

from __future__ import annotations

import msgspec

from holdfast.host.process import clock
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import ADMINS, Identity
from holdfast.model.errors import HoldfastError
from holdfast.model.nodes.heartbeat import HeartbeatQuery, HeartbeatReport, ReplicaUse, SeenUse

SHARED_MS = 1_000
TIMEOUT_S = 2.0
# A caller that may read nodes need not be one that may ask for all heartbeats: the server asks.
_ASKER = Identity("heartbeat-times", groups=(ADMINS,))


class NodeSigns(msgspec.Struct, frozen=True):
    """The wall time of the last heartbeat of a node, and of the last sample of its work's use."""

    heard_ms: int
    use: SeenUse | None = None
    used_ms: int = 0


class HeartbeatTimes:
    """The last report, with the moment when it was made. One for each server."""

    def __init__(self) -> None:
        self._taken_ms: int | None = None
        self._signs: dict[str, NodeSigns] = {}

    async def signs(self, renewals: Shell | None) -> dict[str, NodeSigns]:
        """The last signs of each node; nothing of nodes that were not heard.

        A server that cannot say it now says what it knew last.
        """
        is_old = self._taken_ms is None or clock.monotonic_ms() - self._taken_ms >= SHARED_MS
        if renewals is None or not is_old:
            return self._signs
        try:
            report = await renewals.ask(_ASKER, HeartbeatQuery(), TIMEOUT_S)
        except HoldfastError:
            return self._signs
        if isinstance(report, HeartbeatReport):
            now = clock.now()
            self._taken_ms = now.monotonic_ms
            self._signs = {
                node: _signs(report.used.get(node), now.wall_ms - age, now.wall_ms)
                for node, age in report.ages_ms.items()
            }
        return self._signs


def _signs(use: SeenUse | None, heard_ms: int, now_ms: int) -> NodeSigns:
    if use is None:
        return NodeSigns(heard_ms)
    return NodeSigns(heard_ms, use, now_ms - use.age_ms)


async def replica_use(renewals: Shell | None, node: str, uid: str) -> ReplicaUse | None:
    """What one replica uses, if this server itself received the samples of its node."""
    if renewals is None:
        return None
    try:
        report = await renewals.ask(_ASKER, HeartbeatQuery(node), TIMEOUT_S)
    except HoldfastError:
        return None
    found = report.replicas if isinstance(report, HeartbeatReport) else ()
    return next((it for it in found if it.uid == uid), None)
