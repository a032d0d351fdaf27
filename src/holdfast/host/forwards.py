"""Takes in requests that other servers forward, for the authority of this one.

`plane` gives the handler to the HTTP server. Only a server's own certificate opens it: whoever
forwards speaks for others, so a token, which can be copied, is not enough. The requests of a body
go to the authority in their order; only then does the answer begin, which tells the sender that it
may send the next body. Verdicts follow line by line as they are known, in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.call import bad, reply
from holdfast.host.api.connections import received
from holdfast.host.forwarding import (
    BODY_BYTES_MAX,
    CONTENT_TYPE,
    DECIDED_WITHIN_S,
    LINES_MAX,
    PATH,
    decoded,
    encoded_verdict,
)
from holdfast.host.metrics import Metrics
from holdfast.host.shell import Shell
from holdfast.model.errors import Forbidden, HoldfastError, Invalid, Rejected, Unavailable
from holdfast.model.identity import Identity, acts_as
from holdfast.model.refusal import Reason

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Who is at the other end of a connection, by its certificate alone. Raises Forbidden.
Shown = Callable[[Any], Identity | None]


def handlers(authority: Shell, metrics: Metrics, shown: Shown) -> dict[str, Handler]:
    """The path, and what answers there."""

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = _peer(request, shown)
            lines = await _lines(request)
        except HoldfastError as error:
            return reply(*status.of(error))
        metrics.forwards_taken.add(by=len(lines))
        return await _answer(request, [_submitted(authority, peer, line) for line in lines])

    return {PATH: take}


def _peer(request: web.BaseRequest, shown: Shown) -> Identity:
    """The server that forwards."""
    peer = shown(request.transport)
    if peer is None or peer.server is None:
        name = peer.name if peer is not None else "nobody in particular"
        is_known = peer is not None and bool(acts_as(peer))
        raise Forbidden(
            f"only servers may speak for others, not {name}",
            code=Reason.NOT_ALLOWED if is_known else Reason.UNAUTHENTICATED,
        )
    if request.method != "POST":
        raise Rejected("requests are forwarded by POST", code=status.METHOD_NOT_ALLOWED)
    return peer


async def _lines(request: web.BaseRequest) -> list[bytes]:
    """The requests of the body, not read yet. It may be larger than any body of a client."""
    lines = (await received(request, BODY_BYTES_MAX)).split(b"\n")
    if lines.pop():
        bad("the body does not end with the end of a line")
    if len(lines) > LINES_MAX:
        bad(f"a body may bring at most {LINES_MAX} requests, not {len(lines)}")
    return lines


def _submitted(authority: Shell, peer: Identity, line: bytes) -> asyncio.Future[Any]:
    try:
        return authority.submit(peer, decoded(line), DECIDED_WITHIN_S)
    except Invalid as error:
        # A newer server may know requests that we do not. It decides those itself.
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_result(Unavailable(error.message))
        return refused


async def _answer(
    request: web.BaseRequest, verdicts: list[asyncio.Future[Any]]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    await response.prepare(request)
    ready: list[bytes] = []
    for verdict in verdicts:
        if ready and not verdict.done():
            await response.write(b"".join(ready))
            ready.clear()
        ready.append(encoded_verdict(await verdict))
    await response.write_eof(b"".join(ready))
    return response
