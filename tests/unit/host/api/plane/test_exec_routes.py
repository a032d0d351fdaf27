"""Commands through a server: what goes to and fro, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as socket_

import aiohttp
import pytest

from holdfast.host.api.plane import exec_routes
from holdfast.host.tunnel import protocol as tunnel
from holdfast.host.tunnel.protocol import RunCommand, StreamClosed, StreamOpened, TunnelRequest
from holdfast.model.errors import Forbidden, Rejected, Unavailable
from holdfast.model.lifecycle import State
from tests.unit.host.api.api_rig import ApiRig
from tests.unit.host.api.tunnel_rig import POD, Socket, connected_agent, replica, say, with_replica

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}


@pytest.mark.parametrize("protocol", exec_routes.PROTOCOLS)
def test_a_command_and_its_client_speak_in_channels(protocol: str) -> None:
    """What is typed arrives, nothing else does, and the code comes back as a Status."""
    heard: list[bytes] = []

    async def echo(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamOpened())
        while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            heard.append(message.data)
            if message.data[0] == tunnel.CLOSE:
                break
            await socket.send_bytes(bytes((tunnel.STDOUT,)) + message.data[1:])
        await say(socket, StreamClosed(3))
        await socket.receive()

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, echo) as agent:
            query = "command=sh&command=-c&command=a%20b&stdin=true&stdout=true&stderr=true"
            async with rig.http.ws_connect(
                f"{rig.url}{POD}/exec?{query}",
                protocols=(protocol,),
                headers={"X-Test-User": "ada"},
            ) as client:
                assert client.protocol == protocol
                assert (await client.receive_bytes()) == b"\x01"
                await client.send_bytes(b"\x03not for you")
                await client.send_bytes(b'\x04{"Width":80,"Height":24}')
                await client.send_bytes(b"")
                await client.send_bytes(b"\x00typed")
                assert (await client.receive_bytes()) == b"\x01typed"
                await client.send_bytes(b"\xff\x00")
                end = await client.receive_bytes()
                assert end[0] == tunnel.STATUS
                status = json.loads(end[1:])
                assert status["reason"] == "NonZeroExitCode"
                assert status["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
                assert (await client.receive()).type is aiohttp.WSMsgType.CLOSE
        assert heard == [b"\x00typed", b"\xff\x00"]
        assert agent.asked[0].wanted == RunCommand("uid-web", ("sh", "-c", "a b"), False, True)

    with_replica(story)


def test_a_client_that_goes_ends_the_visit() -> None:
    is_gone = asyncio.Event()

    async def wait(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamOpened())
        await socket.receive()
        is_gone.set()

    async def story(rig: ApiRig) -> None:
        async with connected_agent(rig, wait):
            async with rig.http.ws_connect(
                f"{rig.url}{POD}/exec?command=cat&stdout=true", protocols=exec_routes.PROTOCOLS
            ) as client:
                await client.receive_bytes()
            await is_gone.wait()

    with_replica(story)


async def _type_until_full(client: Socket) -> None:
    """Returns once nothing more is taken."""
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0.5):
                await client.send_bytes(bytes(65_536))


def test_a_client_that_vanishes_while_its_command_reads_nothing_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is read from it then, so its end is found by trying whether it is there."""
    monkeypatch.setattr(tunnel, "TRY_S", 0.05)

    async def deaf(asked: TunnelRequest, socket: Socket) -> None:
        await say(socket, StreamOpened())
        await asyncio.Event().wait()

    async def story(rig: ApiRig) -> None:
        tunnels = rig.api.services.tunnels
        async with connected_agent(rig, deaf), aiohttp.ClientSession() as session:
            client = await session.ws_connect(
                f"{rig.url}{POD}/exec?command=sleep&stdin=1&stdout=1",
                protocols=exec_routes.PROTOCOLS,
            )
            await _type_until_full(client)
            assert tunnels.stream_count == 1
            client.get_extra_info("socket").shutdown(socket_.SHUT_RDWR)
            while tunnels.stream_count:
                await rig.send("GET", "/version")

    with_replica(story)


@pytest.mark.parametrize(
    "query, headers, state, word",
    [
        ("command=true&stdout=1", {}, State.RUNNING, "1.30"),
        ("command=true&stdout=1", {"Upgrade": "SPDY/3.1"}, State.RUNNING, "SPDY"),
        ("command=true&stdout=1", UPGRADE, State.RUNNING, "Sec-WebSocket-Protocol"),
        ("stdout=1", None, State.RUNNING, "command"),
        ("command=&stdout=1", None, State.RUNNING, "command"),
        ("command=a%00b&stdout=1", None, State.RUNNING, "command"),
        ("&".join(["command=a"] * 1_050) + "&stdout=1", None, State.RUNNING, "command"),
        ("command=true", None, State.RUNNING, "stdout"),
        ("command=true&stdout=1&container=other", None, State.RUNNING, "other"),
        ("command=true&stdout=1", None, State.SUCCEEDED, "Succeeded"),
        ("command=true&stdout=1", None, State.RELEASED, "Released"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_in_a_sentence(
    query: str, headers: dict[str, str] | None, state: State, word: str
) -> None:
    whole = {**UPGRADE, "Sec-WebSocket-Protocol": "v5.channel.k8s.io"}

    async def story(rig: ApiRig) -> None:
        sent = {"X-Test-User": "admin", **(whole if headers is None else headers)}
        async with rig.http.get(f"{rig.url}{POD}/exec?{query}", headers=sent) as response:
            assert response.status == 400
            assert word in (await response.json())["message"]

    with_replica(story, replica(state))


@pytest.mark.parametrize(
    "origin, is_own",
    [
        ("", True),
        ("https://plane.example:6443", True),
        ("https://evil.example", False),
        ("http://plane.example:6443", False),
        ("https://plane.example:6443.evil.example", False),
        ("null", False),
    ],
)
def test_a_page_of_another_site_runs_no_command(origin: str, is_own: bool) -> None:
    """A browser shows its certificate for whatever page asks, and says which one it is."""
    headers = {
        "Upgrade": "websocket",
        "Host": "plane.example:6443",
        "Sec-WebSocket-Protocol": exec_routes.PROTOCOLS[0],
        **({"Origin": origin} if origin else {}),
    }
    if is_own:
        exec_routes.demand_websocket(headers)
        return
    with pytest.raises(Forbidden, match="Origin"):
        exec_routes.demand_websocket(headers)


@pytest.mark.parametrize(
    "frame, has_terminal, goes_on",
    [
        (b"", True, False),
        (b"\x00", False, True),
        (b"\x01x", True, False),
        (b"\x03x", True, False),
        (b"\x04{}", True, True),
        (b"\x04{}", False, False),
        (b"\xff\x00", False, True),
        (b"\xff\x01", False, False),
        (b"\xff", False, False),
    ],
)
def test_only_input_and_sizes_go_to_a_command(
    frame: bytes, has_terminal: bool, goes_on: bool
) -> None:
    assert exec_routes.is_for_command(frame, has_terminal=has_terminal) is goes_on


def test_how_a_command_ended_is_reported_in_the_form_of_kubernetes() -> None:
    assert json.loads(exec_routes.end_frame(StreamClosed(0))[1:])["status"] == "Success"
    never = json.loads(exec_routes.end_frame(StreamClosed(None, "it cannot be run"))[1:])
    assert (never["status"], never["reason"]) == ("Failure", "InternalError")
    assert never["message"] == "it cannot be run"


def test_unknown_messages_are_refused() -> None:
    for text in (b"", b"{}", b'{"type":"what"}', b"[1]"):
        with pytest.raises(Unavailable):
            tunnel.decode_agent_message(text)
        with pytest.raises(Unavailable):
            tunnel.decode_tunnel_request(text)
    with pytest.raises(Rejected):
        exec_routes.demand_websocket({})
