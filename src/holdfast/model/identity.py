"""Who is asking, as the shell has authenticated it, and as whom that identity may act.

System identities have fixed forms: `system:scheduler:NAME`, `system:controller:NAME`,
`system:node:NODE` and `system:authority`. Anything else is a person or a service. A body never
claims an identity; the shell takes it from the certificate or the token.
"""

from __future__ import annotations

import msgspec

from holdfast.model.lifecycle import Actor

SCHEDULER_PREFIX = "system:scheduler:"
CONTROLLER_PREFIX = "system:controller:"
NODE_PREFIX = "system:node:"
AUTHORITY = "system:authority"
ANONYMOUS = "system:anonymous"
ADMINS = "system:masters"

_CONTROLLERS = {
    actor.value.removeprefix("controller:"): actor
    for actor in Actor
    if actor.value.startswith("controller:")
}


class Identity(msgspec.Struct, frozen=True):
    """An authenticated name and its groups.

    `tenants` are the namespaces a person may work in; `*` means all.
    """

    name: str
    groups: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()

    @property
    def node(self) -> str | None:
        """The node whose agent this is, if it is one."""
        return self.name.removeprefix(NODE_PREFIX) if self.name.startswith(NODE_PREFIX) else None

    @property
    def is_admin(self) -> bool:
        return ADMINS in self.groups


def controller(name: str) -> Identity:
    """The identity of a controller."""
    return Identity(name=CONTROLLER_PREFIX + name)


def scheduler(name: str) -> Identity:
    """The identity of a scheduler."""
    return Identity(name=SCHEDULER_PREFIX + name)


def agent(node: str) -> Identity:
    """The identity of a node's agent."""
    return Identity(name=NODE_PREFIX + node)


def acts_as(identity: Identity) -> tuple[Actor, ...]:
    """The actors that this identity may be.

    An administrator is a user and an operator, never a controller.
    """
    name = identity.name
    if name.startswith(CONTROLLER_PREFIX):
        actor = _CONTROLLERS.get(name.removeprefix(CONTROLLER_PREFIX))
        return (actor,) if actor is not None else ()
    if name.startswith(SCHEDULER_PREFIX):
        return (Actor.SCHEDULER,)
    if name.startswith(NODE_PREFIX):
        return (Actor.AGENT,)
    if name == AUTHORITY:
        return (Actor.AUTHORITY,)
    if name.startswith("system:"):
        return ()
    return (Actor.USER, Actor.OPERATOR) if identity.is_admin else (Actor.USER,)
