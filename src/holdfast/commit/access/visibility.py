"""What an agent may know of. What is not its own is answered as if it were not there.

`decide` asks this of every request before anything of it is looked at, and the ordinary verbs ask
it of every object that they have read. Otherwise a refusal would tell what no read tells: that a
replica exists, its uid, its state; and a patch that changes nothing would bring back the whole
object. What an agent sees in lists and watches is said by `host/api/objects/scope.py`, by the same
rule; where people may look at all is said by their roles, before anything is read.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.commit.access.authorize import identity_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.objects.field_writers import WRITERS
from holdfast.model.access.identity import Identity, acts_as
from holdfast.model.access.rights import Permission
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import CAUSE_OWNER, TRANSITIONS, Actor
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import Kind
from holdfast.model.requests import Target

Found = TypeVar("Found", bound=Object)


def visible_object(context: Context, obj: Found | None) -> Found | None:
    """The object, if the caller may know of it. An agent knows its node and what is bound to it."""
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
    """There is no such replica, or none that the caller may know of."""
    where = f"replica {target.namespace}/{target.name}"
    return Refusal(Reason.MISSING, f"{where} does not exist", {"replica": target.name})


def visibility_refusal(draft: Draft, context: Context, request: Any) -> Refusal | None:
    """Whether nobody in particular asks, or an agent for what it may not know of."""
    refusal = identity_refusal(context)
    if refusal is not None or context.identity.node is None:
        return refusal
    target = getattr(request, "target", None)
    if target is None:
        return None
    replica = draft.object(Replica, target.namespace, target.name)
    return missing_replica(target) if visible_object(context, replica) is None else None


# Whether something is ever open to somebody, whatever his roles say: the other half of a review.
#
# Roles say what a person may ask for, `writers` and the table of requests who owns what is asked
# for. A person who may do everything still makes no replica and binds none. Access reviews ask
# both, so that `kubectl auth can-i` says what would really happen.

_STATUS, _SCALE = "status", "scale"
_CREATE, _DELETE = ("create",), ("delete", "deletecollection")
_CHANGE = ("update", "patch")
# Who moves a replica, and who has it stopped; every other such request is a component's.
_MOVERS = tuple(dict.fromkeys(actor for row in TRANSITIONS for actor in row.actors))
_PARTS: dict[str, tuple[Actor, ...]] = {
    "state": _MOVERS,
    "eviction": tuple(CAUSE_OWNER.values()),
    # Looking into work is for people: no component needs it, and an agent has its own at hand.
    "log": (Actor.USER,),
    "exec": (Actor.USER,),
}


def possible_actors(kind: Kind, permission: Permission) -> tuple[Actor, ...] | None:
    """Who can ever do this to an object of the kind; None where that is for the roles alone."""
    writers = WRITERS[kind.struct]
    if permission.subresource == _STATUS and permission.verb in _CHANGE:
        return tuple(dict.fromkeys((*writers.status.values(), *writers.conditions.values())))
    if kind.struct is Replica and permission.subresource in _PARTS:
        return _PARTS[permission.subresource]
    if kind.struct is Replica and permission.subresource == "binding":
        return (Actor.SCHEDULER,)
    if permission.subresource not in ("", _SCALE):
        return None
    if permission.verb in _CREATE:
        return (*writers.spec, *writers.makers)
    if permission.verb in _CHANGE:
        # Letting go of a finalizer and disowning are writes as well: `removal.py`, `leaks.py`.
        return (*writers.spec, Actor.WORKLOAD, Actor.GARBAGE)
    if permission.verb in _DELETE:
        return (*writers.spec, *writers.removers)
    return None


def exclusive_actors(identity: Identity, kind: Kind, permission: Permission) -> tuple[Actor, ...]:
    """Those who alone may ever do this, if this identity is none of them; otherwise nobody."""
    found = possible_actors(kind, permission)
    if found is None or any(actor in found for actor in acts_as(identity)):
        return ()
    return found or (Actor.AUTHORITY,)
