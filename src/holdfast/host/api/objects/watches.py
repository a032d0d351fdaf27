"""Watches over HTTP: one stream of the hub each, as lines of JSON in a response without end.

A version that is too old gets an ERROR event with 410, at the beginning of a stream as well as
later: Kubernetes does the same, and some clients take an HTTP 410 on a watch for a fatal error. A
client that leaves is noticed at once; the hub drops one that does not read, and it is cut off here.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import Call
from holdfast.host.api.objects import presentation
from holdfast.host.api.objects.computed_fields import are_computed, with_computed_events
from holdfast.host.api.objects.reads import AHEAD_S, too_new
from holdfast.host.api.objects.scope import SECRETS, selection
from holdfast.host.api.plain import JSON_HEADERS
from holdfast.host.audit.accesses import WATCH
from holdfast.host.process.served_streams import ServedStream
from holdfast.model.errors import Expired, HoldfastError, Unavailable
from holdfast.observe.recent_changes import line
from holdfast.observe.selection import ObjectSelection
from holdfast.observe.watchers import WatchRequest

# Clients usually ask for less; a watch without a time-out ends after this.
TIMEOUT_S = 3_600
# A reader that takes nothing for this long counts as gone, even if its connection is open.
WRITE_TIMEOUT_S = 20.0


async def watch(call: Call) -> web.StreamResponse:
    """Stream changes until the client leaves, the time is over or the server stops."""
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
    form = presentation.stored_form_of if are_computed(call) else presentation.form_of
    request = WatchRequest(
        chosen,
        since,
        is_partial,
        form(call.route.facade, call.shape),
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
    """The revision to begin after, None to begin with a list; and whether changes of that revision
    itself may still be missing at the client.
    """
    freshness, version = call.services.freshness, call.version
    if version is None or version.is_any:
        if version is None and not await freshness.is_hub_fresh(patience_s=AHEAD_S):
            raise Unavailable("this server is behind the store; try again, or another server")
        starts_now = "sendInitialEvents" in call.query and not call.flag("sendInitialEvents")
        return (call.services.hub.revision if starts_now else None), False
    wanted = version.revision
    if call.flag("sendInitialEvents"):
        if not await freshness.wait_for_revision(wanted, AHEAD_S):
            raise too_new(call)
        return None, False
    if wanted > call.services.hub.revision:
        # Another server may be ahead. A revision beyond the store's own never existed.
        if wanted > await freshness.revision():
            given = call.query["resourceVersion"]
            raise Expired(f"resourceVersion {given} does not exist in this store; list again")
        if not await freshness.wait_for_revision(wanted, AHEAD_S) and not version.is_complete:
            raise too_new(call)
    return wanted, not version.is_complete


async def _follow(call: Call, stream: ServedStream, lasts_s: float) -> web.StreamResponse:
    first = await stream.read()
    if first is None:
        ending = stream.ending
        raise ending if isinstance(ending, HoldfastError) else Unavailable("the server is stopping")
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
    _, body, _ = status_objects.of(error, call.kind)
    response = web.StreamResponse(headers=JSON_HEADERS)
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    await _write(response, line("ERROR", body))
    await response.write_eof()
    return response


async def _pump(
    call: Call, response: web.StreamResponse, stream: ServedStream, piece: bytes | None
) -> None:
    is_computed = are_computed(call)
    while piece is not None:
        if piece and is_computed:
            piece = await with_computed_events(call, piece)
        if piece:
            await _write(response, piece)
        piece = await stream.read()
    if isinstance(stream.ending, Expired):
        _, body, _ = status_objects.of(stream.ending)
        await _write(response, line("ERROR", body))


async def _write(response: web.StreamResponse, piece: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await response.write(piece)


def _abort(call: Call) -> None:
    """Cut the connection: a client that does not read would not see an orderly end either."""
    transport = call.request.transport
    if transport is not None:
        transport.abort()
