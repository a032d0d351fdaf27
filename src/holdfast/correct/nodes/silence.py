"""Which nodes have been silent, for how long, as far as anybody was listening.

controller:nodes keeps one. It asks servers whom they heard; each answers for itself and for all
whose digests it has, and says which servers there are by their leases. This puts the answers
together on the controller's own monotonic clock. A server is known by its name and its life, never
by an address: behind one address there may be several, in turn.

A node is silent only if the word of every live server covers the whole time:

    its word is fresh               silence counts up to the word, from when its memory began
    its word is missing, it lives   nothing is silent: the node may be heard there
    its lease did not move for      it no longer counts; silence counts from a while after its last
    its duration, or was given back word, since its agents have to find another server first

Whether a lease moves is judged by reads of the store that were sent since, and by nothing else: a
server that shows an old roster makes nobody look dead. A server that was not heard of for a while
and comes back in the same life may have hung, and its agents with it; silence counts from its
return. So the observer's own troubles never look like those of the nodes, and no server that is
gone keeps nodes from being looked after.
"""

from __future__ import annotations

import msgspec

from holdfast.model.fence import FenceTiming, greatest_timing
from holdfast.model.heartbeat import (
    HeartbeatReport,
    ServerLease,
    ServerReport,
    ServerRoster,
    server_lease_ms,
)

# A server whose word is older than this is not listening, as far as we know.
FRESH_MS = 8_000
# So many renewals after a server's last word its agents are taken to have found another one.
GONE_PERIODS = 3
# What is known of a server that has no lease any more is forgotten after so long.
FORGET_MS = 600_000


class _Server(msgspec.Struct):
    """One server.

    `blind_until_ms` is when our knowledge of what it hears began, `known_until_ms` how far it
    reaches; `first_ms` is when we first heard that there is such a server. `seen_ms` is when its
    lease was first seen as it is, `shown_ms` when the last read was sent that showed it so.
    """

    first_ms: int
    life: str = ""
    blind_until_ms: int = 0
    known_until_ms: int | None = None
    timing: FenceTiming | None = None
    lease: ServerLease | None = None
    seen_ms: int = 0
    shown_ms: int = 0

    @property
    def last_ms(self) -> int:
        """How far anything is known of it."""
        return self.known_until_ms if self.known_until_ms is not None else self.first_ms

    def has_word(self, now_ms: int) -> bool:
        """Whether what it hears is known up to lately. The word of another process of its name is
        not that of the one that holds the lease."""
        known_ms, lease = self.known_until_ms, self.lease
        if known_ms is None or now_ms - known_ms > FRESH_MS:
            return False
        return lease is None or lease.life == self.life or not self.is_live(now_ms)

    def is_live(self, now_ms: int) -> bool:
        """Whether it may hear agents, as far as its lease tells."""
        if self.lease is None:
            # Of an earlier version, without a lease, or one whose lease is not known yet.
            timing = self.timing if self.timing is not None else FenceTiming()
            return now_ms - self.last_ms < server_lease_ms(timing)
        return bool(self.lease.life) and not self.is_expired

    @property
    def is_expired(self) -> bool:
        """Whether its lease was not renewed for its duration, and not given back either."""
        lease = self.lease
        if lease is None or not lease.life:
            return False
        return self.shown_ms - self.seen_ms >= lease.duration_ms


class NodeSilence:
    """See the module's docstring. Times are readings of the controller's monotonic clock."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._heard_ms: dict[str, int] = {}
        # When the youngest roster was read from the store, and when all was first heard.
        self._roster_ms: int | None = None
        self._since_ms: int | None = None

    def heard(self, heard: HeartbeatReport, sent_ms: int, now_ms: int) -> list[str]:
        """Take in an answer. Returns the nodes that were heard again since the last one."""
        if self._since_ms is None:
            # A new controller has to listen itself, however long others did before.
            self._since_ms = now_ms
        if heard.roster is not None:
            self._enrol(heard.roster, sent_ms, now_ms)
        for word in heard.all_words():
            self._take(word, sent_ms, now_ms)
        again: list[str] = []
        for node, age_ms in heard.ages_ms.items():
            # It was heard no later than this; the earlier moment would make it look more silent.
            at_ms = now_ms - age_ms
            if at_ms > self._heard_ms.get(node, -1):
                self._heard_ms[node] = at_ms
                again.append(node)
        return again

    def unheard(self, to: str, sent_ms: int) -> None:
        """An address gave no answer.

        Once servers are known by their leases, what an address does says nothing about any of them.
        """
        if self._roster_ms is None:
            self._servers.setdefault(to, _Server(first_ms=sent_ms))

    def _enrol(self, roster: ServerRoster, sent_ms: int, now_ms: int) -> None:
        """Take in which servers there are, from a read of the store."""
        read_ms = sent_ms - roster.age_ms
        if self._roster_ms is not None and read_ms < self._roster_ms:
            return
        if self._roster_ms is None:
            # What stood here so far were addresses that did not answer.
            self._servers = {it: s for it, s in self._servers.items() if s.timing is not None}
        self._roster_ms = read_ms
        there = {lease.server for lease in roster.servers}
        for lease in roster.servers:
            server = self._servers.setdefault(lease.server, _Server(first_ms=now_ms))
            if server.lease != lease:
                server.lease, server.seen_ms = lease, now_ms
            server.shown_ms = max(server.shown_ms, read_ms)
        for name, server in list(self._servers.items()):
            if name not in there:
                server.lease = None
                if now_ms - server.last_ms > FORGET_MS:
                    del self._servers[name]

    def _take(self, word: ServerReport, sent_ms: int, now_ms: int) -> None:
        """Take in how far the hearing of one server is known."""
        server = self._servers.setdefault(word.server, _Server(first_ms=now_ms))
        known_ms = sent_ms - word.age_ms
        since_ms = now_ms - word.listening_ms
        before_ms = server.known_until_ms
        if before_ms is not None and known_ms <= before_ms:
            return
        is_other = word.life != server.life
        if before_ms is not None and since_ms > before_ms and (is_other or not word.life):
            # It began anew; whom its last life heard at last, nobody knows.
            server.blind_until_ms = max(server.blind_until_ms, since_ms)
        elif before_ms is not None and is_other:
            # Two processes of one name side by side, each with a memory of its own.
            server.blind_until_ms = now_ms
        elif known_ms - server.last_ms > FRESH_MS:
            # It may have hung.
            server.blind_until_ms = now_ms
        elif before_ms is None:
            # What it heard is all in its word, from when it began.
            server.blind_until_ms = since_ms
        server.known_until_ms = known_ms
        server.life, server.timing = word.life, word.timing

    @property
    def timing(self) -> FenceTiming | None:
        """The plane's timing; where servers differ, the greatest of each of their times."""
        known = [it.timing for it in self._servers.values() if it.timing is not None]
        return greatest_timing(*known) if known else None

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
        """Whether the word of every live server is known."""
        return self._span(now_ms) is not None

    def _span(self, now_ms: int) -> tuple[int, int] | None:
        """From when until when all was heard that there was to hear."""
        if self._roster_ms is not None and now_ms - self._roster_ms > FRESH_MS:
            # A server that we do not know of may have begun to hear agents since.
            return None
        timing = self.timing
        if self._since_ms is None or timing is None:
            return None
        blind_ms = [self._since_ms]
        known_ms: list[int] = []
        for server in self._servers.values():
            if server.has_word(now_ms):
                blind_ms.append(server.blind_until_ms)
                known_ms.append(server.last_ms)
            elif server.is_live(now_ms):
                return None
            else:
                gone_ms = GONE_PERIODS * timing.renew_every_ms
                blind_ms.append(server.last_ms + gone_ms)
        return (max(blind_ms), min(known_ms)) if known_ms else None

    def forget_all_but(self, nodes: set[str]) -> None:
        """Let go of what was heard of nodes that are not there any more."""
        if len(self._heard_ms) > len(nodes):
            self._heard_ms = {it: at for it, at in self._heard_ms.items() if it in nodes}
