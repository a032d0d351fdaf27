"""Client connections: how long each may take, and the answer to what is not HTTP.

`app` listens with these. A client that sends little, or reads little of what it asked for, costs
memory as long as its connection is open; so every wait has a limit
(`host/server/client_timeouts.py`). A client that is still sending when its answer is ready gets a
moment to notice. Then the connection closes: reading the rest could go on without end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from holdfast.commit.flow.request_classes import Flow
from holdfast.host.api import status_objects
from holdfast.host.api.flow.handshakes import Accepting, Handshakes
from holdfast.host.api.flow.load_shedder import ArrivalTicket, LoadShedder
from holdfast.host.server.client_timeouts import ClientTimeouts
from holdfast.model.encoding.problems import CODE_TOO_LARGE, escape
from holdfast.model.errors import HoldfastError, Invalid, Rejected

# How much of an unwanted body is read and discarded, and for how long.
UNWANTED_BYTES_MAX = 1 << 20
UNWANTED_S = 1.0
# How long a closing connection waits for the client's TLS goodbye.
GOODBYE_S = 2.0
BACKLOG = 1_024
HEADER, WRITE = "header", "write"
_JSON = {"Content-Type": "application/json"}
_log = logging.getLogger(__name__)


class HttpServer(web.Server):
    """Makes a Connection for each client."""

    def __init__(self, handler: Any, *, patience: ClientTimeouts, **more: Any) -> None:
        # A compressed body is not unpacked: `read_body` refuses it.
        super().__init__(handler, auto_decompress=False, lingering_time=0.0, **more)
        self._patience = patience
        # How many connections were cut: the request head did not come, the answer was not read.
        self.cut = {HEADER: 0, WRITE: 0}

    def __call__(self) -> Connection:
        return Connection(self, self._patience, loop=self._loop, **self._kwargs)


class Connection(web.RequestHandler):
    """One client. The handler of a long stream has its own limit for a reader that stops."""

    __slots__ = (
        "_header_timer",
        "_heads",
        "_held",
        "_write_s",
        "_write_timer",
        "load_shedder",
        "patience",
        "ticket",
        "when_lost",
    )

    def __init__(self, server: HttpServer, patience: ClientTimeouts, **more: Any) -> None:
        super().__init__(server, keepalive_timeout=patience.idle_s, **more)
        self.patience = patience
        self._write_s: float | None = patience.write_s
        # How many request heads had arrived when data last came.
        self._heads = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # Answers requests of this flow without parsing them while its queue is full.
        self.load_shedder: tuple[LoadShedder, Flow] | None = None
        self._held = b""
        # Counts a request that the load shedder let through and that is not queued yet.
        self.ticket: ArrivalTicket | None = None
        # Called when this connection is lost, to count it no longer.
        self.when_lost: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_header_timer()
        self._stop_write_timer()
        self.release_ticket()
        if self.when_lost is not None:
            self.when_lost()
            self.when_lost = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.load_shedder is not None and self._shed(*self.load_shedder, data):
            return
        super().data_received(data)
        if self._request_count != self._heads:
            self._heads = self._request_count
            self._stop_header_timer()
        elif self._header_timer is None and self._waiter is not None:
            # No request is being served, so this is a part of the next head.
            self._await_head()

    def _shed(self, load_shedder: LoadShedder, flow: Flow, data: bytes) -> bool:
        """Whether the load shedder answers this request, a moment later, without parsing it."""
        if self._held:
            # Pipelined requests: answers must come in the order of the requests.
            self.answer(self._held)
        is_idle = self._waiter is not None and not self._waiter.done() and not self._messages
        if not is_idle or self._header_timer is not None:
            return False
        self.release_ticket()
        outcome = load_shedder.refusal(flow, bytes(data))
        if isinstance(outcome, ArrivalTicket):
            self.ticket = outcome
            return False
        if outcome is None or not load_shedder.hold(self, outcome):
            return False
        self._held = outcome
        return True

    def release_ticket(self) -> None:
        """Release the ticket: the request is queued now, or never will be."""
        if self.ticket is not None:
            self.ticket.release()
            self.ticket = None

    def answer(self, data: bytes) -> None:
        """Send the delayed answer, once."""
        if self._held is not data or self.transport is None or self._force_close:
            return
        self._held = b""
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        self.transport.write(data)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_s is not None:
            self._write_timer = self._loop.call_later(self._write_s, self._cut, WRITE)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        # A request that needs no seat, such as a health check, was never queued.
        self.release_ticket()
        is_sending = not request.content.is_eof()
        if is_sending and not resp.prepared:
            resp.force_close()
        found = await super().finish_response(request, resp, start_time)
        if is_sending:
            await _throw_away(request.content)
        self._write_s = self.patience.write_s
        return found

    def let_last(self) -> None:
        """Until this response ends, its handler limits how long the reader may pause."""
        self._write_s = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer any error with a Status. Only faults of the server are logged."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            path = escape(request.raw_path.partition("?")[0], 200)
            _log.error("internal error while serving %s %s", request.method, path, exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has begun and cannot become an error response")
        response = _answer(_problem(status, exc, message))
        response.force_close()
        return response

    def _await_head(self) -> None:
        self._header_timer = self._loop.call_later(self.patience.header_s, self._cut, HEADER)

    def _cut(self, reason: str) -> None:
        """Abort at once: a client that neither reads nor writes would not say goodbye either."""
        if isinstance(self._manager, HttpServer):
            self._manager.cut[reason] += 1
        self._force_close = True
        if self.transport is not None:
            self.transport.abort()

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _problem(code: int, exc: BaseException | None, message: str | None) -> HoldfastError:
    if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Rejected(
            "internal error while serving the request; see the server's log",
            code=status_objects.INTERNAL_ERROR,
        )
    said = escape((message or str(exc or "it cannot be read")).partition("\n")[0], 160)
    if isinstance(exc, LineTooLong):
        return Rejected(
            f"the request line or a header is too long: {said}",
            code=status_objects.HEADER_TOO_LARGE,
        )
    return Rejected(f"the request is not valid HTTP: {said}", code=status_objects.BAD_REQUEST)


def _answer(problem: HoldfastError) -> web.Response:
    code, body, headers = status_objects.of(problem)
    return web.Response(body=body, status=code, headers={**_JSON, **headers})


async def _throw_away(content: Any) -> None:
    left = UNWANTED_BYTES_MAX
    try:
        async with asyncio.timeout(UNWANTED_S):
            while left > 0 and not content.is_eof():
                left -= len(await content.readany())
    except (TimeoutError, ConnectionError, web.RequestPayloadError):
        return


def let_last(request: web.BaseRequest) -> None:
    """Let this response go on for hours and its reader pause: a log in a pager, a command."""
    if isinstance(request.protocol, Connection):
        request.protocol.let_last()


async def read_body(request: web.BaseRequest, bytes_max: int) -> bytes:
    """The whole body of a request, bounded in bytes and in time. Raises Rejected."""
    encoding = request.headers.get("Content-Encoding", "")
    if encoding and encoding.lower() != "identity":
        raise Rejected(
            f"Content-Encoding: {escape(encoding, 40)!r} must be identity: send the body "
            "uncompressed",
            code=status_objects.UNSUPPORTED_MEDIA_TYPE,
        )
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    connection = request.protocol
    within_s = connection.patience.body_s if isinstance(connection, Connection) else None
    content = request.content
    try:
        if content.is_eof():
            return await _read(content, bytes_max)
        async with asyncio.timeout(within_s):
            return await _read(content, bytes_max)
    except TimeoutError:
        raise Rejected(
            f"the body did not arrive within {within_s:g} s", code=status_objects.REQUEST_TIMEOUT
        ) from None
    except web.RequestPayloadError as error:
        said = escape(str(error).partition("\n")[0], 160)
        raise Rejected(
            f"the body cannot be read: {said}", code=status_objects.BAD_REQUEST
        ) from None


async def _read(content: Any, bytes_max: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := await content.readany():
        size += len(piece)
        if size > bytes_max:
            raise _too_large(bytes_max)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(bytes_max: int) -> Invalid:
    return Invalid(f"the body must be at most {bytes_max} bytes", code=CODE_TOO_LARGE)


class HttpSite(web.BaseSite):
    """Listens at a TCP port, as aiohttp's own does, with bounds on handshakes.

    Without TLS nothing costs before a request comes, so asyncio accepts by itself.
    """

    __slots__ = ("_accepting", "_handshakes", "_host", "_patience", "_port")

    def __init__(
        self,
        runner: web.BaseRunner,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        patience: ClientTimeouts,
        handshakes: Handshakes | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port, self._patience = host, port, patience
        self._handshakes = handshakes if handshakes is not None else Handshakes()
        self._accepting: list[Accepting] = []

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        await super().start()
        server: Any = self._runner.server
        tls = self._ssl_context
        self._server = await asyncio.get_running_loop().create_server(
            server,
            self._host,
            self._port,
            backlog=self._backlog,
            reuse_address=True,
            start_serving=tls is None,
        )
        if tls is None:
            return
        for bound in self._server.sockets:
            # asyncio's server owns and closes its sockets; `Accepting` needs its own descriptor.
            listening = socket.socket(fileno=os.dup(bound.fileno()))
            listening.setblocking(False)
            accepting = Accepting(
                listening,
                server,
                tls,
                self._patience,
                GOODBYE_S,
                self._backlog,
                self._handshakes,
            )
            accepting.start()
            self._accepting.append(accepting)

    async def stop(self) -> None:
        for accepting in self._accepting:
            accepting.stop()
        self._accepting.clear()
        await super().stop()


# How much memory each TLS connection takes while it is idle.
#
# `server_process` calls this before it listens. Most connections of a server are watches that carry
# little, and there are a thousand of them.

# asyncio gives each connection a buffer of 256 KiB to receive into and keeps it as long as the
# connection lives: a quarter of a gigabyte for a thousand watches. A TLS record has at most 16 KiB,
# so with room for two a large body takes a few more reads and nothing else changes.
RECEIVE_BYTES = 32 << 10


def receive_into_small_buffers() -> None:
    """Shrink the buffers of all later connections of this process; asyncio has no finer setting."""
    sslproto.SSLProtocol.max_size = RECEIVE_BYTES
