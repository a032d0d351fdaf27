"""Metadata and conditions: what holds for objects of every kind."""

from __future__ import annotations

from holdfast.model.errors import Missing
from holdfast.model.meta import API_VERSION, Condition, ObjectMeta, OwnerReference
from holdfast.model.registry import Kind, kind_named
from holdfast.model.validation import names, text
from holdfast.model.validation.findings import Place

OWNERS_MAX = 32
FINALIZERS_MAX = 32
CONDITIONS_MAX = 64


def metadata(at: Place, kind: Kind, meta: ObjectMeta) -> None:
    """Name, scope, labels, owners and finalizers."""
    _identity(at, kind, meta)
    # Most objects have little of this, and thousands of replicas come into being at once.
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


def _identity(at: Place, kind: Kind, meta: ObjectMeta) -> None:
    form = names.dotted_name if kind.dotted else names.name
    if meta.name or not meta.generate_name:
        form(at["name"], meta.name)
    # The server adds letters and digits, so a prefix may end in a dash.
    elif not (names.is_dotted if kind.dotted else names.is_name)(meta.generate_name + "x"):
        at["generateName"].wrong(meta.generate_name, f"{names.NAME_RULE}; the last may be a dash")
    if kind.namespaced:
        names.name(at["namespace"], meta.namespace)
    elif meta.namespace:
        at["namespace"].wrong(meta.namespace, f"must be empty: a {kind.name} has no namespace")


def _owners(at: Place, kind: Kind, meta: ObjectMeta) -> None:
    owners = meta.owner_references
    if not names.at_most(at, owners, OWNERS_MAX):
        return
    for index, owner in enumerate(owners):
        _owner(at[index], kind, meta, owner)
    names.unique(at, [owner.uid for owner in owners], "uid")
    managing = [index for index, owner in enumerate(owners) if owner.controller]
    for index in managing[1:]:
        at[index]["controller"].wrong(True, "must be true of one owner at most")


def _owner(at: Place, kind: Kind, meta: ObjectMeta, owner: OwnerReference) -> None:
    if owner.api_version != API_VERSION:
        at["apiVersion"].wrong(owner.api_version, f"must be {API_VERSION}")
    try:
        owning = kind_named(owner.kind)
    except Missing:
        at["kind"].wrong(owner.kind, "must be a kind of holdfast.dev/v1")
    else:
        # A cluster-scoped object would be looked for in no namespace and be taken for ownerless.
        if owning.namespaced and not kind.namespaced:
            at["kind"].wrong(owner.kind, "must be cluster-scoped, like the object itself")
        (names.dotted_name if owning.dotted else names.name)(at["name"], owner.name)
    text.token(at["uid"], owner.uid)
    if owner.uid and owner.uid == meta.uid:
        at["uid"].wrong(owner.uid, "must not be the object's own")


def conditions(at: Place, items: tuple[Condition, ...]) -> None:
    """Conditions are merged by type, so each type is there once.

    Messages are not judged here: refusing a status for its wording would keep the truth out. Who
    shows them to people escapes them.
    """
    if not names.at_most(at, items, CONDITIONS_MAX):
        return
    for index, item in enumerate(items):
        text.word(at[index]["type"], item.type)
        if item.reason:
            text.word(at[index]["reason"], item.reason)
    names.unique(at, [item.type for item in items], "type")
