"""Divides the event loop: all long requests together get one time slice in each turn of it.

A list may examine hundreds of thousands of objects. While it runs in one piece, everything else
waits, lease renewals too; and ten such lists that alternate make each turn ten times as long. So
code that works on many objects asks after each whether its slice is over, and then rests until all
other long requests have had a slice. Short requests are served in every turn.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.commit.flow.overload import RejectionReason, overload_error
from holdfast.commit.flow.request_classes import Flow

# About what ten requests cost: short enough for leases, long enough that resting costs little.
SLICE_S = 0.002


class LoopShare:
    """The part of the event loop that long work may have. One for each server."""

    def __init__(self) -> None:
        self._resting: deque[asyncio.Future[None]] = deque()
        # Until when long work may go on in this turn of the loop; None before any has begun.
        self._until_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether this turn's slice is used up: then the caller has to rest."""
        now_s = time.perf_counter()
        if self._until_s is None:
            self._until_s = now_s + SLICE_S
            asyncio.get_running_loop().call_soon(self._turn)
        return now_s >= self._until_s

    async def rest(self) -> None:
        """Wait for the next slice, behind all that rest already."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._resting.append(turn)
        if self._until_s is None:
            self._until_s = time.perf_counter()
            loop.call_soon(self._turn)
        await turn

    def _turn(self) -> None:
        """The loop has made a turn: the next one gets a slice."""
        self._until_s = None
        while self._resting:
            turn = self._resting.popleft()
            # One whose client left meanwhile was cancelled.
            if not turn.done():
                turn.set_result(None)
                self._until_s = time.perf_counter() + SLICE_S
                # It wakes with the next turn of the loop, and this runs after it.
                asyncio.get_running_loop().call_soon(self._turn)
                return


# Expensive requests: one at a time for each tenant, and few at a time in all.
#
# With a single lock one tenant that asks again and again would keep all others waiting. Here it
# waits behind its own requests, and is refused when too many of them wait.

ALL_MAX = 4
# How many requests of one tenant may wait or run.
TENANT_MAX = 16
RETRY_AFTER_S = 1


class TenantLocks:
    """Locks for expensive requests; see above."""

    def __init__(self, all_max: int = ALL_MAX, tenant_max: int = TENANT_MAX) -> None:
        self._seats = asyncio.Semaphore(all_max)
        self._tenant_max = tenant_max
        # The lock of each tenant with requests that wait or run, and how many these are.
        self.locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, flow: Flow) -> AsyncIterator[None]:
        """Wait for the turn of this caller's tenant. Raises Overloaded."""
        lock, wanted = self.locks.get(flow.tenant) or (asyncio.Lock(), 0)
        if wanted >= self._tenant_max:
            raise overload_error(flow, RejectionReason.QUEUE_FULL, RETRY_AFTER_S)
        self.locks[flow.tenant] = (lock, wanted + 1)
        try:
            async with lock, self._seats:
                yield
        finally:
            _, wanted = self.locks[flow.tenant]
            if wanted > 1:
                self.locks[flow.tenant] = (lock, wanted - 1)
            else:
                del self.locks[flow.tenant]
