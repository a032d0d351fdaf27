"""Heartbeat digests: which nodes the other servers heard, as far as this server knows.

`heartbeats.py` has one beside its own record. Every few seconds it reads from the store which
servers exist, and asks each live one which nodes it heard. An answer also contains what that server
learned from others, so that two servers that cannot reach each other exchange digests over a third.

Digests only avoid false marks. Each states its age, counted from when it was requested, so that a
delayed one claims less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.commit.record_encoding import decode_or_none
from holdfast.model import keys
from holdfast.model.kinds.lease import Lease, lease_name
from holdfast.model.machine import Ask, Effects, Range, Reply, Wake
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import (
    SERVERS_MAX,
    HeartbeatQuery,
    HeartbeatReport,
    ProgressNotes,
    SeenUse,
    ServerLease,
    ServerReport,
    ServerRoster,
    exchange_every_ms,
    server_of_scope,
    server_scope,
)
from holdfast.model.registry import kind_of_struct
from holdfast.model.time import Instant
from holdfast.model.transaction import Page

WAKE = "digests"
TIMEOUT_MS = 2_000
_LEASES = kind_of_struct(Lease)
_PREFIX = keys.object_key(_LEASES, "", lease_name(server_scope("")))


class _Known(msgspec.Struct, frozen=True):
    """A digest of another server, on our own clock."""

    life: str
    known_ms: int
    since_ms: int
    timing: FenceTiming
    heard: int


class _Lease(msgspec.Struct, frozen=True):
    """A server's lease, and since when it has not been renewed."""

    lease: ServerLease
    since_ms: int


class _Asked(msgspec.Struct, frozen=True):
    server: str
    sent_ms: int


class Digests:
    """See the module's docstring. Its owner assigns the numbers of its calls."""

    def __init__(self, name: str, timing: FenceTiming, forget_after_ms: int) -> None:
        self._name, self._timing = name, timing
        self._forget_after_ms = forget_after_ms
        self._roster: dict[str, _Lease] = {}
        self._roster_ms: int | None = None
        self._reading: tuple[int, int] | None = None
        self._asked: dict[int, _Asked] = {}
        self._reports: dict[str, _Known] = {}
        # When each node was last heard elsewhere, and what it reported then.
        self._heard_ms: dict[str, int] = {}
        self._said: dict[str, ProgressNotes] = {}
        # The last sample of a node's use that another server received, by when it came.
        self._used: dict[str, tuple[int, SeenUse]] = {}

    # Asking --------------------------------------------------------------------------------------

    def tick(self, number: Callable[[], int], now: Instant) -> Effects:
        """Read which servers exist; the live ones are asked when that is known."""
        now_ms = now.monotonic_ms
        effects: Effects = [Wake(WAKE, now_ms + exchange_every_ms(self._timing))]
        if self._reading is None:
            self._reading = (number(), now_ms)
            call, end = self._reading[0], keys.after_prefix(_PREFIX)
            effects.append(Range(call, _PREFIX, end, SERVERS_MAX, timeout_ms=TIMEOUT_MS))
        return effects

    def answered(self, call: int, body: Reply, number: Callable[[], int], now: Instant) -> Effects:
        """Take in an answer to one of our calls. Returns the next calls."""
        now_ms = now.monotonic_ms
        if self._reading is not None and call == self._reading[0]:
            sent_ms, self._reading = self._reading[1], None
            # More leases than there can be servers: a live one may be among the rest, so nothing is
            # known. Leases of servers that are gone are cleared away.
            if isinstance(body, Page) and body.more_from is None:
                self._read(body.records, sent_ms, now_ms)
            # A store that does not answer hides no server: the known ones are still asked.
            return self._ask(number, now_ms)
        asked = self._asked.pop(call, None)
        if asked is not None and isinstance(body, HeartbeatReport):
            self._take(body, asked.sent_ms, now_ms)
        return []

    def _ask(self, number: Callable[[], int], now_ms: int) -> Effects:
        busy = {it.server for it in self._asked.values()}
        effects: Effects = []
        for server, it in self._roster.items():
            is_live = it.lease.life and now_ms - it.since_ms < it.lease.duration_ms
            if server != self._name and server not in busy and is_live:
                call = number()
                self._asked[call] = _Asked(server, now_ms)
                effects.append(Ask(call, server, HeartbeatQuery(), TIMEOUT_MS))
        return effects

    def _keep(self, key: str, before: dict[str, _Lease]) -> None:
        for server, it in before.items():
            if key == keys.object_key(_LEASES, "", lease_name(server_scope(server))):
                self._roster[server] = it

    def _read(self, records: Any, sent_ms: int, now_ms: int) -> None:
        before, self._roster, self._roster_ms = self._roster, {}, sent_ms
        for record in records:
            found = decode_or_none(record)
            if found is None:
                # Whatever it contains now, a server that was known by it counts until that time is
                # over.
                self._keep(record.key, before)
                continue
            spec = found.spec
            server = server_of_scope(spec.scope)
            if not server:
                continue
            life = spec.instance if spec.holder else ""
            lease = ServerLease(
                server,
                life,
                spec.epoch,
                spec.renewals,
                spec.duration_ms,
                spec.address,
                spec.version,
            )
            known = before.get(server)
            is_same = known is not None and _moves(known.lease) == _moves(lease)
            since_ms = known.since_ms if known is not None and is_same else now_ms
            self._roster[server] = _Lease(lease, since_ms)
        # A server without a lease is no longer waited for.
        self._reports = {it: report for it, report in self._reports.items() if it in self._roster}

    def _take(self, heard: HeartbeatReport, sent_ms: int, now_ms: int) -> None:
        for report in heard.all_words():
            known_ms = sent_ms - report.age_ms
            known = self._reports.get(report.server)
            is_newer = known is None or known_ms > known.known_ms
            if report.server != self._name and report.server in self._roster and is_newer:
                since_ms = now_ms - report.listening_ms
                self._reports[report.server] = _Known(
                    report.life, known_ms, since_ms, report.timing, report.heard
                )
        for node, age_ms in heard.ages_ms.items():
            at_ms = now_ms - age_ms
            if age_ms < self._forget_after_ms and at_ms > self._heard_ms.get(node, -1):
                self._heard_ms[node] = at_ms
                said = heard.said.get(node)
                if said is not None:
                    self._said[node] = said
                else:
                    self._said.pop(node, None)

        for node, use in heard.used.items():
            at_ms = now_ms - use.age_ms
            known_use = self._used.get(node)
            is_recent = use.age_ms < self._forget_after_ms
            if is_recent and (known_use is None or at_ms > known_use[0]):
                self._used[node] = at_ms, use

    # Telling -------------------------------------------------------------------------------------

    def server_reports(self, now: Instant) -> tuple[ServerReport, ...]:
        """The digests of the other servers that are known here."""
        now_ms = now.monotonic_ms
        return tuple(
            ServerReport(
                server, it.life, now_ms - it.known_ms, now_ms - it.since_ms, it.timing, it.heard
            )
            for server, it in sorted(self._reports.items())
        )

    def roster(self, now: Instant) -> ServerRoster | None:
        """The servers by their leases; None before they were read."""
        if self._roster_ms is None:
            return None
        now_ms, known = now.monotonic_ms, sorted(self._roster.items())
        return ServerRoster(
            now_ms - self._roster_ms,
            tuple(it.lease for _, it in known),
            {server: now_ms - it.since_ms for server, it in known},
        )

    def heard_nodes(self, now: Instant) -> Iterator[tuple[str, int, ProgressNotes | None]]:
        """Each node that was heard elsewhere recently: when, and what it reported."""
        oldest_ms = now.monotonic_ms - self._forget_after_ms
        old = [node for node, at_ms in self._heard_ms.items() if at_ms <= oldest_ms]
        for node in old:
            del self._heard_ms[node]
            self._said.pop(node, None)
        for node, at_ms in self._heard_ms.items():
            yield node, at_ms, self._said.get(node)

    def used(self, now: Instant) -> dict[str, SeenUse]:
        """The last samples of what nodes use that are known from other servers."""
        now_ms = now.monotonic_ms
        self._used = {
            node: seen
            for node, seen in self._used.items()
            if now_ms - seen[0] < self._forget_after_ms
        }
        return {
            node: msgspec.structs.replace(use, age_ms=now_ms - at_ms)
            for node, (at_ms, use) in self._used.items()
        }


def _moves(lease: ServerLease) -> tuple[str, int, int]:
    return lease.life, lease.epoch, lease.renewals
