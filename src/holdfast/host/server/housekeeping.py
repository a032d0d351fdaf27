"""Forgets records that nobody has a use for: operations, revocations and leases that are over.

None of them is an object of a tenant, and no controller follows them: operations that are kept
apart from their objects cannot be watched, and leases move all the time. So the server that looks
after the store reads through them now and then, a page at a time, and asks the authority, which
proves each of them again. Which ones to ask for is decided by `ExpiredRecords`, which has no clock of its
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Container, Iterable
from typing import Any

from holdfast.commit.access.revocation import REVOKED_LONGER
from holdfast.commit.leases import LEASE_KEPT, SERVER_LEASE_KEPT_MIN
from holdfast.commit.records import PastOperation, decode_or_none
from holdfast.host.process import clock
from holdfast.model import keys
from holdfast.model.errors import HoldfastError
from holdfast.model.heartbeat import SERVERS_MAX, server_of_scope
from holdfast.model.kinds.access import Revocation
from holdfast.model.kinds.lease import Lease
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import ForgetOperations, Remove, RetireLease
from holdfast.model.time import Instant, wall_ms
from holdfast.model.transaction import Record
from holdfast.observe.history_bytes import HistoryBytes
from holdfast.store.contract import Store

EVERY_S = 10.0
PAGE = 1_000
# All operations are looked through in about this many rounds, however many there are: with a fixed
# number in each round they would pile up on a plane that makes more than that. The bound keeps a
# round short on a plane that makes thousands in a second.
SWEEP_ROUNDS = 6
PAGES_PER_ROUND_MAX = 100
# A transaction takes no more than so many at once in any store.
FORGET_AT_ONCE = 60
# The authority's clock decides; ours may be ahead of it by this much without asking in vain.
LATE_MS = 5_000
_LEASE_KEPT_MS = int(LEASE_KEPT.total_seconds() * 1_000) + LATE_MS
_SERVER_KEPT_MIN_MS = int(SERVER_LEASE_KEPT_MIN.total_seconds() * 1_000) + LATE_MS
_NEVER = "authority"
_REVOCATIONS = keys.kind_prefix(kind_of_struct(Revocation))
_log = logging.getLogger(__name__)

# Epoch, renewals, and since when it was seen so, by scope.
_Leases = dict[str, tuple[int, int, int]]
Ask = Callable[[Any], Awaitable[Any]]


class ExpiredRecords:
    """What of the records that were read is over."""

    def __init__(self) -> None:
        # When each lease was first seen as it is, by its scope.
        self._seen: _Leases = {}
        # Where to go on among the operations and the revocations.
        self.operations_from = keys.OPERATIONS
        self.revocations_from = _REVOCATIONS
        # Pages of operations in this sweep so far, and how many to read in each round.
        self._swept = 0
        self.pages_per_round = 1

    def swept(self, more_from: str | None) -> None:
        """A page of operations was read; the next one begins there, or the sweep is over."""
        self._swept += 1
        self.operations_from = more_from or keys.OPERATIONS
        if more_from is None:
            per_round = -(-self._swept // SWEEP_ROUNDS)
            self.pages_per_round = min(per_round, PAGES_PER_ROUND_MAX)
            self._swept = 0

    def operations(self, records: Iterable[Record], now_wall_ms: int) -> list[ForgetOperations]:
        """The requests to forget what is old among these."""
        old = []
        for record in records:
            past: PastOperation | None = decode_or_none(record)
            if past is None:
                continue
            # A stamp that is still to come is of a calendar that was ahead; its age is for the
            # authority to tell.
            is_ahead = wall_ms(past.operation.at) > now_wall_ms + LATE_MS
            if is_ahead or wall_ms(past.until) + LATE_MS < now_wall_ms:
                old.append(record.key.removeprefix(keys.OPERATIONS))
        starts = range(0, len(old), FORGET_AT_ONCE)
        return [ForgetOperations(tuple(old[at : at + FORGET_AT_ONCE])) for at in starts]

    def revocations(self, records: Iterable[Record], now_wall_ms: int) -> list[Remove]:
        """The requests to take away those that end nothing any more: all of it has ended."""
        found: list[Revocation] = [it for it in map(decode_or_none, records) if it is not None]
        return [
            Remove("revocations", "", it.name, it.metadata.uid)
            for it in found
            if it.spec.expires is not None
            and wall_ms(it.spec.expires + REVOKED_LONGER) + LATE_MS < now_wall_ms
        ]

    def leases(self, records: Iterable[Record], now_ms: int) -> list[RetireLease]:
        """The requests to forget leases that did not move for their time, on our own clock too.

        That of a server which did not give it back has no time: whoever looks has to learn that the
        server is gone, however long ago that was.
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
    """The leases of servers that make room, those first that have stood still for longest.

    A server that is gone is named by `holdfast status` until it is removed or back. But servers
    that come under new names all the time must not fill the roster, which is bounded.
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
    """Look through some operations and all leases now and then, where that is our task."""
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
            _log.warning("old records were not forgotten this time: %s", error.message)


async def _round(store: Store, ask: Ask, tidying: ExpiredRecords, now: Instant) -> None:
    """Some pages of operations, one of revocations, and the leases."""
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


# Forgets the store's history after a while, so that it does not grow for ever.
#
# Whoever reads more slowly than that is told Expired (410) and lists again; nobody is waited for
# but the scribe of the audit, who cannot list again what was done. Which revision to forget is
# decided by `Horizon`, which has no clock of its own.

KEEP_MS = 600_000
# However busy a plane is, no more than this is kept; at 2,000 writes a second it is five minutes.
KEEP_REVISIONS_MAX = 600_000
# However large what is written: an eighth of what etcd takes unless told otherwise. One object of a
# megabyte that changes twenty times a second would fill that within two minutes.
KEEP_BYTES_MAX = 256 << 20
# So often is looked how much there is: a tenant may write much before it is held to its rate.
UPKEEP_EVERY_S = 5.0


class Horizon:
    """Remembers which revision was current when, and so which ones are old."""

    def __init__(
        self,
        keep_ms: int = KEEP_MS,
        keep_max: int = KEEP_REVISIONS_MAX,
        *,
        history: HistoryBytes | None = None,
        keep_bytes: int = KEEP_BYTES_MAX,
    ) -> None:
        """`history` is what a follower of the whole store has counted."""
        self._keep_ms, self._keep_max = keep_ms, keep_max
        self._history, self._keep_bytes = history, keep_bytes
        self._seen: deque[tuple[int, int]] = deque()
        self._forgotten = 0

    def note(self, revision: int, now_ms: int) -> int | None:
        """Take in the current revision; say up to which one history may be forgotten now."""
        self._seen.append((now_ms, revision))
        old = self._forgotten
        while self._seen and now_ms - self._seen[0][0] >= self._keep_ms:
            old = max(old, self._seen.popleft()[1])
        old = max(old, revision - self._keep_max)
        if self._history is not None:
            by_bytes = self._history.revision_before(self._keep_bytes)
            # What was not counted is kept for its time: an estimate must not end anybody's watch.
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
    """Note the revision now and then, and forget what is old where that is this server's task.

    `waits_for` says how much of that may be forgotten already.
    """
    while True:
        await asyncio.sleep(every_s)
        try:
            upto = horizon.note(await store.revision(), clock.monotonic_ms())
            if upto is not None and is_ours():
                await store.compact(await waits_for(upto) if waits_for is not None else upto)
        except HoldfastError as error:
            # The next round does it; nothing depends on this one.
            _log.warning("history was not forgotten this time: %s", error.message)
