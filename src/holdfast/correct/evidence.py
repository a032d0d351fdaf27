"""Which nodes have been silent, for how long, as far as anybody was listening.

controller:nodes keeps one. It asks every server whom it heard and puts the answers together on its
own monotonic clock. Silence counts only from when somebody was there to hear:

- from this controller's own first answer of each server, and from that server's own start;
- not at all while most servers give no answer, and from their return after that;
- from a while after a server was lost, since its agents have to find another one first.

So the observer's own troubles never look like those of the nodes.
"""

from __future__ import annotations

import msgspec

from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Heard

# A server that gave no answer for so long is not listening, as far as we know.
FRESH_MS = 8_000
# So long after a server's last answer its agents are taken to have found another one.
SERVER_GONE_MS = 30_000


class _Server(msgspec.Struct):
    """One server, by its address.

    `blind_until_ms` is when our knowledge of what it hears began, `known_until_ms` how far it
    reaches. `name` is who answered: another one behind the same address has another memory.
    """

    asked_ms: int
    blind_until_ms: int = 0
    known_until_ms: int | None = None
    name: str = ""
    timing: FenceTiming | None = None


class Evidence:
    """See the module's docstring. Times are readings of the controller's monotonic clock."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._heard_ms: dict[str, int] = {}

    def heard(self, to: str, heard: Heard, sent_ms: int, now_ms: int) -> list[str]:
        """Take in a server's answer. Returns the nodes that were heard again since the last one."""
        server = self._servers.setdefault(to, _Server(asked_ms=sent_ms))
        since_ms = now_ms - heard.listening_ms
        if server.known_until_ms is None or not self.is_listening(now_ms):
            # We may have been cut off together, and the agents with us.
            server.blind_until_ms = now_ms
        elif since_ms > server.known_until_ms or heard.server != server.name:
            # It began anew; whom its last life heard at last, nobody knows.
            server.blind_until_ms = max(server.blind_until_ms, since_ms)
        server.known_until_ms = sent_ms
        server.name, server.timing = heard.server, heard.timing
        again: list[str] = []
        for node, age_ms in heard.ages_ms.items():
            # It was heard no later than this; the earlier moment would make it look more silent.
            at_ms = now_ms - age_ms
            if at_ms > self._heard_ms.get(node, -1):
                self._heard_ms[node] = at_ms
                again.append(node)
        return again

    def unheard(self, to: str, sent_ms: int) -> None:
        """A server gave no answer."""
        self._servers.setdefault(to, _Server(asked_ms=sent_ms))

    @property
    def timing(self) -> FenceTiming | None:
        """The plane's timing; where servers differ, that of the most patient one."""
        known = [it.timing for it in self._servers.values() if it.timing is not None]
        return max(known, key=lambda it: (it.fence_after_ms, it.self_stop_after_ms), default=None)

    def heard_ms(self, node: str) -> int | None:
        """When the node was last heard, if it ever was."""
        return self._heard_ms.get(node)

    def silence_ms(self, node: str, since_ms: int, now_ms: int) -> int:
        """For how long the node has surely not been heard by anybody.

        `since_ms` is when it became known in its present life: no earlier silence is its own.
        """
        span = self._span(now_ms)
        if span is None:
            return 0
        listening_ms, until_ms = span
        heard_ms = self._heard_ms.get(node, since_ms)
        return max(0, until_ms - max(heard_ms, since_ms, listening_ms))

    def is_listening(self, now_ms: int) -> bool:
        """Whether enough servers tell us whom they hear."""
        return self._span(now_ms) is not None

    def _span(self, now_ms: int) -> tuple[int, int] | None:
        """From when until when all was heard that there was to hear."""
        blind_ms: list[int] = []
        known_ms: list[int] = []
        for server in self._servers.values():
            until_ms = server.known_until_ms
            if until_ms is not None and now_ms - until_ms <= FRESH_MS:
                blind_ms.append(server.blind_until_ms)
                known_ms.append(until_ms)
            else:
                last_ms = until_ms if until_ms is not None else server.asked_ms
                blind_ms.append(last_ms + SERVER_GONE_MS)
        if not known_ms or len(known_ms) * 2 < len(self._servers):
            return None
        return max(blind_ms), min(known_ms)

    def forget_all_but(self, nodes: set[str]) -> None:
        """Let go of what was heard of nodes that are not there any more."""
        if len(self._heard_ms) > len(nodes):
            self._heard_ms = {it: at for it, at in self._heard_ms.items() if it in nodes}
