"""Patches: merge patch, JSON patch and server-side apply, told apart by the type of the body."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad
from holdfast.host.api.objects import yaml_text
from holdfast.host.api.objects.bodies import IGNORE, STRICT, is_dry, manager, validation
from holdfast.host.api.objects.write_routes import write_response
from holdfast.model.encoding import wire
from holdfast.model.encoding.conform import is_unknown_field
from holdfast.model.errors import FieldError, Invalid, Rejected
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Patch, PatchType

_TYPES = {str(kind.value): kind for kind in PatchType}


def patch_type(call: Call) -> PatchType:
    """The type of the patch. Strategic merge is not offered: it needs built-in kinds."""
    found = _TYPES.get(call.media_type)
    if found is None:
        raise Rejected(
            "the body of the request was in an unknown format - accepted media types include: "
            + ", ".join(_TYPES),
            code=status_objects.UNSUPPORTED_MEDIA_TYPE,
        )
    return found


async def tree(call: Call, kind: PatchType) -> Any:
    """The body of a patch."""
    body = await call.body()
    found = yaml_text.decode_yaml(body) if kind is PatchType.APPLY else wire.decode_tree(body)
    if not isinstance(found, list if kind is PatchType.JSON else dict):
        bad(f"a {kind.value} must be {'a list' if kind is PatchType.JSON else 'an object'}")
    return found


async def patch(call: Call) -> web.StreamResponse:
    """Change an object by a patch; apply also creates one."""
    call.demand(call.route.verb)
    kind = patch_type(call)
    body = await tree(call, kind)
    wish, force = validation(call), call.flag("force")
    if kind is PatchType.APPLY:
        if not call.query.get("fieldManager"):
            error = FieldError("fieldManager", "", "Required value: is required for apply patch")
            raise Invalid(str(error), (error,))
        body = _named(call, body)
    elif force:
        raise Invalid("force: may be set for apply patches only")
    request = Patch(
        call.kind.plural,
        call.namespace,
        call.name,
        kind,
        body,
        call.route.subresource,
        manager(call),
        force,
        wish == STRICT,
        is_dry(call),
        call.operation,
        call.term,
    )
    verdict = await call.ask(request)
    if wish == IGNORE and not isinstance(verdict, Refusal):
        kept = tuple(it for it in verdict.warnings if not is_unknown_field(it))
        verdict = msgspec.structs.replace(verdict, warnings=kept)
    return await write_response(call, verdict)


def _named(call: Call, body: dict[str, Any]) -> dict[str, Any]:
    """The body with the name and the namespace of the path, which it must not contradict."""
    metadata = body.get("metadata")
    metadata = dict(metadata) if isinstance(metadata, dict) else {}
    place = {"name": call.name}
    if call.kind.namespaced:
        place["namespace"] = call.namespace
    for key, value in place.items():
        if metadata.get(key) not in (None, "", value):
            bad(f"metadata.{key}: does not match the path")
    return {**body, "metadata": {**metadata, **place}}
