"""All errors, sorted by what the caller does next.

Every package raises or returns these and defines none of its own, so a caller decides by class and
a user reads a sentence. The tree:

    HoldfastError            stable .code; the message names kind, name, revision
      Rejected               did not happen, by decision
        Conflict             stale precondition          -> observe, propose again
        Forbidden            invariant, owner, quota     -> publish the condition, wait for a change
        Invalid              malformed                   -> tell the caller: field, value, rule
        Missing              no such object              -> often: already done
      Unavailable            did not happen, by fault    -> back off, retry within the budget
      OutcomeUnknown         may have happened           -> read by operation id, then decide
      Expired                lease or watch gone         -> step down, or relist
    InvariantBroken          our bug; never caught       -> stop, print the history
      RecordsDisagree        two records cannot both be right; if both are current they are
                             quarantined, and the one request is refused
        RecordUnreadable     one record cannot be decoded by this version

Codes are for machines and never change; messages are for people and may.
"""

from __future__ import annotations

from typing import ClassVar, Never, NoReturn

import msgspec


class HoldfastError(Exception):
    """The base of all errors that Holdfast reports to its callers on purpose."""

    code: ClassVar[str] = "Error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            # An instance may be more precise than its class: Forbidden("...",
            # code="QuotaExceeded").
            self.__dict__["code"] = code


class Rejected(HoldfastError):
    """It did not happen, by decision."""

    code = "Rejected"


class Conflict(Rejected):
    """A precondition was stale: observe again, then propose again."""

    code = "Conflict"


class Forbidden(Rejected):
    """A rule, an owner or a quota refused it: publish the condition and wait for a change."""

    code = "Forbidden"


class FieldError(msgspec.Struct, frozen=True, gc=False):
    """One error of one field: its path, the given value, and the rule that it breaks."""

    path: str
    value: str
    rule: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.path, self.value, self.rule) if part)


class Invalid(Rejected):
    """Malformed. Carries every field error, so that a user can fix all of them at once."""

    code = "Invalid"

    def __init__(
        self, message: str, errors: tuple[FieldError, ...] = (), *, code: str | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.errors = errors


class Missing(Rejected):
    """The object does not exist. Often this means that the work is already done."""

    code = "Missing"


class Unavailable(HoldfastError):
    """It did not happen, by a fault: back off and retry within the budget."""

    code = "Unavailable"


class OutcomeUnknown(HoldfastError):
    """It may have happened. Never retry blindly: read by operation id or token, then decide."""

    code = "OutcomeUnknown"


class Expired(HoldfastError):
    """A lease or a watch position has expired: step down, or list again."""

    code = "Expired"


class InvariantBroken(Exception):
    """A bug in Holdfast. Not a HoldfastError, so that no handler for those can catch it."""

    def __init__(self, message: str, history: tuple[str, ...] = ()) -> None:
        super().__init__("\n  ".join((message, *history)))
        self.message = message
        self.history = history


class RecordsDisagree(InvariantBroken):
    """Two records cannot both be right; for example, a refund exceeds the charge.

    For records that were read at different revisions this proves nothing. A decision on such a view
    has the store confirm it first. `key` names the suspect record, if known.
    """

    def __init__(self, message: str, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class RecordUnreadable(RecordsDisagree):
    """A record cannot be decoded: it is damaged, or a newer version wrote it."""


class suspect:  # noqa: N801 - it is used like a function
    """Sets the suspect record of every disagreement that is raised inside the block."""

    __slots__ = ("_key",)

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: object, _traceback: object) -> None:
        if isinstance(error, RecordsDisagree) and not error.key:
            error.key = self._key


def agree(condition: object, message: str) -> None:
    """Raises RecordsDisagree unless the condition holds."""
    if not condition:
        raise RecordsDisagree(message)


def invariant(condition: object, message: str, history: tuple[str, ...] = ()) -> None:
    """Raises InvariantBroken unless the condition holds. Unlike `assert` it works under -O."""
    if not condition:
        raise InvariantBroken(message, history)


def unreachable(message: str) -> NoReturn:
    """Marks a branch that no input may reach."""
    raise InvariantBroken(message)


def unexpected(value: Never, doing: str) -> Never:
    """Ends a `match` over a closed union, as assert_never does, where values arrive that no type
    checker has seen.
    """
    raise InvariantBroken(f"{doing} {type(value).__name__}")


def invalid_option(option: str, value: str, rule: str) -> Invalid:
    """The error of an option of a command line, with the rule that its value breaks."""
    error = FieldError(option, value[:80], rule)
    return Invalid(str(error), (error,))
