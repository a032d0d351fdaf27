"""What a server makes of agents that answer, refuse, are silent or go."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.host.tunnel import protocol, server_end
from holdfast.host.tunnel.protocol import StreamOpened, StreamRefused, TunnelRequest
from tests.unit.host.api.api_rig import Answer, ApiRig
from tests.unit.host.api.tunnel_rig import POD, Socket, connected_agent, say, tell_log, with_replica


async def _refusal(rig: ApiRig) -> Answer:
    answer = await rig.send("GET", f"{POD}/log")
    # Stock clients try again, ten times, whatever has this header.
    assert "Retry-After" not in answer.headers
    return answer


def test_a_node_without_a_connection_is_named_with_how_long_it_has_had_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_end, "LINE_LOST_S", 0.01)

    async def story(rig: ApiRig) -> None:
        answer = await _refusal(rig)
        assert answer.code == 502
        assert "node n1 has had no connection to this server since" in answer.body["message"]
        async with connected_agent(rig, tell_log):
            assert (await rig.send("GET", f"{POD}/log")).code == 200
        # It may take the server a moment to notice.
        while (answer := await rig.send("GET", f"{POD}/log")).code == 200:
            continue
        assert "node n1 has had no connection to this server for 0 s" in answer.body["message"]

    with_replica(story)


def test_a_node_that_lost_its_connection_just_now_is_waited_for() -> None:
    """An agent connects again within seconds; people need not ask twice."""

    async def story(rig: ApiRig) -> None:
        for _ in ("when the server has just started", "when the connection was lost"):
            asking = asyncio.create_task(rig.send("GET", f"{POD}/log"))
            # While another request is answered, this one gets as far as it can.
            assert (await rig.send("GET", POD)).code == 200
            assert not asking.done()
            async with connected_agent(rig, tell_log):
                assert (await asking).code == 200

    with_replica(story)


def test_a_node_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_end, "ANSWER_S", 0.05)

    async def silent(asked: TunnelRequest, socket: Socket) -> None:
        await socket.receive()

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, silent):
            answer = await _refusal(rig)
        assert answer.code == 502
        assert "node n1 did not answer within" in answer.body["message"]

    with_replica(story)


def test_one_tenant_leaves_room_for_the_logs_and_commands_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The agent learns the tenant of each, so that it can bound them as well."""
    monkeypatch.setattr(server_end, "TENANT_STREAMS_MAX", 0)
    told: list[str] = []

    async def note(asked: TunnelRequest, socket: Socket) -> None:
        told.append(asked.tenant)
        await tell_log(asked, socket)

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, note):
            answer = await rig.send("GET", f"{POD}/log")
            assert answer.code == 429
            assert "logs and commands of tenant" in answer.body["message"]
            monkeypatch.setattr(server_end, "TENANT_STREAMS_MAX", 1)
            assert (await rig.send("GET", f"{POD}/log")).code == 200
        assert len(told) == 1
        assert f"of tenant {told[0]} open already" in answer.body["message"]

    with_replica(story)


@pytest.mark.parametrize(
    "reason, code",
    [(protocol.NOT_BEGUN, 400), (protocol.GONE, 400), (protocol.BUSY, 429), (protocol.BROKEN, 502)],
)
def test_what_an_agent_refuses_is_passed_on_with_its_sentence(reason: str, code: int) -> None:
    async def refuse(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamRefused(reason, "for a reason"))

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, refuse):
            answer = await rig.send("GET", f"{POD}/log")
        assert (answer.code, answer.body["message"]) == (code, "for a reason")

    with_replica(story)


def test_a_later_connection_of_a_node_takes_the_place_of_the_earlier() -> None:
    async def story(rig: ApiRig) -> None:
        async with (
            connected_agent(rig, tell_log) as first,
            connected_agent(rig, tell_log) as second,
        ):
            await first.has_ended.wait()
            assert (await rig.send("GET", f"{POD}/log")).code == 200
            assert len(second.asked) == 1

    with_replica(story)


def test_what_a_lost_node_was_saying_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own connection may look alive for long when a machine is gone."""
    monkeypatch.setattr(server_end, "LINE_LOST_S", 0.01)
    connections: list[server_end.AgentConnection] = []
    connect = server_end.Tunnels.connect

    def recorded(self: server_end.Tunnels, node: str) -> server_end.AgentConnection:
        connections.append(connect(self, node))
        return connections[-1]

    monkeypatch.setattr(server_end.Tunnels, "connect", recorded)

    async def hang(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamOpened())
        await asyncio.Event().wait()

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, hang) as agent:
            reading = asyncio.create_task(rig.send("GET", f"{POD}/log", follow="true"))
            await agent.is_asked.wait()
            rig.api.services.tunnels.disconnect(*connections)
            answer = await reading
        assert b"[holdfast: the log ends here" in answer.raw

    with_replica(story)


def test_only_the_nodes_own_agent_waits_and_visits() -> None:
    async def story(rig: ApiRig) -> None:
        for user in ("admin", "ada", "system:node:n2", "system:server:one"):
            for path in (protocol.tunnel_path("n1"), protocol.stream_path("n1", "0" * 32)):
                assert (await rig.send("GET", path, user=user)).code == 403
        missing = await rig.send("GET", protocol.stream_path("n1", "0" * 32), user="system:node:n1")
        assert missing.code == 404

    with_replica(story)


def test_another_nodes_agent_cannot_make_a_visit_that_it_was_not_asked_for() -> None:
    """Not even with the number, and no stream is opened twice."""

    async def story(rig: ApiRig) -> None:
        async def steal(asked: TunnelRequest, socket: Socket) -> None:
            for node, code in (("n2", 404), ("n1", 404)):
                path = protocol.stream_path(node, asked.id)
                answer = await rig.send("GET", path, user=f"system:node:{node}")
                assert answer.code == code
            await tell_log(asked, socket)

        async with connected_agent(rig, steal):
            assert (await rig.send("GET", f"{POD}/log")).raw == b"hello\n"

    with_replica(story)
