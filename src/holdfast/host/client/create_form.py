"""The form of a Create among typed requests: beside the bytes of its object.

A controller creates thousands of replicas at once, and an HTTP request for each would cost more
than deciding it. `host/client/request_batches` sends the form,
`host/api/plane/typed_request_routes` decodes it; the object passes all checks of a request body.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.encoding import wire
from holdfast.model.encoding.json_guard import measure
from holdfast.model.encoding.problems import describe_error, malformed_error
from holdfast.model.errors import Invalid, Missing
from holdfast.model.registry import kind_named
from holdfast.model.requests import Create, Term

# Marks a body that may hold one of these; a false match does no harm.
MARK = b'"type":"Create"'


class CreateForm(msgspec.Struct, frozen=True, tag="Create"):
    """A Create by the sender, not a dry run."""

    object: msgspec.Raw
    operation: str = ""
    term: Term | None = None


class _OnlyKind(msgspec.Struct, frozen=True):
    kind: str = ""


_KIND = msgspec.json.Decoder(_OnlyKind)


def can_carry(request: Any) -> bool:
    """Return whether a request is a Create that this form can hold."""
    return isinstance(request, Create) and not request.dry_run and not request.manager


def pack(request: Create) -> CreateForm:
    """Return the form of a request."""
    return CreateForm(msgspec.Raw(wire.encode(request.object)), request.operation, request.term)


def unpack(form: CreateForm) -> Create:
    """Return the request in a form. Raises Invalid and says what is wrong with its object."""
    body = bytes(form.object)
    measure(body)
    try:
        kind = kind_named(_KIND.decode(body).kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_error(f"is not an object: {describe_error(error)}") from None
    except Missing as error:
        raise Invalid(error.message) from None
    # An unknown field from a component is a bug; a warning would not be enough.
    obj = wire.decode(kind, body, strict=True).object
    if kind.namespaced and not obj.namespace:
        raise Invalid(f"metadata.namespace: must be given: {kind.plural} are in a namespace")
    return Create(obj, operation=form.operation, term=form.term)
