"""Requests that one server forwards to another, and their verdicts, as lines of JSON.

`other_servers` sends requests and reads verdicts; the handler below does the reverse at the server
that decides. The server that received a client's request has checked and decoded it; here it is
only transported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.server import FORWARD_TIMEOUT_MS
from holdfast.host.api import status_objects
from holdfast.host.api.call import bad, reply
from holdfast.host.api.flow.connections import read_body
from holdfast.host.process.metrics import Metrics
from holdfast.host.process.shell import Shell
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.encoding.unknown_fields import has_unknown
from holdfast.model.errors import (
    Forbidden,
    HoldfastError,
    Invalid,
    OutcomeUnknown,
    Rejected,
    Unavailable,
)
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import KINDS
from holdfast.model.requests import REQUESTS, Accepted, Create, Forward, Update, Verdict

PATH = "/peers/forwards"
CONTENT_TYPE = "application/x-ndjson"
# The most requests in one body, and the most bytes unless a single request is larger. An object has
# at most 1 MiB; the rest of a request is small.
LINES_MAX = 500
BATCH_BYTES = 1 << 20
BODY_BYTES_MAX = 4 << 20
# A verdict carries the objects that a request changed.
VERDICT_BYTES_MAX = 16 << 20
# The deciding server gives up a little earlier than the asking one, so that its answer still
# arrives.
DECIDED_WITHIN_S = 0.9 * FORWARD_TIMEOUT_MS / 1_000

_ANY: Any = reduce(or_, (kind.struct for kind in KINDS))
# An object may be of any kind, which the types of requests and verdicts do not express.
_WIDER: dict[Any, Any] = {Object: _ANY, tuple[Object, ...]: tuple[_ANY, ...]}
# No field of a request has this name; a patch has a `type` of its own.
_TAG = "struct"
_ENCODER = msgspec.json.Encoder()


def _form(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct with the same fields, tagged with its name, for objects of all kinds."""
    fields = [
        (field.name, _WIDER.get(field.type, field.type), _default(field))
        for field in msgspec.structs.fields(struct)
    ]
    return msgspec.defstruct(struct.__name__, fields, frozen=True, tag=True, tag_field=_TAG)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field(default=field.default)


class _Fault(msgspec.Struct, frozen=True, tag="Fault", tag_field=_TAG):
    """No verdict, and whether the request may have happened anyway."""

    message: str
    code: str
    may_have_happened: bool


_YES, _NO = _form(Accepted), _form(Refusal)
_FORMS = {request: _form(request) for request in REQUESTS}
_REQUESTS = {form: request for request, form in _FORMS.items()}
_VERDICT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, (_YES, _NO, _Fault)))


class _Sent(msgspec.Struct, frozen=True):
    identity: Identity
    request: Any
    epoch: int


_ARRIVED: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "Arrived",
        [("identity", Identity), ("request", reduce(or_, _REQUESTS)), ("epoch", int)],
        frozen=True,
    )
)


def encode_forward(forward: Forward) -> bytes:
    """Encode a request as a line. Raises Unavailable for one that cannot be forwarded."""
    request = forward.request
    form = _FORMS.get(type(request))
    if form is None:
        raise Unavailable(f"requests of type {type(request).__name__} cannot be forwarded")
    try:
        line = _ENCODER.encode(_Sent(forward.identity, _same(form, request), forward.epoch)) + b"\n"
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise Unavailable(f"the request cannot be forwarded: {error}") from error
    if len(line) > BODY_BYTES_MAX:
        raise Unavailable(f"the request is too large to be forwarded: {len(line)} bytes")
    return line


def decode_forward(line: bytes) -> Forward:
    """Decode the request in a line. Raises Invalid for one that this server does not know."""
    try:
        arrived = _ARRIVED.decode(line)
        request = _same(_REQUESTS[type(arrived.request)], arrived.request)
        if isinstance(request, Create | Update):
            _demand_known(request.object, bytes(_OBJECT.decode(line).request.object))
        return Forward(arrived.identity, request, arrived.epoch)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"a forwarded request cannot be read: {error}") from error


class _WithObject(msgspec.Struct, frozen=True):
    object: msgspec.Raw


class _Around(msgspec.Struct, frozen=True):
    request: _WithObject


_OBJECT = msgspec.json.Decoder(_Around)


def _demand_known(obj: Object, data: bytes) -> None:
    """Raise Invalid for an object with fields that this version would drop."""
    if has_unknown(obj, data):
        raise Invalid(f"{type(obj).__name__} {obj.name} has fields of a newer version")


def encode_verdict(verdict: Verdict | HoldfastError) -> bytes:
    """Encode the outcome of a request as a line."""
    form: Any
    match verdict:
        case Accepted():
            form = _same(_YES, verdict)
        case Refusal():
            form = _same(_NO, verdict)
        case _:
            surely_not = isinstance(verdict, Unavailable)
            form = _Fault(verdict.message, verdict.code, not surely_not)
    return _ENCODER.encode(form) + b"\n"


def decode_verdict(line: bytes) -> Verdict | HoldfastError:
    """Decode the outcome of a request. For an unreadable line the outcome is unknown."""
    try:
        form = _VERDICT.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return OutcomeUnknown(f"the verdict of the other server cannot be read: {error}")
    if isinstance(form, _Fault):
        kind = OutcomeUnknown if form.may_have_happened else Unavailable
        return kind(form.message, code=form.code)
    verdict: Verdict = _same(Accepted if isinstance(form, _YES) else Refusal, form)
    return verdict


def _same(to: type[Any], struct: msgspec.Struct) -> Any:
    """Copy the fields of a struct into another with the same fields."""
    return to(*msgspec.structs.astuple(struct))


# Receives requests that other servers forward to this server's authority.
#
# `server_process` gives the handler to the HTTP server. It requires a server's certificate: a
# server that forwards acts for other identities, so a token, which can be copied, is not enough.
# The requests of a body go to the authority in order. Only then does the answer begin, which tells
# the sender to send the next body. Verdicts follow line by line as they are known, in this order.

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
# Returns the peer's identity by its certificate alone. Raises Forbidden.
Shown = Callable[[Any], Identity | None]
# Raises Forbidden for a revoked certificate, Unavailable where that cannot be determined.
Demand = Callable[[web.BaseRequest], Awaitable[None]]


def handlers(
    authority: Shell, metrics: Metrics, shown: Shown, demand_unrevoked: Demand | None = None
) -> dict[str, Handler]:
    """Return the handler by path. `demand_unrevoked` is asked where `shown` may be outdated."""

    async def take(request: web.BaseRequest) -> web.StreamResponse:
        try:
            peer = _peer(request, shown)
            if demand_unrevoked is not None:
                await demand_unrevoked(request)
            lines = await _lines(request)
        except HoldfastError as error:
            return reply(*status_objects.of(error))
        metrics.forwards_taken.add(by=len(lines))
        read = [_read(line) for line in lines]
        asked = [it for it in read if isinstance(it, Forward)]
        # When the other server gives up and disconnects, undecided requests are withdrawn.
        with authority.submitted(peer, asked, DECIDED_WITHIN_S) as answers:
            known = iter(answers)
            return await _answer(
                request, [it if isinstance(it, Unavailable) else next(known) for it in read]
            )

    return {PATH: take}


def _peer(request: web.BaseRequest, shown: Shown) -> Identity:
    """Return the identity of the forwarding server."""
    peer = shown(request.transport)
    if peer is None or peer.server is None:
        name = peer.name if peer is not None else "an anonymous caller"
        raise Forbidden(f"only servers may forward requests, not {name}", code=refusal_reason(peer))
    if request.method != "POST":
        raise Rejected("forward requests by POST", code=status_objects.METHOD_NOT_ALLOWED)
    return peer


def refusal_reason(peer: Identity | None) -> Reason:
    """Return the code of a refusal: an unknown caller must authenticate first."""
    is_known = peer is not None and bool(acts_as(peer))
    return Reason.NOT_ALLOWED if is_known else Reason.UNAUTHENTICATED


async def _lines(request: web.BaseRequest) -> list[bytes]:
    """Return the undecoded requests of the body, which may be larger than a client's."""
    lines = (await read_body(request, BODY_BYTES_MAX)).split(b"\n")
    if lines.pop():
        bad("the body must end with a newline")
    if len(lines) > LINES_MAX:
        bad(f"a body may hold at most {LINES_MAX} requests, not {len(lines)}")
    return lines


def _read(line: bytes) -> Forward | Unavailable:
    try:
        return decode_forward(line)
    except Invalid as error:
        # A newer server may know requests that this one does not. It decides those itself.
        return Unavailable(error.message)


async def _answer(
    request: web.BaseRequest, verdicts: list[asyncio.Future[Any] | Unavailable]
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
    await response.prepare(request)
    ready: list[bytes] = []
    for verdict in verdicts:
        if isinstance(verdict, Unavailable):
            ready.append(encode_verdict(verdict))
            continue
        if ready and not verdict.done():
            await response.write(b"".join(ready))
            ready.clear()
        ready.append(encode_verdict(await verdict))
    await response.write_eof(b"".join(ready))
    return response
