"""HTTP over TLS to servers of a plane, under one TLS context: the only place that speaks it.

Components, servers among each other, tunnels, the `holdfast` command and users' programs all send
through this; `transport` chooses the server and the credentials. Each call here is one try at one
server. If the connection could not be made, the server did not receive the request. If it broke or
was silent for too long, the outcome of a write is unknown. No redirect is followed: it could lead
credentials to any host.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp

from holdfast.host.client.answers import REASON_HEADER, HttpAnswer
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable

CONNECT_S = 3.0
CONNECTIONS_MAX = 256
# How long an idle connection is kept, a little less than servers allow: agents renew every ten or
# twenty seconds, and a handshake for each would cost more than the renewal.
KEEP_S = 75.0
# No list of a plane is as large. Something else at that address may send without end.
ANSWER_BYTES_MAX = 512 << 20
READ_BYTES = 64 << 10
CLOSING_TURNS = 3
LOCATION_MAX = 200
READS = ("GET", "HEAD")
# What is raised while a request is made or its answer is read.
FAULTS = (aiohttp.ClientError, TimeoutError, OSError)
# When one of these is raised, nothing was sent.
_BEFORE_SENDING = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorDNSError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.InvalidURL,
)
# How OpenSSL reports an untrusted authority and another name, and what to do about it.
_UNKNOWN_ISSUER, _OTHER_NAME, _EXPIRED = (18, 19, 20, 21), (62, 64), (10,)
_ROTATED = (
    ". If the plane's certificate authority was rotated, get a kubeconfig from a server again; a "
    "node joins again with a new token"
)
_NAMES = (
    ". Use an address that the server's certificate names, or start the server with --cert-name"
)
_CLOCKS = ". Compare the clocks of both machines, and restart the server if its own is right"
_NOT_THERE = ". Start the server, or correct the address"


class HttpSession:
    """See the module's docstring. Close it."""

    def __init__(
        self,
        tls: ssl.SSLContext,
        headers: Mapping[str, str] | None = None,
        *,
        connections_max: int = CONNECTIONS_MAX,
        read_bytes: int = READ_BYTES,
    ) -> None:
        """`headers` are sent with every request; `connections_max` 0 means no limit."""
        self._tls, self._headers = tls, dict(headers or {})
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=tls, limit=connections_max, keepalive_timeout=KEEP_S
            ),
            headers=self._headers,
            read_bufsize=read_bytes,
        )
        # aiohttp by itself repeats PUT and DELETE when a kept connection broke. Whether a second
        # try is safe is for the operation machine to decide.
        self._session._retry_connection = False

    async def exchange(
        self,
        server: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float,
        connect_s: float = CONNECT_S,
        proves: str | None = None,
        bytes_max: int | None = None,
    ) -> HttpAnswer:
        """Return any answer. Raises Unavailable, or OutcomeUnknown of a write.

        `proves` is the name in the server's certificate where that is not the host's; `bytes_max`
        is a smaller limit of the body.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=min(connect_s, timeout_s))
        try:
            async with self._session.request(
                method,
                server + path,
                params=query,
                data=body,
                headers=headers,
                timeout=timeout,
                server_hostname=proves,
                allow_redirects=False,
            ) as response:
                _demand_no_redirect(server, response)
                return HttpAnswer(
                    response.status,
                    await read_body(server, method, response, bytes_max),
                    response.headers.get(REASON_HEADER, ""),
                    patience_ms(response.headers),
                    server,
                    tuple(response.headers.getall("Warning", ())),
                )
        except FAULTS as error:
            raise fault_of(method, server, error) from error

    async def open(
        self,
        server: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        opening_s: float | None = None,
        total_s: float | None = None,
        connect_s: float = CONNECT_S,
        silence_s: float | None = None,
        proves: str | None = None,
    ) -> aiohttp.ClientResponse:
        """Return an answer whose body the caller reads and closes. Raises like `exchange`.

        The answer must begin within `opening_s` and end within `total_s`; `silence_s` bounds the
        time between two pieces. None is no limit.
        """
        timeout = aiohttp.ClientTimeout(total=total_s, connect=connect_s, sock_read=silence_s)
        try:
            async with asyncio.timeout(opening_s):
                response = await self._session.request(
                    method,
                    server + path,
                    params=query,
                    data=body,
                    headers=headers,
                    timeout=timeout,
                    server_hostname=proves,
                    allow_redirects=False,
                )
        except FAULTS as error:
            raise fault_of(method, server, error) from error
        try:
            _demand_no_redirect(server, response)
        except Unavailable:
            response.close()
            raise
        return response

    @asynccontextmanager
    async def websocket(
        self,
        server: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        protocols: Sequence[str] = (),
        opening_s: float,
        frame_bytes_max: int,
        closing_s: float = CONNECT_S,
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect a WebSocket on a connection of its own. Raises why the server refused it."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers=self._headers,
            trace_configs=[_no_redirects()],
        ) as session:
            try:
                async with asyncio.timeout(opening_s):
                    socket = await session.ws_connect(
                        server + path,
                        params=list(query),
                        protocols=tuple(protocols),
                        max_msg_size=frame_bytes_max,
                        timeout=aiohttp.ClientWSTimeout(ws_close=closing_s),
                    )
            except aiohttp.WSServerHandshakeError:
                raise await _refusal(session, server, path, query, protocols, opening_s) from None
            except FAULTS as error:
                # Nothing happens before the socket is open.
                raise fault_of("GET", server, error) from error
            async with socket:
                yield socket

    async def aclose(self) -> None:
        """Close all connections."""
        await self._session.close()
        # TLS and the socket beneath it close one after the other; a loop that ends before that
        # leaves a warning for each.
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)


async def read_body(
    server: str, method: str, response: aiohttp.ClientResponse, bytes_max: int | None = None
) -> bytes:
    """Return the whole body of an answer, which has a limit."""
    most = ANSWER_BYTES_MAX if bytes_max is None else bytes_max
    pieces: list[bytes] = []
    size = 0
    while max(size, response.content_length or 0) <= most:
        try:
            piece = await response.content.readany()
        except FAULTS as error:
            raise fault_of(method, server, error) from error
        if not piece:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.append(piece)
        size += len(piece)
    leave(response)
    text = (
        f"{server} answered with more than {most} bytes: ask for fewer objects, by "
        "namespace, by selector or in pages"
    )
    raise Unavailable(text) if method in READS else OutcomeUnknown(text)


def leave(response: aiohttp.ClientResponse) -> None:
    """Close an answer; one that was not read to its end without waiting for the other side."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        # Closing TLS takes an answer of the server, for which a program that ends does not wait.
        connection.transport.abort()
    response.close()


def fault_of(method: str, server: str, error: BaseException) -> HoldfastError:
    """Return what a fault means: for a write that was sent, the outcome is unknown."""
    text = f"{server}: {_sentence(error)}"
    if method in READS or isinstance(error, _BEFORE_SENDING):
        return Unavailable(text)
    return OutcomeUnknown(text)


def patience_ms(headers: Mapping[str, str]) -> int:
    """Return Retry-After in milliseconds. Dates are not parsed: our servers send seconds."""
    text = headers.get("Retry-After", "")
    return int(text) * 1_000 if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _demand_no_redirect(server: str, response: aiohttp.ClientResponse) -> None:
    if 300 <= response.status < 400:
        raise _redirected(server, response)


def _redirected(server: str, response: aiohttp.ClientResponse) -> Unavailable:
    where = response.headers.get("Location", "")[:LOCATION_MAX]
    return Unavailable(
        f"{server} redirects to {where!r} ({response.status}), which is not followed: use the "
        "address of a Holdfast server"
    )


def _no_redirects() -> aiohttp.TraceConfig:
    """Return a trace that stops a redirect: `ws_connect` has no parameter for that."""

    async def stop(
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        params: aiohttp.TraceRequestRedirectParams,
    ) -> None:
        raise _redirected(str(params.url.origin()), params.response)

    found = aiohttp.TraceConfig()
    found.on_request_redirect.append(stop)
    return found


async def _refusal(
    session: aiohttp.ClientSession,
    server: str,
    path: str,
    query: Sequence[tuple[str, str]],
    protocols: Sequence[str],
    opening_s: float,
) -> HoldfastError:
    """Return why it was refused: the WebSocket client drops the message, so it is asked again."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Protocol": ", ".join(protocols),
    }
    timeout = aiohttp.ClientTimeout(total=opening_s)
    try:
        async with session.get(
            server + path, params=list(query), headers=headers, timeout=timeout
        ) as response:
            reason = response.headers.get(REASON_HEADER, "")
            body = await read_body(server, "GET", response)
            answer = HttpAnswer(response.status, body, reason, 0, server)
            return answer.error(may_have_happened=False)
    except FAULTS as error:
        return fault_of("GET", server, error)


def _sentence(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        why = error.certificate_error
        code = getattr(why, "verify_code", 0)
        advice = _ROTATED if code in _UNKNOWN_ISSUER else _NAMES if code in _OTHER_NAME else ""
        advice = advice or (_CLOCKS if code in _EXPIRED else "")
        return f"its certificate was rejected: {getattr(why, 'verify_message', why)}{advice}"
    if isinstance(error, aiohttp.ClientConnectorError) and error.errno:
        # Its own text names Python objects.
        return os.strerror(error.errno) + _NOT_THERE
    return str(error) or type(error).__name__
