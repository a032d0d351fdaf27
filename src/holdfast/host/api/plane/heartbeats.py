"""Agents say that they are alive, and controller:nodes asks whom this server heard.

Both go to the machine `commit.heartbeats` of this very server and write nothing. Which component
may ask what is the machine's business, as it is the authority's for writes; which people may is
said by their roles, here. They are no resources of Kubernetes and appear in no discovery.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.api import status
from holdfast.host.api.call import TIMEOUT_S, Call, bad, reply
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.model.access.identity import CONTROLLER_PREFIX, MONITORS, SCHEDULER_PREFIX
from holdfast.model.access.rights import Permission
from holdfast.model.encoding import json_guard
from holdfast.model.encoding.problems import describe_error, malformed
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.heartbeat import HeartbeatQuery, Renew
from holdfast.model.kinds.node import Node
from holdfast.model.pulse import Pulse
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct

_NODE = kind_of_struct(Node)
_ENCODER = msgspec.json.Encoder()
_RENEW = msgspec.json.Decoder(Renew)


async def renew(call: Call) -> web.StreamResponse:
    """An agent asks to be let run on."""
    call.demand_authenticated()
    demand_json(call)
    body = await call.body()
    json_guard.measure(body)
    try:
        wanted = _RENEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no renewal: {describe_error(error)}") from None
    if wanted.node != call.name:
        bad(f"node: {wanted.node[:63]!r} does not match the node of the path")
    return await _asked(call, wanted)


async def heard(call: Call) -> web.StreamResponse:
    """Whom this server heard, and how long ago."""
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission("get", "heartbeats")):
        raise Forbidden(f"{call.identity.name} may not get heartbeats", code=Reason.NOT_ALLOWED)
    return await _asked(call, HeartbeatQuery())


async def _asked(call: Call, question: Renew | HeartbeatQuery) -> web.StreamResponse:
    machine = call.services.renewals
    if machine is None:
        raise Unavailable("this server listens to no agents")
    answer: Any = await machine.ask(call.identity, question, TIMEOUT_S)
    if isinstance(answer, Refusal):
        return reply(*status.of(answer, _NODE, call.name))
    return reply(200, _ENCODER.encode(answer))


# Pulses over HTTP: components say how they are doing, and those who watch over a plane ask.
#
# Schedulers and controllers send them to every server; nothing is written. They are no resources of
# Kubernetes and appear in no discovery.

# Whose pulses are taken, and what the leases are called that they act under.
_SCOPES = {CONTROLLER_PREFIX: "controller:", SCHEDULER_PREFIX: "scheduler:"}
_PULSE_ENCODER = msgspec.json.Encoder()
_PULSE = msgspec.json.Decoder(Pulse)


def _book(call: Call) -> ComponentPulses:
    found = call.services.pulses
    if found is None:
        raise Unavailable("this server keeps no pulses")
    return found


async def take(call: Call) -> web.StreamResponse:
    """A scheduler or a team of controllers says how it is doing."""
    call.demand_authenticated()
    demand_json(call)
    name = call.identity.name
    own = next((scope for prefix, scope in _SCOPES.items() if name.startswith(prefix)), "")
    if not own:
        raise Forbidden(f"{name} is no component that has a pulse", code=Reason.NOT_ALLOWED)
    try:
        pulse = _PULSE.decode(await call.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no pulse: {describe_error(error)}") from None
    for index, beat in enumerate(pulse.beats):
        # One process speaks for all its controllers, and no scheduler for any of them.
        if not beat.scope.startswith(own):
            raise Forbidden(
                f"beats[{index}].scope: {beat.scope[:80]!r} must begin with {own!r} from {name}",
                code=Reason.NOT_OWNER,
            )
    _book(call).take(name, pulse)
    return reply(200, b"{}")


async def show(call: Call) -> web.StreamResponse:
    """How everybody is doing, as this server knows it."""
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission("get", "pulses")):
        raise Forbidden(
            f"{call.identity.name} may not get pulses; who is in the group {MONITORS} may",
            code=Reason.NOT_ALLOWED,
        )
    return reply(200, _PULSE_ENCODER.encode(_book(call).shown()))
