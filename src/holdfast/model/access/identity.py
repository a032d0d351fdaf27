"""The authenticated identity of a caller, and the actors that it may be.

System identities have fixed forms: `system:scheduler:NAME`, `system:controller:NAME`,
`system:node:NODE` and `system:server:NAME`. Any other name is a person or a service. A request body
never claims an identity; the shell takes it from the certificate or the token.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from holdfast.model.lifecycle import CONTROLLER_SCOPE, CONTROLLERS, Actor

SYSTEM_PREFIX = "system:"
SCHEDULER_PREFIX = "system:scheduler:"
CONTROLLER_PREFIX = "system:controller:"
NODE_PREFIX = "system:node:"
SERVER_PREFIX = "system:server:"
ANONYMOUS = "system:anonymous"
ADMINS = "system:masters"
# The group of monitoring systems: the organization in the certificate of a Prometheus, or the group
# of its token.
MONITORS = "system:monitoring"
# The groups of those who operate a plane, and of those who audit it.
OPERATORS = "system:operators"
AUDITORS = "system:auditors"

# After a prefix comes the name of an object or a component. Any other form is no identity, so that
# no two spellings can stand for the same node or scheduler.
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?", re.ASCII)

_CONTROLLERS = {actor.value.removeprefix(CONTROLLER_SCOPE): actor for actor in CONTROLLERS}


class Identity(msgspec.Struct, frozen=True):
    """An authenticated name and its groups.

    `tenants` are the namespaces that a person may use; `*` means all.
    """

    name: str
    groups: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    @property
    def node(self) -> str | None:
        """The node whose agent this is; None if it is not an agent."""
        return _named(self.name, NODE_PREFIX)

    @property
    def server(self) -> str | None:
        """The server that this is; None if it is not a server."""
        return _named(self.name, SERVER_PREFIX)

    @property
    def is_admin(self) -> bool:
        return ADMINS in self.groups


@lru_cache(maxsize=4096)
def _named(name: str, prefix: str) -> str | None:
    """The name after this prefix; None without the prefix or a valid name."""
    rest = name.removeprefix(prefix)
    return rest if name.startswith(prefix) and _NAME.fullmatch(rest) else None


def controller(name: str) -> Identity:
    """The identity of a controller."""
    return Identity(name=CONTROLLER_PREFIX + name)


def scheduler(name: str) -> Identity:
    """The identity of a scheduler."""
    return Identity(name=SCHEDULER_PREFIX + name)


def agent(node: str) -> Identity:
    """The identity of a node's agent."""
    return Identity(name=NODE_PREFIX + node)


def server(name: str) -> Identity:
    """The identity of a server."""
    return Identity(name=SERVER_PREFIX + name)


@lru_cache(maxsize=4096)
def acts_as(identity: Identity) -> tuple[Actor, ...]:
    """The actors that this identity may be.

    A person is a user and an operator, never a controller; roles decide which of those actors'
    requests the person may send (`model/access/rights.py`). An anonymous caller and a system
    identity of unknown form are no actor.
    """
    name = identity.name
    if not name.startswith(SYSTEM_PREFIX):
        return (Actor.USER, Actor.OPERATOR) if name.strip() else ()
    if identity.server is not None:
        return (Actor.AUTHORITY,)
    if _named(name, SCHEDULER_PREFIX) is not None:
        return (Actor.SCHEDULER,)
    if identity.node is not None:
        return (Actor.AGENT,)
    actor = _CONTROLLERS.get(_named(name, CONTROLLER_PREFIX) or "")
    return (actor,) if actor is not None else ()
