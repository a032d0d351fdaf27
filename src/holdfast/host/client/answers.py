"""From an HTTP answer to a value or an error of ours: the inverse of `host/api/status`.

Our own reason travels in a header, so that what the authority refused arrives as it was refused;
without it, as from a proxy in between, the HTTP code decides.
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
    """A Status object, as far as clients act upon it."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details = _Details()


_DECODER = msgspec.json.Decoder(ApiStatus)


class HttpAnswer(msgspec.Struct, frozen=True):
    """One HTTP answer: its code, its body, what it says of its reason and of patience."""

    code: int
    body: bytes
    reason: str = ""
    retry_after_ms: int = 0
    server: str = ""
    # As the header has them: `299 - "text"`.
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        return 200 <= self.code < 300

    def error(self, *, may_have_happened: bool) -> HoldfastError:
        """What a refusing answer means. A fault in the server leaves it open what was done."""
        return error_of(self.code, _status(self.body), self.reason, may_have_happened)


def error_of(
    code: int, status: ApiStatus, reason: str = "", may_have_happened: bool = False
) -> HoldfastError:
    """The error behind a Status."""
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
        # Also a 503 that is not of our own making: a proxy may have passed the request on.
        return OutcomeUnknown(message) if may_have_happened else Unavailable(message)
    return Rejected(message, code=precise or status.reason or None)


def status_of(body: Any) -> ApiStatus:
    """A Status inside another document, such as the last event of a watch."""
    try:
        return msgspec.convert(body, ApiStatus)
    except msgspec.ValidationError:
        return ApiStatus(message="the server sent a Status that cannot be read")


def _status(body: bytes) -> ApiStatus:
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        # A proxy speaks HTML; its first line is better than nothing.
        return ApiStatus(message=body[:_SENTENCE_MAX].decode(errors="replace").strip())


def _own_reason(status: ApiStatus) -> str:
    if status.reason == "AlreadyExists":
        return "AlreadyExists"
    return ""


def _fields(status: ApiStatus) -> tuple[FieldError, ...]:
    return tuple(FieldError(c.field, "", c.message) for c in status.details.causes)
