"""Which server is asked next, under which credentials, and what its answer means for the next one.

`http_session` makes each try. With several servers, one is used until it fails, then the next, and
a failed one is avoided for a while (`Reachable`). A request that a server certainly did not receive
goes to the next one within the same time; whether any other is sent again is for the operation
machine to decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from weakref import WeakSet

import aiohttp
import msgspec

from holdfast.host.client.answers import REASON_HEADER, HttpAnswer
from holdfast.host.client.http_session import HttpSession, patience_ms, read_body
from holdfast.host.client.paths import TRUST_HEADER
from holdfast.host.client.server_access import Access, read_again
from holdfast.model.errors import HoldfastError, Unavailable

# Which servers answered recently, shared by all connections of a process.
#
# A server that failed one of them is asked last by all of them for a while. When it fails again
# right after that time, the next one is twice as long, so that a server that hangs for minutes
# delays a request only rarely.

# How long a failed server is asked last, at first and at most.
AVOID_S, AVOID_MAX_S = 2.0, 30.0


class _Failure(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    avoid_s: float


class Reachable:
    """See the comment above."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def choose(self, servers: Sequence[str]) -> str:
        """Return the first server that is not avoided, or else the one that failed longest ago."""
        now_s = time.monotonic()
        for server in servers:
            failure = self._failures.get(server)
            if failure is None or now_s - failure.at_s >= failure.avoid_s:
                return server
        return min(servers, key=lambda server: self._failures[server].at_s)

    def has_failed(self, server: str) -> bool:
        """Return whether it did not answer the last request."""
        return server in self._failures

    def failed(self, server: str) -> None:
        now_s, before = time.monotonic(), self._failures.get(server)
        avoid_s = AVOID_S
        if before is not None:
            # Several requests in flight together fail once.
            is_next = now_s - before.at_s >= before.avoid_s
            avoid_s = min(AVOID_MAX_S, before.avoid_s * 2) if is_next else before.avoid_s
        self._failures[server] = _Failure(now_s, avoid_s)

    def answered(self, server: str) -> None:
        self._failures.pop(server, None)


# The longest pause, whatever a server says.
STAY_AWAY_MAX_S = 30.0
# A working server begins to answer a watch at once, whatever its events.
OPENING_S = 6.0
USER_AGENT = "holdfast"
UNAUTHENTICATED = 401
# The number of this try of its request, for the servers' metrics; the first try does not send it.
ATTEMPT_HEADER = "X-Holdfast-Attempt"
ATTEMPT: ContextVar[int] = ContextVar("attempt", default=1)


class Transport:
    """HTTP over TLS to any of several servers. Use as an async context manager.

    `reachable` may be shared within the process.
    """

    def __init__(
        self, access: Access, *, agent: str = USER_AGENT, reachable: Reachable | None = None
    ) -> None:
        access.check()
        self._given = [server.rstrip("/") for server in access.servers]
        self._servers = list(self._given)
        self.reachable = reachable if reachable is not None else Reachable()
        self._current = 0
        self._away_until = 0.0
        self._agent, self._access = agent, access
        self._session = _session(access, agent)
        # The session of the previous certificate: requests in flight may end there.
        self._earlier: HttpSession | None = None
        self._streams: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self._earlier_streams: WeakSet[aiohttp.ClientResponse] = WeakSet()
        # Whether any server has answered yet.
        self.has_answered = False

    @property
    def server(self) -> str:
        """Return the server that is asked next."""
        at = self._current
        chosen = self.reachable.choose(self._servers[at:] + self._servers[:at])
        # It stays with this one: returning to a server that hangs would cost another timeout.
        self._current = self._servers.index(chosen)
        return chosen

    def learn(self, servers: Sequence[str]) -> None:
        """Add servers to ask when no configured one answers."""
        current = self._servers[self._current]
        self._servers = list(dict.fromkeys((*self._given, *servers)))
        # A server that is gone is replaced by a configured one.
        self._current = self._servers.index(current) if current in self._servers else 0

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> HttpAnswer:
        """Return any answer of any server. Raises Unavailable, or OutcomeUnknown of a write."""
        if ATTEMPT.get() > 1:
            headers = {**(headers or {}), ATTEMPT_HEADER: str(ATTEMPT.get())}
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s

        async def exchange(server: str) -> HttpAnswer:
            left_s = max(0.001, deadline_s - loop.time())
            return await self._session.exchange(
                server, method, path, query=query, body=body, headers=headers, timeout_s=left_s
            )

        for left in reversed(range(len(self._servers))):
            server, used = self.server, self._access
            try:
                answer = await exchange(server)
                if answer.code == UNAUTHENTICATED and await self._renew(used):
                    answer = await exchange(server)
            except HoldfastError as error:
                self.fault(server)
                if isinstance(error, Unavailable) and left and loop.time() < deadline_s:
                    continue
                if used.advice:
                    raise type(error)(error.message + used.advice, code=error.code) from error
                raise
            self.reachable.answered(server)
            self._heed(server, answer.code, answer.retry_after_ms)
            return answer
        raise Unavailable("no server is configured")

    def _heed(self, server: str, code: int, retry_after_ms: int) -> None:
        """Remember what an answer means for the next requests."""
        self.has_answered = True
        if code == 503:
            # The server stops, or cannot reach its store; the next request goes elsewhere.
            self.fault(server)
        elif code == 429:
            self.stay_away(retry_after_ms)

    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        opening_s: float | None = OPENING_S,
        any_server: bool = False,
    ) -> tuple[aiohttp.ClientResponse, str]:
        """Return a good answer with an endless body, and its server. Raises what was refused.

        With `any_server` the next one is tried where one does not answer, as in `send`; a component
        rather decides again.
        """
        for left in reversed(range(len(self._servers))):
            server = self.server
            try:
                response = await self._session.open(
                    server, "GET", path, query=query, headers=headers, opening_s=opening_s
                )
                break
            except Unavailable:
                self.fault(server)
                if not any_server or not left:
                    raise
        self._streams.add(response)
        if response.status != 200:
            async with response:
                await self._demand_good(server, response)
        self.has_answered = True
        return response, server

    async def _demand_good(self, server: str, response: aiohttp.ClientResponse) -> None:
        """Raise the refusal in an answer."""
        code, patience = response.status, patience_ms(response.headers)
        self._heed(server, code, patience)
        reason = response.headers.get(REASON_HEADER, "")
        body = await read_body(server, "GET", response)
        raise HttpAnswer(code, body, reason, patience, server).error(may_have_happened=False)

    @contextlib.asynccontextmanager
    async def websocket(
        self,
        path: str,
        query: Sequence[tuple[str, str]],
        *,
        protocols: Sequence[str],
        opening_s: float,
        frame_bytes_max: int,
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect a WebSocket to any server. Raises what was refused."""
        stack = contextlib.AsyncExitStack()
        for left in reversed(range(len(self._servers))):
            server = self.server
            try:
                socket = await stack.enter_async_context(
                    self._session.websocket(
                        server,
                        path,
                        query=query,
                        protocols=protocols,
                        opening_s=opening_s,
                        frame_bytes_max=frame_bytes_max,
                    )
                )
                break
            except Unavailable:
                self.fault(server)
                if not left:
                    raise
        async with stack:
            self.has_answered = True
            yield socket

    def fault(self, server: str) -> None:
        """Avoid this server for a while."""
        self.reachable.failed(server)
        if self._servers[self._current] == server:
            self._current = (self._current + 1) % len(self._servers)

    def stay_away(self, retry_after_ms: int) -> None:
        """Send nothing that can wait for this long: a server is overloaded."""
        away_s = min(STAY_AWAY_MAX_S, retry_after_ms / 1_000)
        self._away_until = max(self._away_until, time.monotonic() + away_s)

    def demand_welcome(self) -> None:
        """Raise Unavailable while an overloaded server asked for a pause."""
        left_s = self._away_until - time.monotonic()
        if left_s > 0:
            raise Unavailable(
                f"not sent: a server is overloaded and asked for a pause of {left_s:.1f} s"
            )

    async def take(self, access: Access) -> None:
        """Use other credentials from now on. Watches end with the take after this one."""
        ended, self._earlier = self._earlier, self._session
        self._access = access
        self._session = _session(access, self._agent)
        streams, self._earlier_streams = self._earlier_streams, self._streams
        self._streams = WeakSet()
        for stream in streams:
            # aiohttp would close the connection and leave its reader waiting for ever.
            stream.content.set_exception(aiohttp.ClientConnectionError("its certificate is old"))
        if ended is not None:
            await ended.aclose()

    async def _renew(self, used: Access) -> bool:
        """Use the credentials that the kubeconfig has by now. Return whether there are other ones.

        `used` are those that were refused; another request may have found new ones meanwhile.
        """
        fresh = await asyncio.to_thread(read_again, used)
        if fresh is not None and fresh != self._access:
            await self.take(fresh)
        return fresh is not None

    async def close(self) -> None:
        if self._earlier is not None:
            await self._earlier.aclose()
        await self._session.aclose()

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _session(access: Access, agent: str) -> HttpSession:
    headers = {"User-Agent": agent, "Accept": "application/json"}
    if access.trusts:
        headers[TRUST_HEADER] = access.trusts
    if access.token:
        headers["Authorization"] = f"Bearer {access.token}"
    return HttpSession(access.context(), headers)
