"""Secrets with owners, and removing finalizers, for the tests of deletions."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.access.identity import Identity
from holdfast.model.kinds.secret import Secret
from holdfast.model.meta import API_VERSION, ObjectMeta, OwnerReference
from holdfast.model.requests import Update
from tests.furnished import Furnished


def secret(name: str = "s", *owners: Any, namespace: str = "acme", **meta: Any) -> Secret:
    references = tuple(
        OwnerReference(API_VERSION, type(o).__name__, o.name, o.metadata.uid) for o in owners
    )
    metadata = ObjectMeta(name=name, namespace=namespace, owner_references=references, **meta)
    return Secret(metadata)


def remove_finalizers(it: Furnished, obj: Any, identity: Identity, *names: str) -> Any:
    """Request the removal of finalizers."""
    now = it.get(obj)
    rest = tuple(name for name in now.metadata.finalizers if name not in names)
    metadata = msgspec.structs.replace(now.metadata, finalizers=rest)
    return it.ask(identity, Update(msgspec.structs.replace(now, metadata=metadata)))


def with_finalizers(obj: Any, *names: str) -> Any:
    metadata = msgspec.structs.replace(obj.metadata, finalizers=names)
    return msgspec.structs.replace(obj, metadata=metadata)
