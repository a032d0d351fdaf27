"""What a server reports about itself when parts of it fail."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp.test_utils import make_mocked_request

from holdfast.host.api.objects.freshness import Freshness
from holdfast.host.api.objects.presentation import Forms
from holdfast.host.process.shell import Shell
from holdfast.host.server.health import CachedCheck, HealthChecks
from holdfast.model.access.identity import server
from holdfast.model.read_requests import Reach
from holdfast.observe.watch_hub import WatchHub
from holdfast.store.memory import MemoryStore


def test_a_server_is_ready_while_it_reaches_its_store_and_does_not_stop() -> None:
    async def story() -> None:
        store, hub = MemoryStore(), WatchHub(Forms())
        shell = Shell(hub, server("one"), store=store)
        health = HealthChecks(store, Freshness(store, hub, shell))
        async with shell:
            await shell.ask("test", Reach(0), 10.0)
            assert await ask(health, "/readyz") == (200, "ok")
            code, text = await ask(health, "/readyz?verbose")
            assert (code, text.splitlines()[1]) == (200, "[+]store ok")
            health.is_stopping = True
            code, text = await ask(health, "/readyz")
            assert (code, "[-]shutdown failed" in text) == (503, True)
            health.is_stopping = False
            await store.close()
            code, text = await ask(health, "/readyz")
            assert (code, "[-]store failed" in text) == (503, True)
            assert await ask(health, "/livez") == (200, "ok")

    async def ask(health: HealthChecks, path: str) -> tuple[int, str]:
        handler = health.handlers()[path.partition("?")[0]]
        response: Any = await handler(make_mocked_request("GET", path))
        return response.status, response.text

    asyncio.run(story())


def test_many_who_ask_whether_a_server_is_ready_cost_one_look_at_the_store() -> None:
    """A result counts for a second, for all callers within it."""

    async def story() -> None:
        looked, now_s = 0, 0.0

        async def look() -> bool:
            nonlocal looked
            looked += 1
            await asyncio.sleep(0)
            return looked != 2

        check = CachedCheck(look, lambda: now_s)
        assert all(await asyncio.gather(*(check() for _ in range(50))))
        now_s = 0.9
        assert await check()
        assert looked == 1
        now_s = 1.1
        assert not await check()
        assert looked == 2

    asyncio.run(story())
