"""Request classes: the priority of a request, by its caller and purpose.

Under overload, order matters. In this order (requirements E6, B6):

    lifeline     renewals of agents and digests, leases, judging nodes: work depends on them
    system       everything else that schedulers, controllers, agents and servers ask
    operator     administrators: the person who fixes an overload must get through it
    tenant       people and services, a fair share for each tenant, and for each user inside it
    background   what can wait: full reads by people, and anonymous requests

The class follows from the authenticated identity and from what the route does. No header or
parameter can raise a request's class; a full read lowers it. `host/api` classifies HTTP requests,
`commit/flow/guarded_server` the typed ones of the simulator; `commit/flow/flow_control` keeps the
order.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.model.access.identity import ANONYMOUS, Identity, acts_as
from holdfast.model.lifecycle import Actor
from holdfast.model.nodes.heartbeat import HeartbeatQuery, Renew
from holdfast.model.requests import Forward, is_request

ANONYMOUS_TENANT = "anonymous"
OPERATORS = "operators"
# A name that no tenant can have, for callers that belong to no single tenant.
USER_PREFIX = "user:"
EVERYWHERE = "*"


class RequestClass(IntEnum):
    """See the module's docstring. Lower values go first."""

    LIFELINE = 0
    SYSTEM = 1
    OPERATOR = 2
    TENANT = 3
    BACKGROUND = 4

    @property
    def label(self) -> str:
        return self.name.lower()


class RequestPurpose(StrEnum):
    """The purpose of a request, as far as its class depends on it."""

    # A lease, a renewal or a heartbeat digest: small, and running work depends on it.
    LIFELINE = "lifeline"
    READ = "read"
    # A full read, which may be very large.
    SWEEP = "sweep"
    WRITE = "write"


class Flow(msgspec.Struct, frozen=True, gc=False):
    """The tenant, and inside it the user, whose share a request is taken from.

    For components `tenant` is their kind, so that thousands of agents never queue before a
    scheduler.
    """

    request_class: RequestClass
    tenant: str
    user: str


_KINDS = {Actor.SCHEDULER: "schedulers", Actor.AGENT: "agents", Actor.AUTHORITY: "servers"}
_CONTROLLERS = "controllers"


@lru_cache(maxsize=8192)
def classify(identity: Identity, purpose: RequestPurpose) -> Flow:
    """The class and the share of a request."""
    actors = acts_as(identity)
    name = identity.name
    if not actors or name == ANONYMOUS:
        # All anonymous callers share one place: anonymous identities cost nothing to multiply.
        return Flow(RequestClass.BACKGROUND, ANONYMOUS_TENANT, "")
    if Actor.USER not in actors:
        is_lifeline = purpose is RequestPurpose.LIFELINE
        found = RequestClass.LIFELINE if is_lifeline else RequestClass.SYSTEM
        return Flow(found, _KINDS.get(actors[0], _CONTROLLERS), name)
    tenant = OPERATORS if identity.is_admin else tenant_of(identity)
    if purpose is RequestPurpose.SWEEP:
        return Flow(RequestClass.BACKGROUND, tenant, name)
    found = RequestClass.OPERATOR if identity.is_admin else RequestClass.TENANT
    return Flow(found, tenant, name)


def tenant_of(identity: Identity) -> str:
    """The tenant whose share a person uses. A person with several tenants, or none, has a share of
    their own: they must not be able to choose whose share they use up.
    """
    tenants = identity.tenants
    if len(tenants) == 1 and tenants[0] != EVERYWHERE:
        return tenants[0]
    return USER_PREFIX + identity.name


def purpose_of(body: Any) -> RequestPurpose:
    """The purpose of a typed request; a request that is not known to write only reads."""
    if is_request(body):
        return RequestPurpose.LIFELINE if body.is_lifeline else RequestPurpose.WRITE
    if isinstance(body, Renew | HeartbeatQuery):
        return RequestPurpose.LIFELINE
    return RequestPurpose.WRITE if isinstance(body, Forward) else RequestPurpose.READ
