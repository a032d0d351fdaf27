"""An agent waits for what servers ask of it: it keeps a connection open to each of them.

`component` starts it beside the agent's machine, of which it needs nothing: whether logs can be
read must not depend on what the machine is doing. Behind a load balancer or a DNS name these are
the servers that were found (`discovering`): whoever reads logs may be led to any of them. Each
server is kept in touch with on its own, with growing pauses after failures. What is asked is served
by `attended_logs` and `attended_commands`, so many at once at most; `switchboard` is the other end.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from holdfast.host.client.access import Access
from holdfast.host.client.transport import CONNECT_S
from holdfast.host.runtime.runtime import NodeRuntime
from holdfast.host.tunnel import commands, logs
from holdfast.host.tunnel.protocol import (
    ANSWER_S,
    BROKEN,
    BUSY,
    FRAME_BYTES_MAX,
    LINE_BYTES_MAX,
    SILENCE_S,
    ReadLog,
    RunCommand,
    StreamRefused,
    TunnelRequest,
    decode_tunnel_request,
    encode_message,
    revocation_notice,
    stream_path,
    tunnel_path,
)
from holdfast.model.errors import HoldfastError, Unavailable

# More would not help the person who reads them, and each holds files and a connection.
LOGS_MAX, COMMANDS_MAX = 64, 32
# Of one tenant, so that the people of another one are let in as well.
TENANT_LOGS_MAX, TENANT_COMMANDS_MAX = 16, 8
FIRST_PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
# A connection that lasted so long was a good one: the next failure begins with a short pause again.
GOOD_S = 5.0
STOP_S = 2.0
# Servers come and go rarely, and are found out about every few seconds.
LOOK_AROUND_S = 1.0
_LIMITS = {ReadLog: LOGS_MAX, RunCommand: COMMANDS_MAX}
_TENANT_LIMITS = {ReadLog: TENANT_LOGS_MAX, RunCommand: TENANT_COMMANDS_MAX}
_NAMES = {ReadLog: "logs are being read", RunCommand: "commands are being run"}


class AgentTunnel:
    """One agent's. `access` tells who it is to the servers at the moment."""

    def __init__(
        self,
        node: str,
        access: Callable[[], Access],
        runtime: NodeRuntime,
        servers: Callable[[], Sequence[str]],
        told_of_revoked: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`servers` are the addresses of all servers at the time, each server once.
        `told_of_revoked` gets what a server says of others that were revoked.
        """
        self._node, self._access, self._runtime = node, access, runtime
        self._servers, self._told_of_revoked = servers, told_of_revoked
        self._tasks: set[asyncio.Task[None]] = set()
        # By kind, and by kind and tenant where the server says whose it is.
        self._under_way: Counter[tuple[type[ReadLog | RunCommand], str]] = Counter()
        # Those that are kept in touch with, and those of them that are connected.
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._connected: set[str] = set()
        self._shown: tuple[Access, ssl.SSLContext] | None = None

    def start(self) -> None:
        """Begin to wait."""
        self._begin(self._look_around())

    def connect_again(self) -> None:
        """End the connections to all servers; those that are still good are made again."""
        for server in list(self._kept):
            self._kept.pop(server).cancel()

    async def stop(self) -> None:
        """End every log and every command, and the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _look_around(self) -> None:
        """Keep in touch with the servers that there are now.

        What was given is used as well until one of them is connected: they may be told at addresses
        that this node cannot reach. A server ends the earlier of two connections of a node, so an
        address that leads to one that is connected is let go of. A server that was found and is no
        longer told of may only be late with its lease: its connection stays as long as it lives.
        """
        found = set[str]()
        while True:
            wanted = list(self._servers())
            found.update(wanted)
            found &= self._connected | set(wanted)
            if self._connected.isdisjoint(wanted):
                wanted += [server.rstrip("/") for server in self._access().servers]
            wanted += [server for server in self._connected if server in found]
            for server in [it for it in self._kept if it not in wanted]:
                self._kept.pop(server).cancel()
            for server in wanted:
                if server not in self._kept:
                    self._kept[server] = self._begin(self._stay_with(server))
            await asyncio.sleep(LOOK_AROUND_S)

    async def _stay_with(self, server: str) -> None:
        pause_s, loop = FIRST_PAUSE_S, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            try:
                await self._listen(server)
            except (aiohttp.ClientError, TimeoutError, OSError, HoldfastError):
                # The agent's machine meets the same and says so; here it only means to try again.
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
            if loop.time() - began_s > GOOD_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s * (0.5 + random.random()))

    async def _listen(self, server: str) -> None:
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
        async with (
            self._session() as session,
            session.get(server + tunnel_path(self._node), timeout=timeout) as response,
        ):
            if response.status != 200:
                raise aiohttp.ClientError(f"{server} answered {response.status}")
            self._connected.add(server)
            try:
                async for line in response.content:
                    if line.strip():
                        self._take(server, line)
            finally:
                self._connected.discard(server)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(ssl=await self._tls())
        async with aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES_MAX) as made:
            yield made

    async def _tls(self) -> ssl.SSLContext:
        """Who we are, for all connections until the certificate is replaced."""
        access = self._access()
        if self._shown is None or self._shown[0] is not access:
            self._shown = (access, await asyncio.to_thread(access.context))
        return self._shown[1]

    def _take(self, server: str, line: bytes) -> None:
        try:
            asked = decode_tunnel_request(line)
        except Unavailable:
            self._told_of_revoked(revocation_notice(line))
            # A newer server may ask for what we do not know. Whoever waits hears of the silence.
            return
        counted = _counted(asked)
        self._under_way.update(counted)
        self._begin(self._answer(server, asked, self._excess(asked)))

    def _excess(self, asked: TunnelRequest) -> str:
        """Why this one is too many; empty if it is not."""
        kind, tenant = type(asked.wanted), asked.tenant
        if self._under_way[kind, ""] > _LIMITS[kind]:
            return f"{_LIMITS[kind]} {_NAMES[kind]} on node {self._node} already"
        if tenant and self._under_way[kind, tenant] > _TENANT_LIMITS[kind]:
            most = _TENANT_LIMITS[kind]
            return f"{most} {_NAMES[kind]} for tenant {tenant} on node {self._node} already"
        return ""

    async def _answer(self, server: str, asked: TunnelRequest, excess: str) -> None:
        try:
            async with self._session() as session, self._visit(session, server, asked) as visit:
                await self._serve(visit, asked, excess)
        except (aiohttp.ClientError, TimeoutError, OSError):
            # Whoever asked has gone, or cannot be reached, and hears of that where he is.
            return
        finally:
            self._under_way.subtract(_counted(asked))
            self._under_way += Counter()  # Those at zero are dropped.

    @asynccontextmanager
    async def _visit(
        self, session: aiohttp.ClientSession, server: str, asked: TunnelRequest
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with asyncio.timeout(ANSWER_S):
            visit = await session.ws_connect(
                server + stream_path(self._node, asked.id),
                max_msg_size=FRAME_BYTES_MAX,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=STOP_S),
            )
        try:
            yield visit
        finally:
            await visit.close()

    async def _serve(
        self, visit: aiohttp.ClientWebSocketResponse, asked: TunnelRequest, excess: str
    ) -> None:
        wanted = asked.wanted
        if excess:
            await visit.send_str(
                encode_message(StreamRefused(BUSY, f"{excess}; end some of them")).decode()
            )
            return
        try:
            if isinstance(wanted, ReadLog):
                await logs.read(self._runtime, wanted, visit)
            else:
                await commands.run(self._runtime, wanted, visit)
        except HoldfastError as error:
            await visit.send_str(encode_message(StreamRefused(BROKEN, error.message)).decode())


def _counted(of: TunnelRequest) -> tuple[tuple[type[ReadLog | RunCommand], str], ...]:
    """By what a visit is counted: all of its kind, and those of its tenant."""
    kind = type(of.wanted)
    return ((kind, ""), (kind, of.tenant)) if of.tenant else ((kind, ""),)
