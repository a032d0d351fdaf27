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
from holdfast.model.requests import Forward

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Who is at the other end of a connection, by its certificate alone. Raises Forbidden.
Shown = Callable[[Any], Identity | None]
# Raises Forbidden for a certificate that was revoked, Unavailable where that cannot be known.
Demand = Callable[[web.BaseRequest], Awaitable[None]]


def handlers(
    authority: Shell, metrics: Metrics, shown: Shown, demand_unrevoked: Demand | None = None
) -> dict[str, Handler]:
    """The path, and what answers there. `demand_unrevoked` is asked where `shown` may be late."""

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = _peer(request, shown)
            if demand_unrevoked is not None:
                await demand_unrevoked(request)
            lines = await _lines(request)
        except HoldfastError as error:
            return reply(*status.of(error))
        metrics.forwards_taken.add(by=len(lines))
        read = [_read(line) for line in lines]
        asked = [it for it in read if isinstance(it, Forward)]
        # When the other server gives up and hangs up, what is undecided is withdrawn.
        with authority.submitted(peer, asked, DECIDED_WITHIN_S) as answers:
            known = iter(answers)
            return await _answer(
                request, [it if isinstance(it, Unavailable) else next(known) for it in read]
            )

    return {PATH: take}


def _peer(request: web.BaseRequest, shown: Shown) -> Identity:
    """The server that forwards."""
    peer = shown(request.transport)
    if peer is None or peer.server is None:
        name = peer.name if peer is not None else "nobody in particular"
        raise Forbidden(f"only servers may speak for others, not {name}", code=no_to(peer))
    if request.method != "POST":
        raise Rejected("requests are forwarded by POST", code=status.METHOD_NOT_ALLOWED)
    return peer


def no_to(peer: Identity | None) -> Reason:
    """What a refusal says to this one: who is nobody that the plane knows is told so first."""
    is_known = peer is not None and bool(acts_as(peer))
    return Reason.NOT_ALLOWED if is_known else Reason.UNAUTHENTICATED


async def _lines(request: web.BaseRequest) -> list[bytes]:
    """The requests of the body, not read yet. It may be larger than any body of a client."""
    lines = (await received(request, BODY_BYTES_MAX)).split(b"\n")
    if lines.pop():
        bad("the body does not end with the end of a line")
    if len(lines) > LINES_MAX:
        bad(f"a body may bring at most {LINES_MAX} requests, not {len(lines)}")
    return lines


def _read(line: bytes) -> Forward | Unavailable:
    try:
        return decoded(line)
    except Invalid as error:
        # A newer server may know requests that we do not. It decides those itself.
        return Unavailable(error.message)


async def _answer(
    request: web.BaseRequest, verdicts: list[asyncio.Future[Any] | Unavailable]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    await response.prepare(request)
    ready: list[bytes] = []
    for verdict in verdicts:
        if isinstance(verdict, Unavailable):
            ready.append(encoded_verdict(verdict))
            continue
        if ready and not verdict.done():
            await response.write(b"".join(ready))
            ready.clear()
        ready.append(encoded_verdict(await verdict))
    await response.write_eof(b"".join(ready))
    return response
