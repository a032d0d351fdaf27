"""List and watch of a kind's objects as one endless stream of events, in order and without gaps.

First comes `Listed`, with all objects; then their changes. After a broken connection the stream
resumes from the last revision, at another server if necessary. When the history it needs is gone
(410) it lists again and sends another `Listed`, which replaces all events before. It never ends by
itself: the reader closes the iterator.
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
# `follow` and `api_client` read watches through this. A server says with each bookmark when to
# expect the next one; a server that is silent for twice as long hangs, even if its connection is
# open.

SILENCE_S = SILENCE_MS / 1_000
LINE_BYTES_MAX = 8 << 20


class WatchLines:
    """See the comment above."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.silence_s = SILENCE_S

    def expect_within(self, within_ms: int | None) -> None:
        """Set when to expect the next line, or None if the server does not say."""
        self.silence_s = silence_ms(within_ms) / 1_000

    async def pieces(self) -> AsyncGenerator[list[bytes], None]:
        """Yield the complete lines of each chunk. Raises TimeoutError when the server is silent."""
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
                raise Unavailable("the server sends a line that is too long")


# A watch is opened again after this long, so that readers spread over the servers.
WATCH_S = 1_800
# How often a watch of a user's program expects a bookmark.
BOOKMARK_S = AGENT_BOOKMARK_MS // 1_000


class Listed(msgspec.Struct, Generic[AnyObject], frozen=True):
    """All objects at a revision. It replaces what was known before."""

    objects: tuple[AnyObject, ...]
    revision: int


ListWatchEvent = Listed[AnyObject] | Present[AnyObject] | Departed[AnyObject] | Reached


class WatchPosition:
    """The position in a watch.

    One revision may change many objects, and a stream may break between two of them. So a new
    stream begins after the last revision that is known to be complete, and events that it repeats
    are left out.
    """

    def __init__(self, revision: int) -> None:
        self.complete = revision
        self._current = revision
        self._told: set[tuple[str, str]] = set()

    def is_new(self, event: Listed[Any] | Present[Any] | Departed[Any] | Reached) -> bool:
        """Take in an event. Return whether it is new."""
        if event.revision < self._current or isinstance(event, Listed):
            return False
        if isinstance(event, Reached):
            self.complete = self._current = event.revision
            self._told.clear()
            return True
        if event.revision > self._current:
            self.complete, self._current = self._current, event.revision
            self._told.clear()
        elif event.revision == self.complete:
            return False
        key = (event.object.namespace, event.object.name)
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
) -> AsyncGenerator[ListWatchEvent[AnyObject], None]:
    """Yield the events of a kind without end. See the module's docstring."""
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
                async for event in watch:
                    failures = 0
                    if place.is_new(event):
                        yield event
        except Expired:
            place = None
        except HoldfastError as error:
            if not isinstance(error, Unavailable):
                raise
        # Also after a stream without an error: a server that stops ends all of them at once.
        failures += 1
        await asyncio.sleep(FOLLOW_POLICY.pause(failures, 0, rng) / 1_000)


async def _watch(
    client: ReadingClient,
    cls: type[AnyObject],
    namespace: str,
    labels: str,
    fields: str,
    revision: int,
) -> AsyncGenerator[ListWatchEvent[AnyObject], None]:
    """Yield one watch until it ends. Raises Expired when the history is gone, or Unavailable."""
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
            event = _decode_event(cls, line)
            # An object that cannot be decoded still exists, so there is no event for it.
            if not isinstance(event, Opaque):
                yield event


async def watch_lines(
    client: ReadingClient, path: str, query: dict[str, str], headers: dict[str, str] | None = None
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of one watch until it ends, as they arrive. Raises Unavailable."""
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


def _decode_event(cls: type[AnyObject], line: bytes) -> ListWatchEvent[AnyObject] | Opaque:
    event = read_line(cls, line)
    if not isinstance(event, bytes):
        return event
    try:
        status = status_of(msgspec.json.decode(event))
    except (msgspec.DecodeError, ValueError, Invalid) as error:
        raise Unavailable(f"the server sent an error that cannot be decoded: {error}") from error
    raise error_of(status.code, status)
