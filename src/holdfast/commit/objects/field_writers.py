"""One writer per field: who may change what through the ordinary create, update, patch and delete.

Replica, Reservation, Lease and the judged parts of a Node are not writable here at all: they change
by requests of their own, each with its proof. Each kind declares its writers, so that the roles,
the documentation and the checkers read the same rows. It is about identity, and the `force` of
server-side apply does not affect it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.context import Context
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import AnyObject, Condition, Object, status_of
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import KINDS, kind_of

WRITERS = {kind.struct: kind.writers for kind in KINDS}


def without_computed(old: Object, new: AnyObject) -> AnyObject:
    """A new status with the computed parts as they are stored, which is not at all."""
    names = kind_of(new).computed
    if not names:
        return new
    before: Any = old
    after: Any = new
    stored = {name: getattr(before.status, name) for name in names}
    status = msgspec.structs.replace(after.status, **stored)
    return msgspec.structs.replace(new, status=status)


def _not_owner(context: Context, obj: Object, what: str, owners: tuple[Actor, ...]) -> Refusal:
    named = ", ".join(owners) if owners else "none: it changes by requests of its own"
    return Refusal(
        Reason.NOT_OWNER,
        f"{context.identity.name} may not change {what} of {type(obj).__name__} {obj.name}; "
        f"its owner is {named}",
        {"field": what, "owners": ",".join(owners)},
    )


def shared_with_people(struct: type[Object]) -> bool:
    """Whether people write objects of this kind, with several clients and managers each."""
    return any(actor in (Actor.USER, Actor.OPERATOR) for actor in WRITERS[struct].spec)


def spec_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse a caller that may not write the object's spec."""
    owners = WRITERS[type(obj)].spec
    return None if context.is_actor(*owners) else _not_owner(context, obj, "spec", owners)


def is_maker(context: Context, obj: Object) -> bool:
    """Whether the caller may create such an object without being a writer of its spec."""
    writers = WRITERS[type(obj)]
    return context.is_actor(*writers.makers) and not context.is_actor(*writers.spec)


def claim_refusal(context: Context, obj: Object, *, status: bool) -> Refusal | None:
    """Refuse a caller that may not own fields that it leaves unchanged.

    An apply that states what already holds changes only the ownership, and every owner of a field
    can conflict with its writers.
    """
    writers = WRITERS[type(obj)]
    if not status:
        return spec_refusal(context, obj)
    owners = writers.of_status
    return None if context.is_actor(*owners) else _not_owner(context, obj, "status", owners)


def removal_refusal(context: Context, obj: Object) -> Refusal | None:
    """Refuse a caller that may not delete the object."""
    owners = (*WRITERS[type(obj)].spec, *WRITERS[type(obj)].removers)
    return None if context.is_actor(*owners) else _not_owner(context, obj, "the life", owners)


def status_refusal(context: Context, old: Object, new: Object) -> Refusal | None:
    """Refuse a change of a status part that does not belong to the caller."""
    before, after = status_of(old), status_of(new)
    if before == after or before is None or after is None:
        return None
    owners = WRITERS[type(new)]
    for field in type(after).__struct_fields__:
        if getattr(before, field) == getattr(after, field):
            continue
        if field == "conditions":
            refusal = _conditions_refusal(context, old, before.conditions, after.conditions)
            if refusal is not None:
                return refusal
            continue
        owner = owners.status.get(field)
        if owner is None or not context.is_actor(owner):
            return _not_owner(context, new, f"status.{field}", (owner,) if owner else ())
    return None


def _conditions_refusal(
    context: Context, obj: Object, before: tuple[Condition, ...], after: tuple[Condition, ...]
) -> Refusal | None:
    owners = WRITERS[type(obj)].conditions
    old = {condition.type: condition for condition in before}
    new = {condition.type: condition for condition in after}
    for kind in dict.fromkeys((*old, *new)):
        if old.get(kind) == new.get(kind):
            continue
        owner = owners.get(kind)
        if owner is None or not context.is_actor(owner) or not _of_own_node(context, owner, obj):
            what = f"status.conditions[{kind}]"
            return _not_owner(context, obj, what, (owner,) if owner else ())
    return None


def _of_own_node(context: Context, owner: Actor, obj: Object) -> bool:
    """Whether an agent reports on its own node or on what is bound to it."""
    if owner is not Actor.AGENT:
        return True
    if isinstance(obj, Replica):
        binding = obj.status.binding
        return binding is not None and context.identity.node == binding.node
    return context.identity.node == obj.name
