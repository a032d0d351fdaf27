"""Dear questions: one tenant waits behind its own, and never before others'."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.commit.flow.overload import Overloaded
from holdfast.commit.flow.request_classes import Flow, RequestClass
from holdfast.host.api.flow.loop_share import TenantLocks
from tests.unit.host.api.api_rig import play


def flow(tenant: str) -> Flow:
    return Flow(RequestClass.TENANT, tenant, "ada")


def test_one_tenants_questions_do_not_delay_anothers() -> None:
    """However many one of them asks, the other is served at once. [E6]"""

    async def story() -> None:
        locks, over = TenantLocks(all_max=2, tenant_max=8), asyncio.Event()
        begun: list[str] = []

        async def ask(tenant: str) -> None:
            async with locks.of(flow(tenant)):
                begun.append(tenant)
                await over.wait()

        greedy = [asyncio.create_task(ask("greedy")) for _ in range(8)]
        await asyncio.sleep(0)
        quiet = asyncio.create_task(ask("quiet"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert begun == ["greedy", "quiet"]
        with pytest.raises(Overloaded):
            await ask("greedy")
        greedy[3].cancel()
        over.set()
        await asyncio.gather(*greedy, quiet, return_exceptions=True)
        assert begun.count("greedy") == 7
        # Nothing is left of those who are gone.
        assert locks.locks == {}

    play(story())
