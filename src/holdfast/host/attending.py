"""An agent waits for what servers ask of it: it keeps a connection open to each of them.

`component` starts it beside the agent's machine, of which it needs nothing: whether logs can be
read must not depend on what the machine is doing. Each server is kept in touch with on its own,
with growing pauses after failures. What is asked is served by `attended_logs` and
`attended_commands`, so many at once at most; `switchboard` is the other end.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from holdfast.host import attended_commands, attended_logs
from holdfast.host.client.access import Access
from holdfast.host.client.transport import CONNECT_S
from holdfast.host.runtime.runtime import Runtime
from holdfast.host.summons import (
    ANSWER_S,
    BROKEN,
    BUSY,
    FRAME_BYTES_MAX,
    LINE_BYTES_MAX,
    SILENCE_S,
    ReadLog,
    Refused,
    Run,
    Summons,
    encoded,
    summons,
    summons_path,
    visit_path,
)
from holdfast.model.errors import HoldfastError, Unavailable

# More would not help the person who reads them, and each holds files and a connection.
LOGS_MAX, COMMANDS_MAX = 64, 32
FIRST_PAUSE_S, PAUSE_MAX_S = 0.2, 5.0
# A connection that lasted so long was a good one: the next failure begins with a short pause again.
GOOD_S = 5.0
STOP_S = 2.0
_LIMITS = {ReadLog: LOGS_MAX, Run: COMMANDS_MAX}
_NAMES = {ReadLog: "logs are being read", Run: "commands are being run"}


class Attending:
    """One agent's. `access` tells who it is to the servers at the moment."""

    def __init__(self, node: str, access: Callable[[], Access], runtime: Runtime) -> None:
        self._node, self._access, self._runtime = node, access, runtime
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = {ReadLog: 0, Run: 0}
        self._shown: tuple[Access, ssl.SSLContext] | None = None

    def start(self) -> None:
        """Begin to wait."""
        for server in self._access().servers:
            self._begin(self._stay_with(server.rstrip("/")))

    async def stop(self) -> None:
        """End every log and every command, and the connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            session.get(server + summons_path(self._node), timeout=timeout) as response,
        ):
            if response.status != 200:
                raise aiohttp.ClientError(f"{server} answered {response.status}")
            async for line in response.content:
                if line.strip():
                    self._take(server, line)

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
            asked = summons(line)
        except Unavailable:
            # A newer server may ask for what we do not know. Whoever waits hears of the silence.
            return
        kind = type(asked.wanted)
        self._under_way[kind] += 1
        self._begin(self._answer(server, asked, self._under_way[kind] > _LIMITS[kind]))

    async def _answer(self, server: str, asked: Summons, is_too_much: bool) -> None:
        kind = type(asked.wanted)
        try:
            async with self._session() as session, self._visit(session, server, asked) as visit:
                await self._serve(visit, asked, is_too_much)
        except (aiohttp.ClientError, TimeoutError, OSError):
            # Whoever asked has gone, or cannot be reached, and hears of that where he is.
            return
        finally:
            self._under_way[kind] -= 1

    @asynccontextmanager
    async def _visit(
        self, session: aiohttp.ClientSession, server: str, asked: Summons
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with asyncio.timeout(ANSWER_S):
            visit = await session.ws_connect(
                server + visit_path(self._node, asked.id),
                max_msg_size=FRAME_BYTES_MAX,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=STOP_S),
            )
        try:
            yield visit
        finally:
            await visit.close()

    async def _serve(
        self, visit: aiohttp.ClientWebSocketResponse, asked: Summons, is_too_much: bool
    ) -> None:
        wanted = asked.wanted
        if is_too_much:
            kind = type(wanted)
            text = f"{_LIMITS[kind]} {_NAMES[kind]} on node {self._node} already; end some of them"
            await visit.send_str(encoded(Refused(BUSY, text)).decode())
            return
        try:
            if isinstance(wanted, ReadLog):
                await attended_logs.read(self._runtime, wanted, visit)
            else:
                await attended_commands.run(self._runtime, wanted, visit)
        except HoldfastError as error:
            await visit.send_str(encoded(Refused(BROKEN, error.message)).decode())
