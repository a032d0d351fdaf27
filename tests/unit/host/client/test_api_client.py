"""The client and overloaded servers: which requests wait, for how long, and which do not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from holdfast.host.client.api_client import ApiClient, watch_events
from holdfast.host.client.server_access import Access
from holdfast.model.access.identity import Identity
from holdfast.model.errors import Unavailable
from holdfast.model.nodes.heartbeat import Renew
from holdfast.model.read_requests import Get
from holdfast.model.requests import RenewLease, RetireLease, Term
from holdfast.observe.watch_events import SERVERS, Follow
from tests.patience import STORY_S
from tests.unit.host.client.scripted import Scripted, refuses, says

ME = Identity("system:controller:status")
YES = {"code": 200, "revision": 7, "replayed": False, "objects": []}


def _remote(server: Scripted) -> ApiClient:
    trust = server.trust
    access = Access(
        servers=(server.url,),
        ca=trust.authorities.pem,
        certificate=trust.admin.certificate,
        key=trust.admin.key,
    )
    return ApiClient({ME.name: access})


def test_a_client_that_must_stay_away_sends_nothing_but_lifelines(tmp_path: Path) -> None:
    """Retry-After is honoured for all that can wait, and a lease does not expire. [E5, E6]"""

    async def story() -> None:
        busy = refuses(429, "TooManyRequests", Retry_After="20")
        async with Scripted(tmp_path, busy, says(YES)) as server:
            remote = _remote(server)
            with pytest.raises(Unavailable):
                await remote.ask(ME, SERVERS, Get("replicas", "a", "acme"), 5.0)
            assert len(server.seen) == 1
            for question in (Get("replicas", "b", "acme"), RetireLease("s", 1, 1)):
                with pytest.raises(Unavailable, match="not sent"):
                    await remote.ask(ME, SERVERS, question, 5.0)
            transport = remote.connections(ME, SERVERS).transport
            with pytest.raises(Unavailable, match="not sent"):
                await anext(watch_events(transport, Follow("replicas")))
            assert len(server.seen) == 1
            answer = await remote.ask(ME, SERVERS, RenewLease(Term("s", 1)), 5.0)
            assert answer.revision == 7
            assert [path.rpartition("/")[2] for _, path, _ in server.seen] == ["a", "terms"]
            await remote.close()

    asyncio.run(asyncio.wait_for(story(), STORY_S))


def test_a_lifeline_that_is_refused_holds_the_others_back_and_is_sent_again(tmp_path: Path) -> None:
    """No answer of a server keeps an agent from renewing. [E6]"""

    async def story() -> None:
        busy = refuses(429, "TooManyRequests", Retry_After="20")
        async with Scripted(tmp_path, busy) as server:
            remote = _remote(server)
            for _ in range(2):
                with pytest.raises(Unavailable):
                    await remote.ask(ME, SERVERS, Renew("n1", "u", 1), 5.0)
            assert len(server.seen) == 2
            assert msgspec.json.decode(server.bodies[0])["node"] == "n1"
            await remote.close()

    asyncio.run(asyncio.wait_for(story(), STORY_S))
