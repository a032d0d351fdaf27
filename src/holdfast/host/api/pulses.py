"""Pulses over HTTP: components say how they are doing, and those who watch over a plane ask.

Schedulers and controllers send them to every server; nothing is written. They are no resources of
Kubernetes and appear in no discovery.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from holdfast.host.api.bodies import demand_json
from holdfast.host.api.call import Call, reply
from holdfast.host.pulses import PulseBook
from holdfast.model.errors import Forbidden, Unavailable
from holdfast.model.identity import CONTROLLER_PREFIX, MONITORS, SCHEDULER_PREFIX
from holdfast.model.problems import malformed, told
from holdfast.model.pulse import Pulse
from holdfast.model.refusal import Reason
from holdfast.model.rights import Deed

# Whose pulses are taken, and what the leases are called that they act under.
_SCOPES = {CONTROLLER_PREFIX: "controller:", SCHEDULER_PREFIX: "scheduler:"}
_ENCODER = msgspec.json.Encoder()
_PULSE = msgspec.json.Decoder(Pulse)


def _book(call: Call) -> PulseBook:
    found = call.services.pulses
    if found is None:
        raise Unavailable("this server keeps no pulses")
    return found


async def take(call: Call) -> web.StreamResponse:
    """A scheduler or a team of controllers says how it is doing."""
    call.demand_somebody()
    demand_json(call)
    name = call.identity.name
    own = next((scope for prefix, scope in _SCOPES.items() if name.startswith(prefix)), "")
    if not own:
        raise Forbidden(f"{name} is no component that has a pulse", code=Reason.NOT_ALLOWED)
    try:
        pulse = _PULSE.decode(await call.body())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no pulse: {told(error)}") from None
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
    call.demand_somebody()
    if not call.services.rights.may(call.identity, Deed("get", "pulses")):
        raise Forbidden(
            f"{call.identity.name} may not get pulses; who is in the group {MONITORS} may",
            code=Reason.NOT_ALLOWED,
        )
    return reply(200, _ENCODER.encode(_book(call).shown()))
