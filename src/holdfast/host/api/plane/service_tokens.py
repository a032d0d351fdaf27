"""POST replicas/NAME/token: an agent asks for the service token of work that is bound to its node.

No role gives this to anybody else: whoever has the token is that workload.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from holdfast.host.api.call import Call, bad, reply
from holdfast.host.api.objects import reads
from holdfast.host.api.objects.bodies import demand_json
from holdfast.model.encoding.wire import readable
from holdfast.model.errors import Conflict, Forbidden, Missing, Unavailable
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.meta import Count
from holdfast.model.refusal import Reason

# Before that there is no work, after that it is over or about to be.
ISSUED_IN = (State.BOUND, State.RUNNING, State.STOPPING)


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For which attempt of which replica."""

    uid: str
    attempt: Count


async def create(call: Call) -> web.StreamResponse:
    """Issue one."""
    call.demand("create")
    node = call.identity.node
    if node is None:
        raise Forbidden(
            "service tokens are issued to the agent of the node that the replica is bound to",
            code=Reason.NOT_ALLOWED,
        )
    demand_json(call)
    try:
        asked = msgspec.json.decode(await call.body(), type=TokenRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        bad(f"the body must have `uid` and `attempt`: {error}")
    # Read as new as the store is: a replica that was just released has no token any more.
    entry = await reads.current(call)
    replica = readable(Replica, entry.data) if entry is not None else None
    if replica is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    _demand_fitting(replica, asked)
    wanted, tokens = replica.spec.template.service_token, call.services.service_tokens
    if wanted is None:
        raise Forbidden(
            f"the template of {call.name} has no serviceToken, so it gets none",
            code=Reason.NOT_ALLOWED,
        )
    if tokens is None:
        raise Unavailable("this server issues no service tokens")
    issued = tokens.issue(replica, node, asked.attempt, wanted.life_seconds)
    return reply(201, msgspec.json.encode(issued))


def _demand_fitting(replica: Replica, asked: TokenRequest) -> None:
    status = replica.status
    if replica.metadata.uid != asked.uid:
        raise Conflict(f"there is another replica {replica.name} by now")
    if status.state not in ISSUED_IN:
        raise Conflict(f"replica {replica.name} is {status.state.value} and gets no token")
    if asked.attempt < status.process.restarts:
        raise Conflict(
            f"attempt {asked.attempt} of replica {replica.name} is over: there were "
            f"{status.process.restarts} restarts"
        )
