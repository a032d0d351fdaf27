"""The form in which a Create travels among typed requests: beside its object's own bytes.

A controller brings thousands of replicas into being at once, and an HTTP request for each would
cost more than deciding it. `host/client/request_batches` sends the form,
`host/api/plane/typed_requests` reads it; the object goes through all the guards of a body by
itself.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.encoding import wire
from holdfast.model.encoding.json_guard import measure
from holdfast.model.encoding.problems import describe_error, malformed
from holdfast.model.errors import Invalid, Missing
from holdfast.model.registry import kind_named
from holdfast.model.requests import Create, Term

# How a body is known to bring one of these; that something else has these bytes does no harm.
MARK = b'"type":"Create"'


class CreateForm(msgspec.Struct, frozen=True, tag="Create"):
    """A Create by whoever asks, for good."""

    object: msgspec.Raw
    operation: str = ""
    term: Term | None = None


class _OnlyKind(msgspec.Struct, frozen=True):
    kind: str = ""


_KIND = msgspec.json.Decoder(_OnlyKind)


def can_carry(request: Any) -> bool:
    """Whether a request is a Create that this form can carry."""
    return isinstance(request, Create) and not request.dry_run and not request.manager


def pack(request: Create) -> CreateForm:
    """The form of a request."""
    return CreateForm(msgspec.Raw(wire.encode(request.object)), request.operation, request.term)


def unpack(form: CreateForm) -> Create:
    """The request in a form. Raises Invalid that says what is wrong with its object."""
    body = bytes(form.object)
    measure(body)
    try:
        kind = kind_named(_KIND.decode(body).kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"is no object: {describe_error(error)}") from None
    except Missing as error:
        raise Invalid(error.message) from None
    # An unknown field in what a component writes is a bug; it must not pass with a warning.
    obj = wire.decode(kind, body, strict=True).object
    if kind.namespaced and not obj.namespace:
        raise Invalid(f"metadata.namespace: {kind.plural} are in a namespace, which must be named")
    return Create(obj, operation=form.operation, term=form.term)
