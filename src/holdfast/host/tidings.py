"""What the servers tell of a kind over one watch, in pieces as they arrive.

`host/remote` opens one for each `Follow` of a machine. All lines that came together are one piece,
so that a list of many thousands costs few steps. A watch that breaks is over; the machine's cache
knows from where to go on. A list alone ends in peace and leaves its connection to others: agents
list all the time, and a handshake is dearer than what they are told.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import aiohttp
import msgspec

from holdfast.host.client import paths
from holdfast.host.client.answers import Answer, error_of, status_of
from holdfast.host.client.following import WATCH_S
from holdfast.host.client.lines import Lines
from holdfast.host.client.transport import Transport, patience_ms
from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.meta import Object
from holdfast.model.registry import kind_of_plural
from holdfast.model.versions import complete_version
from holdfast.observe.news import Follow, News, Reached, read_line


async def told(transport: Transport, wanted: Follow) -> AsyncGenerator[tuple[News, ...], None]:
    """The news of one watch until it ends. Raises Expired or Unavailable."""
    transport.demand_welcome()
    kind = kind_of_plural(wanted.plural)
    path = paths.collection(kind, wanted.namespace)
    response, server = await transport.stream(path, _query(wanted))
    try:
        if response.status != 200:
            answer = Answer(response.status, await response.read())
            if answer.code == 503:
                # It stops, or is behind; another one may serve us meanwhile.
                transport.fault(server)
            elif answer.code == 429:
                transport.stay_away(patience_ms(response.headers))
            raise answer.error(may_have_happened=False)
        held: tuple[News, ...] = ()
        lines = Lines(response)
        async with contextlib.aclosing(lines.pieces()) as pieces:
            async for piece in pieces:
                news = tuple(_news(kind.struct, line) for line in piece)
                last = news[-1]
                if isinstance(last, Reached):
                    lines.expect_within(last.within_ms)
                if wanted.is_list:
                    # Whoever has heard the last of it leaves, so that is told after the end.
                    held, news = news, held
                if news:
                    yield news
        if held:
            yield held
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        transport.fault(server)
        raise Unavailable(f"{server}: the watch broke: {error or 'silence'}") from error
    finally:
        response.close()


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


def _news(cls: type[Object], line: bytes) -> News:
    found = read_line(cls, line)
    if isinstance(found, bytes):
        raise _error(found)
    return found


def _error(body: bytes) -> HoldfastError:
    """The server's last word. What it means to a write means nothing here."""
    try:
        status = status_of(msgspec.json.decode(body))
    except msgspec.DecodeError as error:
        return Unavailable(f"the server sent a Status that cannot be read: {error}")
    found = error_of(status.code, status)
    return Unavailable(found.message) if isinstance(found, OutcomeUnknown) else found
