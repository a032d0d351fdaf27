"""Whether this server is alive and whether it is ready: /livez, /readyz, /healthz.

Load balancers and operators ask without a certificate, so answers hold only the names of checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from holdfast.host.api.objects.freshness import Freshness
from holdfast.model.errors import HoldfastError
from holdfast.store.contract import Store

CHECK_S = 2.0
RECENT_S = 1.0
# A server counts as ready if its hub is at most this far behind the store.
BEHIND_S = 1.0

Check = Callable[[], Awaitable[bool]]
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def _ping() -> bool:
    return True


class CachedCheck:
    """A check whose result is reused for a second: anonymous callers must not load the store."""

    def __init__(self, check: Check, now_s: Callable[[], float] = time.monotonic) -> None:
        self._check, self._now_s = check, now_s
        self._asked_s = float("-inf")
        self._outcome: asyncio.Future[bool] | None = None

    async def __call__(self) -> bool:
        now_s = self._now_s()
        if self._outcome is None or now_s - self._asked_s >= RECENT_S:
            self._asked_s = now_s
            self._outcome = asyncio.ensure_future(_is_good(self._check))
        # Concurrent callers share one check; a caller that leaves must not cancel it.
        return await asyncio.shield(self._outcome)


class HealthChecks:
    """The checks of one server."""

    def __init__(self, store: Store, freshness: Freshness) -> None:
        self._store, self._freshness = store, freshness
        self.is_stopping = False

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers by path."""
        alive: dict[str, Check] = {"ping": _ping}
        ready: dict[str, Check] = {
            **alive,
            "store": CachedCheck(self._reaches_store),
            "hub": CachedCheck(self._follows_store),
            "shutdown": self._is_staying,
        }
        return {
            "/livez": _answering("livez", alive),
            "/readyz": _answering("readyz", ready),
            "/healthz": _answering("healthz", ready),
        }

    async def _reaches_store(self) -> bool:
        return await self._store.revision() >= 0

    async def _follows_store(self) -> bool:
        return await self._freshness.is_hub_fresh(patience_s=BEHIND_S)

    async def _is_staying(self) -> bool:
        return not self.is_stopping


def _answering(name: str, checks: Mapping[str, Check]) -> Handler:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        outcomes = {check: await _is_good(perform) for check, perform in checks.items()}
        good = all(outcomes.values())
        code = 200 if good else 503
        if good and "verbose" not in request.rel_url.query:
            return web.Response(text="ok", status=code)
        lines = [
            f"[{'+' if it else '-'}]{check} {'ok' if it else 'failed'}"
            for check, it in outcomes.items()
        ]
        lines.append(f"{name} check {'passed' if good else 'failed'}")
        return web.Response(text="\n".join(lines) + "\n", status=code)

    return answer


async def _is_good(check: Check) -> bool:
    try:
        async with asyncio.timeout(CHECK_S):
            return await check()
    except (HoldfastError, TimeoutError):
        return False
