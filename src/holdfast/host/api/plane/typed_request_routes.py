"""Requests of our own components: bind, reserve, evict, move, leases, judging nodes, and so on.

They are the structs of `model/requests.py` as JSON, told apart by `type`; the authority decides who
may send which. A body holds one or many: many are decided in order, each by itself, and have one
result each; creates may be among them (`host/client/create_form`). A refusal states its stable
reason code, so that components need not parse messages.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.flow.request_classes import RequestPurpose
from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, Route, bad, reply
from holdfast.host.api.objects import batch, slices
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.client.create_form import MARK, CreateForm, unpack
from holdfast.host.client.paths import GROUP
from holdfast.model.encoding import json_guard
from holdfast.model.encoding.problems import describe_error, malformed_error
from holdfast.model.errors import HoldfastError
from holdfast.model.kind_declaration import Kind
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import (
    LIFELINES,
    REQUESTS,
    Accepted,
    Bind,
    Create,
    TypedRequest,
    is_request,
)

REQUESTS_MAX = 5_000

TYPED: tuple[type[Any], ...] = tuple(cls for cls in REQUESTS if issubclass(cls, TypedRequest))
_ENCODER = msgspec.json.Encoder()
_ONE = msgspec.json.Decoder(reduce(or_, TYPED))
_MANY = msgspec.json.Decoder(list[reduce(or_, TYPED)])  # type: ignore[misc]
_EACH = msgspec.json.Decoder(reduce(or_, (*TYPED, CreateForm)))
_RAW = msgspec.json.Decoder(list[msgspec.Raw])
_TERM: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, LIFELINES))
_BIND = msgspec.json.Decoder(Bind)
_BINDS = msgspec.json.Decoder(list[Bind])


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """The request in a body. A body equal to its own encoding needs no further checks."""
    json_guard.measure(body)
    try:
        typed = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a known request: {describe_error(error)}") from None
    _prove(typed, body)
    return typed


def _prove(typed: Any, body: bytes) -> None:
    if _ENCODER.encode(typed) != body or b"\\u0000" in body:
        # The guard checks its numbers, keys and strings one by one.
        json_guard.parse(body, hide_values=True)


def _is_array(body: bytes) -> bool:
    return body[:64].lstrip()[:1] == b"["


async def requests(call: Call) -> web.StreamResponse:
    """Decide requests of any type, one or many."""
    demand_json(call)
    wanted = decode_requests(await call.body())
    return await (_decide_all if isinstance(wanted, list) else _decide)(call, wanted)


def decode_requests(body: bytes) -> Any:
    """The request in a body, or a list of them. Raises Invalid or Rejected."""
    if _is_array(body):
        return _with_creates(body) if MARK in body else _decode(_MANY, body)
    return _decode(_ONE, body)


def _with_creates(body: bytes) -> list[Any]:
    """The requests of a body with creates among them; an error takes the place of its request."""
    batch.demand_few(body)
    try:
        items = _RAW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a list of requests: {describe_error(error)}") from None
    _demand_few(items)
    return [_one_of_many(bytes(item)) for item in items]


def _demand_few(wanted: list[Any]) -> None:
    if len(wanted) > REQUESTS_MAX:
        bad(f"at most {REQUESTS_MAX} requests per body, not {len(wanted)}; send fewer")


def _one_of_many(body: bytes) -> Any:
    try:
        form = _EACH.decode(body)
        if not isinstance(form, CreateForm):
            return _decode(_ONE, body)
        _prove(form, body)
        return unpack(form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return malformed_error(f"is not a known request: {describe_error(error)}")
    except HoldfastError as error:
        return error


async def terms(call: Call) -> web.StreamResponse:
    """Decide one request about a lease or the state of a node.

    These have a path of their own, so that a server knows before it reads the body that running
    work depends on this request.
    """
    demand_json(call)
    return await _decide(call, _decode(_TERM, await call.body()))


async def bindings(call: Call) -> web.StreamResponse:
    """Decide many binds; `type` may be left out."""
    demand_json(call)
    return await _decide_all(call, _decode(_BINDS, await call.body()))


async def binding(call: Call) -> web.StreamResponse:
    """Decide the bind of the replica that the path names."""
    demand_json(call)
    bind = _decode(_BIND, await call.body())
    if (bind.target.namespace, bind.target.name) != (call.namespace, call.name):
        bad("target: does not match the namespace and name of the path")
    return await _decide(call, bind)


async def _decide(call: Call, request: Any) -> web.StreamResponse:
    verdict = await call.ask(_with_operation(call, request))
    if not isinstance(verdict, Accepted):
        return reply(*status_objects.of(verdict, call.route.kind, call.name))
    return reply(200, batch.result(verdict, None, "", brief=False))


def _with_operation(call: Call, request: Any) -> Any:
    """The request with the operation id of the header, unless it has one or needs none."""
    has_own = "operation" not in request.__struct_fields__ or request.operation
    if not call.operation or has_own:
        return request
    return msgspec.structs.replace(request, operation=call.operation)


async def _decide_all(call: Call, wanted: list[Any]) -> web.StreamResponse:
    """Decide all of them.

    `?results=names` leaves the objects out of the response; `?results=terse` those of binds and
    creates, whose senders get them from their watches.
    """
    _demand_few(wanted)
    wish = call.query.get("results")
    verdicts = await slices.decide_in_slices(call, len(wanted), wanted.__getitem__)
    results = []
    for number, (request, known) in enumerate(zip(wanted, verdicts, strict=True)):
        await slices.yield_after_slice(number)
        if wish == "terse" and isinstance(request, Bind | Create) and isinstance(known, Accepted):
            results.append(batch.opening(known) + b"}")
        else:
            results.append(batch.result(known, *_changed(request), brief=wish == "names"))
    return reply(200, batch.results_body(results))


def _changed(request: Any) -> tuple[Kind | None, str]:
    """The kind and the name of the object that a request changes."""
    changed = request.subject() if is_request(request) else None
    return (kind_of_plural(changed.plural), changed.name) if changed is not None else (None, "")


ROUTES = (
    Route(f"{GROUP}/requests", "POST", "request", requests),
    Route(f"{GROUP}/bindings", "POST", "request", bindings),
    Route(f"{GROUP}/terms", "POST", "request", terms, purpose=RequestPurpose.LIFELINE),
)
