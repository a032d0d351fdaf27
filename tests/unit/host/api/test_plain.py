"""Answers that are written in one piece are the same answers."""

from __future__ import annotations

import asyncio
from email.utils import parsedate_to_datetime

import msgspec

from holdfast.host.api.plain import BODY_MAX, JSON_HEADERS
from holdfast.store.memory import MemoryStore
from tests.unit.host.api.api_rig import GROUP, ApiRig, named, play

_PATH = f"{GROUP}/namespaces/acme/workloads"


class _Said:
    """One answer as it came over the wire."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("ascii").split("\r\n")
        self.first, self.body = first, body
        self.headers = dict(line.split(": ", 1) for line in lines)


async def _ask(rig: ApiRig, *requests: str) -> tuple[list[_Said], bytes]:
    """The answers to requests that are sent at once, and what came before the end, if it came."""
    host, _, port = rig.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for it in requests:
            writer.write(it.replace("\n", "\r\n").encode("ascii"))
        found: list[_Said] = []
        for it in requests:
            head = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n")
            said = _Said(head, b"")
            if not it.startswith("HEAD"):
                said.body = await reader.readexactly(int(said.headers["Content-Length"]))
            found.append(said)
        if found[-1].headers.get("Connection") == "close" or "HTTP/1.0" in requests[-1]:
            return found, await asyncio.wait_for(reader.read(), 5.0)
        return found, b""
    finally:
        writer.close()


def _get(path: str, *, method: str = "GET", version: str = "1.1", more: str = "") -> str:
    return f"{method} {path} HTTP/{version}\nHost: here\nX-Test-User: admin\n{more}\n"


def test_an_answer_says_what_it_is_how_long_and_when() -> None:
    """On one connection, one after the other, each in full. [M1]"""

    async def story() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await rig.create(named("web"))
            one, other = f"{_PATH}/web", f"{_PATH}/none"
            (found, missing, again), _ = await _ask(rig, *(_get(it) for it in (one, other, one)))
            assert (found.first, missing.first) == ("HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found")
            assert msgspec.json.decode(found.body)["metadata"]["name"] == "web"
            assert msgspec.json.decode(missing.body)["reason"] == "NotFound"
            assert again.body == found.body
            assert set(found.headers) == {*JSON_HEADERS, "Date", "Content-Length"}
            assert parsedate_to_datetime(found.headers["Date"]).tzinfo is not None

    play(story())


def test_what_is_unusual_is_answered_all_the_same() -> None:
    """An old client, one that leaves, one that wants no body, one that wants much. [M1]"""

    async def story() -> None:
        async with ApiRig(MemoryStore()) as rig:
            await rig.tenant()
            await rig.create(named("web"))
            path = f"{_PATH}/web"
            (usual,), _ = await _ask(rig, _get(path))
            for unusual in (_get(path, version="1.0"), _get(path, more="Connection: close\n")):
                (said,), rest = await _ask(rig, unusual)
                assert said.first.endswith(" 200 OK")
                assert (said.body, rest) == (usual.body, b"")
            (no_body, after), _ = await _ask(rig, _get(path, method="HEAD"), _get(path))
            assert no_body.first == "HTTP/1.1 405 Method Not Allowed"
            assert after.body == usual.body
            large = "x" * BODY_MAX
            await rig.create(named("large", annotations={"note": large}))
            (said,), _ = await _ask(rig, _get(f"{_PATH}/large"))
            assert msgspec.json.decode(said.body)["metadata"]["annotations"]["note"] == large

    play(story())
