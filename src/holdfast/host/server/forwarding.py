"""Requests on their way from one server to another, and the verdicts on their way back, as bytes.

Each is one line of JSON. `neighbours` sends the lines of requests and reads those of verdicts,
`forwards` does the reverse at the server that decides. What a client sent was guarded and decoded
by the server that took it in; here it is only carried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import reduce
from operator import or_
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.dispatch import HANDLERS
from holdfast.commit.server import FORWARD_TIMEOUT_MS
from holdfast.host.api import status
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
from holdfast.model.requests import Accepted, Create, Forward, Update, Verdict

PATH = "/peers/forwards"
CONTENT_TYPE = "application/x-ndjson"
# One body brings so many requests, and so many bytes unless a single request has more. An object
# has 1 MiB at most; what else is in a request is small.
LINES_MAX = 500
BATCH_BYTES = 1 << 20
BODY_BYTES_MAX = 4 << 20
# A verdict brings the objects that a request has changed.
VERDICT_BYTES_MAX = 16 << 20
# The server that decides gives up a little before the one that asked, so that its word on what
# became of a request still arrives.
DECIDED_WITHIN_S = 0.9 * FORWARD_TIMEOUT_MS / 1_000

_ANY: Any = reduce(or_, (kind.struct for kind in KINDS))
# An object may be of any kind, which the types of requests and verdicts do not say.
_WIDER: dict[Any, Any] = {Object: _ANY, tuple[Object, ...]: tuple[_ANY, ...]}
# No field of a request has this name; a patch has a `type` of its own.
_TAG = "struct"
_ENCODER = msgspec.json.Encoder()


def _form(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same fields, tagged with the struct's name, and with objects of all kinds."""
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
    """No verdict, and whether it may have happened all the same."""

    message: str
    code: str
    may_have_happened: bool


_YES, _NO = _form(Accepted), _form(Refusal)
_FORMS = {request: _form(request) for request in HANDLERS}
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
    """A request as a line. Raises Unavailable for one that cannot travel."""
    request = forward.request
    form = _FORMS.get(type(request))
    if form is None:
        raise Unavailable(f"{type(request).__name__} is no request that can be forwarded")
    try:
        line = _ENCODER.encode(_Sent(forward.identity, _same(form, request), forward.epoch)) + b"\n"
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise Unavailable(f"the request cannot be forwarded: {error}") from error
    if len(line) > BODY_BYTES_MAX:
        raise Unavailable(f"a request of {len(line)} bytes is too large to be forwarded")
    return line


def decode_forward(line: bytes) -> Forward:
    """The request in a line. Raises Invalid for what is none that this server knows."""
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
    """Raise Invalid for an object of which this version would store less than was asked for."""
    if has_unknown(obj, data):
        raise Invalid(f"{type(obj).__name__} {obj.name} has fields of a newer version")


def encode_verdict(verdict: Verdict | HoldfastError) -> bytes:
    """What became of a request, as a line."""
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
    """What became of a request. A line that nobody understands says that it may have happened."""
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
    """The fields of a struct as another one that has the same."""
    return to(*msgspec.structs.astuple(struct))


# Takes in requests that other servers forward, for the authority of this one.
#
# `plane` gives the handler to the HTTP server. Only a server's own certificate opens it: whoever
# forwards speaks for others, so a token, which can be copied, is not enough. The requests of a body
# go to the authority in their order; only then does the answer begin, which tells the sender that
# it may send the next body. Verdicts follow line by line as they are known, in the same order.

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
        raise Forbidden(f"only servers may speak for others, not {name}", code=refusal_reason(peer))
    if request.method != "POST":
        raise Rejected("requests are forwarded by POST", code=status.METHOD_NOT_ALLOWED)
    return peer


def refusal_reason(peer: Identity | None) -> Reason:
    """What a refusal says to this one: who is nobody that the plane knows is told so first."""
    is_known = peer is not None and bool(acts_as(peer))
    return Reason.NOT_ALLOWED if is_known else Reason.UNAUTHENTICATED


async def _lines(request: web.BaseRequest) -> list[bytes]:
    """The requests of the body, not read yet. It may be larger than any body of a client."""
    lines = (await read_body(request, BODY_BYTES_MAX)).split(b"\n")
    if lines.pop():
        bad("the body does not end with the end of a line")
    if len(lines) > LINES_MAX:
        bad(f"a body may bring at most {LINES_MAX} requests, not {len(lines)}")
    return lines


def _read(line: bytes) -> Forward | Unavailable:
    try:
        return decode_forward(line)
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
            ready.append(encode_verdict(verdict))
            continue
        if ready and not verdict.done():
            await response.write(b"".join(ready))
            ready.clear()
        ready.append(encode_verdict(await verdict))
    await response.write_eof(b"".join(ready))
    return response
