"""A server over real TLS with scripted replies, request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.client import Access, AsyncClient
from holdfast.host.pki.first_trust import establish
from holdfast.host.server.settings import ServerSettings
from holdfast.observe.retry import RetryPolicy

HASTY = RetryPolicy(tries_max=4, looks_max=4, deadline_ms=20_000, try_ms=5_000, pause_ms=1)
Reply = Callable[[web.BaseRequest], web.StreamResponse]


class Scripted:
    """Answers requests in turn; the last reply serves all further ones."""

    def __init__(
        self, folder: Path, *replies: Reply, name: str = "", host: str = "127.0.0.1"
    ) -> None:
        """Servers with names share the authority of the folder."""
        self._host = host
        if name:
            settings = ServerSettings(data=folder / name, name=name, pki=folder / "pki")
        else:
            settings = ServerSettings(data=folder, name="scripted")
        self.trust = establish(settings)
        self._replies = list(replies)
        self.seen: list[tuple[str, str, str]] = []
        self.bodies: list[bytes] = []
        self.attempts: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Scripted:
        self._runner = web.ServerRunner(
            # A handler ends with its connection.
            web.Server(self._handle, handler_cancellation=True),
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, 0, ssl_context=self.trust.context()).start()
        self.url = f"https://{self._host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        operation = request.headers.get("X-Holdfast-Operation", "")
        self.seen.append((request.method, request.raw_path, operation))
        self.bodies.append(await request.read())
        self.attempts.append(request.headers.get("X-Holdfast-Attempt", ""))
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        return reply(request)

    def client(self, *, before: tuple[str, ...] = ()) -> AsyncClient:
        """A client of this server; `before` are servers that it tries first."""
        return AsyncClient(self.client_access(before), policy=HASTY)

    def client_access(self, before: tuple[str, ...] = ()) -> Access:
        trust = self.trust
        return Access(
            servers=(*before, self.url),
            ca=trust.authorities.pem,
            certificate=trust.admin.certificate,
            key=trust.admin.key,
        )


def says(body: Any, code: int = 200, **headers: str) -> Reply:
    """A reply in JSON."""

    def reply(request: web.BaseRequest) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = msgspec.json.encode(body)
        return web.Response(
            body=data, status=code, headers={"Content-Type": "application/json", **named}
        )

    return reply


def refuses(code: int, reason: str, message: str = "no", **headers: str) -> Reply:
    """Return a refusal as a Status."""
    body = {"kind": "Status", "status": "Failure", "message": message, "code": code}
    return says(body, code, X_Holdfast_Reason=reason, **headers)


def hangs_up(request: web.BaseRequest) -> web.StreamResponse:
    """Read the request, then break the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def stays_open(*texts: str) -> Reply:
    """Sends some lines and then nothing more, on an open connection."""

    class Response(web.StreamResponse):
        async def write_eof(self, data: bytes = b"") -> None:
            for text in texts:
                await self.write(text.encode() + b"\n")
            await asyncio.Event().wait()

    return lambda request: Response(headers={"Content-Type": "application/json"})
