"""Who owns what, as the picture shows it: the owners of an object, and all that it owns.

Part of controller:garbage. Kinds that are not followed, and those of somebody else, cannot be
looked up: their objects are taken to be there, so that nothing goes for want of knowledge.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.correct.controller import BY_WORKLOAD, Index, View
from holdfast.model.errors import Missing
from holdfast.model.kinds.replica import Replica
from holdfast.model.kinds.tenant import CONTENTS
from holdfast.model.kinds.workload import Workload
from holdfast.model.meta import Object, OwnerReference
from holdfast.model.registry import Kind, kind_named

FOLLOWED = ("tenants", "replicas", *CONTENTS)


def _uids_of(obj: Object) -> Iterable[str]:
    return [it.uid for it in obj.metadata.owner_references]


# Replicas are found by their workload, which cannot go before them.
OWNED = tuple(Index(plural, "owners", _uids_of) for plural in CONTENTS if plural != "events")


def is_dying(obj: Object) -> bool:
    return obj.metadata.deletion_timestamp is not None


def _kind_of(owner: OwnerReference) -> Kind | None:
    """The kind of an owner, if it is one that can be looked up here."""
    try:
        kind = kind_named(owner.kind)
    except Missing:
        return None
    return kind if kind.plural in FOLLOWED else None


def _owner(view: View, obj: Object, owner: OwnerReference) -> Object | None:
    """An owner as the picture shows it."""
    kind = _kind_of(owner)
    if kind is None:
        return None
    where = obj.namespace if kind.namespaced else ""
    found: Object | None = view.get(kind.plural, where, owner.name)
    return found if found is not None and found.metadata.uid == owner.uid else None


def is_there(view: View, obj: Object, owner: OwnerReference) -> bool:
    """Whether an owner lives, as far as can be told; of other kinds nothing can be."""
    return _kind_of(owner) is None or _owner(view, obj, owner) is not None


def owners_of(view: View, obj: Object) -> Iterable[Object]:
    found = (_owner(view, obj, it) for it in obj.metadata.owner_references)
    return [it for it in found if it is not None]


def owned_by(view: View, obj: Object) -> Iterable[Object]:
    """Everything that names it as its owner, but for replicas.

    An owner with a namespace is looked for in that of its dependent. So what names its uid from
    another namespace is none of its own, and neither holds up its deletion nor goes with it.
    """
    for index in OWNED:
        if isinstance(obj, Replica) and index.plural != "reservations":
            continue
        for found in view.found(index, obj.metadata.uid):
            if not obj.namespace or found.namespace == obj.namespace:
                yield found


def has_replicas(view: View, obj: Object) -> bool:
    if not isinstance(obj, Workload):
        return False
    uid, named = obj.metadata.uid, f"{obj.namespace}/{obj.name}"
    return view.has(BY_WORKLOAD, named, lambda it: it.spec.workload_uid == uid)


def blocks(obj: Object, owner: Object) -> bool:
    uid = owner.metadata.uid
    return any(it.uid == uid and it.block_owner_deletion for it in obj.metadata.owner_references)
