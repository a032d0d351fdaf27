"""What a server's answer means to a machine: success, a refusal as a value, or an error of ours.

A client of people raises refusals (`host/client/answers`); a machine gets the refusal of the
authority with its reason and details, and reacts to that. `host/client/request_calls` and
`host/client/request_batches` use this.
"""

from __future__ import annotations

import msgspec

from holdfast.host.client.answers import UNREADABLE, ApiStatus, HttpAnswer, error_of
from holdfast.model.encoding.resource_versions import object_revision
from holdfast.model.encoding.wire import decode_trusted
from holdfast.model.errors import FieldError, HoldfastError, Invalid, Missing, OutcomeUnknown
from holdfast.model.meta import Object
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.registry import kind_named
from holdfast.model.requests import Accepted

# The reason of a refusal without one, as from a proxy in between.
_BY_CODE = {
    401: Reason.UNAUTHENTICATED,
    403: Reason.NOT_ALLOWED,
    404: Reason.MISSING,
    409: Reason.CONTENTION,
}
# With these codes the request did not happen now; they are not a verdict.
_FAULTS = (408, 410, 429)
_FIELD = "FieldValueInvalid"
_FIELD_MANAGER = "FieldManagerConflict"
_REASONS = {reason.value: reason for reason in Reason}

_STATUS = msgspec.json.Decoder(ApiStatus)


class Result(msgspec.Struct, frozen=True):
    """The outcome of one request: success with its objects, or a refusal with its Status."""

    code: int = 200
    revision: int = 0
    replayed: bool = False
    objects: list[msgspec.Raw] = []
    reason: str = ""
    status: ApiStatus = ApiStatus()


class Results(msgspec.Struct, frozen=True):
    """The answer to many requests, in their order."""

    items: list[Result]


def refusal_of(
    code: int, status: ApiStatus, reason: str, *, is_write: bool
) -> Refusal | HoldfastError:
    """Return a refusal. After a fault of the server the outcome of a write is unknown."""
    if code in _FAULTS or not 400 <= code < 500:
        return error_of(code, status, reason, may_have_happened=is_write)
    causes = status.details.causes
    kept = {cause.field: cause.message for cause in causes if cause.reason == reason}
    if any(cause.reason == _FIELD_MANAGER for cause in causes):
        kept["fieldManagerConflict"] = "true"
    return Refusal(
        _REASONS.get(reason) or _BY_CODE.get(code, Reason.INVALID),
        status.message or f"the server answered {code}",
        {field: message for field, message in kept.items() if field},
        tuple(
            FieldError(cause.field, "", cause.message)
            for cause in causes
            if cause.reason in (_FIELD, _FIELD_MANAGER)
        ),
    )


def refusal_of_answer(answer: HttpAnswer, *, is_write: bool) -> Refusal | HoldfastError:
    """Return the refusal in a whole HTTP answer."""
    try:
        status = _STATUS.decode(answer.body)
    except UNREADABLE:
        # A proxy answers in HTML, of which the client takes what it can.
        return answer.error(may_have_happened=is_write)
    return refusal_of(answer.code, status, answer.reason, is_write=is_write)


def verdict_of(result: Result) -> Accepted | Refusal | HoldfastError:
    """Return the verdict on one of many requests that were sent together."""
    if not 200 <= result.code < 300:
        return refusal_of(result.code, result.status, result.reason, is_write=True)
    try:
        objects = tuple(read_object(bytes(raw)) for raw in result.objects)
    except (*UNREADABLE, Missing) as error:
        return unreadable_answer(error)
    return Accepted(result.revision, objects, result.replayed)


class _Kind(msgspec.Struct, frozen=True):
    kind: str = ""


def read_object(body: bytes) -> Object:
    """Decode an object of any kind. Raises a decoding error, or Missing for an unknown kind."""
    kind = kind_named(msgspec.json.decode(body, type=_Kind).kind)
    return decode_trusted(kind.struct, body)


def write_verdict(answer: HttpAnswer) -> Accepted | Refusal | HoldfastError:
    """Return the verdict on a write of one object.

    A bare Status is a success as well: the object is gone, by this request or by an earlier one. It
    names no revision.
    """
    if not answer.is_good:
        return refusal_of_answer(answer, is_write=True)
    try:
        if msgspec.json.decode(answer.body, type=_Kind).kind == "Status":
            return Accepted(0, ())
        obj = read_object(answer.body)
        version = obj.metadata.resource_version
        revision = object_revision(version) if version else 0
    except (*UNREADABLE, Invalid, Missing) as error:
        return unreadable_answer(error)
    return Accepted(revision, (obj,))


def unreadable_answer(error: Exception) -> OutcomeUnknown:
    """Return the error for a write whose answer is not from one of our servers."""
    return OutcomeUnknown(f"the answer cannot be decoded: {error}")
