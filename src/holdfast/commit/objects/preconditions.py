"""What a caller states about the object that it means: its uid, and the version that it saw.

Update, patch and delete ask here before they change anything. Lists and bookmarks have versions
that no object has, so none of those is ever taken for an object's.
"""

from __future__ import annotations

from typing import Any

from holdfast.commit.draft import UNCOMMITTED, Draft
from holdfast.model import keys
from holdfast.model.encoding.resource_versions import object_version, parse_version
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.meta import Object, ObjectMeta
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import Kind, kind_of
from holdfast.model.requests import Remove

_SHOWN_MAX = 40


def visible_version(draft: Draft, key: str) -> str | None:
    """The version under which clients may have seen an object that exists.

    None when nobody can have: another request of this very group has written it.
    """
    revision = draft.revision(key)
    return object_version(revision) if revision != UNCOMMITTED else None


def version_refusal(draft: Draft, old: Object, given: ObjectMeta) -> Refusal | None:
    """Whether the caller saw what is current. Nothing stated, or "0", means: whatever it is."""
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
    """Whether the caller means an object that it saw, where there is none any more."""
    if not given.uid and not states_a_version(given):
        return None
    return Refusal(
        Reason.STALE_OBJECT,
        f"{kind.plural} {name!r} is gone; a new one can be made without uid and resourceVersion",
    )


def versioned_refusal(obj: Object) -> Refusal | None:
    """Whether an object that is to be made claims to have been seen already, as Kubernetes asks.

    Whoever sends one that it read means to change that one, and not to make another.
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
    """What an applied configuration states. Raises Invalid for what is no text."""
    metadata = body.get("metadata") if isinstance(body, dict) else None
    found = metadata if isinstance(metadata, dict) else {}
    texts = {"uid": found.get("uid"), "resourceVersion": found.get("resourceVersion")}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            error = FieldError(f"metadata.{name}", repr(value)[:_SHOWN_MAX], "must be a text")
            raise Invalid(str(error), (error,))
    return ObjectMeta(uid=texts["uid"] or "", resource_version=texts["resourceVersion"] or "")


def states_a_version(given: ObjectMeta) -> bool:
    """Whether a version is stated at all. Raises Invalid for what could never be one."""
    version = given.resource_version
    return bool(version) and not parse_version(version, "metadata.resourceVersion").is_any


def removal_precondition_refusal(draft: Draft, request: Remove, obj: Object) -> Refusal | None:
    """Whether this is the object that is to be deleted. As in Kubernetes, texts are compared."""
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
