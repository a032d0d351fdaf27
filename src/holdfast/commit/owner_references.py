"""Which owners an object may name as ones whose deletion waits for it.

Admission asks here. As in Kubernetes, a person who lets the owner's deletion wait for an object
(`blockOwnerDeletion`) must be allowed to change that owner: otherwise a tenant that may write a
Secret could keep an operator from deleting a node. A reference without it holds up nothing.
"""

from __future__ import annotations

from holdfast.commit.authorise import holds
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.model.errors import Missing
from holdfast.model.lifecycle import Actor
from holdfast.model.meta import Object, OwnerReference
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import Kind, kind_named
from holdfast.model.rights import Deed


def owners_refusal(
    draft: Draft, context: Context, old: Object | None, new: Object
) -> Refusal | None:
    """Whether a person would block the deletion of something that they may not change.

    What the object named before stays, whatever its writer may do by now.
    """
    named = new.metadata.owner_references
    if not named or Actor.USER not in context.actors():
        return None
    before = old.metadata.owner_references if old is not None else ()
    for index, owner in enumerate(named):
        if not owner.block_owner_deletion or owner in before:
            continue
        kind = _kind_of(owner)
        if kind is None:
            continue
        where = new.namespace if kind.namespaced else ""
        if not holds(draft, context.identity, Deed("update", kind.plural, "", where, owner.name)):
            return _refusal(context, index, owner, kind, where)
    return None


def _kind_of(owner: OwnerReference) -> Kind | None:
    """The owner's kind; what is none is refused by validation."""
    try:
        return kind_named(owner.kind)
    except Missing:
        return None


def _refusal(
    context: Context, index: int, owner: OwnerReference, kind: Kind, where: str
) -> Refusal:
    field = f"metadata.ownerReferences[{index}].blockOwnerDeletion"
    scope = where or "the cluster"
    return Refusal(
        Reason.NOT_ALLOWED,
        f"{field}: true: {context.identity.name} may not update {kind.plural} {owner.name} in "
        f"{scope}, so may not let its deletion wait; leave blockOwnerDeletion out",
        {"field": field, "missing": f"update {kind.plural}", "scope": scope},
    )
