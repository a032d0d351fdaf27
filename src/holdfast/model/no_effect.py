"""Fields and kinds that the API accepts and that nothing acts on yet.

`commit/objects/object_writes.py` asks here with every create, update, patch and apply: the answer
carries one warning for each row that the object sets, and the object gets the condition `NoEffect`,
in the same transaction. The rows are declared with the kinds. A change that gives a field its
effect removes its row; a test holds the rows against the code.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.model.kind_declaration import NoEffectRow
from holdfast.model.meta import (
    AnyObject,
    Condition,
    ConditionStatus,
    Object,
    condition,
    conditions_of,
    status_of,
    with_condition,
)
from holdfast.model.registry import KINDS

NO_EFFECT = "NoEffect"
REASON = "NotImplemented"

ROWS = {kind.struct: kind.no_effect for kind in KINDS if kind.no_effect}


def rows_of(obj: Object) -> tuple[NoEffectRow, ...]:
    """The rows that this object sets."""
    rows = ROWS.get(type(obj))
    return tuple(row for row in rows if row.is_set(obj)) if rows is not None else ()


def sentence(obj: Object, row: NoEffectRow) -> str:
    """What a row says of an object."""
    named = f"{row.path} has" if row.path else f"{type(obj).__name__} objects have"
    return f"{named} no effect yet: {row.instead}"


def warnings(obj: Object) -> tuple[str, ...]:
    """One sentence for each row that this object sets, for the writer of the object."""
    return tuple(sentence(obj, row) for row in rows_of(obj))


def with_no_effect(obj: AnyObject, at: datetime) -> AnyObject:
    """The object with the condition `NoEffect` as its spec demands, or without it.

    The very same object if nothing changes. Kinds without conditions have only the warning.
    """
    before = conditions_of(obj)
    if type(obj) not in ROWS or before is None:
        return obj
    said = warnings(obj)
    if said:
        stated = Condition(
            NO_EFFECT,
            ConditionStatus.TRUE,
            obj.metadata.generation,
            reason=REASON,
            message="; ".join(said),
        )
        after = with_condition(before, stated, at)
    elif condition(before, NO_EFFECT) is not None:
        after = tuple(it for it in before if it.type != NO_EFFECT)
    else:
        return obj
    if after is before:
        return obj
    status = msgspec.structs.replace(status_of(obj), conditions=after)
    return msgspec.structs.replace(obj, status=status)


def keeping_no_effect(old: Object, new: AnyObject) -> AnyObject:
    """A new status with the condition `NoEffect` of the old one, whatever its writer sent of it.

    A writer that sends a whole status of its own need not know this condition.
    """
    before, after = conditions_of(old), conditions_of(new)
    if type(new) not in ROWS or before is None or after is None:
        return new
    kept = condition(before, NO_EFFECT)
    if condition(after, NO_EFFECT) == kept:
        return new
    others = tuple(it for it in after if it.type != NO_EFFECT)
    conditions = others if kept is None else (*others, kept)
    status = msgspec.structs.replace(status_of(new), conditions=conditions)
    return msgspec.structs.replace(new, status=status)
