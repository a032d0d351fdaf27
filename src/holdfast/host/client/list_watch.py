"""Watches: the events of a kind from a server, and how a reader follows them over broken streams.

Everything that watches a server reads it through `watch_pieces`: components and users' programs as
typed events (`watch_events`), `holdfast get -w` as tables. A component's cache decides itself when
to open the next stream; `follow` does that for programs: first comes `Listed`, with all objects,
then their changes, in order and without gaps. After a broken connection it resumes from the last
complete revision, at another server if necessary. When the history it needs is gone (410) it lists
again and sends another `Listed`, which replaces all events before. It never ends by itself: the
reader closes the iterator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import UNREADABLE, error_of, status_of
from holdfast.host.client.http_session import FAULTS, leave
from holdfast.host.client.reading import ReadingClient
from holdfast.host.client.transport import Transport
from holdfast.model.encoding.resource_versions import complete_version
from holdfast.model.errors import Expired, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.machine import Rng
from holdfast.model.meta import AnyObject, Object
from holdfast.model.registry import kind_of_plural, kind_of_struct
from holdfast.observe.informer import SILENCE_MS, silence_ms
from holdfast.observe.reflector import ObjectChange, Reflector
from holdfast.observe.retry import FOLLOW_POLICY
from holdfast.observe.watch_events import (
    AGENT_BOOKMARK_MS,
    Departed,
    Follow,
    Present,
    Reached,
    WatchEvent,
    is_bookmark,
    read_line,
    within_ms,
)

SILENCE_S = SILENCE_MS / 1_000
LINE_BYTES_MAX = 8 << 20
# A watch is opened again after this long, so that readers spread over the servers.
WATCH_S = 1_800
# How often a watch of a user's program expects a bookmark.
BOOKMARK_S = AGENT_BOOKMARK_MS // 1_000

Event = TypeVar("Event")


class WatchLines:
    """The lines of one watch as they arrive, and how long its server may be silent.

    A server says with each bookmark when to expect the next one; a server that is silent for twice
    as long hangs, even if its connection is open.
    """

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


async def watch_pieces(
    transport: Transport,
    path: str,
    query: dict[str, str],
    *,
    headers: dict[str, str] | None = None,
    any_server: bool = False,
) -> AsyncGenerator[list[bytes], None]:
    """Yield the lines of one watch, as many at once as arrive, until it ends.

    Raises Expired, Unavailable, or what was refused.
    """
    response, server = await transport.stream(path, query, headers=headers, any_server=any_server)
    lines = WatchLines(response)
    try:
        async with contextlib.aclosing(lines.pieces()) as pieces:
            async for piece in pieces:
                if is_bookmark(piece[-1]):
                    lines.expect_within(within_ms(piece[-1]))
                yield piece
    except FAULTS as error:
        transport.fault(server)
        raise Unavailable(f"{server}: the watch broke: {error or 'no data in time'}") from error
    finally:
        leave(response)


async def watch_events(
    transport: Transport, wanted: Follow, *, labels: str = "", any_server: bool = False
) -> AsyncGenerator[tuple[WatchEvent, ...], None]:
    """Yield the events of one watch until it ends. Raises Expired or Unavailable.

    All lines that arrive together are one batch, so that a list of many thousands takes few steps.
    A plain list ends without an error and leaves its connection to others: agents list all the
    time, and a handshake costs more than their lists.
    """
    transport.demand_welcome()
    kind = kind_of_plural(wanted.plural)
    path, query = paths.collection(kind, wanted.namespace), _query(wanted)
    if labels:
        query["labelSelector"] = labels
    held: tuple[WatchEvent, ...] = ()
    watch = watch_pieces(transport, path, query, any_server=any_server)
    async with contextlib.aclosing(watch) as pieces:
        async for piece in pieces:
            events = tuple(_decode_event(kind.struct, line) for line in piece)
            if wanted.is_list:
                # The reader leaves after the last event, so that one is sent after the end.
                held, events = events, held
            if events:
                yield events
    if held:
        yield held


def _query(wanted: Follow) -> dict[str, str]:
    query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
    if wanted.bookmark_ms:
        query["bookmarkSeconds"] = str(wanted.bookmark_ms // 1_000)
    if wanted.fields:
        query["fieldSelector"] = wanted.fields
    if wanted.since is None:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        return query | ({"endsWithInitialEvents": "true"} if wanted.is_list else {})
    return query | {"resourceVersion": complete_version(wanted.since)}


def _decode_event(cls: type[Object], line: bytes) -> WatchEvent:
    found = read_line(cls, line)
    if isinstance(found, bytes):
        raise _error(found)
    return found


def _error(body: bytes) -> HoldfastError:
    """Return the error in the server's last line. Whether a write happened does not matter here."""
    try:
        status = status_of(msgspec.json.decode(body))
    except UNREADABLE as error:
        return Unavailable(f"the server sent a Status that cannot be decoded: {error}")
    found = error_of(status.code, status)
    return Unavailable(found.message) if isinstance(found, OutcomeUnknown) else found


def _ignore(error: Unavailable) -> None:
    """A reader that waits for the next server need not know why."""


async def reopen(
    watch: Callable[[], AsyncGenerator[Event, None]],
    rng: Rng,
    expired: Callable[[], None],
    broken: Callable[[Unavailable], None] = _ignore,
) -> AsyncGenerator[Event, None]:
    """Yield what a watch yields, and open it again whenever it ends, without end.

    `expired` is called when the history that it needs is gone, `broken` when no server answers.
    """
    failures = 0
    while True:
        try:
            async with contextlib.aclosing(watch()) as events:
                async for event in events:
                    failures = 0
                    yield event
        except Expired:
            expired()
        except Unavailable as error:
            broken(error)
        # Also after a stream without an error: a server that stops ends all of them at once.
        failures += 1
        await asyncio.sleep(FOLLOW_POLICY.pause(failures, 0, rng) / 1_000)


class Listed(msgspec.Struct, Generic[AnyObject], frozen=True):
    """All objects at a revision. It replaces what was known before."""

    objects: tuple[AnyObject, ...]
    revision: int


ListWatchEvent = Listed[AnyObject] | Present[AnyObject] | Departed[AnyObject] | Reached


async def follow(
    client: ReadingClient,
    cls: type[AnyObject],
    namespace: str = "",
    *,
    labels: str = "",
    fields: str = "",
) -> AsyncGenerator[ListWatchEvent[AnyObject], None]:
    """Yield the events of a kind without end. See the module's docstring."""
    reflector = Reflector(kind_of_struct(cls).plural)

    def expired() -> None:
        reflector.must_list = True

    def watch() -> AsyncGenerator[tuple[WatchEvent, ...], None]:
        wanted = Follow(
            reflector.plural,
            namespace,
            fields,
            since=reflector.begin(),
            bookmark_ms=AGENT_BOOKMARK_MS,
        )
        return watch_events(client.transport, wanted, labels=labels, any_server=True)

    def taken() -> AsyncGenerator[ListWatchEvent[AnyObject], None]:
        return _taken(reflector, watch())

    async with contextlib.aclosing(reopen(taken, client.performer.rng, expired)) as events:
        async for event in events:
            yield event


async def _taken(
    reflector: Reflector, watch: AsyncGenerator[tuple[WatchEvent, ...], None]
) -> AsyncGenerator[ListWatchEvent[Any], None]:
    """Yield what is new to the reflector."""
    async with contextlib.aclosing(watch) as batches:
        async for events in batches:
            for event in events:
                was_listing, before = reflector.is_listing, reflector.stream_revision
                changes: list[ObjectChange] = []
                if not reflector.take(event, changes):
                    raise Unavailable("the list of a watch was incomplete or older than known")
                if reflector.is_listing:
                    continue
                if was_listing:
                    yield Listed(tuple(reflector.indexer.objects.values()), event.revision)
                    continue
                if isinstance(event, Reached) and reflector.stream_revision > before:
                    yield event
                for change in changes:
                    if change.after is not None:
                        yield Present(change.after, event.revision)
                    else:
                        # The event has its last state, if it is about this object.
                        gone = event if isinstance(event, Departed) else None
                        yield gone or Departed(change.object, event.revision)
