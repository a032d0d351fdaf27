"""Facts that machines of a plane state for its checkers, and the effect that states them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.model.errors import Unavailable
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted


class StateFact(msgspec.Struct, frozen=True):
    """An effect of simulated machines only: state a fact."""

    fact: Any


class AcknowledgedRequest(msgspec.Struct, frozen=True):
    """A fact: a server accepted this request."""

    who: str
    request: Any
    answer: Accepted

    def __repr__(self) -> str:
        # Whole objects would make the trace unreadable.
        what, answer = type(self.request).__name__, self.answer
        return f"{self.who}: {what} at {answer.revision}{' again' if answer.replayed else ''}"


class DeniedRequest(msgspec.Struct, frozen=True):
    """A fact: a server refused this request, or reported that it did not happen.

    `once` means that the request was sent only once, so no other copy of it can have taken effect.
    """

    who: str
    request: Any
    answer: Refusal | Unavailable
    once: bool

    def __repr__(self) -> str:
        return f"{self.who}: {type(self.request).__name__} denied"


class ServerOutcome(msgspec.Struct, frozen=True):
    """A fact: this happened in a server."""

    what: str

    def __repr__(self) -> str:
        return self.what


class Trespass(msgspec.Struct, frozen=True):
    """A fact that must never be stated: a server accepted a request of a rogue."""

    who: str
    request: Any
