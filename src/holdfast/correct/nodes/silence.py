"""How long each node has been silent, as far as all servers listened.

controller:nodes keeps one. It asks servers for the heartbeats they received; each answers for
itself and for all servers whose digests it has, and lists the servers by their leases. This module
merges the answers on the controller's own monotonic clock. A server is identified by its name and
its life, never by an address: several servers may take turns behind one address.

A node is silent only if the reports of all live servers cover the whole time:

    its report is fresh             silence counts up to the report, from when its memory began
    no report, but it is live       no node is silent: the server may receive its heartbeats
    its lease was not renewed for   it no longer counts; silence counts from a while after its last
    its duration, or was released   report, since its agents have to find another server first

Only reads of the store that were sent since then show whether a lease was renewed: a server with an
old roster makes no other server look dead. A server without reports for a while that returns in the
same life may have hung, and its agents with it; silence counts from its return. So trouble of the
observer never looks like trouble of the nodes, and a server that is gone does not stop the
supervision of nodes.
"""

from __future__ import annotations

import msgspec

from holdfast.correct.remembered import Remembered, names_of
from holdfast.model.nodes.fence import FenceTiming, greatest_timing
from holdfast.model.nodes.heartbeat import (
    ZONE_SILENCE_MAX_MS,
    HeartbeatReport,
    ServerLease,
    ServerReport,
    ServerRoster,
    server_lease_ms,
)
from holdfast.observe.snapshot import Snapshot

# A server whose report is older than this may not be listening.
FRESH_MS = 8_000
# After this many heartbeat periods, the agents of a gone server have found another one.
GONE_PERIODS = 3
# A server without a lease is forgotten after this time.
FORGET_MS = 600_000


class _Server(msgspec.Struct):
    """One server.

    From `blind_until_ms` to `known_until_ms` its received heartbeats are known, `heard` is how many
    nodes it heard of late, and `first_ms` is when the server was first known. `seen_ms` is when its
    lease was first seen in its present form, `shown_ms` when the last read was sent that showed it
    so.
    """

    first_ms: int
    life: str = ""
    blind_until_ms: int = 0
    known_until_ms: int | None = None
    timing: FenceTiming | None = None
    heard: int = 0
    lease: ServerLease | None = None
    seen_ms: int = 0
    shown_ms: int = 0

    @property
    def last_ms(self) -> int:
        """The end of what is known of it."""
        return self.known_until_ms if self.known_until_ms is not None else self.first_ms

    def has_report(self, now_ms: int) -> bool:
        """Whether a fresh report exists. The report of another process with its name is not that
        of the lease's holder."""
        known_ms, lease = self.known_until_ms, self.lease
        if known_ms is None or now_ms - known_ms > FRESH_MS:
            return False
        return lease is None or lease.life == self.life or not self.is_live(now_ms)

    def is_live(self, now_ms: int) -> bool:
        """Whether it may receive heartbeats, by its lease."""
        if self.lease is None:
            # A server of an earlier version without a lease, or one whose lease is not known yet.
            timing = self.timing if self.timing is not None else FenceTiming()
            return now_ms - self.last_ms < server_lease_ms(timing)
        return bool(self.lease.life) and not self.is_expired

    @property
    def is_expired(self) -> bool:
        """Whether its lease was not renewed for its duration, and was not released."""
        lease = self.lease
        if lease is None or not lease.life:
            return False
        return self.shown_ms - self.seen_ms >= lease.duration_ms


class NodeSilence(Remembered):
    """See the module's docstring. Times are readings of the controller's monotonic clock."""

    def __init__(self) -> None:
        self.begin_term()

    def begin_term(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._heard_ms: dict[str, int] = {}
        # When the youngest roster was read from the store, and when the first answer came.
        self._roster_ms: int | None = None
        self._since_ms: int | None = None
        # For how long a silent zone is held back, as the last answer said.
        self.zone_silence_max_ms = ZONE_SILENCE_MAX_MS

    def take_answer(self, answer: HeartbeatReport, sent_ms: int, now_ms: int) -> list[str]:
        """Process an answer. Returns the nodes with a heartbeat since the last one."""
        if self._since_ms is None:
            # A new controller has to observe for itself, however long others did before.
            self._since_ms = now_ms
        self.zone_silence_max_ms = answer.zone_silence_max_ms
        if answer.roster is not None:
            self._enrol(answer.roster, sent_ms, now_ms)
        for report in answer.all_words():
            self._take_report(report, sent_ms, now_ms)
        again: list[str] = []
        for node, age_ms in answer.ages_ms.items():
            # The heartbeat came no later than this; an earlier time would look more silent.
            at_ms = now_ms - age_ms
            if at_ms > self._heard_ms.get(node, -1):
                self._heard_ms[node] = at_ms
                again.append(node)
        return again

    def take_failure(self, to: str, sent_ms: int) -> None:
        """An address gave no answer.

        Once servers are known by their leases, an address says nothing about any of them.
        """
        if self._roster_ms is None:
            self._servers.setdefault(to, _Server(first_ms=sent_ms))

    def _enrol(self, roster: ServerRoster, sent_ms: int, now_ms: int) -> None:
        """Process the list of servers, from a read of the store."""
        read_ms = sent_ms - roster.age_ms
        if self._roster_ms is not None and read_ms < self._roster_ms:
            return
        if self._roster_ms is None:
            # Drop the entries of addresses that did not answer.
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

    def _take_report(self, report: ServerReport, sent_ms: int, now_ms: int) -> None:
        """Process the report of one server."""
        server = self._servers.setdefault(report.server, _Server(first_ms=now_ms))
        known_ms = sent_ms - report.age_ms
        since_ms = now_ms - report.listening_ms
        before_ms = server.known_until_ms
        if before_ms is not None and known_ms <= before_ms:
            return
        is_other = report.life != server.life
        if before_ms is not None and since_ms > before_ms and (is_other or not report.life):
            # It has restarted; the last heartbeats of its former life are unknown.
            server.blind_until_ms = max(server.blind_until_ms, since_ms)
        elif before_ms is not None and is_other:
            # Two processes with one name at the same time, each with its own memory.
            server.blind_until_ms = now_ms
        elif known_ms - server.last_ms > FRESH_MS:
            # It may have hung.
            server.blind_until_ms = now_ms
        elif before_ms is None:
            # Its report holds all heartbeats since it started.
            server.blind_until_ms = since_ms
        server.known_until_ms = known_ms
        server.life, server.timing, server.heard = report.life, report.timing, report.heard

    @property
    def timing(self) -> FenceTiming | None:
        """The plane's timing; where servers differ, the greatest of each time."""
        known = [it.timing for it in self._servers.values() if it.timing is not None]
        return greatest_timing(*known) if known else None

    def heard_ms(self, node: str) -> int | None:
        """When the last heartbeat of the node was received, if any."""
        return self._heard_ms.get(node)

    def silence_ms(self, node: str, since_ms: int, now_ms: int) -> int:
        """For how long certainly no server has received a heartbeat of the node.

        `since_ms` is when it became known in its present incarnation: earlier silence is not its.
        """
        span = self._span(now_ms)
        if span is None:
            return 0
        listening_ms, until_ms = span
        heard_ms = self._heard_ms.get(node, since_ms)
        return max(0, until_ms - max(heard_ms, since_ms, listening_ms))

    def is_listening(self, now_ms: int) -> bool:
        """Whether the reports of all live servers are known."""
        return self._span(now_ms) is not None

    def observers(self, now_ms: int) -> int:
        """How many servers with a fresh report hear any node themselves: those can be trusted about
        the nodes that none of them hears.
        """
        return sum(it.has_report(now_ms) and it.heard > 0 for it in self._servers.values())

    def _span(self, now_ms: int) -> tuple[int, int] | None:
        """The time span for which the heartbeats of all servers are known."""
        if self._roster_ms is not None and now_ms - self._roster_ms > FRESH_MS:
            # An unknown server may have started to receive heartbeats since.
            return None
        timing = self.timing
        if self._since_ms is None or timing is None:
            return None
        blind_ms = [self._since_ms]
        known_ms: list[int] = []
        for server in self._servers.values():
            if server.has_report(now_ms):
                blind_ms.append(server.blind_until_ms)
                known_ms.append(server.last_ms)
            elif server.is_live(now_ms):
                return None
            else:
                gone_ms = GONE_PERIODS * timing.renew_every_ms
                blind_ms.append(server.last_ms + gone_ms)
        return (max(blind_ms), min(known_ms)) if known_ms else None

    def resync(self, view: Snapshot) -> None:
        """Forget the heartbeats of nodes that no longer exist."""
        there = names_of("nodes")(view)
        self._heard_ms = {it: at for it, at in self._heard_ms.items() if it in there}
