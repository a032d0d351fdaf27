"""Which servers answered lately, as all connections of a process have found out together.

A server that did not serve one of them is asked last by all of them for a while. When it fails
again right after that while, the next one is twice as long, so that a server that hangs for minutes
costs a request only now and then.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

# A server that failed is asked last for so long, at first and at most.
AVOID_S, AVOID_MAX_S = 2.0, 30.0


class _Failure(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    avoid_s: float


class Reachable:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def choose(self, servers: Sequence[str]) -> str:
        """The first of these that is not avoided, or else the one that failed longest ago."""
        now_s = time.monotonic()
        for server in servers:
            failure = self._failures.get(server)
            if failure is None or now_s - failure.at_s >= failure.avoid_s:
                return server
        return min(servers, key=lambda server: self._failures[server].at_s)

    def has_failed(self, server: str) -> bool:
        """Whether it did not answer when it was asked last."""
        return server in self._failures

    def failed(self, server: str) -> None:
        now_s, before = time.monotonic(), self._failures.get(server)
        avoid_s = AVOID_S
        if before is not None:
            # Several requests that were on their way together failed once.
            is_next = now_s - before.at_s >= before.avoid_s
            avoid_s = min(AVOID_MAX_S, before.avoid_s * 2) if is_next else before.avoid_s
        self._failures[server] = _Failure(now_s, avoid_s)

    def answered(self, server: str) -> None:
        self._failures.pop(server, None)
