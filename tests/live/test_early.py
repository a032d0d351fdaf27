"""Over real TLS: a client without credentials is throttled, and others are served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import msgspec
import pytest

from holdfast.host.pki.join_protocol import JOIN_PATH
from holdfast.model.kinds.workload import Workload
from tests.live.plane_process import PlaneProcess
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.live

WRONG = msgspec.json.encode({"node": "web-1", "request": "none", "token": "hf1.abc.def"})
AT_ONCE = 16
# Far more than an address may ask at once; the first that is refused ends it.
ASKED_MAX = 10_000


async def flood(plane: PlaneProcess) -> set[int]:
    """The codes for a client that tries to join again and again, until it is throttled."""
    codes: set[int] = set()
    access = msgspec.structs.replace(plane.access(), certificate=b"", key=b"")
    connector = aiohttp.TCPConnector(ssl=access.context(), limit=AT_ONCE)

    async def ask(session: aiohttp.ClientSession) -> None:
        for _ in range(ASKED_MAX // AT_ONCE):
            if 429 in codes:
                return
            async with session.post(plane.url + JOIN_PATH, data=WRONG) as response:
                codes.add(response.status)

    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(ask(session) for _ in range(AT_ONCE)))
    return codes


def test_a_flood_of_joins_is_sent_away_and_others_are_served(tmp_path: Path) -> None:
    """The same address still gets health, and a known client is served."""

    async def story() -> None:
        plane = await PlaneProcess(tmp_path / "plane").start()
        try:
            assert await flood(plane) == {401, 429}
            code, _ = await plane.fetch("/readyz", known=False)
            assert code == 200
            async with plane.client() as admin:
                await admin.list(Workload)
        finally:
            plane.kill()

    asyncio.run(asyncio.wait_for(story(), 4 * PATIENCE_S))
