"""POST replicas/NAME/token: an agent asks for the service token of work that is bound to its node.

No role can grant this to another caller: the bearer of the token acts as that workload.
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

# Before these states the work has not started; after them it is over.
ISSUED_IN = (State.BOUND, State.RUNNING, State.STOPPING)


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of the request: which attempt of which replica."""

    uid: str
    attempt: Count


async def create(call: Call) -> web.StreamResponse:
    """Issue a service token."""
    call.demand("create")
    node = call.identity.node
    if node is None:
        raise Forbidden(
            "only the agent of the node that the replica is bound to may request its service token",
            code=Reason.NOT_ALLOWED,
        )
    demand_json(call)
    try:
        asked = msgspec.json.decode(await call.body(), type=TokenRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        bad(f"the body must have `uid` and `attempt`: {error}")
    # A linearizable read: a replica that was just released gets no token any more.
    entry = await reads.current(call)
    replica = readable(Replica, entry.data) if entry is not None else None
    if replica is None:
        raise Missing(f"{call.kind.plural} {call.name!r} not found")
    _demand_fitting(replica, asked)
    wanted, tokens = replica.spec.template.service_token, call.services.service_tokens
    if wanted is None:
        raise Forbidden(
            f"replica {call.name} gets no service token: its template has no serviceToken",
            code=Reason.NOT_ALLOWED,
        )
    if tokens is None:
        raise Unavailable("this server issues no service tokens; ask another server")
    issued = tokens.issue(replica, node, asked.attempt, wanted.life_seconds)
    return reply(201, msgspec.json.encode(issued))


def _demand_fitting(replica: Replica, asked: TokenRequest) -> None:
    status = replica.status
    if replica.metadata.uid != asked.uid:
        raise Conflict(
            f"uid: the replica {replica.name} was replaced: its uid is {replica.metadata.uid}"
        )
    if status.state not in ISSUED_IN:
        raise Conflict(f"replica {replica.name} is {status.state.value} and gets no service token")
    if asked.attempt < status.process.restarts:
        raise Conflict(
            f"attempt: attempt {asked.attempt} of replica {replica.name} is over: it was restarted "
            f"{status.process.restarts} times"
        )
