"""Turns an HTTP answer into a value or an error of ours: the inverse of `host/api/status_objects`.

A header holds our own reason, so that a refusal of the authority arrives unchanged; without it, as
from a proxy in between, the HTTP code decides.
"""

from __future__ import annotations

from typing import Any

import msgspec

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

REASON_HEADER = "X-Holdfast-Reason"
# What decoding raises for bytes that are not what one of our servers sends.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_ERRORS: dict[int, type[HoldfastError]] = {
    401: Forbidden,
    403: Forbidden,
    404: Missing,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: Unavailable,
}
_SENTENCE_MAX = 200


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[_Cause, ...] = ()
    retry_after_seconds: int = 0


class ApiStatus(msgspec.Struct, frozen=True):
    """The fields of a Status object that clients use."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details = _Details()


_DECODER = msgspec.json.Decoder(ApiStatus)


class HttpAnswer(msgspec.Struct, frozen=True):
    """One HTTP answer: its code, body, reason, and when to retry."""

    code: int
    body: bytes
    reason: str = ""
    retry_after_ms: int = 0
    server: str = ""
    # In the form of the header: `299 - "text"`.
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return 200 <= self.code < 300

    def error(self, *, may_have_happened: bool) -> HoldfastError:
        """Return the error of a refusal. After a server fault the outcome may be unknown."""
        return error_of(self.code, _status(self.body), self.reason, may_have_happened)


def error_of(
    code: int, status: ApiStatus, reason: str = "", may_have_happened: bool = False
) -> HoldfastError:
    """Return the error behind a Status."""
    message = status.message or f"the server answered {code}"
    precise = reason or _own_reason(status)
    if code == 422:
        return Invalid(message, _fields(status), code=precise or None)
    found = _ERRORS.get(code)
    if found is not None:
        return found(message, code=precise or None)
    if code == 503 and precise:
        return Unavailable(message, code=precise)
    if code >= 500:
        # Also a 503 that is not from our servers: a proxy may have forwarded the request.
        return OutcomeUnknown(message) if may_have_happened else Unavailable(message)
    return Rejected(message, code=precise or status.reason or None)


def status_of(body: Any) -> ApiStatus:
    """Return a Status inside another document, such as the last event of a watch."""
    try:
        return msgspec.convert(body, ApiStatus)
    except msgspec.ValidationError:
        return ApiStatus(message="the server sent a Status that cannot be decoded")


def _status(body: bytes) -> ApiStatus:
    try:
        return _DECODER.decode(body)
    except UNREADABLE:
        # A proxy answers in HTML; its first line is better than nothing.
        return ApiStatus(message=body[:_SENTENCE_MAX].decode(errors="replace").strip())


def _own_reason(status: ApiStatus) -> str:
    if status.reason == "AlreadyExists":
        return "AlreadyExists"
    return ""


def _fields(status: ApiStatus) -> tuple[FieldError, ...]:
    return tuple(FieldError(c.field, "", c.message) for c in status.details.causes)
