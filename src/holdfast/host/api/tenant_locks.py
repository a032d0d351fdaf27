"""What is dear for a server: one at a time for each tenant, and few at a time in all.

One lock for everybody would let a single tenant, who asks again and again, keep all others waiting
behind his own questions. Here he waits behind them himself, and is refused when too many do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.commit.classes import Flow
from holdfast.commit.overload import Refused, overloaded

ALL_MAX = 4
# So many of one tenant may wait or be under way.
TENANT_MAX = 16
RETRY_AFTER_S = 1


class TenantLocks:
    """See the module's docstring."""

    def __init__(self, all_max: int = ALL_MAX, tenant_max: int = TENANT_MAX) -> None:
        self._seats = asyncio.Semaphore(all_max)
        self._tenant_max = tenant_max
        # The lock of each tenant of whom something is under way, and how many want it.
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, flow: Flow) -> AsyncIterator[None]:
        """Wait for the turn of this caller's tenant. Raises Overloaded."""
        lock, wanted = self._locks.get(flow.tenant) or (asyncio.Lock(), 0)
        if wanted >= self._tenant_max:
            raise overloaded(flow, Refused.QUEUE_FULL, RETRY_AFTER_S)
        self._locks[flow.tenant] = (lock, wanted + 1)
        try:
            async with lock, self._seats:
                yield
        finally:
            _, wanted = self._locks[flow.tenant]
            if wanted > 1:
                self._locks[flow.tenant] = (lock, wanted - 1)
            else:
                del self._locks[flow.tenant]
