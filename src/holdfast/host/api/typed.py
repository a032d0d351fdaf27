"""The requests of our own components: bind, reserve, evict, move, leases, judging nodes, and so on.

They are the structs of `model/requests.py` as JSON, told apart by `type`; who may ask for which is
the authority's business. One or many in a body: many are decided in order, each by itself, and have
one result each. A refusal names its stable reason, so that a component never reads a sentence.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.decide import HANDLERS
from holdfast.host.api import batch, status
from holdfast.host.api.bodies import demand_json
from holdfast.host.api.call import TIMEOUT_S, Call, bad, reply
from holdfast.model import guard
from holdfast.model.problems import malformed
from holdfast.model.registry import kind_named
from holdfast.model.requests import Accepted, Bind

REQUESTS_MAX = 5_000
REPLICA = kind_named("Replica")

TYPED: tuple[type[Any], ...] = tuple(
    cls for cls in HANDLERS if cls.__struct_config__.tag is not None
)
_ENCODER = msgspec.json.Encoder()
_ONE = msgspec.json.Decoder(reduce(or_, TYPED))
_MANY = msgspec.json.Decoder(list[reduce(or_, TYPED)])  # type: ignore[misc]
_BIND = msgspec.json.Decoder(Bind)
_BINDS = msgspec.json.Decoder(list[Bind])


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """What a body asks for. One that is its own encoding proves itself, as objects do."""
    guard.measure(body)
    try:
        typed = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no such request: {error}") from None
    if _ENCODER.encode(typed) != body or b"\\u0000" in body:
        # Its numbers, keys and texts are looked at one by one.
        guard.parse(body, hide_values=True)
    return typed


def _is_array(body: bytes) -> bool:
    return body[:64].lstrip()[:1] == b"["


async def requests(call: Call) -> web.StreamResponse:
    """Any of them, one or many."""
    demand_json(call)
    body = await call.body()
    if _is_array(body):
        return await _decide_all(call, _decoded(_MANY, body))
    return await _decide(call, _decoded(_ONE, body))


async def bindings(call: Call) -> web.StreamResponse:
    """Many binds; `type` may be left out."""
    demand_json(call)
    return await _decide_all(call, _decoded(_BINDS, await call.body()))


async def binding(call: Call) -> web.StreamResponse:
    """The bind of the replica that the path names."""
    demand_json(call)
    bind = _decoded(_BIND, await call.body())
    if (bind.target.namespace, bind.target.name) != (call.namespace, call.name):
        bad("the target of the bind does not match the path")
    return await _decide(call, bind)


async def _decide(call: Call, request: Any) -> web.StreamResponse:
    verdict = await call.ask(_with_operation(call, request))
    if not isinstance(verdict, Accepted):
        return reply(*status.of(verdict, call.route.kind, call.name))
    return reply(200, batch.result(verdict, None, "", brief=False))


def _with_operation(call: Call, request: Any) -> Any:
    """The request with the operation id of the header, if it has none of its own."""
    if not call.operation or getattr(request, "operation", None) != "":
        return request
    return msgspec.structs.replace(request, operation=call.operation)


async def _decide_all(call: Call, wanted: list[Any]) -> web.StreamResponse:
    """All of them at once. `?results=names` leaves the objects out of the answer."""
    if len(wanted) > REQUESTS_MAX:
        bad(f"a body may bring at most {REQUESTS_MAX} requests, not {len(wanted)}")
    brief = call.query.get("results") == "names"
    submit = call.services.authority.submit
    futures = [submit(call.identity, request, TIMEOUT_S) for request in wanted]
    results = [
        batch.result(await future, REPLICA, _name(request), brief=brief)
        for request, future in zip(wanted, futures, strict=True)
    ]
    return reply(200, batch.results_body(results))


def _name(request: Any) -> str:
    target = getattr(request, "target", None)
    return target.name if target is not None else ""
