"""What admission gives an object unasked: who asked for it and when, and how urgent recovery is.

`admission` asks for the first before it validates, `policy` for the second before it judges; each
change is recorded on the object.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.revoking import completed
from holdfast.model.kinds.override import Override
from holdfast.model.kinds.priorityclass import PriorityClass
from holdfast.model.kinds.revocation import Revocation
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object

# Work that must come back when a region is lost is of this class unless it names another.
CRITICAL = "critical"


class Shaped(msgspec.Struct, frozen=True):
    """The object after policy, with what was changed and what is worth knowing."""

    object: Object
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def signed(context: Context, obj: Object, old: Object | None) -> Shaped:
    """The object with who asked for it and when, where that is part of it.

    Who asked for an override is who was authenticated then, whatever the file says or leaves out.
    This comes before validation, which lets nobody change that name.
    """
    if isinstance(obj, Revocation):
        return Shaped(*completed(context, obj))
    if not isinstance(obj, Override):
        return Shaped(obj)
    asked = old.spec.requester if isinstance(old, Override) else context.identity.name
    if obj.spec.requester == asked:
        return Shaped(obj)
    spec = msgspec.structs.replace(obj.spec, requester=asked)
    return Shaped(msgspec.structs.replace(obj, spec=spec), (f"spec.requester set to {asked}",))


def critical(draft: Draft, obj: Workload) -> tuple[Workload, tuple[str, ...], tuple[str, ...]]:
    """Recovery work is critical. Returns it with what was changed, or why nothing was."""
    template = obj.spec.template
    if obj.spec.recovery is None or not obj.spec.recovery.eligible or template.priority_class:
        return obj, (), ()
    if draft.object(PriorityClass, "", CRITICAL) is None:
        hint = f"spec.recovery: there is no priority class {CRITICAL!r} to recover with"
        return obj, (), (hint,)
    template = msgspec.structs.replace(template, priority_class=CRITICAL)
    spec = msgspec.structs.replace(obj.spec, template=template)
    change = (
        f"spec.template.priorityClass set to {CRITICAL}, because spec.recovery asks for recovery"
    )
    return msgspec.structs.replace(obj, spec=spec), (change,), ()
