"""Kept connections over real TLS, one for each identity, for tests that ask thousands of things.

aiohttp's client takes longer for a request than the server for its answer; this one writes the
bytes and reads the answer, and nothing else. What is asked on one line is answered in order.

    async with Line(url, ca, issued) as line:
        answer = await line.ask("GET", "/version")
"""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec

from holdfast.host.pki.certificates import IssuedCertificate

JSON = "application/json"
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
ANSWER_S = 60.0
BUSY_TRIES_MAX, BUSY_S = 120, 0.5


class TurnedAway(Exception):
    """The other side ended the connection instead of answering."""


class Wish(msgspec.Struct, frozen=True):
    """One request. `is_endless`: its answer goes on until one side closes the connection."""

    method: str
    path: str
    body: Any = None
    media_type: str = JSON
    headers: dict[str, str] = {}
    is_endless: bool = False


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    code: int
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw) if self.raw else None


def context(ca: bytes, issued: IssuedCertificate | None) -> ssl.SSLContext:
    """The TLS of a client with this certificate, or with none."""
    made = ssl.create_default_context(cadata=ca.decode())
    if issued is not None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "client.pem"
            path.write_bytes(issued.certificate + b"\n" + issued.key)
            made.load_cert_chain(path)
    return made


class Line:
    """One connection as one identity. It is opened again when the server has ended it."""

    def __init__(
        self, url: str, ca: bytes, issued: IssuedCertificate | None = None, token: str = ""
    ) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._host, self._port = parts.hostname, parts.port or 443
        self._tls = context(ca, issued)
        self._head = f"Host: {parts.netloc}\r\nUser-Agent: line/1\r\n"
        if token:
            self._head += f"Authorization: Bearer {token}\r\n"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Line:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """End the connection; the next request makes another."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """One request, one answer. Raises TurnedAway."""
        return await self.send(Wish(method, path, body, **more))

    async def send(self, wish: Wish) -> Answer:
        """The same for a wish that was made before."""
        async with asyncio.timeout(ANSWER_S):
            try:
                reader, writer = await self.connection()
                writer.write(self.encode_request(wish))
                return await self._read(reader, wish)
            except (ConnectionError, ssl.SSLError, asyncio.IncompleteReadError) as error:
                self.hang_up()
                raise TurnedAway(str(error)) from error

    async def send_patiently(self, wish: Wish) -> Answer:
        """The same, again for a while if the server is too busy to say yes or no."""
        for _ in range(BUSY_TRIES_MAX):
            answer = await self.send(wish)
            # In a batch each item has its own answer: a busy server may say so of one alone.
            if answer.code not in (429, 503) and b'"reason":"TooManyRequests"' not in answer.raw:
                break
            await asyncio.sleep(BUSY_S)
        return answer

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The open connection, or a new one if the server has ended it."""
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self.hang_up()
            self._reader, self._writer = await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=1 << 22
            )
        return self._reader, self._writer

    def encode_request(self, wish: Wish) -> bytes:
        """The request as it is sent."""
        body = wish.body
        data = (
            body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        )
        head = f"{wish.method} {wish.path} HTTP/1.1\r\n{self._head}"
        if body is not None:
            head += f"Content-Type: {wish.media_type}\r\nContent-Length: {len(data)}\r\n"
        for name, value in wish.headers.items():
            head += f"{name}: {value}\r\n"
        return f"{head}\r\n".encode() + data

    async def _read(self, reader: asyncio.StreamReader, wish: Wish) -> Answer:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        code = int(lines[0].split(" ", 2)[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            if name:
                headers[name.lower()] = value.strip()
        if code == 101 or (wish.is_endless and code == 200):
            self.hang_up()
            return Answer(code, headers, b"")
        raw = await _body(reader, headers)
        if headers.get("connection", "").lower() == "close":
            self.hang_up()
        return Answer(code, headers, raw)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    pieces = []
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        piece = await reader.readexactly(size + 2)
        if not size:
            return b"".join(pieces)
        pieces.append(piece[:-2])
