"""What all writes have in common: the options of a request, and the object in its body.

The path names the object, so the body need not repeat the name, but must not contradict it.
"""

from __future__ import annotations

import msgspec

from holdfast.commit.objects.preconditions import states_a_version
from holdfast.host.api import status_objects
from holdfast.host.api.call import Call, bad
from holdfast.model.encoding import wire
from holdfast.model.encoding.wire import Decoded
from holdfast.model.errors import Invalid, Rejected
from holdfast.model.meta import Object

STRICT, WARN, IGNORE = "Strict", "Warn", "Ignore"
JSON_TYPES = ("", "application/json", "*/*", "application/octet-stream", "text/plain")
MANAGER_MAX = 128


def is_dry(call: Call) -> bool:
    """Whether to decide without writing. A value other than `All` must not be taken for it."""
    wish = call.query.get("dryRun", "")
    if wish not in ("", "All"):
        raise Invalid(f"dryRun: {wish[:40]!r} must be All")
    return bool(wish)


def manager(call: Call) -> str:
    """The field manager: as the client names it, or the program name in its User-Agent."""
    given = call.query.get("fieldManager", "")
    if len(given) > MANAGER_MAX or not given.isprintable():
        raise Invalid(f"fieldManager: must be printable and at most {MANAGER_MAX} characters")
    if given:
        return given
    agent = call.request.headers.get("User-Agent", "").partition("/")[0]
    return agent[:MANAGER_MAX] if agent.isprintable() else ""


def validation(call: Call) -> str:
    """What to do about unknown fields. As in Kubernetes, the default is to warn."""
    wish = call.query.get("fieldValidation", "") or WARN
    if wish not in (STRICT, WARN, IGNORE):
        raise Invalid(f"fieldValidation: {wish[:40]!r} must be Ignore, Warn or Strict")
    return wish


def demand_json(call: Call) -> None:
    """Refuse media types other than JSON; a body without a type counts as JSON."""
    if call.media_type not in JSON_TYPES and not call.media_type.endswith("+json"):
        raise Rejected(
            f"the body of the request was in an unknown format - accepted media types include: "
            f"application/json; got {call.media_type[:80]!r}",
            code=status_objects.UNSUPPORTED_MEDIA_TYPE,
        )


def decode_object(call: Call, body: bytes, wish: str) -> Decoded[Object]:
    """The object in a body, with the name and namespace of the path."""
    found = wire.decode(call.kind, body, strict=wish == STRICT)
    return Decoded(
        place_by_path(call, found.object), found.unknown, found.warnings if wish == WARN else ()
    )


def demand_unversioned(obj: Object) -> None:
    """Refuse to make an object that the caller has read, in the words of Kubernetes.

    A caller that sends what it read means to change that object, and not to make another.
    """
    if states_a_version(obj.metadata):
        bad("resourceVersion should not be set on objects to be created")


def place_by_path(call: Call, obj: Object) -> Object:
    """The object with the name and namespace of the path, which it must not contradict."""
    metadata = obj.metadata
    namespace = call.namespace if call.kind.namespaced else ""
    if metadata.namespace and metadata.namespace != namespace:
        bad("the namespace of the provided object does not match the namespace sent on the request")
    if call.name and metadata.name and metadata.name != call.name:
        bad(
            f"the name of the object ({metadata.name[:63]}) does not match "
            f"the name on the URL ({call.name[:63]})"
        )
    name = call.name or metadata.name
    if (metadata.name, metadata.namespace) == (name, namespace):
        return obj
    metadata = msgspec.structs.replace(metadata, name=name, namespace=namespace)
    return msgspec.structs.replace(obj, metadata=metadata)
