"""How a controller is doing, in numbers that only grow, for metrics and for whoever asks.

Its heartbeat is the lease of its scope, which it renews under its own name and everybody can read.
That says that it lives; these say what it does: whether it still looks, and what becomes of what it
asks for. Kept by `member.py`, told by `Team.beats`, brought to the servers by `host/pulsing.py`.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.errors import Unavailable
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted
from holdfast.model.time import Instant

# As many different reasons of refusals are told apart as there are codes; a bound all the same.
REASONS_MAX = 100
SENTENCE_MAX = 240


class Vitals:
    """The counts of one controller since its process began."""

    __slots__ = (
        "accepted",
        "down",
        "last_error",
        "last_error_ms",
        "last_look_ms",
        "looks",
        "refused",
        "sent",
        "unknown",
    )

    def __init__(self) -> None:
        # How often it looked at a key, and when it last did by the process's own clock.
        self.looks, self.last_look_ms = 0, 0
        # Requests, and what became of them; refusals by reason.
        self.sent = self.accepted = self.down = self.unknown = 0
        self.refused: dict[str, int] = {}
        # What last went wrong, and when.
        self.last_error, self.last_error_ms = "", 0

    def looked(self, requests: int, now: Instant) -> None:
        """It looked at a key, and sends so many requests."""
        self.looks += 1
        self.last_look_ms = now.monotonic_ms
        self.sent += requests

    def answered(self, answer: Any, now: Instant) -> None:
        """One of its requests was answered."""
        if not isinstance(answer, Accepted):
            self.last_error, self.last_error_ms = _said(answer), now.monotonic_ms
        match answer:
            case Accepted():
                self.accepted += 1
            case Refusal(reason=reason):
                name = str(reason)
                if name in self.refused or len(self.refused) < REASONS_MAX:
                    self.refused[name] = self.refused.get(name, 0) + 1
            case Unavailable():
                self.down += 1
            case _:
                self.unknown += 1


def _said(answer: Any) -> str:
    """What went wrong, in a sentence."""
    if isinstance(answer, Refusal):
        return f"{answer.reason}: {answer.message}"[:SENTENCE_MAX]
    return f"{type(answer).__name__}: {answer}"[:SENTENCE_MAX]
