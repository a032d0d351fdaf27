"""Forgets records that nobody has a use for: operations, revocations and leases that are over.

None of them is an object of a tenant, and no controller follows them: operations that are kept
apart from their objects cannot be watched, and leases move all the time. So the server that looks
after the store reads through them now and then, a page at a time, and asks the authority, which
proves each of them again. Which ones to ask for is decided by `Tidying`, which has no clock of its
own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from holdfast.commit.leases import LEASE_KEPT
from holdfast.commit.records import PastOperation, decode
from holdfast.host import clock
from holdfast.model import keys
from holdfast.model.errors import HoldfastError
from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.revocation import Revocation
from holdfast.model.refusal import Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.requests import ForgetOperations, Remove, RetireLease
from holdfast.model.time import Instant, wall_ms
from holdfast.model.transaction import Record
from holdfast.store.contract import Store

# One page in each round: a plane that deletes a hundred objects a second is kept up with.
EVERY_S = 10.0
PAGE = 1_000
# A transaction takes no more than so many at once in any store.
FORGET_AT_ONCE = 60
# The authority's clock decides; ours may be ahead of it by this much without asking in vain.
LATE_MS = 5_000
_NEVER = "authority"
_REVOCATIONS = keys.kind_prefix(kind_of_struct(Revocation))
_log = logging.getLogger(__name__)

Ask = Callable[[Any], Awaitable[Any]]


class Tidying:
    """What of the records that were read is over."""

    def __init__(self) -> None:
        # When each lease was first seen as it is, by its scope.
        self._seen: dict[str, tuple[int, int, int]] = {}
        # Where to go on among the revocations.
        self.revocations_from = _REVOCATIONS

    def operations(self, records: Iterable[Record], now_wall_ms: int) -> list[ForgetOperations]:
        """The requests to forget what is old among these."""
        old = []
        for record in records:
            past: PastOperation = decode(record.key, record.value)
            if wall_ms(past.until) + LATE_MS < now_wall_ms:
                old.append(record.key.removeprefix(keys.OPERATIONS))
        starts = range(0, len(old), FORGET_AT_ONCE)
        return [ForgetOperations(tuple(old[at : at + FORGET_AT_ONCE])) for at in starts]

    def revocations(self, records: Iterable[Record], now_wall_ms: int) -> list[Remove]:
        """The requests to take away those that end nothing any more: all of it has ended."""
        found: list[Revocation] = [decode(record.key, record.value) for record in records]
        return [
            Remove("revocations", "", it.name, it.metadata.uid)
            for it in found
            if it.spec.expires is not None and wall_ms(it.spec.expires) + LATE_MS < now_wall_ms
        ]

    def leases(self, records: Iterable[Record], now_ms: int) -> list[RetireLease]:
        """The requests to forget leases that did not move for their time, on our own clock too."""
        there: dict[str, tuple[int, int, int]] = {}
        for record in records:
            spec = decode(record.key, record.value).spec
            before = self._seen.get(spec.scope, (0, 0, 0))
            same = before[:2] == (spec.epoch, spec.renewals)
            there[spec.scope] = before if same else (spec.epoch, spec.renewals, now_ms)
        self._seen = there
        kept_ms = int(LEASE_KEPT.total_seconds() * 1_000) + LATE_MS
        return [
            RetireLease(scope, epoch, renewals)
            for scope, (epoch, renewals, since_ms) in there.items()
            if now_ms - since_ms >= kept_ms and scope != _NEVER
        ]


async def tidy_for_ever(
    store: Store,
    is_ours: Callable[[], bool],
    ask: Ask,
    every_s: float = EVERY_S,
    now: Callable[[], Instant] = clock.now,
) -> None:
    """Look through a page of operations and all leases now and then, where that is our task."""
    tidying, start = Tidying(), keys.OPERATIONS
    while True:
        await asyncio.sleep(every_s)
        if not is_ours():
            tidying, start = Tidying(), keys.OPERATIONS
            continue
        try:
            start = await _round(store, ask, tidying, start, now())
        except HoldfastError as error:
            # The next round does it; nothing depends on this one.
            _log.warning("old records were not forgotten this time: %s", error.message)


async def _round(store: Store, ask: Ask, tidying: Tidying, start: str, now: Instant) -> str:
    """One page of operations and of revocations, and the leases; where to go on next time."""
    page = await store.range(start, keys.after_prefix(keys.OPERATIONS), limit=PAGE)
    prefix = keys.kind_prefix(kind_of_struct(Lease))
    leases = await store.range(prefix, keys.after_prefix(prefix), limit=PAGE)
    end = keys.after_prefix(_REVOCATIONS)
    revocations = await store.range(tidying.revocations_from, end, limit=PAGE)
    tidying.revocations_from = revocations.more_from or _REVOCATIONS
    requests: list[Any] = [
        *tidying.operations(page.records, now.wall_ms),
        *tidying.leases(leases.records, now.monotonic_ms),
        *tidying.revocations(revocations.records, now.wall_ms),
    ]
    for request in requests:
        answer = await ask(request)
        if isinstance(answer, Refusal):
            _log.info("%s was refused: %s", type(request).__name__, answer.message)
    return page.more_from or keys.OPERATIONS
