"""The agent's end of the tunnels: it keeps a connection open to each server and serves requests.

`component/component_process` starts it beside the agent's machine and independent of it: reading
logs must not depend on what the machine is doing. Behind a load balancer or a DNS name it connects
to the discovered servers (`server_discovery`): a client that reads logs may reach any of them. Each
connection is kept separately, with growing pauses after failures. `logs` and `commands` serve the
requests, with a limit on how many at once; `server_end` is the other end.
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

from holdfast.host.client.http_session import FAULTS, HttpSession
from holdfast.host.client.server_access import Access
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

# More would not help a reader, and each holds files and a connection.
LOGS_MAX, COMMANDS_MAX = 64, 32
# The limit of one tenant, so that others still find room.
TENANT_LOGS_MAX, TENANT_COMMANDS_MAX = 16, 8
FIRST_PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
# After a connection of this length the next failure begins with a short pause again.
GOOD_S = 5.0
STOP_S = 2.0
# Servers come and go rarely, and are discovered every few seconds.
LOOK_AROUND_S = 1.0
_LIMITS = {ReadLog: LOGS_MAX, RunCommand: COMMANDS_MAX}
_TENANT_LIMITS = {ReadLog: TENANT_LOGS_MAX, RunCommand: TENANT_COMMANDS_MAX}
_NAMES = {ReadLog: "logs are being read", RunCommand: "commands are running"}


class AgentTunnel:
    """The tunnels of one agent. `access` returns its present credentials."""

    def __init__(
        self,
        node: str,
        access: Callable[[], Access],
        runtime: NodeRuntime,
        servers: Callable[[], Sequence[str]],
        learn_revoked: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`servers` returns the addresses of all servers, each server once. `learn_revoked` gets
        a server's statement of revoked servers.
        """
        self._node, self._access, self._runtime = node, access, runtime
        self._servers, self._told_of_revoked = servers, learn_revoked
        self._tasks: set[asyncio.Task[None]] = set()
        # By kind, and by kind and tenant where the server names the tenant.
        self._under_way: Counter[tuple[type[ReadLog | RunCommand], str]] = Counter()
        # Servers that connections are kept to, and those that are connected.
        self._kept: dict[str, asyncio.Task[None]] = {}
        self._connected: set[str] = set()
        self._shown: tuple[Access, ssl.SSLContext] | None = None

    def start(self) -> None:
        """Start to connect."""
        self._begin(self._look_around())

    def connect_again(self) -> None:
        """Close all connections; those that are still needed are made again."""
        for server in list(self._kept):
            self._kept.pop(server).cancel()

    async def stop(self) -> None:
        """End every log, every command, and the connections."""
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
        """Keep a connection to each present server.

        Configured addresses are used as well until one discovered server is connected: this node
        may not reach the discovered addresses. A server closes the earlier of two connections of a
        node, so an address that leads to a connected server is dropped. A server that is no longer
        listed may only be late with its lease: its connection stays while it works.
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
            except (*FAULTS, HoldfastError):
                # The agent's machine reports the same fault; here it only means to try again.
                pause_s = min(pause_s * 2, PAUSE_MAX_S)
            if loop.time() - began_s > GOOD_S:
                pause_s = FIRST_PAUSE_S
            await asyncio.sleep(pause_s * (0.5 + random.random()))

    async def _listen(self, server: str) -> None:
        async with self._session() as session:
            response = await session.open(
                server, "GET", tunnel_path(self._node), silence_s=SILENCE_S
            )
            async with response:
                if response.status != 200:
                    raise Unavailable(f"{server} answered {response.status}")
                self._connected.add(server)
                try:
                    async for line in response.content:
                        if line.strip():
                            self._take(server, line)
                finally:
                    self._connected.discard(server)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[HttpSession]:
        made = HttpSession(await self._tls(), read_bytes=LINE_BYTES_MAX)
        try:
            yield made
        finally:
            await made.aclose()

    async def _tls(self) -> ssl.SSLContext:
        """Return the TLS context of all connections until the certificate is replaced."""
        access = self._access()
        if self._shown is None or self._shown[0] is not access:
            self._shown = (access, await asyncio.to_thread(access.context))
        return self._shown[1]

    def _take(self, server: str, line: bytes) -> None:
        try:
            asked = decode_tunnel_request(line)
        except Unavailable:
            self._told_of_revoked(revocation_notice(line))
            # A newer server may ask for what we do not know. Its client gets a timeout.
            return
        counted = _counted(asked)
        self._under_way.update(counted)
        self._begin(self._answer(server, asked, self._excess(asked)))

    def _excess(self, asked: TunnelRequest) -> str:
        """Return why this request exceeds a limit; empty if it does not."""
        kind, tenant = type(asked.wanted), asked.tenant
        if self._under_way[kind, ""] > _LIMITS[kind]:
            return f"{_LIMITS[kind]} {_NAMES[kind]} on node {self._node} already"
        if tenant and self._under_way[kind, tenant] > _TENANT_LIMITS[kind]:
            most = _TENANT_LIMITS[kind]
            return f"{most} {_NAMES[kind]} for tenant {tenant} on node {self._node} already"
        return ""

    async def _answer(self, server: str, asked: TunnelRequest, excess: str) -> None:
        try:
            async with (
                self._session() as session,
                session.websocket(
                    server,
                    stream_path(self._node, asked.id),
                    opening_s=ANSWER_S,
                    frame_bytes_max=FRAME_BYTES_MAX,
                    closing_s=STOP_S,
                ) as stream,
            ):
                await self._serve(stream, asked, excess)
        except (*FAULTS, HoldfastError):
            # The client left or cannot be reached; its server reports that.
            return
        finally:
            self._under_way.subtract(_counted(asked))
            self._under_way += Counter()  # Those at zero are dropped.

    async def _serve(
        self, stream: aiohttp.ClientWebSocketResponse, asked: TunnelRequest, excess: str
    ) -> None:
        wanted = asked.wanted
        if excess:
            await stream.send_str(
                encode_message(StreamRefused(BUSY, f"{excess}; end some of them")).decode()
            )
            return
        try:
            if isinstance(wanted, ReadLog):
                await logs.read(self._runtime, wanted, stream)
            else:
                await commands.run(self._runtime, wanted, stream)
        except HoldfastError as error:
            await stream.send_str(encode_message(StreamRefused(BROKEN, error.message)).decode())


def _counted(of: TunnelRequest) -> tuple[tuple[type[ReadLog | RunCommand], str], ...]:
    """Return what a stream is counted by: its kind, and its kind and tenant."""
    kind = type(of.wanted)
    return ((kind, ""), (kind, of.tenant)) if of.tenant else ((kind, ""),)
