"""What holds between an object and its next version, for every kind.

The registry names the fields of each kind that never change, by their paths on the wire; here they
are found in the structs and compared.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.registry import Kind
from holdfast.model.validation.findings import Place

FIXED = "cannot be changed"


def metadata_update(old: ObjectMeta, new: ObjectMeta, at: Place) -> None:
    """Who an object is stays; deletion, once it began, goes one way."""
    for field, before, after in (
        ("name", old.name, new.name),
        ("namespace", old.namespace, new.namespace),
        ("uid", old.uid, new.uid),
        ("creationTimestamp", old.creation_timestamp, new.creation_timestamp),
    ):
        if before != after:
            at[field].wrong(after, FIXED)
    if new.generation < old.generation:
        at["generation"].wrong(new.generation, f"must not fall below {old.generation}")
    if old.deletion_timestamp is not None:
        _deleting(old, new, at)


def _deleting(old: ObjectMeta, new: ObjectMeta, at: Place) -> None:
    before, after = old.deletion_timestamp, new.deletion_timestamp
    if after is None:
        at["deletionTimestamp"].wrong(None, "cannot be taken back once deletion began")
    elif before is not None and after > before:
        at["deletionTimestamp"].wrong(after, "cannot be put off once deletion began")
    grace, longer = old.deletion_grace_period_seconds, new.deletion_grace_period_seconds
    if grace is not None and (longer is None or longer > grace):
        at["deletionGracePeriodSeconds"].wrong(longer, f"must not grow beyond {grace}")
    for index, finalizer in enumerate(new.finalizers):
        if finalizer not in old.finalizers:
            # A finalizer that appears now would hold up a deletion that its owner never saw begin.
            at["finalizers"][index].wrong(finalizer, "cannot be added once deletion began")


def immutable_fields(kind: Kind, old: Object, new: Object, at: Place) -> None:
    """Everything that the registry says never changes."""
    for path in kind.immutable:
        before: Any = old
        after: Any = new
        place = at
        for step in path.split("."):
            struct: type[msgspec.Struct] = type(before)
            name = wire_fields(struct)[step]
            before, after, place = getattr(before, name), getattr(after, name), place[step]
        _report(before, after, place)


def _report(before: Any, after: Any, at: Place) -> None:
    """Name what differs as deep down as there are structs, so that a user finds it."""
    if before == after:
        return
    if not isinstance(before, msgspec.Struct) or type(before) is not type(after):
        at.wrong(None if _hidden(at) else after, FIXED)
        return
    for name, field in wire_fields(type(before)).items():
        _report(getattr(before, field), getattr(after, field), at[name])


def _hidden(at: Place) -> bool:
    """A hash is no secret, but what is put in its place by mistake may be one."""
    return at.path == "spec.hash"


@cache
def wire_fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The names of a struct's fields by their names on the wire."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
