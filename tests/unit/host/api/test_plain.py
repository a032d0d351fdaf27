"""Answers that are written in one piece are the same answers."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime

import msgspec
from aiohttp import web

from holdfast.host.api.plain import BODY_MAX, JSON_HEADERS, PlainResponse
from holdfast.store.memory import MemoryStore
from tests.patience import PATIENCE_S
from tests.unit.host.api.api_rig import GROUP, ApiRig, named, play

_PATH = f"{GROUP}/namespaces/acme/workloads"


class _Said:
    """One answer as it came over the wire."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("ascii").split("\r\n")
        self.first, self.body = first, body
        self.headers = dict(line.split(": ", 1) for line in lines)


async def _ask(url: str, *requests: str, ends: bool = False) -> list[_Said]:
    """The answers to requests that are sent at once, after which the connection may have to end."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for it in requests:
            writer.write(it.replace("\n", "\r\n").encode("ascii"))
        found: list[_Said] = []
        for it in requests:
            head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
            said = _Said(head, b"")
            if not it.startswith("HEAD"):
                said.body = await reader.readexactly(int(said.headers.get("Content-Length", 0)))
            found.append(said)
        if ends:
            assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        return found
    finally:
        writer.close()


def _get(path: str, *, method: str = "GET", version: str = "1.1", more: str = "") -> str:
    return f"{method} {path} HTTP/{version}\nHost: here\nX-Test-User: admin\n{more}\n"


def test_an_answer_says_what_it_is_how_long_and_when() -> None:
    """On one connection, one after the other, each in full."""

    async def story() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await rig.create(named("web"))
            one, other = f"{_PATH}/web", f"{_PATH}/none"
            (found, missing, again) = await _ask(rig.url, *(_get(it) for it in (one, other, one)))
            assert (found.first, missing.first) == ("HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found")
            assert msgspec.json.decode(found.body)["metadata"]["name"] == "web"
            assert msgspec.json.decode(missing.body)["reason"] == "NotFound"
            assert again.body == found.body
            assert set(found.headers) == {*JSON_HEADERS, "Date", "Content-Length"}
            assert parsedate_to_datetime(found.headers["Date"]).tzinfo is not None

    play(story())


def test_what_is_unusual_is_answered_all_the_same() -> None:
    """An old client, one that leaves, one that wants no body, one that wants much."""

    async def story() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await rig.create(named("web"))
            path = f"{_PATH}/web"
            (usual,) = await _ask(rig.url, _get(path))
            for unusual in (_get(path, version="1.0"), _get(path, more="Connection: close\n")):
                (said,) = await _ask(rig.url, unusual, ends=True)
                assert said.first.endswith(" 200 OK")
                assert said.body == usual.body
            kept = _get(path, version="1.0", more="Connection: keep-alive\n")
            (said,) = await _ask(rig.url, kept)
            assert said.headers["Connection"] == "keep-alive"
            (no_body, after) = await _ask(rig.url, _get(path, method="HEAD"), _get(path))
            assert no_body.first == "HTTP/1.1 405 Method Not Allowed"
            assert (after.first, after.body) == ("HTTP/1.1 200 OK", usual.body)
            large = "x" * BODY_MAX
            await rig.create(named("large", annotations={"note": large}))
            (said,) = await _ask(rig.url, _get(f"{_PATH}/large"))
            assert msgspec.json.decode(said.body)["metadata"]["annotations"]["note"] == large

    play(story())


def test_an_answer_without_a_body_is_never_written_with_one() -> None:
    """What follows it on the connection would be taken for the rest of it."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return PlainResponse(204, b"") if request.path == "/empty" else PlainResponse(200, b"{}")

    async def story() -> None:
        inner = web.Server(answer)
        server = await asyncio.get_running_loop().create_server(inner, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        requests = (_get("/", method="HEAD"), _get("/empty"), _get("/"))
        (no_body, empty, usual) = await _ask(f"http://{host}:{port}", *requests)
        assert (no_body.first, empty.first) == ("HTTP/1.1 200 OK", "HTTP/1.1 204 No Content")
        assert "Content-Length" not in empty.headers
        assert (usual.first, usual.body) == ("HTTP/1.1 200 OK", b"{}")
        await inner.shutdown()
        server.close()
        await server.wait_closed()

    play(story())
