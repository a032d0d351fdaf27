"""Logs through a server: what is asked of a node, and what becomes of clients that do not read."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.host.runtime.logs.reading import LogQuery
from holdfast.host.tunnel.protocol import ReadLog, StreamOpened, TunnelRequest
from holdfast.model.lifecycle import State
from tests.unit.host.api.api_rig import GROUP, ApiRig
from tests.unit.host.api.tunnel_rig import (
    POD,
    Socket,
    connected_agent,
    replica,
    say,
    tell_log,
    with_replica,
)

OURS = f"{GROUP}/namespaces/acme/replicas/web-0-0"


def test_a_log_is_asked_of_the_node_that_the_replica_is_on() -> None:
    """Every wish arrives, under both names of a replica."""

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, tell_log) as agent:
            for path in (f"{POD}/log", f"{OURS}/log"):
                answer = await rig.send("GET", path, user="ada")
                assert (answer.code, answer.raw) == (200, b"hello\n")
                assert answer.headers["Content-Type"].startswith("text/plain")
            query = {
                "follow": "true",
                "tailLines": "5",
                "limitBytes": "9",
                "timestamps": "true",
                "previous": "1",
                "container": "work",
                "sinceTime": "2026-11-16T09:00:00.5+01:00",
            }
            await rig.send("GET", f"{POD}/log", **query)
        wish = LogQuery(
            follow=True,
            tail=5,
            since="2026-11-16T08:00:00.500000000Z",
            limit_bytes=9,
            timestamps=True,
            previous=True,
        )
        assert agent.asked[-1].wanted == ReadLog("uid-web", wish)
        assert agent.asked[0].wanted == ReadLog("uid-web", LogQuery())
        assert len({asked.id for asked in agent.asked}) == 3

    with_replica(story)


@pytest.mark.parametrize(
    "query, word",
    [
        ({"tailLines": "-1"}, "tailLines"),
        ({"tailLines": "x"}, "tailLines"),
        ({"tailLines": "99999999999"}, "tailLines"),
        ({"tailLines": "100001"}, "tailLines"),
        ({"limitBytes": "0"}, "limitBytes"),
        ({"sinceSeconds": "0"}, "sinceSeconds"),
        ({"sinceSeconds": "99999999999999"}, "sinceSeconds"),
        ({"sinceTime": "yesterday"}, "sinceTime"),
        ({"sinceTime": "2026-11-16T09:00:00"}, "sinceTime"),
        ({"sinceTime": "2026-11-16T09:00:00Z", "sinceSeconds": "5"}, "sinceTime"),
        ({"follow": "perhaps"}, "follow"),
        ({"container": "sidecar"}, "sidecar"),
    ],
)
def test_a_wish_that_makes_no_sense_is_refused_by_its_name(
    query: dict[str, str], word: str
) -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", f"{POD}/log", **query)
        assert answer.code == 400
        assert word in answer.body["message"]

    with_replica(story)


def test_a_log_that_breaks_off_says_so_where_it_does() -> None:
    async def vanish(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamOpened())
        await socket.send_bytes(b"half\n")

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, vanish):
            answer = await rig.send("GET", f"{POD}/log", follow="true")
        assert answer.raw.startswith(
            b"half\n[holdfast: the log ends here: the connection to node n1"
        )

    with_replica(story)


def test_a_client_that_does_not_read_holds_the_agent_back() -> None:
    """What is buffered stays bounded, and when the client leaves, the agent learns of it."""
    sent, is_held, is_gone = 0, asyncio.Event(), asyncio.Event()
    piece = b"x" * 65_536

    async def flood(asked: TunnelRequest, socket: Socket) -> None:
        nonlocal sent
        await say(socket, StreamOpened())
        try:
            while True:
                async with asyncio.timeout(0.5):
                    await socket.send_bytes(piece)
                sent += len(piece)
        except TimeoutError:
            is_held.set()
        await socket.receive()
        is_gone.set()

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, flood):
            response = await rig.http.get(f"{rig.url}{POD}/log", headers={"X-Test-User": "ada"})
            await is_held.wait()
            assert 0 < sent < 32 << 20
            assert not is_gone.is_set()
            response.close()
            await is_gone.wait()

    with_replica(story)


def test_work_that_has_no_node_has_nothing_to_look_into() -> None:
    async def story(rig: ApiRig) -> None:
        answer = await rig.send("GET", f"{POD}/log")
        assert answer.code == 400
        assert "not bound to a node" in answer.body["message"]

    with_replica(story, replica(State.PENDING, binding=None))
