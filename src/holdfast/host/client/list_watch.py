"""List and watch as one endless story of a kind's objects, told in order and without holes.

First comes `Listed`, with everything; then what changes. After a broken connection it goes on from
the last revision, at another server if need be. When the history it needs is gone (410) it lists
again and says so with another `Listed`, which replaces all that was told before. It is never
abandoned: the reader leaves by closing the iterator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Generic

import aiohttp
import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import HttpAnswer, error_of, status_of
from holdfast.host.client.reading import ReadingClient
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Expired, HoldfastError, Invalid, Unavailable
from holdfast.model.meta import AnyObject
from holdfast.model.registry import kind_of_struct
from holdfast.observe.informer import SILENCE_MS, silence_ms
from holdfast.observe.retry import FOLLOW_POLICY
from holdfast.observe.watch_events import (
    AGENT_BOOKMARK_MS,
    Departed,
    Opaque,
    Present,
    Reached,
    is_bookmark,
    read_line,
    within_ms,
)

# The lines of one watch as they arrive, and how long its server may be silent.
#
# `following` and `tidings` read watches through this. A server says with each bookmark within which
# time it tells something again; one that is silent for twice as long hangs, however alive its
# connection looks.

SILENCE_S = SILENCE_MS / 1_000
LINE_BYTES_MAX = 8 << 20


class WatchLines:
    """See the module's docstring."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.silence_s = SILENCE_S

    def expect_within(self, within_ms: int | None) -> None:
        """The server has said when it tells something again, or that it does not say so."""
        self.silence_s = silence_ms(within_ms) / 1_000

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """The whole lines of each piece. Raises TimeoutError when the server is silent."""
        content, rest = self._response.content, b""
        while True:
            async with asyncio.timeout(self.silence_s):
                piece = await content.readany()
            if not piece:
                return
            *lines, rest = (rest + piece).split(b"\n")
            found = [line for line in lines if line]
            if found:
                yield found
            if len(rest) > LINE_BYTES_MAX:
                raise Unavailable("the server sends a line without end")


# A watch is opened anew after so long, so that followers spread over the servers again.
WATCH_S = 1_800
# How often a watch of a user's program wants a sign of life.
BOOKMARK_S = AGENT_BOOKMARK_MS // 1_000


class Listed(msgspec.Struct, Generic[AnyObject], frozen=True):
    """Everything there is, as of a revision. It replaces what was known before."""

    objects: tuple[AnyObject, ...]
    revision: int


News = Listed[AnyObject] | Present[AnyObject] | Departed[AnyObject] | Reached


class WatchPosition:
    """How far a story was told.

    One revision may change many objects, and a stream may break between two of them. So a new
    stream begins after the last revision that is known to be told whole, and what it repeats is
    left out.
    """

    def __init__(self, revision: int) -> None:
        self.complete = revision
        self._current = revision
        self._told: set[tuple[str, str]] = set()

    def is_new(self, news: Listed[Any] | Present[Any] | Departed[Any] | Reached) -> bool:
        """Take a piece of news in; whether it was not told before."""
        if news.revision < self._current or isinstance(news, Listed):
            return False
        if isinstance(news, Reached):
            self.complete = self._current = news.revision
            self._told.clear()
            return True
        if news.revision > self._current:
            self.complete, self._current = self._current, news.revision
            self._told.clear()
        elif news.revision == self.complete:
            return False
        key = (news.object.namespace, news.object.name)
        if key in self._told:
            return False
        self._told.add(key)
        return True


async def follow(
    client: ReadingClient,
    cls: type[AnyObject],
    namespace: str = "",
    *,
    labels: str = "",
    fields: str = "",
) -> AsyncGenerator[News[AnyObject], None]:
    """The story of a kind, for ever. See the module's docstring."""
    rng = client.performer.rng
    failures = 0
    place: WatchPosition | None = None
    while True:
        try:
            if place is None:
                found = await client.list(cls, namespace, labels=labels, fields=fields, page=0)
                place = WatchPosition(found.revision)
                yield Listed(found.objects, place.complete)
            watch = _watch(client, cls, namespace, labels, fields, place.complete)
            async with contextlib.aclosing(watch):
                async for news in watch:
                    failures = 0
                    if place.is_new(news):
                        yield news
        except Expired:
            place = None
        except HoldfastError as error:
            if not isinstance(error, Unavailable):
                raise
        # Also after a stream that ended in peace: a server that stops ends all of them at once.
        failures += 1
        await asyncio.sleep(FOLLOW_POLICY.pause(failures, 0, rng) / 1_000)


async def _watch(
    client: ReadingClient,
    cls: type[AnyObject],
    namespace: str,
    labels: str,
    fields: str,
    revision: int,
) -> AsyncGenerator[News[AnyObject], None]:
    """One watch until it ends. Raises Expired when the history is gone, else Unavailable."""
    query = {
        "watch": "true",
        "resourceVersion": complete_version(revision),
        "allowWatchBookmarks": "true",
        "bookmarkSeconds": str(BOOKMARK_S),
        "timeoutSeconds": str(WATCH_S),
    }
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    query |= {key: value for key, value in chosen.items() if value}
    path = paths.collection(kind_of_struct(cls), namespace)
    lines = watch_lines(client, path, query)
    async with contextlib.aclosing(lines):
        async for line in lines:
            news = _news(cls, line)
            # What cannot be read is there all the same, so nothing is told of it.
            if not isinstance(news, Opaque):
                yield news


async def watch_lines(
    client: ReadingClient, path: str, query: dict[str, str], headers: dict[str, str] | None = None
) -> AsyncGenerator[bytes, None]:
    """The lines of one watch until it ends, as they come. Raises Unavailable."""
    response, server = await client.transport.stream(path, query, headers=headers)
    lines = WatchLines(response)
    try:
        if response.status != 200:
            answer = HttpAnswer(response.status, await response.read())
            raise answer.error(may_have_happened=False)
        async with contextlib.aclosing(lines.pieces()) as pieces:
            async for piece in pieces:
                for line in piece:
                    if is_bookmark(line):
                        lines.expect_within(within_ms(line))
                    yield line
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        client.transport.fault(server)
        raise Unavailable(f"{server}: the watch broke: {error}") from error
    finally:
        response.close()


def _news(cls: type[AnyObject], line: bytes) -> News[AnyObject] | Opaque:
    news = read_line(cls, line)
    if not isinstance(news, bytes):
        return news
    try:
        status = status_of(msgspec.json.decode(news))
    except (msgspec.DecodeError, ValueError, Invalid) as error:
        raise Unavailable(f"the server sent an error that cannot be read: {error}") from error
    raise error_of(status.code, status)
