"""What an agent may know of. What is not its own is answered as if it were not there.

`decide` asks this of every request before anything of it is looked at, and the ordinary verbs ask
it of every object that they have read. Otherwise a refusal would tell what no read tells: that a
replica exists, its uid, its state; and a patch that changes nothing would bring back the whole
object. What an agent sees in lists and watches is said by `host/api/scope.py`, by the same rule;
where people may look at all is said by their roles, before anything is read.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.commit.authorise import identity_refusal
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.replica import Replica
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Target

Found = TypeVar("Found", bound=Object)


def known(context: Context, obj: Found | None) -> Found | None:
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


def sight_refusal(draft: Draft, context: Context, request: Any) -> Refusal | None:
    """Whether nobody in particular asks, or an agent for what it may not know of."""
    refusal = identity_refusal(context)
    if refusal is not None or context.identity.node is None:
        return refusal
    target = getattr(request, "target", None)
    if target is None:
        return None
    replica = draft.object(Replica, target.namespace, target.name)
    return missing_replica(target) if known(context, replica) is None else None
