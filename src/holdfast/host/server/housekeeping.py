"""Removes records that are no longer needed: old operations, revocations and leases.

None of them is an object of a tenant, and no controller watches them: operations that are kept
apart from their objects cannot be watched, and leases change all the time. So the server that
maintains the store reads them from time to time, a page at a time, and asks the authority, which
verifies each of them again. `ExpiredRecords` decides which ones to ask for; it has no clock of its
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any

from holdfast.commit.access.revocation import REVOKED_LONGER
from holdfast.commit.leases import SERVER_LEASE_KEPT_MIN
from holdfast.commit.record_encoding import PastOperation, decode_or_none
from holdfast.host.process import clock
from holdfast.model import keys
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.access import Revocation
from holdfast.model.kinds.lease import LEASE_RETENTION, Lease
from holdfast.model.nodes.heartbeat import SERVERS_MAX, server_of_scope
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import ForgetOperations, Remove, RetireLease
from holdfast.model.time import Instant, wall_ms
from holdfast.model.transaction import Record
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.contract import Store

EVERY_S = 10.0
PAGE = 1_000
# All operations are read in about this many rounds, however many there are: with a fixed number in
# each round they would pile up on a plane that makes more than that. The limit keeps a round short
# on a plane that makes thousands in a second.
SWEEP_ROUNDS = 6
PAGES_PER_ROUND_MAX = 100
# The most records that one transaction removes in any store.
FORGET_AT_ONCE = 60
# The authority's clock decides; ours may be ahead of it by this much without useless requests.
LATE_MS = 5_000
_LEASE_KEPT_MS = LEASE_RETENTION.kept_ms + LATE_MS
_SERVER_KEPT_MIN_MS = int(SERVER_LEASE_KEPT_MIN.total_seconds() * 1_000) + LATE_MS
_NEVER = "authority"
_REVOCATIONS = keys.kind_prefix(kind_of_struct(Revocation))
_log = logging.getLogger(__name__)

# By scope: epoch, renewals, and since when the lease has not changed.
_Leases = dict[str, tuple[int, int, int]]
Ask = Callable[[Any], Awaitable[Any]]


class ExpiredRecords:
    """Selects the records that can be removed."""

    def __init__(self) -> None:
        # When each lease was first seen in its present state, by scope.
        self._seen: _Leases = {}
        # Where to continue among the operations and the revocations.
        self.operations_from = keys.OPERATIONS
        self.revocations_from = _REVOCATIONS
        # Pages of operations in this sweep so far, and how many to read in each round.
        self._swept = 0
        self.pages_per_round = 1

    def swept(self, more_from: str | None) -> None:
        """Note that a page of operations was read: the next begins there, or the sweep is over."""
        self._swept += 1
        self.operations_from = more_from or keys.OPERATIONS
        if more_from is None:
            per_round = -(-self._swept // SWEEP_ROUNDS)
            self.pages_per_round = min(per_round, PAGES_PER_ROUND_MAX)
            self._swept = 0

    def operations(self, records: Iterable[Record], now_wall_ms: int) -> list[ForgetOperations]:
        """Return the requests to remove the old ones among these operations."""
        old = []
        for record in records:
            past: PastOperation | None = decode_or_none(record)
            if past is None:
                continue
            # A stamp in the future comes from a clock that was ahead; the authority decides about
            # its age.
            is_ahead = wall_ms(past.operation.at) > now_wall_ms + LATE_MS
            if is_ahead or wall_ms(past.until) + LATE_MS < now_wall_ms:
                old.append(record.key.removeprefix(keys.OPERATIONS))
        starts = range(0, len(old), FORGET_AT_ONCE)
        return [ForgetOperations(tuple(old[at : at + FORGET_AT_ONCE])) for at in starts]

    def revocations(self, records: Iterable[Record], now_wall_ms: int) -> list[Remove]:
        """Return the requests to remove revocations of credentials that have all expired."""
        found: list[Revocation] = [it for it in map(decode_or_none, records) if it is not None]
        return [
            Remove("revocations", "", it.name, it.metadata.uid)
            for it in found
            if it.spec.expires is not None
            and wall_ms(it.spec.expires + REVOKED_LONGER) + LATE_MS < now_wall_ms
        ]

    def leases(self, records: Iterable[Record], now_ms: int) -> list[RetireLease]:
        """Return the requests to remove leases that did not change for their time by our clock.

        The lease of a server that did not release it never expires this way: operators must learn
        that the server is gone, however long ago that was.
        """
        there: _Leases = {}
        held = set()
        for record in records:
            lease = decode_or_none(record)
            if lease is None:
                continue
            spec = lease.spec
            if spec.holder:
                held.add(spec.scope)
            before = self._seen.get(spec.scope, (0, 0, 0))
            same = before[:2] == (spec.epoch, spec.renewals)
            there[spec.scope] = before if same else (spec.epoch, spec.renewals, now_ms)
        self._seen = there
        old = [scope for scope, it in there.items() if now_ms - it[2] >= _LEASE_KEPT_MS]
        over = [it for it in old if it != _NEVER and (it not in held or not server_of_scope(it))]
        over += _surplus(there, now_ms, set(over))
        return [RetireLease(scope, *there[scope][:2]) for scope in over]


def _surplus(seen: _Leases, now_ms: int, over: Container[str]) -> list[str]:
    """Return the server leases to remove for lack of room, the longest unchanged first.

    `holdfast status` names a server that is gone until it is removed or back. But servers that
    start under ever new names must not fill the roster, which is bounded.
    """
    servers = [it for it in seen if server_of_scope(it) and it not in over]
    still = [it for it in servers if now_ms - seen[it][2] >= _SERVER_KEPT_MIN_MS]
    still.sort(key=lambda it: seen[it][2])
    return still[: max(0, len(servers) - SERVERS_MAX // 2)]


async def tidy_for_ever(
    store: Store,
    is_ours: Callable[[], bool],
    ask: Ask,
    every_s: float = EVERY_S,
    now: Callable[[], Instant] = clock.now,
) -> None:
    """Check some operations and all leases at intervals, if this server maintains the store."""
    tidying = ExpiredRecords()
    while True:
        await asyncio.sleep(every_s)
        if not is_ours():
            tidying = ExpiredRecords()
            continue
        try:
            await _round(store, ask, tidying, now())
        except HoldfastError as error:
            # The next round does it; nothing depends on this one.
            _log.warning("old records were not removed in this round: %s", error.message)


async def _round(store: Store, ask: Ask, tidying: ExpiredRecords, now: Instant) -> None:
    """Check some pages of operations, one of revocations, and the leases."""
    for _ in range(tidying.pages_per_round):
        start, end = tidying.operations_from, keys.after_prefix(keys.OPERATIONS)
        page = await store.range(start, end, limit=PAGE)
        tidying.swept(page.more_from)
        await _ask_all(ask, tidying.operations(page.records, now.wall_ms))
        if page.more_from is None:
            break
    prefix = keys.kind_prefix(kind_of_struct(Lease))
    leases = await store.range(prefix, keys.after_prefix(prefix), limit=PAGE)
    end = keys.after_prefix(_REVOCATIONS)
    revocations = await store.range(tidying.revocations_from, end, limit=PAGE)
    tidying.revocations_from = revocations.more_from or _REVOCATIONS
    await _ask_all(ask, tidying.leases(leases.records, now.monotonic_ms))
    await _ask_all(ask, tidying.revocations(revocations.records, now.wall_ms))


async def _ask_all(ask: Ask, requests: Iterable[Any]) -> None:
    for request in requests:
        answer = await ask(request)
        if isinstance(answer, Refusal):
            _log.info("%s was refused: %s", type(request).__name__, answer.message)


# Compacts the store's history, so that it does not grow without bound.
#
# A watch that is further behind gets Expired (410) and its reader lists again. Only the audit
# writer is waited for, since it cannot list again what was done. `Horizon` decides which revision
# to compact to; it has no clock of its own.

KEEP_MS = 600_000
# The most that is kept, however busy a plane is; at 2,000 writes a second it is five minutes.
KEEP_REVISIONS_MAX = 600_000
# The most bytes that are kept: an eighth of etcd's default quota. One object of a megabyte that
# changes twenty times a second would fill that within two minutes.
KEEP_BYTES_MAX = 256 << 20
# How often the size of the history is checked: a tenant may write much before its rate limit acts.
UPKEEP_EVERY_S = 5.0


class Horizon:
    """Remembers when each revision was current, and so which ones are old."""

    def __init__(
        self,
        keep_ms: int = KEEP_MS,
        keep_max: int = KEEP_REVISIONS_MAX,
        *,
        history: HistoryBytes | None = None,
        keep_bytes: int = KEEP_BYTES_MAX,
    ) -> None:
        """`history` holds the bytes that a watch of the whole store has counted."""
        self._keep_ms, self._keep_max = keep_ms, keep_max
        self._history, self._keep_bytes = history, keep_bytes
        self._seen: deque[tuple[int, int]] = deque()
        self._forgotten = 0

    def note(self, revision: int, now_ms: int) -> int | None:
        """Note the current revision. Return the revision to compact to, if there is one."""
        self._seen.append((now_ms, revision))
        old = self._forgotten
        while self._seen and now_ms - self._seen[0][0] >= self._keep_ms:
            old = max(old, self._seen.popleft()[1])
        old = max(old, revision - self._keep_max)
        if self._history is not None:
            by_bytes = self._history.revision_before(self._keep_bytes)
            # What was not counted is kept for its time: an estimate must not end a watch.
            if by_bytes > self._history.counted_since:
                old = max(old, min(by_bytes, revision))
        if old <= self._forgotten:
            return None
        self._forgotten = old
        return old


async def compact_for_ever(
    store: Store,
    is_ours: Callable[[], bool],
    horizon: Horizon,
    every_s: float = UPKEEP_EVERY_S,
    waits_for: Callable[[int], Awaitable[int]] | None = None,
) -> None:
    """Note the revision from time to time, and compact if this server maintains the store.

    `waits_for` says how much of that may be compacted already.
    """
    while True:
        await asyncio.sleep(every_s)
        try:
            upto = horizon.note(await store.revision(), clock.monotonic_ms())
            if upto is not None and is_ours():
                await store.compact(await waits_for(upto) if waits_for is not None else upto)
        except HoldfastError as error:
            # The next round does it; nothing depends on this one.
            _log.warning("history was not compacted in this round: %s", error.message)
