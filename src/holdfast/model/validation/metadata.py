"""Validates metadata and conditions, for objects of every kind."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from holdfast.model.errors import Missing
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_VERSION, Condition, Object, ObjectMeta, OwnerReference
from holdfast.model.registry import kind_named
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import FieldPath

OWNERS_MAX = 32
FINALIZERS_MAX = 32
CONDITIONS_MAX = 64


def metadata(at: FieldPath, kind: Kind, meta: ObjectMeta) -> None:
    """Checks name, scope, labels, owners and finalizers."""
    _identity(at, kind, meta)
    # Most objects have little of this, and thousands of replicas are created at once.
    if meta.labels:
        names.label_map(at["labels"], meta.labels)
    if meta.annotations:
        names.annotation_map(at["annotations"], meta.annotations)
    if meta.owner_references:
        _owners(at["ownerReferences"], kind, meta)
    if meta.finalizers and names.at_most(at["finalizers"], meta.finalizers, FINALIZERS_MAX):
        for index, finalizer in enumerate(meta.finalizers):
            names.key(at["finalizers"][index], finalizer)
        names.unique(at["finalizers"], meta.finalizers)


def _identity(at: FieldPath, kind: Kind, meta: ObjectMeta) -> None:
    form = names.dotted_name if kind.dotted else names.name
    if meta.name or not meta.generate_name:
        form(at["name"], meta.name)
    # The server appends letters and digits, so a prefix may end in a dash.
    elif not (names.is_dotted if kind.dotted else names.is_name)(meta.generate_name + "x"):
        at["generateName"].wrong(meta.generate_name, f"{names.NAME_RULE}; the last may be a dash")
    if kind.namespaced:
        names.name(at["namespace"], meta.namespace)
    elif meta.namespace:
        at["namespace"].wrong(meta.namespace, f"must be empty: a {kind.name} has no namespace")


def _owners(at: FieldPath, kind: Kind, meta: ObjectMeta) -> None:
    owners = meta.owner_references
    if not names.at_most(at, owners, OWNERS_MAX):
        return
    for index, owner in enumerate(owners):
        _owner(at[index], kind, meta, owner)
    names.unique(at, [owner.uid for owner in owners], "uid")
    managing = [index for index, owner in enumerate(owners) if owner.controller]
    for index in managing[1:]:
        at[index]["controller"].wrong(True, "must be true of one owner at most")


def _owner(at: FieldPath, kind: Kind, meta: ObjectMeta, owner: OwnerReference) -> None:
    if owner.api_version != API_VERSION:
        at["apiVersion"].wrong(owner.api_version, f"must be {API_VERSION}")
    try:
        owning = kind_named(owner.kind)
    except Missing:
        at["kind"].wrong(owner.kind, "must be a kind of holdfast.dev/v1")
    else:
        # The owner of a cluster-scoped object has no namespace: a namespaced one would not be
        # found.
        if owning.namespaced and not kind.namespaced:
            at["kind"].wrong(owner.kind, "must be cluster-scoped, like the object itself")
        (names.dotted_name if owning.dotted else names.name)(at["name"], owner.name)
    text.token(at["uid"], owner.uid)
    if owner.uid and owner.uid == meta.uid:
        at["uid"].wrong(owner.uid, "must not be the object's own")


def conditions(at: FieldPath, items: tuple[Condition, ...]) -> None:
    """Checks conditions. They are merged by type, so each type may appear once.

    Messages are not validated: refusing a status for its text would lose information. Code that
    shows messages to users escapes them.
    """
    if not names.at_most(at, items, CONDITIONS_MAX):
        return
    for index, item in enumerate(items):
        text.word(at[index]["type"], item.type)
        if item.reason:
            text.word(at[index]["reason"], item.reason)
    names.unique(at, [item.type for item in items], "type")


# Rules between an object and its next version, for every kind.
#
# The registry names the immutable fields of each kind by their paths on the wire; here they are
# found in the structs and compared.

FIXED = "cannot be changed"


def metadata_update(old: ObjectMeta, new: ObjectMeta, at: FieldPath) -> None:
    """The identity of an object never changes, and a deletion cannot be reversed."""
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


def _deleting(old: ObjectMeta, new: ObjectMeta, at: FieldPath) -> None:
    before, after = old.deletion_timestamp, new.deletion_timestamp
    if after is None:
        at["deletionTimestamp"].wrong(None, "cannot be removed once deletion began")
    elif before is not None and after > before:
        at["deletionTimestamp"].wrong(after, "cannot be later once deletion began")
    grace, longer = old.deletion_grace_period_seconds, new.deletion_grace_period_seconds
    if grace is not None and (longer is None or longer > grace):
        at["deletionGracePeriodSeconds"].wrong(longer, f"must not grow beyond {grace}")
    for index, finalizer in enumerate(new.finalizers):
        if finalizer not in old.finalizers:
            # A new finalizer would delay a deletion that its owner never saw begin.
            at["finalizers"][index].wrong(finalizer, "cannot be added once deletion began")


def immutable_fields(kind: Kind, old: Object, new: Object, at: FieldPath) -> None:
    """Checks all immutable fields of the registry."""
    for path in kind.immutable:
        before: Any = old
        after: Any = new
        place = at
        for step in path.split("."):
            struct: type[msgspec.Struct] = type(before)
            name = wire_fields(struct)[step]
            before, after, place = getattr(before, name), getattr(after, name), place[step]
        _report(before, after, place)


def _report(before: Any, after: Any, at: FieldPath) -> None:
    """Reports each changed field at the deepest struct level, so that a user finds it."""
    if before == after:
        return
    if not isinstance(before, msgspec.Struct) or type(before) is not type(after):
        at.wrong(None if _hidden(at) else after, FIXED)
        return
    for name, field in wire_fields(type(before)).items():
        _report(getattr(before, field), getattr(after, field), at[name])


def _hidden(at: FieldPath) -> bool:
    """Whether to hide a value: a hash is not secret, but a wrong value in its place may be."""
    return at.path == "spec.hash"


@cache
def wire_fields(struct: type[msgspec.Struct]) -> dict[str, str]:
    """The Python names of a struct's fields by their wire names."""
    return {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
