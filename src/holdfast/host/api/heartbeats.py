"""Agents say that they are alive, and controller:nodes asks whom this server heard.

Both go to the machine `commit.renewals` of this very server and write nothing. Which component may
ask what is the machine's business, as it is the authority's for writes; which people may is said by
their roles, here. They are no resources of Kubernetes and appear in no discovery.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.bodies import demand_json
from holdfast.host.api.call import TIMEOUT_S, Call, bad, reply
from holdfast.model import guard
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.heartbeat import HeardOf, Renew
from holdfast.model.kinds.node import Node
from holdfast.model.problems import malformed, told
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct
from holdfast.model.rights import Deed

_NODE = kind_of_struct(Node)
_ENCODER = msgspec.json.Encoder()
_RENEW = msgspec.json.Decoder(Renew)


async def renew(call: Call) -> web.StreamResponse:
    """An agent asks to be let run on."""
    call.demand_somebody()
    demand_json(call)
    body = await call.body()
    guard.measure(body)
    try:
        wanted = _RENEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no renewal: {told(error)}") from None
    if wanted.node != call.name:
        bad(f"node: {wanted.node[:63]!r} does not match the node of the path")
    return await _asked(call, wanted)


async def heard(call: Call) -> web.StreamResponse:
    """Whom this server heard, and how long ago."""
    call.demand_somebody()
    if not call.services.rights.may(call.identity, Deed("get", "heartbeats")):
        raise Forbidden(f"{call.identity.name} may not get heartbeats", code=Reason.NOT_ALLOWED)
    return await _asked(call, HeardOf())


async def _asked(call: Call, question: Renew | HeardOf) -> web.StreamResponse:
    machine = call.services.renewals
    if machine is None:
        raise Unavailable("this server listens to no agents")
    answer: Any = await machine.ask(call.identity, question, TIMEOUT_S)
    if isinstance(answer, Refusal):
        return reply(*status.of(answer, _NODE, call.name))
    return reply(200, _ENCODER.encode(answer))
