"""Visibility: which objects an agent may see. Any other object is answered as missing.

`decide` checks every request before it looks at anything else, and the ordinary verbs check every
object that they have read. Otherwise a refusal would reveal what no read reveals: that a replica
exists, its uid and its state; and a patch that changes nothing would return the whole object.
`host/api/objects/scope.py` applies the same rule to lists and watches. For people, roles decide
where they may look, before anything is read.
"""

from __future__ import annotations

from typing import TypeVar

from holdfast.commit.access.authorize import identity_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model import requests as ask
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.access.rights import Permission
from holdfast.model.access.roles import CHANGE
from holdfast.model.kind_declaration import Kind
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import CAUSE_OWNER, TRANSITIONS, Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Target

Found = TypeVar("Found", bound=Object)


def visible_object(context: Context, obj: Found | None) -> Found | None:
    """The object if the caller may see it. An agent sees its node and the replicas bound to it."""
    node = context.identity.node
    if node is None or obj is None:
        return obj
    match obj:
        case Node():
            return obj if obj.name == node else None
        case Replica():
            binding = obj.status.binding
            return obj if binding is not None and binding.node == node else None
    return None


def missing_replica(target: Target) -> Refusal:
    """The refusal for a replica that is missing, or that the caller may not see."""
    where = f"replica {target.namespace}/{target.name}"
    return Refusal(Reason.MISSING, f"{where} does not exist", {"replica": target.name})


def visibility_refusal(draft: Draft, context: Context, request: ask.Request) -> Refusal | None:
    """Refuse a caller without identity, and an agent that asks about what it may not see."""
    refusal = identity_refusal(context)
    if refusal is not None or context.identity.node is None:
        return refusal
    if not isinstance(request, ask.ReplicaRequest):
        return None
    target = request.target
    replica = draft.object(Replica, target.namespace, target.name)
    return missing_replica(target) if visible_object(context, replica) is None else None


# Whether an identity can ever do something, whatever its roles say: the second half of an access
# review.
#
# Roles say what a person may ask for; `objects/field_writers.py` and the table of requests say who
# owns it. A person with every permission still cannot create or bind a replica. Access reviews
# check both, so that `kubectl auth can-i` predicts what happens.

_STATUS, _SCALE = "status", "scale"
_CREATE, _DELETE = ("create",), ("delete", "deletecollection")
# Who may transition a replica, and who may stop one. All other such requests belong to components.
_MOVERS = tuple(dict.fromkeys(actor for row in TRANSITIONS for actor in row.actors))
_PARTS: dict[str, tuple[Actor, ...]] = {
    "state": _MOVERS,
    "eviction": tuple(CAUSE_OWNER.values()),
    # Logs and exec are for people: no component needs them, and an agent has its own work at hand.
    "log": (Actor.USER,),
    "exec": (Actor.USER,),
}


def possible_actors(kind: Kind, permission: Permission) -> tuple[Actor, ...] | None:
    """The actors that can ever do this to an object of the kind; None if roles alone decide."""
    writers = kind.writers
    if permission.subresource == _STATUS and permission.verb in CHANGE:
        return writers.of_status
    if kind.struct is Replica and permission.subresource in _PARTS:
        return _PARTS[permission.subresource]
    if kind.struct is Replica and permission.subresource == "binding":
        return (Actor.SCHEDULER,)
    if permission.subresource not in ("", _SCALE):
        return None
    if permission.verb in _CREATE:
        return (*writers.spec, *writers.makers)
    if permission.verb in CHANGE:
        # Removing a finalizer and disowning are writes too: `objects/deletion.py`,
        # `ledgers/leaks.py`.
        return (*writers.spec, Actor.WORKLOAD, Actor.GARBAGE)
    if permission.verb in _DELETE:
        return (*writers.spec, *writers.removers)
    return None


def exclusive_actors(identity: Identity, kind: Kind, permission: Permission) -> tuple[Actor, ...]:
    """The only actors that can ever do this, if the identity is none of them; otherwise empty."""
    found = possible_actors(kind, permission)
    if found is None or any(actor in found for actor in acts_as(identity)):
        return ()
    return found or (Actor.AUTHORITY,)
