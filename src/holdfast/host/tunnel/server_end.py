"""The agents that have a connection to this server, and the way to them for whoever asks.

`api.summoning` takes in the agents' connections, `api.logs` and `api.commands` call `visit` for
people. Everything here is bounded: agents by the nodes that have certificates, visits by
`VISITS_MAX`. What is over is forgotten; only when a node was last connected is remembered, for
the sentence that says so.
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

VISITS_MAX = 1_000
# Of one tenant: people of others must still find room.
TENANT_VISITS_MAX = 250
# Summonses that an agent has not taken in yet. It answers within seconds or not at all.
UNSENT_MAX = 64
# An agent that lost its connection is back within this, or is not there: its pauses between tries
# are shorter. Until then visits go on, and new ones wait for it.
LINE_LOST_S = 15.0
NODES_REMEMBERED_MAX = 20_000

# As `api.status` has them, which is above this.
NODE_UNREACHABLE = "NodeUnreachable"
NOT_STARTED = "NotStarted"
TOO_MANY = "TooManyRequests"
_CODES = {NOT_BEGUN: NOT_STARTED, BUSY: TOO_MANY, GONE: NOT_STARTED}


class AgentConnection:
    """One agent's open connection; what is put here is sent to it."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.unsent: asyncio.Queue[bytes | None] = asyncio.Queue(UNSENT_MAX)

    def send(self, of: TunnelRequest) -> None:
        """Raises Unavailable when the agent takes nothing in."""
        try:
            self.unsent.put_nowait(encode_message(of) + b"\n")
        except asyncio.QueueFull:
            raise Unavailable(
                f"node {self.node} does not take in what it is asked", code=NODE_UNREACHABLE
            ) from None

    def announce(self, revoked: str) -> None:
        """Tell which servers were revoked. An agent that takes nothing in hears it elsewhere."""
        with contextlib.suppress(asyncio.QueueFull):
            self.unsent.put_nowait(msgspec.json.encode(RevocationNotice(revoked)) + b"\n")

    def end(self) -> None:
        """Let it end; what is not sent yet is dropped."""
        while self.unsent.full():
            self.unsent.get_nowait()
        self.unsent.put_nowait(None)


class TunnelStream:
    """One agent's answer: a WebSocket on which it speaks until either side ends it."""

    def __init__(self, node: str, tenant: str) -> None:
        self.node, self.tenant = node, tenant
        self.socket: asyncio.Future[web.WebSocketResponse] = (
            asyncio.get_running_loop().create_future()
        )
        self.is_over = asyncio.Event()

    async def next(self) -> bytes | StreamClosed:
        """The next bytes, or the last word. Raises Unavailable when the agent is gone."""
        message = await self.socket.result().receive()
        if message.type is WSMsgType.BINARY:
            data: bytes = message.data
            return data
        if message.type is WSMsgType.TEXT:
            said = decode_agent_message(message.data)
            if isinstance(said, StreamClosed):
                return said
        raise Unavailable(
            f"the connection to node {self.node} broke: its agent ended, or cannot be reached",
            code=NODE_UNREACHABLE,
        )

    async def send(self, data: bytes) -> None:
        """Send bytes, at the speed at which the agent takes them in."""
        try:
            await self.socket.result().send_bytes(data)
        except ConnectionError:
            # `next` says what has happened.
            return


class Tunnels:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._lines: dict[str, AgentConnection] = {}
        self._visits: dict[str, TunnelStream] = {}
        self._lost_at: dict[str, float] = {}
        self._awaited: dict[str, asyncio.Event] = {}
        # What every agent is told when it connects: see `revoked_servers`.
        self._announced = ""
        self._began_at = time.monotonic()

    # For agents ----------------------------------------------------------------------------------

    def connect(self, node: str) -> AgentConnection:
        """An agent is there. An earlier connection of its node ends: there is one agent of each."""
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
        """Tell all agents, those who come later too, which servers were revoked."""
        self._announced = revoked
        for line in self._lines.values():
            line.announce(revoked)

    def disconnect(self, line: AgentConnection) -> None:
        """Its connection has ended."""
        if self._lines.get(line.node) is not line:
            return
        del self._lines[line.node]
        while len(self._lost_at) >= NODES_REMEMBERED_MAX:
            self._lost_at.pop(next(iter(self._lost_at)))
        self._lost_at[line.node] = time.monotonic()
        asyncio.get_running_loop().call_later(LINE_LOST_S, self._give_up, line.node)

    def expected(self, node: str, number: str) -> TunnelStream | None:
        """The visit that this agent was asked for, if it was and has not come yet."""
        visit = self._visits.get(number)
        is_his = visit is not None and visit.node == node and not visit.socket.done()
        return visit if is_his else None

    def _give_up(self, node: str) -> None:
        """A node that has lost its connection and does not come back has lost its visits, too."""
        if node not in self._lines:
            for visit in self._visits.values():
                if visit.node == node:
                    visit.is_over.set()

    # For people ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def visit(
        self, node: str, wanted: ReadLog | RunCommand, tenant: str
    ) -> AsyncIterator[TunnelStream]:
        """The agent's answer, when it has begun. Raises what an agent or a silence means."""
        if len(self._visits) >= VISITS_MAX:
            raise Unavailable(
                f"this server carries {VISITS_MAX} logs and commands already; end some, or ask "
                "another server",
                code=TOO_MANY,
            )
        if sum(it.tenant == tenant for it in self._visits.values()) >= TENANT_VISITS_MAX:
            raise Unavailable(
                f"this server carries {TENANT_VISITS_MAX} logs and commands of tenant {tenant} "
                "already; end some, or ask another server",
                code=TOO_MANY,
            )
        number, visit = secrets.token_hex(16), TunnelStream(node, tenant)
        self._visits[number] = visit
        try:
            line = await self._line(node)
            line.send(TunnelRequest(number, wanted, tenant))
            await self._begun(visit)
            yield visit
        finally:
            del self._visits[number]
            visit.is_over.set()
            visit.socket.cancel()

    async def _line(self, node: str) -> AgentConnection:
        """The agent's connection, waited for if it was lost, or this server started, just now."""
        lost_at = self._lost_at.get(node, self._began_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(lost_at + LINE_LOST_S - time.monotonic()):
                while node not in self._lines:
                    await self._awaited.setdefault(node, asyncio.Event()).wait()
        line = self._lines.get(node)
        if line is None:
            raise Unavailable(self._absence(node), code=NODE_UNREACHABLE)
        return line

    async def _begun(self, visit: TunnelStream) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                socket = await asyncio.shield(visit.socket)
                message = await socket.receive()
        except TimeoutError:
            raise Unavailable(
                f"node {visit.node} did not answer within {ANSWER_S:.0f} s", code=NODE_UNREACHABLE
            ) from None
        said = decode_agent_message(message.data) if message.type is WSMsgType.TEXT else None
        if isinstance(said, StreamOpened):
            return
        if isinstance(said, StreamRefused):
            raise _meaning(said)
        raise Unavailable(f"node {visit.node} ended its answer at once", code=NODE_UNREACHABLE)

    def _absence(self, node: str) -> str:
        now = time.monotonic()
        lost = self._lost_at.get(node)
        if lost is not None:
            since = f"for {now - lost:.0f} s"
        else:
            since = f"since this server started {now - self._began_at:.0f} s ago"
        return (
            f"node {node} has had no connection to this server {since}; until its agent is back, "
            "its logs cannot be read and nothing can be run there"
        )

    def close(self) -> None:
        """End everything: the server stops."""
        for line in self._lines.values():
            line.end()
        for visit in self._visits.values():
            visit.is_over.set()


def _meaning(of: StreamRefused) -> HoldfastError:
    code = _CODES.get(of.reason, NODE_UNREACHABLE)
    kind = Rejected if of.reason in (NOT_BEGUN, GONE) else Unavailable
    return kind(of.message, code=code)
