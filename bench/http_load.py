"""Requests over TLS at as little cost as Python allows: the generator of the API's benchmark.

A client library would cost more than the server that it measures. Requests are prepared as bytes,
answers are only framed, and a connection carries one request at a time, as in a load generator.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from holdfast.host.client.paths import TERM_HEADER
from holdfast.model.errors import invariant

_LENGTH = b"\r\ncontent-length: "
_CHUNKED = b"\r\ntransfer-encoding: chunked"


class Connection(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._wanted = 0
        self._head = 0
        # The parts of an answer without a length that have arrived, and where the next one begins.
        self._parts: list[bytes] | None = None
        self._next = 0
        self.on_bytes: Callable[[bytes], None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(
                error or ConnectionError("the server closed the connection")
            )

    def data_received(self, data: bytes) -> None:
        if self.on_bytes is not None:
            self.on_bytes(data)
            return
        self._buffer += data
        if not self._wanted and not self._read_head():
            return
        if self._parts is not None:
            if self._read_parts(self._parts):
                body, self._parts = b"".join(self._parts), None
                self._answer(body, self._next)
            return
        if len(self._buffer) >= self._wanted and self._waiting is not None:
            self._answer(bytes(self._buffer[self._head : self._wanted]), self._wanted)

    def _answer(self, body: bytes, end: int) -> None:
        code = int(self._buffer[9:12])
        del self._buffer[:end]
        self._wanted = 0
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((code, body))

    def _read_parts(self, parts: list[bytes]) -> bool:
        """Whether the last part has arrived."""
        while True:
            line = self._buffer.find(b"\r\n", self._next)
            if line < 0:
                return False
            size = int(self._buffer[self._next : line].partition(b";")[0], 16)
            end = line + 2 + size + 2
            if len(self._buffer) < end:
                return False
            self._next = end
            if not size:
                return True
            parts.append(bytes(self._buffer[line + 2 : end - 2]))

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._buffer[:end]).lower()
        if _CHUNKED in head:
            self._parts, self._next, self._wanted = [], end + 4, end + 4
            return True
        at = head.find(_LENGTH)
        invariant(at > 0, f"an answer without a length: {head!r}")
        length = head[at + len(_LENGTH) :].partition(b"\r\n")[0]
        self._head = end + 4
        self._wanted = self._head + int(length)
        return True

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; the future gives the code and the body of the answer."""
        invariant(self._transport is not None, "a request follows a connection")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)  # type: ignore[union-attr]
        return self._waiting

    def follow(self, request: bytes, on_bytes: Callable[[bytes], None]) -> None:
        """Send a request, such as a watch, whose answer never ends."""
        invariant(self._transport is not None, "a request follows a connection")
        self.on_bytes = on_bytes
        self._transport.write(request)  # type: ignore[union-attr]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int, tls: ssl.SSLContext, count: int) -> list[Connection]:
    """Open `count` connections, one after the other, since each handshake costs the server."""
    loop = asyncio.get_running_loop()
    made: list[Connection] = []
    for _ in range(count):
        _, protocol = await loop.create_connection(Connection, "127.0.0.1", port, ssl=tls)
        made.append(protocol)
    return made


def request(
    method: str, path: str, body: bytes = b"", kind: str = "application/json", term: str = ""
) -> bytes:
    """The bytes of one request; `term` is what a component acts under, as `EPOCH SCOPE`."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json\r\n"
    if term:
        head += f"{TERM_HEADER}: {term}\r\n"
    if body:
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def rate(connections: Iterable[Connection], one: bytes, code: int, seconds: float) -> float:
    """Repeat the same request on every connection; return the answers per second."""
    began = time.perf_counter()
    deadline = began + seconds

    async def work(connection: Connection) -> int:
        done = 0
        while time.perf_counter() < deadline:
            answer, body = await connection.ask(one)
            invariant(answer == code, f"{answer}: {body[:300]!r}")
            done += 1
        return done

    counts = await asyncio.gather(*(work(connection) for connection in connections))
    return sum(counts) / (time.perf_counter() - began)


async def through(
    connections: Iterable[Connection], requests: Iterator[bytes], code: int
) -> tuple[float, list[float], list[bytes]]:
    """Send each request once; return the seconds in all, those of each, and the answers."""
    took: list[float] = []
    bodies: list[bytes] = []

    async def work(connection: Connection) -> None:
        for one in requests:
            began = time.perf_counter()
            answer, body = await connection.ask(one)
            took.append(time.perf_counter() - began)
            invariant(answer == code, f"{answer}: {body[:300]!r}")
            bodies.append(body)

    began = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in connections))
    return time.perf_counter() - began, took, bodies
