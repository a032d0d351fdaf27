"""Watches over HTTP: one stream of the hub each, as lines of JSON in a response without end.

What is too old is told by an ERROR event with 410, at the beginning of a stream as well as later:
so does Kubernetes, and some clients take an HTTP 410 on a watch for their own fault and end. A
client that goes is noticed at once, one that does not read is dropped by the hub and cut off here.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.call import Call
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.reads import AHEAD_S, too_new
from holdfast.host.api.objects.scope import SECRETS, selection
from holdfast.host.api.plain import JSON_HEADERS
from holdfast.host.audit.accesses import WATCH
from holdfast.host.process.served_streams import ServedStream
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.observe.recent_changes import line
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watchers import WatchRequest

# Clients ask for less; whoever asks for nothing comes back after so long.
TIMEOUT_S = 3_600
# A reader that takes nothing for so long is gone, whatever its connection says.
WRITE_TIMEOUT_S = 20.0


async def watch(call: Call) -> web.StreamResponse:
    """Changes, until somebody goes."""
    call.demand("watch")
    chosen = selection(call, named=bool(call.name))
    if call.kind.plural == SECRETS:
        await call.witness(WATCH)
    try:
        return await _watch(call, chosen)
    except Expired as error:
        return await _too_old(call, error)


async def _watch(call: Call, chosen: ObjectSelection) -> web.StreamResponse:
    since, is_partial = await _since(call)
    request = WatchRequest(
        chosen,
        since,
        is_partial,
        presentation.form_of(call.route.facade, call.shape),
        bookmarks=call.flag("allowWatchBookmarks"),
        bookmark_ms=(call.number("bookmarkSeconds") or 0) * 1_000,
        marks_list_end=call.flag("sendInitialEvents"),
        ends_with_list=call.flag("endsWithInitialEvents"),
    )
    lasts_s = call.number("timeoutSeconds") or TIMEOUT_S
    stream = call.services.hub_shell.open(call.identity, request)
    call.services.streams.add(stream)
    call.end_gracefully = lambda: stream.end(None)
    try:
        return await _follow(call, stream, min(lasts_s, TIMEOUT_S))
    finally:
        call.services.streams.discard(stream)
        stream.leave()


async def _since(call: Call) -> tuple[int | None, bool]:
    """After which revision to begin, None to tell first what is there; and whether of that revision
    itself something may be missing still.
    """
    freshness, version = call.services.freshness, call.version
    if version is None or version.is_any:
        if version is None and not await freshness.is_hub_fresh(patience_s=AHEAD_S):
            raise Unavailable("this server is behind the store; try again, or another one")
        starts_now = "sendInitialEvents" in call.query and not call.flag("sendInitialEvents")
        return (call.services.hub.revision if starts_now else None), False
    wanted = version.revision
    if call.flag("sendInitialEvents"):
        if not await freshness.wait_for_revision(wanted, AHEAD_S):
            raise too_new(call)
        return None, False
    if wanted > call.services.hub.revision:
        # Another server may have been faster. What the store has not reached never was.
        if wanted > await freshness.revision():
            given = call.query["resourceVersion"]
            raise Expired(f"resource version {given} was never reached; list again")
        if not await freshness.wait_for_revision(wanted, AHEAD_S) and not version.is_complete:
            raise too_new(call)
    return wanted, not version.is_complete


async def _follow(call: Call, stream: ServedStream, lasts_s: float) -> web.StreamResponse:
    first = await stream.read()
    if first is None:
        ending = stream.ending
        raise ending if isinstance(ending, HoldfastError) else Unavailable("the server stops")
    response = web.StreamResponse(headers=JSON_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    try:
        async with asyncio.timeout(lasts_s) as deadline:
            await _pump(call, response, stream, first)
    except TimeoutError:
        if not deadline.expired():
            _abort(call)
            return response
    except (ConnectionError, asyncio.CancelledError):
        _abort(call)
        raise
    await response.write_eof()
    return response


async def _too_old(call: Call, error: Expired) -> web.StreamResponse:
    _, body, _ = status.of(error, call.kind)
    response = web.StreamResponse(headers=JSON_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    await _write(response, line("ERROR", body))
    await response.write_eof()
    return response


async def _pump(
    call: Call, response: web.StreamResponse, stream: ServedStream, piece: bytes | None
) -> None:
    while piece is not None:
        if piece:
            await _write(response, piece)
        piece = await stream.read()
    if isinstance(stream.ending, Expired):
        _, body, _ = status.of(stream.ending)
        await _write(response, line("ERROR", body))


async def _write(response: web.StreamResponse, piece: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(piece)


def _abort(call: Call) -> None:
    """Cut the connection: whoever does not read would not see a polite end either."""
    transport = call.request.transport
    if transport is not None:
        transport.abort()
