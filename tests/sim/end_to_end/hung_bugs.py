"""Planted bugs about servers that hang or are down, searched for in worlds with such servers."""

from __future__ import annotations

from holdfast.sim.mutants import rewrite
from tests.sim.end_to_end.planting import COMMIT, CORRECT, HUNG, OBSERVE, ONE, bug

HANGING = (
    bug(
        "silent-server-kept",
        "a stream is left only after the longest silence, whatever its server announces",
        rewrite(
            OBSERVE + "informer:silence_ms",
            "return SILENCE_MS if within_ms is None else min(SILENCE_MS, 2 * within_ms)",
            "return SILENCE_MS",
        ),
        world=HUNG,
    ),
    bug(
        "digests-without-nodes",
        "a server passes on the report of another one without the nodes in it",
        rewrite(
            COMMIT + "heartbeat_digests:Digests._take",
            "if age_ms < self._forget_after_ms and at_ms > self._heard_ms.get(node, -1):",
            "if False:",
        ),
        world=ONE,
    ),
    bug(
        "expired-server-waited-for",
        "a server whose lease has expired is waited for like a live one",
        rewrite(
            CORRECT + "nodes.silence:_Server.is_live",
            "return bool(self.lease.life) and not self.is_expired",
            "return bool(self.lease.life)",
        ),
        world=ONE,
    ),
)
