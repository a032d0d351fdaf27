"""Errors as `Status` objects: the HTTP code and the reason that Kubernetes clients act upon.

The authority's refusals and the server's own errors become responses here and nowhere else. The
Kubernetes reason says what a stock client may do about it; our own, finer reason code is in the
first cause and in a header, where our components read it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.commit.flow.overload import Overloaded, RejectionReason
from holdfast.host.server.authentication import CertificateEnded
from holdfast.model.encoding.problems import (
    CODE_INVALID,
    CODE_MALFORMED,
    CODE_TOO_LARGE,
    CODE_UNKNOWN_FIELD,
    escape,
)
from holdfast.model.errors import (
    Conflict,
    Expired,
    FieldError,
    Forbidden,
    HoldfastError,
    Invalid,
    Missing,
    OutcomeUnknown,
    Rejected,
    Unavailable,
)
from holdfast.model.kind_declaration import Kind
from holdfast.model.meta import API_GROUP
from holdfast.model.refusal import Reason, Refusal
from holdfast.observe.retry import LASTING

REASON_HEADER = "X-Holdfast-Reason"
RETRY_AFTER_S = 1
# The longest valid name.
SHOWN_MAX = 253

# Codes of errors that only the HTTP server raises; they have no class of their own.
BAD_REQUEST = "BadRequest"
METHOD_NOT_ALLOWED = "MethodNotAllowed"
NOT_ACCEPTABLE = "NotAcceptable"
UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
REQUEST_TIMEOUT = "RequestTimeout"
HEADER_TOO_LARGE = "HeaderTooLarge"
TOO_MANY_REQUESTS = "TooManyRequests"
NOT_FOUND = "NotFound"
INTERNAL_ERROR = "InternalError"
VERSION_TOO_LARGE = "ResourceVersionTooLarge"
# An agent could not be reached. Retrying at once would not help, so no Retry-After is sent.
NODE_UNREACHABLE = "NodeUnreachable"
NOT_STARTED = "NotStarted"

# HTTP code and Kubernetes reason, by our reason code and, where that is not listed, by class.
_BY_CODE: dict[str, tuple[int, str]] = {
    BAD_REQUEST: (400, "BadRequest"),
    CODE_MALFORMED: (400, "BadRequest"),
    CODE_UNKNOWN_FIELD: (400, "BadRequest"),
    CODE_TOO_LARGE: (413, "RequestEntityTooLarge"),
    CODE_INVALID: (422, "Invalid"),
    METHOD_NOT_ALLOWED: (405, "MethodNotAllowed"),
    NOT_ACCEPTABLE: (406, "NotAcceptable"),
    UNSUPPORTED_MEDIA_TYPE: (415, "UnsupportedMediaType"),
    REQUEST_TIMEOUT: (408, "Timeout"),
    HEADER_TOO_LARGE: (431, "RequestHeaderFieldsTooLarge"),
    TOO_MANY_REQUESTS: (429, "TooManyRequests"),
    INTERNAL_ERROR: (500, "InternalError"),
    VERSION_TOO_LARGE: (504, "Timeout"),
    NODE_UNREACHABLE: (502, "ServiceUnavailable"),
    NOT_STARTED: (400, "BadRequest"),
    Reason.UNAUTHENTICATED: (401, "Unauthorized"),
    Reason.EXISTS: (409, "AlreadyExists"),
}
_BY_CLASS: tuple[tuple[type[HoldfastError], tuple[int, str]], ...] = (
    (Missing, (404, "NotFound")),
    (Conflict, (409, "Conflict")),
    (Forbidden, (403, "Forbidden")),
    (Invalid, (422, "Invalid")),
    (Expired, (410, "Expired")),
    (Unavailable, (503, "ServiceUnavailable")),
    # It may have happened. A client that sent an operation id asks again under the same id.
    (OutcomeUnknown, (504, "Timeout")),
    (Rejected, (400, "BadRequest")),
)
_ENCODER = msgspec.json.Encoder()

Headers = dict[str, str]


def of(
    problem: HoldfastError | Refusal, kind: Kind | None = None, name: str = ""
) -> tuple[int, bytes, Headers]:
    """The HTTP code, body and headers for an error or a refusal."""
    error = problem.error() if isinstance(problem, Refusal) else problem
    code, reason = _code(error)
    headers = {REASON_HEADER: error.code}
    if isinstance(error, CertificateEnded) or _is_one_too_many(error):
        # This connection can serve nothing more, and a client would otherwise keep using it.
        headers["Connection"] = "close"
    if code == 401:
        headers["WWW-Authenticate"] = "Bearer"
    details: dict[str, Any] = {}
    if name:
        # The name comes from the client and may have any length.
        name = escape(name, SHOWN_MAX)
        details["name"] = name
    if kind is not None:
        details |= {"group": API_GROUP, "kind": kind.plural}
    causes = _causes(problem, error)
    if causes:
        details["causes"] = causes
    # What only a person can repair gets no Retry-After.
    if code in (429, 503, 504) and error.code not in LASTING:
        after_s = error.retry_after_s if isinstance(error, Overloaded) else RETRY_AFTER_S
        details["retryAfterSeconds"] = after_s
        headers["Retry-After"] = str(after_s)
    message = _message(problem, error, reason, causes, kind, name)
    return code, failure(code, reason, message, details), headers


def _is_one_too_many(error: HoldfastError) -> bool:
    return isinstance(error, Overloaded) and error.why is RejectionReason.TOO_MANY_CONNECTIONS


def failure(code: int, reason: str, message: str, details: dict[str, Any]) -> bytes:
    """The body of a Status that reports a failure."""
    return _ENCODER.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }
    )


def success(kind: Kind, name: str, uid: str) -> bytes:
    """The body of a Status that reports that an object is gone."""
    details = {"name": name, "group": API_GROUP, "kind": kind.plural, "uid": uid}
    return _ENCODER.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": details,
        }
    )


def _code(error: HoldfastError) -> tuple[int, str]:
    found = _BY_CODE.get(error.code)
    if found is not None:
        return found
    return next((it for cls, it in _BY_CLASS if isinstance(error, cls)), (500, INTERNAL_ERROR))


def _causes(problem: HoldfastError | Refusal, error: HoldfastError) -> list[dict[str, str]]:
    """Each wrong field; then the authority's other details, under our own reason code."""
    fields: tuple[FieldError, ...] = ()
    details: dict[str, str] = {}
    reason = "FieldValueInvalid"
    if isinstance(problem, Refusal):
        fields, details = problem.causes, problem.details
        if "fieldManagerConflict" in details:
            return [_cause("FieldManagerConflict", f.rule, f.path) for f in fields]
    elif isinstance(problem, Invalid):
        fields = problem.errors
    found = [_cause(reason, _rule(field), field.path) for field in fields]
    found += [_cause(error.code, value, key) for key, value in details.items()]
    if not found and error.code != type(error).code:
        found = [_cause(error.code, error.message, "")]
    return found


def _rule(field: FieldError) -> str:
    return f"Invalid value: {field.value}: {field.rule}" if field.value else field.rule


def _cause(reason: str, message: str, field: str) -> dict[str, str]:
    cause = {"reason": reason, "message": message}
    return cause | {"field": field} if field else cause


def _message(
    problem: HoldfastError | Refusal,
    error: HoldfastError,
    reason: str,
    causes: list[dict[str, str]],
    kind: Kind | None,
    name: str,
) -> str:
    """The message, in the wording that users of Kubernetes and their scripts know."""
    if kind is None or not name:
        return error.message
    resource = f'{kind.plural}.{API_GROUP} "{name}"'
    if _is_itself_missing(problem, name):
        return f"{resource} not found"
    if error.code == Reason.EXISTS:
        return f"{resource} already exists"
    if reason == "Invalid":
        return f'{kind.name}.{API_GROUP} "{name}" is invalid: {error.message}'
    if error.code == Reason.STALE_OBJECT and not _is_apply_conflict(causes):
        return (
            f"Operation cannot be fulfilled on {resource}: the object has been modified; "
            "please apply your changes to the latest version and try again"
        )
    return error.message


def _is_itself_missing(problem: HoldfastError | Refusal, name: str) -> bool:
    """Whether the named object itself is missing, not something that it refers to."""
    if isinstance(problem, Refusal):
        return problem.reason is Reason.MISSING and problem.details.get("name") == name
    return problem.code == Missing.code


def _is_apply_conflict(causes: list[dict[str, str]]) -> bool:
    return any(cause["reason"] == "FieldManagerConflict" for cause in causes)
