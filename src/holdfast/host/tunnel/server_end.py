"""The server's end of the tunnels: the connected agents, and streams to them for clients.

`api/plane/tunnels` accepts the agents' connections; `api/plane/logs` and `api/plane/commands` call
`open_stream` for clients. Everything here is bounded: agents by the nodes with certificates,
streams by `STREAMS_MAX`. Only the time of a node's last connection is remembered, for a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import WSMsgType, web

from holdfast.host.tunnel.protocol import (
    ANSWER_S,
    BUSY,
    GONE,
    NOT_BEGUN,
    ReadLog,
    RevocationNotice,
    RunCommand,
    StreamClosed,
    StreamOpened,
    StreamRefused,
    TunnelRequest,
    decode_agent_message,
    encode_message,
)
from holdfast.model.errors import HoldfastError, Rejected, Unavailable

STREAMS_MAX = 1_000
# The limit of one tenant: others must still find room.
TENANT_STREAMS_MAX = 250
# Requests that an agent has not read yet. It answers within seconds or not at all.
UNSENT_MAX = 64
# An agent that lost its connection is back within this time, or gone: its pauses between tries are
# shorter. Until then streams continue, and new ones wait for it.
LINE_LOST_S = 15.0
NODES_REMEMBERED_MAX = 20_000

# The same as in `api.status`, which is a layer above.
NODE_UNREACHABLE = "NodeUnreachable"
NOT_STARTED = "NotStarted"
TOO_MANY = "TooManyRequests"
_CODES = {NOT_BEGUN: NOT_STARTED, BUSY: TOO_MANY, GONE: NOT_STARTED}


class AgentConnection:
    """One agent's open connection and its queue of requests."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.unsent: asyncio.Queue[bytes | None] = asyncio.Queue(UNSENT_MAX)

    def send(self, of: TunnelRequest) -> None:
        """Send a request. Raises Unavailable when the agent reads nothing."""
        try:
            self.unsent.put_nowait(encode_message(of) + b"\n")
        except asyncio.QueueFull:
            raise Unavailable(
                f"node {self.node} does not read its requests", code=NODE_UNREACHABLE
            ) from None

    def announce(self, revoked: str) -> None:
        """Announce the revoked servers. An agent that reads nothing learns it elsewhere."""
        with contextlib.suppress(asyncio.QueueFull):
            self.unsent.put_nowait(msgspec.json.encode(RevocationNotice(revoked)) + b"\n")

    def end(self) -> None:
        """End the connection; what is not sent yet is dropped."""
        while self.unsent.full():
            self.unsent.get_nowait()
        self.unsent.put_nowait(None)


class TunnelStream:
    """One agent's answer: a WebSocket until either side ends it."""

    def __init__(self, node: str, tenant: str) -> None:
        self.node, self.tenant = node, tenant
        self.socket: asyncio.Future[web.WebSocketResponse] = (
            asyncio.get_running_loop().create_future()
        )
        self.is_over = asyncio.Event()

    async def next(self) -> bytes | StreamClosed:
        """Return the next bytes, or the last message. Raises Unavailable when the agent is gone."""
        message = await self.socket.result().receive()
        if message.type is WSMsgType.BINARY:
            data: bytes = message.data
            return data
        if message.type is WSMsgType.TEXT:
            said = decode_agent_message(message.data)
            if isinstance(said, StreamClosed):
                return said
        raise Unavailable(
            f"the connection to node {self.node} broke: its agent ended or is unreachable",
            code=NODE_UNREACHABLE,
        )

    async def send(self, data: bytes) -> None:
        """Send bytes, as fast as the agent reads."""
        try:
            await self.socket.result().send_bytes(data)
        except ConnectionError:
            # `next` reports what has happened.
            return


class Tunnels:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lines: dict[str, AgentConnection] = {}
        self._streams: dict[str, TunnelStream] = {}
        self._lost_at: dict[str, float] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        # The statement that every agent gets when it connects; see `revoked_servers`.
        self._announced = ""
        self._began_at = time.monotonic()

    @property
    def stream_count(self) -> int:
        """How many logs and commands clients have open."""
        return len(self._streams)

    # For agents ----------------------------------------------------------------------------------

    def connect(self, node: str) -> AgentConnection:
        """Register an agent. An earlier connection of its node ends: each node has one agent."""
        earlier = self._lines.get(node)
        if earlier is not None:
            earlier.end()
        line = self._lines[node] = AgentConnection(node)
        if self._announced:
            line.announce(self._announced)
        self._lost_at.pop(node, None)
        if node in self._awaited:
            self._awaited.pop(node).set()
        return line

    def announce(self, revoked: str) -> None:
        """Announce the revoked servers to all agents, also to those that connect later."""
        self._announced = revoked
        for line in self._lines.values():
            line.announce(revoked)

    def disconnect(self, line: AgentConnection) -> None:
        """Note that a connection has ended."""
        if self._lines.get(line.node) is not line:
            return
        del self._lines[line.node]
        while len(self._lost_at) >= NODES_REMEMBERED_MAX:
            self._lost_at.pop(next(iter(self._lost_at)))
        self._lost_at[line.node] = time.monotonic()
        asyncio.get_running_loop().call_later(LINE_LOST_S, self._give_up, line.node)

    def expected_stream(self, node: str, number: str) -> TunnelStream | None:
        """Return the stream that this agent was asked for, if it has not come yet."""
        stream = self._streams.get(number)
        is_his = stream is not None and stream.node == node and not stream.socket.done()
        return stream if is_his else None

    def _give_up(self, node: str) -> None:
        """End the streams of a node that lost its connection and did not come back."""
        if node not in self._lines:
            for stream in self._streams.values():
                if stream.node == node:
                    stream.is_over.set()

    # For clients ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def open_stream(
        self, node: str, wanted: ReadLog | RunCommand, tenant: str
    ) -> AsyncIterator[TunnelStream]:
        """Open a stream to an agent. Raises what its refusal or its silence means."""
        if self.stream_count >= STREAMS_MAX:
            raise Unavailable(
                f"this server has {STREAMS_MAX} logs and commands open already; end some, or ask "
                "another server",
                code=TOO_MANY,
            )
        if sum(it.tenant == tenant for it in self._streams.values()) >= TENANT_STREAMS_MAX:
            raise Unavailable(
                f"this server has {TENANT_STREAMS_MAX} logs and commands of tenant {tenant} "
                "open already; end some, or ask another server",
                code=TOO_MANY,
            )
        number, stream = secrets.token_hex(16), TunnelStream(node, tenant)
        self._streams[number] = stream
        try:
            line = await self._line(node)
            line.send(TunnelRequest(number, wanted, tenant))
            await self._begun(stream)
            yield stream
        finally:
            del self._streams[number]
            stream.is_over.set()
            stream.socket.cancel()

    async def _line(self, node: str) -> AgentConnection:
        """Return the agent's connection; wait if it was just lost or this server just started."""
        lost_at = self._lost_at.get(node, self._began_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(lost_at + LINE_LOST_S - time.monotonic()):
                while node not in self._lines:
                    await self._awaited.setdefault(node, asyncio.Event()).wait()
        line = self._lines.get(node)
        if line is None:
            raise Unavailable(self._absence(node), code=NODE_UNREACHABLE)
        return line

    async def _begun(self, stream: TunnelStream) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                socket = await asyncio.shield(stream.socket)
                message = await socket.receive()
        except TimeoutError:
            raise Unavailable(
                f"node {stream.node} did not answer within {ANSWER_S:.0f} s", code=NODE_UNREACHABLE
            ) from None
        said = decode_agent_message(message.data) if message.type is WSMsgType.TEXT else None
        if isinstance(said, StreamOpened):
            return
        if isinstance(said, StreamRefused):
            raise _meaning(said)
        raise Unavailable(f"node {stream.node} closed its answer at once", code=NODE_UNREACHABLE)

    def _absence(self, node: str) -> str:
        now = time.monotonic()
        lost = self._lost_at.get(node)
        if lost is not None:
            since = f"for {now - lost:.0f} s"
        else:
            since = f"since this server started {now - self._began_at:.0f} s ago"
        return (
            f"node {node} has had no connection to this server {since}; until its agent is back, "
            "its logs cannot be read and no command can be run there"
        )

    def close(self) -> None:
        """End everything when the server stops."""
        for line in self._lines.values():
            line.end()
        for stream in self._streams.values():
            stream.is_over.set()


def _meaning(of: StreamRefused) -> HoldfastError:
    code = _CODES.get(of.reason, NODE_UNREACHABLE)
    kind = Rejected if of.reason in (NOT_BEGUN, GONE) else Unavailable
    return kind(of.message, code=code)
