"""Explanations over HTTP: why a replica makes no progress, who acts next, and by when.

`holdfast explain` asks for them. They are computed for each request and kept nowhere.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from holdfast.commit.flow.request_classes import RequestPurpose, classify
from holdfast.host.api.call import Call, reply
from holdfast.host.api.objects import reads
from holdfast.host.server.explaining import explanation_of
from holdfast.model.errors import Missing

_ENCODER = msgspec.json.Encoder()


async def get(call: Call) -> web.StreamResponse:
    """Explain one replica."""
    call.demand("get")
    if await reads.current(call) is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    flow = classify(call.identity, RequestPurpose.READ)
    async with call.services.explaining.of(flow):
        found = await explanation_of(call.services, call.namespace, call.name)
    return reply(200, _ENCODER.encode(found))
