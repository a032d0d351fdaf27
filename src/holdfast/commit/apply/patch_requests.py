"""Patch requests: merge patch, JSON patch and server-side apply, computed on the current object."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.access.visibility import visible_object
from holdfast.commit.apply.managed_fields import Conflicts
from holdfast.commit.apply.patch import json_patch, merge_patch
from holdfast.commit.apply.server_side import ApplyResult, apply
from holdfast.commit.apply.shapes import shape_of, tree_of
from holdfast.commit.component_preconditions import (
    grounds_refusal,
    states_version,
    unversioned_refusal,
)
from holdfast.commit.context import Context
from holdfast.commit.draft import Draft
from holdfast.commit.objects.object_writes import (
    Outcome,
    authorize,
    create_named,
    merge_change,
    not_found_refusal,
    recall_change,
    rewrite,
)
from holdfast.commit.objects.preconditions import (
    absence_refusal,
    stated_metadata,
    version_refusal,
    visible_version,
)
from holdfast.commit.operations import (
    CREATED,
    digest,
    recall_past,
    recall_unversioned,
    remember_unversioned,
)
from holdfast.commit.request_steps import ComparedRecord, PlacementStep, Written
from holdfast.model import keys
from holdfast.model.encoding.conform import conform
from holdfast.model.errors import FieldError, Invalid
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_of_plural
from holdfast.model.requests import Create, Patch, PatchType


def patch(draft: Draft, context: Context, request: Patch) -> Outcome:
    """Change an object by a patch, computed on the current object."""
    kind = kind_of_plural(request.plural)
    refusal = authorize(
        draft, context, "patch", kind, request.namespace, request.subresource, request.name
    )
    if refusal is not None:
        return refusal
    key = keys.object_key(kind, request.namespace, request.name)
    found: Object | None = draft.read(key)
    old = visible_object(context, found)
    mark = digest(request)
    is_birth = found is None and request.type is PatchType.APPLY and not request.subresource
    if old is None and not is_birth:
        return not_found_refusal(kind, request.namespace, request.name)
    refusal = grounds_refusal(draft, context, request)
    if refusal is not None:
        return refusal
    is_versioned = states_version(request.body)
    if old is not None:
        past = recall_change(
            draft, context, old, request.operation, mark, is_versioned=is_versioned
        )
    else:
        # The operation created an object of this name before, or changed one that is gone.
        past = recall_past(draft, context, request.operation, mark) or recall_unversioned(
            draft, context, key, request.operation, mark
        )
    if past is not None:
        return past
    outcome = _patch(draft, context, request, kind, old, mark)
    if isinstance(outcome, Written) and not is_versioned:
        remember_unversioned(draft, context, outcome.object, request.operation, mark)
    return outcome


def _patch(
    draft: Draft, context: Context, request: Patch, kind: Kind, old: Object | None, mark: str
) -> Outcome:
    key = keys.object_key(kind, request.namespace, request.name)
    try:
        if old is None or request.type is PatchType.APPLY:
            return _apply(draft, context, request, kind, old, mark)
        if request.type is PatchType.MERGE:
            tree = merge_patch(tree_of(old), request.body)
        else:
            tree = json_patch(_visible(draft, key, old), request.body)
        decoded = conform(kind.struct, tree, strict=request.strict)
    except Invalid as error:
        return Refusal(Reason.INVALID, error.message, {"name": request.name}, error.errors)
    given = decoded.object
    refusal = (
        _identity_refusal(old, given)
        or unversioned_refusal(context, given.metadata)
        or version_refusal(draft, old, given.metadata)
    )
    if refusal is not None:
        return refusal
    wanted = merge_change(old, given, request.subresource)
    return _warned(
        rewrite(
            draft,
            context,
            old,
            wanted,
            request.manager,
            request.subresource,
            request.operation,
            mark,
        ),
        decoded.warnings,
    )


def _visible(draft: Draft, key: str, old: Object) -> dict[str, Any]:
    """The tree as clients read it: their JSON patches also test and replace fields that are not
    stored.

    Kubectl replaces the version by the one that it saw, which makes it a precondition.
    """
    tree = tree_of(old)
    version = visible_version(draft, key)
    if version is not None:
        tree["metadata"]["resourceVersion"] = version
    tree["metadata"].setdefault("managedFields", [])
    return tree


def _warned(outcome: Outcome, warnings: tuple[str, ...]) -> Outcome:
    if isinstance(outcome, Written) and warnings:
        return msgspec.structs.replace(outcome, warnings=(*warnings, *outcome.warnings))
    return outcome


def _identity_refusal(old: Object, given: Object) -> Refusal | None:
    if (given.name, given.namespace) == (old.name, old.namespace):
        return None
    return Refusal(
        Reason.INVALID, f"metadata.name: {given.name!r}: a patch cannot rename {old.name!r}"
    )


def _naming_refusal(request: Patch, kind: Kind, given: Object) -> Refusal | None:
    """Refuse to create an object other than the one that the request names."""
    namespace = request.namespace if kind.namespaced else ""
    if (given.name, given.namespace) == (request.name, namespace):
        return None
    return Refusal(
        Reason.INVALID,
        f"metadata.name: {given.name!r}: the request is about {request.name!r}"
        + (f" in namespace {namespace!r}" if namespace else ""),
        {"name": request.name},
    )


def _apply(
    draft: Draft, context: Context, request: Patch, kind: Kind, old: Object | None, mark: str
) -> Outcome:
    """Server-side apply: the caller owns the fields that it states, and conflicts name the
    owner.
    """
    outcome = apply(
        tree_of(old) if old is not None else None,
        old.metadata.managed_fields if old is not None else (),
        request.body,
        manager=request.manager,
        force=request.force,
        now=context.at,
        shape=shape_of(kind.struct),
        subresource=request.subresource,
    )
    if isinstance(outcome, Conflicts):
        return _conflict(request, outcome)
    decoded = conform(kind.struct, outcome.tree, strict=request.strict)
    if old is None:
        refusal = _naming_refusal(request, kind, decoded.object) or absence_refusal(
            kind, request.name, stated_metadata(request.body)
        )
        if refusal is not None:
            return refusal
        made = Create(decoded.object, request.manager, request.dry_run, request.operation)
        return _warned(_created(draft, context, made, mark, outcome), decoded.warnings)
    # The result of the apply has the server's own version and uid, whatever the caller stated.
    refusal = _identity_refusal(old, decoded.object) or version_refusal(
        draft, old, stated_metadata(request.body)
    )
    if refusal is not None:
        return refusal
    wanted = merge_change(old, decoded.object, request.subresource)
    written = rewrite(
        draft,
        context,
        old,
        wanted,
        request.manager,
        request.subresource,
        request.operation,
        mark,
        outcome.managed_fields,
    )
    return _warned(written, decoded.warnings)


def _created(
    draft: Draft, context: Context, request: Create, mark: str, applied: ApplyResult
) -> Outcome:
    outcome = create_named(draft, context, request.object, request, mark, CREATED)
    if not isinstance(outcome, Written):
        return outcome
    metadata = msgspec.structs.replace(
        outcome.object.metadata, managed_fields=applied.managed_fields
    )
    after = msgspec.structs.replace(outcome.object, metadata=metadata)
    draft.write(keys.key_of(after), after)
    return msgspec.structs.replace(outcome, object=after)


def _conflict(request: Patch, conflicts: Conflicts) -> Refusal:
    return Refusal(
        Reason.STALE_OBJECT,
        conflicts.message,
        {"name": request.name, "fieldManagerConflict": "true"},
        tuple(
            FieldError(path=found.field, value="", rule=found.message) for found in conflicts.found
        ),
    )


STEPS = (
    PlacementStep(
        "patch or apply an object",
        "its writers",
        "nothing: the patch is computed on the current object",
        "another manager owns the field",
        "field ownership; a conflict names the owner",
        request=Patch,
        handler=patch,
        compares=(ComparedRecord.OBJECT,),
    ),
)
