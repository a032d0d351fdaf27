"""Who may block the deletion of an owner by an object of their own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.refusal import Reason
from holdfast.model.requests import Create, Patch, PatchType, Update
from tests.furnished import ANN, Furnished
from tests.plane import ADMIN, refused


def secret(owner: Any, name: str = "mine", *, blocks: bool) -> Secret:
    reference = OwnerReference(
        API_VERSION,
        type(owner).__name__,
        owner.name,
        owner.metadata.uid,
        block_owner_deletion=blocks,
    )
    return Secret(ObjectMeta(name=name, namespace="acme", owner_references=(reference,)))


@pytest.mark.parametrize("key", ["objects/tenants/acme", "objects/nodes/node-a"])
def test_a_tenant_does_not_hold_up_the_deletion_of_what_is_the_cluster_s(key: str) -> None:
    """Neither when the object is made nor later; an operator may."""
    it = Furnished()
    owner = it.plane.read(key)
    refusal = refused(it.ask(ANN, Create(secret(owner, blocks=True))), Reason.NOT_ALLOWED)
    assert refusal.details["field"] == "metadata.ownerReferences[0].blockOwnerDeletion"
    assert "leave blockOwnerDeletion out" in refusal.message
    made = it.yes(ANN, Create(secret(owner, blocks=False)))
    blocking = secret(owner, blocks=True).metadata.owner_references
    metadata = msgspec.structs.replace(made.metadata, owner_references=blocking)
    changed = msgspec.structs.replace(made, metadata=metadata)
    refused(it.ask(ANN, Update(changed)), Reason.NOT_ALLOWED)
    tree = {"metadata": {"ownerReferences": list(msgspec.to_builtins(blocking))}}
    patch = Patch("secrets", "acme", "mine", PatchType.MERGE, tree)
    refused(it.ask(ANN, patch), Reason.NOT_ALLOWED)
    it.yes(ADMIN, Create(secret(owner, "operator-s", blocks=True)))


def test_an_owner_of_the_same_tenant_may_be_held_up_and_stays_so() -> None:
    """What an operator let wait is not undone by the tenant's next change."""
    it = Furnished()
    it.yes(ANN, Create(secret(it.web, blocks=True)))
    made = it.yes(ADMIN, Create(secret(it.node, "by-operator", blocks=True)))
    it.yes(ANN, Update(msgspec.structs.replace(made, data={"key": "dmFsdWU="})))
