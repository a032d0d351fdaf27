"""Request classes: what a request is to the plane, by who asks and what it does.

When there is more to do than can be done, order matters. In this order (requirements E6, B6):

    lifeline     renewals of agents and who was heard, leases, judging nodes: work lives by them
    system       everything else that schedulers, controllers, agents and servers ask
    operator     administrators: whoever mends an overload must get through it
    tenant       people and services, a fair share for each tenant, and for each user inside it
    background   what can wait: reads of everything by people, and nobody in particular

The class follows from the authenticated identity and from what the route does. No header and no
parameter can lift a request; a read of everything lowers it. `host/api` classifies HTTP requests,
`commit/flow/guarded_server` the typed ones of the simulator; `commit/flow/flow_control` keeps the
order.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.model.access.identity import ANONYMOUS, Identity, acts_as
from holdfast.model.heartbeat import HeartbeatQuery, Renew
from holdfast.model.lifecycle import Actor
from holdfast.model.requests import (
    AcquireLease,
    Create,
    Forward,
    JudgeNode,
    Patch,
    ReleaseLease,
    Remove,
    RenewLease,
    Update,
)

NOBODY = "anonymous"
OPERATORS = "operators"
# A name that no tenant can have, for those that belong to no single one.
USER_PREFIX = "user:"
EVERYWHERE = "*"


class RequestClass(IntEnum):
    """See the module's docstring. Less is sooner."""

    LIFELINE = 0
    SYSTEM = 1
    OPERATOR = 2
    TENANT = 3
    BACKGROUND = 4

    @property
    def label(self) -> str:
        return self.name.lower()


class RequestPurpose(StrEnum):
    """What a request does, as far as its class depends on it."""

    # About a lease, a renewal, or who was heard: small, and work lives by it.
    LIFELINE = "lifeline"
    READ = "read"
    # A read of everything, which may be very much.
    SWEEP = "sweep"
    WRITE = "write"


class Flow(msgspec.Struct, frozen=True, gc=False):
    """Whose share a request is taken from: a tenant's, and inside it a user's.

    Of components `tenant` is their kind, so that thousands of agents never stand before a
    scheduler.
    """

    request_class: RequestClass
    tenant: str
    user: str


_KINDS = {Actor.SCHEDULER: "schedulers", Actor.AGENT: "agents", Actor.AUTHORITY: "servers"}
_CONTROLLERS = "controllers"
_LIFELINES = (Renew, HeartbeatQuery, AcquireLease, RenewLease, ReleaseLease, JudgeNode)
_OBJECT_WRITES = (Create, Update, Patch, Remove, Forward)


@lru_cache(maxsize=8192)
def classify(identity: Identity, errand: RequestPurpose) -> Flow:
    """The class and the share of a request."""
    actors = acts_as(identity)
    name = identity.name
    if not actors or name == ANONYMOUS:
        # All of them share one place: nobody in particular is cheap to be often.
        return Flow(RequestClass.BACKGROUND, NOBODY, "")
    if Actor.USER not in actors:
        is_lifeline = errand is RequestPurpose.LIFELINE
        found = RequestClass.LIFELINE if is_lifeline else RequestClass.SYSTEM
        return Flow(found, _KINDS.get(actors[0], _CONTROLLERS), name)
    tenant = OPERATORS if identity.is_admin else tenant_of(identity)
    if errand is RequestPurpose.SWEEP:
        return Flow(RequestClass.BACKGROUND, tenant, name)
    found = RequestClass.OPERATOR if identity.is_admin else RequestClass.TENANT
    return Flow(found, tenant, name)


def tenant_of(identity: Identity) -> str:
    """The tenant whose share a person uses. Whoever works for several, or for none, has his own:
    he must not be able to choose whose share he uses up.
    """
    tenants = identity.tenants
    if len(tenants) == 1 and tenants[0] != EVERYWHERE:
        return tenants[0]
    return USER_PREFIX + identity.name


def purpose_of(body: Any) -> RequestPurpose:
    """What a request between machines does; whatever is not known to write only reads."""
    if isinstance(body, _LIFELINES):
        return RequestPurpose.LIFELINE
    if isinstance(body, _OBJECT_WRITES):
        return RequestPurpose.WRITE
    is_typed = isinstance(body, msgspec.Struct) and body.__struct_config__.tag is not None
    return RequestPurpose.WRITE if is_typed else RequestPurpose.READ
