"""The requests that a machine has in flight: call numbers, what each is about, and a bound."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from holdfast.model.machine import Ask, Question
from holdfast.observe.watch_events import SERVERS

ASK_TIMEOUT_MS = 5_000

A = TypeVar("A")


class InflightRequest(msgspec.Struct, Generic[A], frozen=True):
    """One request in flight, and what it is about to its owner."""

    request: Question
    about: A
    sent_ms: int


class Inflight(Generic[A]):
    """See the module's docstring. It assigns the call numbers of its machine."""

    def __init__(self, asks_max: int) -> None:
        self._asks_max = asks_max
        self._calls = 0
        self._open: dict[int, InflightRequest[A]] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room(self) -> int:
        """How many more requests may be sent now."""
        return self._asks_max - len(self._open)

    def ask(
        self,
        request: Question,
        about: A,
        now_ms: int,
        *,
        to: str = SERVERS,
        sender: str = "",
        timeout_ms: int = ASK_TIMEOUT_MS,
    ) -> Ask:
        """The effect that sends a request. Callers check `room` first."""
        self._calls += 1
        self._open[self._calls] = InflightRequest(request, about, now_ms)
        return Ask(self._calls, to, request, timeout_ms, sender)

    def answered(self, call: int) -> InflightRequest[A] | None:
        """Remove and return the request that an answer is about; None for a repeated answer."""
        return self._open.pop(call, None)
