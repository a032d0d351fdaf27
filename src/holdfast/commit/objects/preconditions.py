"""Preconditions: the uid and version of the object that the caller means.

Update, patch and delete check them before they change anything. Lists and bookmarks have versions
that no object has, so none of those is ever taken for an object's.
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.draft import UNCOMMITTED, Draft
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import object_version, parse_version
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of
from holdfast.model.requests import Remove

_SHOWN_MAX = 40


def visible_version(draft: Draft, key: str) -> str | None:
    """The version under which clients may have seen an existing object.

    None if no client can have seen it: another request of this group has written it.
    """
    revision = draft.revision(key)
    return object_version(revision) if revision != UNCOMMITTED else None


def version_refusal(draft: Draft, old: Object, given: ObjectMeta) -> Refusal | None:
    """Refuse a caller that did not see the current version. No version, or "0", means any."""
    now = visible_version(draft, keys.key_of(old))
    stale = states_a_version(given) and given.resource_version != now
    other = given.uid and given.uid != old.metadata.uid
    if not stale and not other:
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"{kind_of(old).plural} {old.name!r} has been modified; "
        "please apply your changes to the latest version and try again",
        {"resourceVersion": now or "uncommitted"},
    )


def absence_refusal(kind: Kind, name: str, given: ObjectMeta) -> Refusal | None:
    """Refuse a caller that means an object that no longer exists."""
    if not given.uid and not states_a_version(given):
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"{kind.plural} {name!r} no longer exists; leave out uid and resourceVersion to create it",
    )


def versioned_refusal(obj: Object) -> Refusal | None:
    """Refuse a resourceVersion on an object to be created, as Kubernetes does.

    A client that sends an object that it read means to change that one, and not to create another.
    """
    if not states_a_version(obj.metadata):
        return None
    return Refusal(
        Reason.INVALID,
        "metadata.resourceVersion: must not be set on an object to be created; leave it out, or "
        "update the object that has it",
        {"field": "metadata.resourceVersion"},
    )


def stated_metadata(body: Any) -> ObjectMeta:
    """The preconditions that an applied configuration states. Raises Invalid for values other
    than text.
    """
    metadata = body.get("metadata") if isinstance(body, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    texts = {"uid": found.get("uid"), "resourceVersion": found.get("resourceVersion")}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            error = FieldError(f"metadata.{name}", repr(value)[:_SHOWN_MAX], "must be text")
            raise Invalid(str(error), (error,))
    return ObjectMeta(uid=texts["uid"] or "", resource_version=texts["resourceVersion"] or "")


def states_a_version(given: ObjectMeta) -> bool:
    """Whether a version is stated at all. Raises Invalid for a malformed one."""
    version = given.resource_version
    return bool(version) and not parse_version(version, "metadata.resourceVersion").is_any


def removal_precondition_refusal(draft: Draft, request: Remove, obj: Object) -> Refusal | None:
    """Refuse to delete an object that does not match the preconditions. As in Kubernetes, texts
    are compared.
    """
    if request.uid and request.uid != obj.metadata.uid:
        return Refusal(
            Reason.STALE_OBJECT,
            f"the uid in the precondition is {request.uid}, the object's is {obj.metadata.uid}",
        )
    if not request.resource_version:
        return None
    now = visible_version(draft, keys.key_of(obj))
    if request.resource_version == now:
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"the resourceVersion in the precondition is {request.resource_version[:_SHOWN_MAX]}, "
        f"the object's is {now or 'not known yet'}",
        {"resourceVersion": now or "uncommitted"},
    )
