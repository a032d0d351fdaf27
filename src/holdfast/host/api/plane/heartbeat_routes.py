"""Heartbeats over HTTP: agents renew them, and controller:nodes asks which ones this server has.

Both go to the machine `commit.heartbeat_intake` of this server and write nothing. The machine
decides which component may ask what, as the authority does for writes; roles decide it for people,
here. Heartbeats are not Kubernetes resources and do not appear in discovery. The second half of
this module does the same for the pulses of other components.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.commit.flow.request_classes import RequestPurpose
from holdfast.host.api import status_objects
from holdfast.host.api.call import TIMEOUT_S, Call, Route, bad, reply
from holdfast.host.api.objects.bodies import demand_json
from holdfast.host.client.paths import GROUP
from holdfast.host.server.component_pulses import ComponentPulses
from holdfast.model.access.identity import CONTROLLER_PREFIX, MONITORS, SCHEDULER_PREFIX
from holdfast.model.access.rights import Permission
from holdfast.model.encoding import json_guard
from holdfast.model.encoding.problems import describe_error, malformed_error
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.kinds.node import Node
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew
from holdfast.model.pulse import Pulse
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_struct

_NODE = kind_of_struct(Node)
_ENCODER = msgspec.json.Encoder()
_RENEW = msgspec.json.Decoder(Renew)


async def renew(call: Call) -> web.StreamResponse:
    """Renew an agent's heartbeat."""
    call.demand_authenticated()
    demand_json(call)
    body = await call.body()
    json_guard.measure(body)
    try:
        wanted = _RENEW.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a renewal: {describe_error(error)}") from None
    if wanted.node != call.name:
        bad(f"node: {wanted.node[:63]!r} does not match the node of the path")
    return await _ask(call, wanted)


async def show_heartbeats(call: Call) -> web.StreamResponse:
    """The heartbeats that this server received, and how long ago."""
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission("get", "heartbeats")):
        raise Forbidden(
            f'heartbeats is forbidden: User "{call.identity.name}" cannot get heartbeats',
            code=Reason.NOT_ALLOWED,
        )
    return await _ask(call, HeartbeatQuery())


async def _ask(call: Call, question: Renew | HeartbeatQuery) -> web.StreamResponse:
    machine = call.services.renewals
    if machine is None:
        raise Unavailable("this server receives no heartbeats; ask another server")
    answer: Any = await machine.ask(call.identity, question, TIMEOUT_S)
    if isinstance(answer, Refusal):
        return reply(*status_objects.of(answer, _NODE, call.name))
    return reply(200, _ENCODER.encode(answer))


# Pulses over HTTP: components report their health, and monitoring asks for it.
#
# Schedulers and controllers send pulses to every server; nothing is written. Pulses are not
# Kubernetes resources and do not appear in discovery.

# Which components send pulses, and the scopes of the leases that they act under.
_SCOPES = {CONTROLLER_PREFIX: "controller:", SCHEDULER_PREFIX: "scheduler:"}
_PULSE_ENCODER = msgspec.json.Encoder()
_PULSE = msgspec.json.Decoder(Pulse)


def _book(call: Call) -> ComponentPulses:
    found = call.services.pulses
    if found is None:
        raise Unavailable("this server keeps no pulses; ask another server")
    return found


async def take(call: Call) -> web.StreamResponse:
    """Take the pulse of a scheduler or a controller process."""
    call.demand_authenticated()
    demand_json(call)
    name = call.identity.name
    own = next((scope for prefix, scope in _SCOPES.items() if name.startswith(prefix)), "")
    if not own:
        raise Forbidden(
            f"{name} may not send pulses: only schedulers and controllers do",
            code=Reason.NOT_ALLOWED,
        )
    try:
        pulse = _PULSE.decode(await call.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not a pulse: {describe_error(error)}") from None
    for index, beat in enumerate(pulse.beats):
        # One process reports for all its controllers; a scheduler reports only for itself.
        if not beat.scope.startswith(own):
            raise Forbidden(
                f"beats[{index}].scope: {beat.scope[:80]!r} must begin with {own!r} from {name}",
                code=Reason.NOT_OWNER,
            )
    _book(call).take(name, pulse)
    return reply(200, b"{}")


async def show(call: Call) -> web.StreamResponse:
    """The pulses of all components, as this server knows them."""
    call.demand_authenticated()
    if not call.services.rights.may(call.identity, Permission("get", "pulses")):
        raise Forbidden(
            f'pulses is forbidden: User "{call.identity.name}" cannot get pulses; members of the '
            f"group {MONITORS} can",
            code=Reason.NOT_ALLOWED,
        )
    return reply(200, _PULSE_ENCODER.encode(_book(call).recent_pulses()))


_LIFELINE = RequestPurpose.LIFELINE
ROUTES = (
    Route(f"{GROUP}/nodes/{{name}}/renewals", "POST", "renew", renew, purpose=_LIFELINE),
    Route(f"{GROUP}/heartbeats", "GET", "get", show_heartbeats, purpose=_LIFELINE),
    Route(f"{GROUP}/pulses", "POST", "pulse", take),
    Route(f"{GROUP}/pulses", "GET", "get", show),
)
