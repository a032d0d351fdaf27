"""One try at one server, and what a fault means for the request.

If the connection could not be made, the server did not receive the request. If it broke or was
silent for too long, the outcome of a write is unknown. With several servers, one is used until it
fails, then the next, and a failed one is avoided for a while (`Reachable`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from weakref import WeakSet

import aiohttp
import msgspec

from holdfast.host.client.answers import REASON_HEADER, HttpAnswer
from holdfast.host.client.paths import TRUST_HEADER
from holdfast.host.client.server_access import Access
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable

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
CONNECT_S = 3.0
# A working server begins to answer a watch at once, whatever its events.
OPENING_S = 6.0
CONNECTIONS_MAX = 256
# How long an idle connection is kept, a little less than servers allow: agents renew every ten or
# twenty seconds, and a handshake for each would cost more than the renewal.
KEEP_S = 75.0
READS = ("GET", "HEAD")
USER_AGENT = "holdfast"
# The number of this try of its request, for the servers' metrics; the first try does not send it.
ATTEMPT_HEADER = "X-Holdfast-Attempt"
ATTEMPT: ContextVar[int] = ContextVar("attempt", default=1)
# How OpenSSL reports an untrusted authority, and what to do about it.
_UNKNOWN_ISSUER = (18, 19, 20, 21)
_ROTATED = (
    ". If the plane's certificate authority was rotated, get a kubeconfig from a server again; a "
    "node joins again with a new token"
)
# When one of these is raised, nothing was sent.
_BEFORE_SENDING = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorDNSError,
    aiohttp.ConnectionTimeoutError,
)


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
        self._agent = agent
        self._session = _session(access, agent)
        # The session of the previous certificate: requests in flight may end there.
        self._earlier: aiohttp.ClientSession | None = None
        self._streams: WeakSet[aiohttp.ClientResponse] = WeakSet()
        self._earlier_streams: WeakSet[aiohttp.ClientResponse] = WeakSet()

    @property
    def server(self) -> str:
        """Return the server that is asked next."""
        at = self._current
        chosen = self.reachable.choose(self._servers[at:] + self._servers[:at])
        # It stays with this one: returning to a server that hangs would cost another timeout.
        self._current = self._servers.index(chosen)
        return chosen

    @property
    def servers(self) -> int:
        """Return how many servers may be asked."""
        return len(self._servers)

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
        """Return any answer. Raises Unavailable, or OutcomeUnknown of a write."""
        server = self.server
        if ATTEMPT.get() > 1:
            headers = {**(headers or {}), ATTEMPT_HEADER: str(ATTEMPT.get())}
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(CONNECT_S, timeout_s))
        try:
            async with self._session.request(
                method, server + path, params=query, data=body, headers=headers, timeout=timeout
            ) as response:
                body = await response.read()
                self.reachable.answered(server)
                return HttpAnswer(
                    response.status,
                    body,
                    response.headers.get(REASON_HEADER, ""),
                    patience_ms(response.headers),
                    server,
                    tuple(response.headers.getall("Warning", ())),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.fault(server)
            raise self._meaning(method, server, error) from error

    async def stream(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        opening_s: float | None = OPENING_S,
    ) -> tuple[aiohttp.ClientResponse, str]:
        """Return an answer with an endless body, and its server. Raises Unavailable."""
        server = self.server
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
        try:
            async with asyncio.timeout(opening_s):
                response = await self._session.get(
                    server + path, params=query, headers=headers, timeout=timeout
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.fault(server)
            raise self._meaning("GET", server, error) from error
        self._streams.add(response)
        return response, server

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
        self._session = _session(access, self._agent)
        streams, self._earlier_streams = self._earlier_streams, self._streams
        self._streams = WeakSet()
        for stream in streams:
            # aiohttp would close the connection and leave its reader waiting for ever.
            stream.content.set_exception(aiohttp.ClientConnectionError("its certificate is old"))
        if ended is not None:
            await ended.close()

    async def close(self) -> None:
        if self._earlier is not None:
            await self._earlier.close()
        await self._session.close()
        # Closing the connections takes a turn of the loop, or each leaves a warning.
        await asyncio.sleep(0)

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _meaning(self, method: str, server: str, error: BaseException) -> HoldfastError:
        text = f"{server}: {_sentence(error)}"
        if method in READS or isinstance(error, _BEFORE_SENDING):
            return Unavailable(text)
        return OutcomeUnknown(text)


def _session(access: Access, agent: str) -> aiohttp.ClientSession:
    headers = {"User-Agent": agent, "Accept": "application/json"}
    if access.trusts:
        headers[TRUST_HEADER] = access.trusts
    if access.token:
        headers["Authorization"] = f"Bearer {access.token}"
    connector = aiohttp.TCPConnector(
        ssl=access.context(), limit=CONNECTIONS_MAX, keepalive_timeout=KEEP_S
    )
    session = aiohttp.ClientSession(connector=connector, headers=headers)
    # aiohttp by itself repeats PUT and DELETE when a kept connection broke. Whether a second try is
    # safe is for the retry machine to decide.
    session._retry_connection = False
    return session


def patience_ms(headers: Mapping[str, str]) -> int:
    """Return Retry-After in milliseconds. Dates are not parsed: our servers send seconds."""
    text = headers.get("Retry-After", "")
    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _sentence(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = error.certificate_error
        advice = _ROTATED if getattr(why, "verify_code", 0) in _UNKNOWN_ISSUER else ""
        return f"its certificate was rejected: {getattr(why, 'verify_message', why)}{advice}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        # Its own text names Python objects.
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
