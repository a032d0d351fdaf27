"""Routes for tunnels: an agent waits for requests on one connection, and answers each on another.

Tunnels are not Kubernetes resources and do not appear in discovery. An agent may open only those of
its own node. The other end is `host.tunnel.agent_end`; requests come from `tunnel.server_end`.
"""

from __future__ import annotations

import asyncio
import socket

from aiohttp import web

from holdfast.host.api.call import Call, Route
from holdfast.host.client.paths import GROUP
from holdfast.host.tunnel.protocol import FRAME_BYTES_MAX, PING_S, SILENCE_S
from holdfast.host.tunnel.server_end import AgentConnection
from holdfast.model.errors import Forbidden, Missing
from holdfast.model.refusal import Reason

_HEADERS = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
CLOSE_S = 1.0


async def wait(call: Call) -> web.StreamResponse:
    """Send requests to an agent for as long as it is connected."""
    _demand_own(call)
    _notice_silence(call)
    board = call.services.tunnels
    line = board.connect(call.name)
    try:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(call.request)
        await _send_requests(response, line)
        await response.write_eof()
        return response
    finally:
        board.disconnect(line)


async def _send_requests(response: web.StreamResponse, line: AgentConnection) -> None:
    # The first empty line says that the agent is connected, the others that it still is.
    text: bytes | None = b"\n"
    while text is not None:
        await response.write(text)
        try:
            async with asyncio.timeout(PING_S):
                text = await line.unsent.get()
        except TimeoutError:
            text = b"\n"


async def visit(call: Call) -> web.StreamResponse:
    """Hand an agent's connection to the request that waits for it, and keep it until that ends."""
    _demand_own(call)
    # No TCP user timeout here: a command may take no input for long. Whether the agent is alive is
    # decided by its other connection.
    expected = call.services.tunnels.expected_stream(call.name, call.part)
    if expected is None:
        raise Missing(f"no request waits for answer {call.part[:40]!r} of node {call.name}")
    connected = web.WebSocketResponse(
        timeout=CLOSE_S, max_msg_size=FRAME_BYTES_MAX, compress=False, autoclose=True
    )
    await connected.prepare(call.request)
    if expected.socket.done():
        await connected.close()
        return connected
    expected.socket.set_result(connected)
    try:
        await expected.is_over.wait()
    finally:
        expected.is_over.set()
        # This ends the stream for its reader.
        await connected.close()
    return connected


def _demand_own(call: Call) -> None:
    call.demand_authenticated()
    if call.identity.node != call.name:
        raise Forbidden(
            f"{call.identity.name} is not the agent of node {call.name}", code=Reason.NOT_ALLOWED
        )


def _notice_silence(call: Call) -> None:
    """Let the kernel end a connection whose peer does not acknowledge what was sent."""
    transport = call.request.transport
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SILENCE_S * 1_000))


ROUTES = (
    Route(f"{GROUP}/nodes/{{name}}/summons", "GET", "attend", wait, lasts=True),
    Route(f"{GROUP}/nodes/{{name}}/visits/{{part}}", "GET", "attend", visit, lasts=True),
)
