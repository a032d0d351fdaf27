"""Taps a scheduler: its requests and the answers it receives become facts for the run log.

The scheduler is the product's own machine and does not know of the tap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.machine import Answered, Ask
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Bind
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.planes.facts import StateFact


class RequestSent(msgspec.Struct, frozen=True):
    """A fact: a scheduler sent this request to the servers."""

    who: str
    request: Any

    def __repr__(self) -> str:
        return f"{self.who} sends {_describe_request(self.request)}"


class AnswerReceived(msgspec.Struct, frozen=True):
    """A fact: a scheduler received this answer."""

    who: str
    request: Any
    answer: Any

    def __repr__(self) -> str:
        request = _describe_request(self.request)
        return f"{self.who} gets the answer to {request}: {_describe_answer(self.answer)}"


class Stall(msgspec.Struct, frozen=True):
    """An effect of simulated machines only: pause from here on, perhaps with the clock stopped."""

    for_ms: int
    clock_stops: bool


class SchedulerTap:
    """A machine that steps a scheduler and states its requests and answers as facts.

    `stall` pauses it once, in the middle of a batch: after this number of binds of one step and
    before the others, which it sends when it resumes.
    """

    def __init__(
        self, who: str, machine: SimulatedMachine, stall: tuple[int, Stall] | None = None
    ) -> None:
        self.who, self.machine = who, machine
        self._stall = stall
        self._asked: dict[int, Ask] = {}
        self._rest: list[Any] = []

    @property
    def missed(self) -> int:
        """How many changes only a resync found, as the machine itself counts them."""
        missed: int = self.machine.missed  # type: ignore[attr-defined]
        return missed

    @property
    def cache(self) -> Cache:
        """The cache of the tapped scheduler."""
        cache: Cache = self.machine.cache  # type: ignore[attr-defined]
        return cache

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects_out: list[Any] = []
        if isinstance(stimulus, Answered):
            asked = self._asked.pop(stimulus.call, None)
            if asked is not None:
                effects_out.append(StateFact(AnswerReceived(self.who, asked.body, stimulus.body)))
        effects = [*self._rest, *self.machine.step(stimulus, now)]
        self._rest = []
        effects = self._stall_once(effects)
        for effect in effects:
            if isinstance(effect, Ask):
                self._asked[effect.call] = effect
                effects_out.append(StateFact(RequestSent(self.who, effect.body)))
            effects_out.append(effect)
        return effects_out

    def _stall_once(self, effects: list[Any]) -> list[Any]:
        binds = [i for i, it in enumerate(effects) if isinstance(it, Ask) and _is_bind(it)]
        if self._stall is None or len(binds) <= self._stall[0]:
            return effects
        (count, stall), self._stall = self._stall, None
        place = binds[count]
        self._rest = effects[place:]
        return [*effects[:place], stall]


def tap_scheduler(
    who: str, make: Factory, stall: tuple[int, Stall] | None = None
) -> Callable[[Seat], SchedulerTap]:
    """A factory of tapped schedulers."""
    return lambda seat: SchedulerTap(who, make(seat), stall)


def _is_bind(ask: Ask) -> bool:
    return isinstance(ask.body, Bind)


def _describe_request(request: Any) -> str:
    match request:
        case Bind():
            return f"Bind of {request.target.name} to {request.node} (epoch {request.term.epoch})"
        case Get():
            return f"Get of {request.name}"
    target = getattr(request, "target", None)
    name = type(request).__name__
    return f"{name} of {target.name}" if target is not None else name


def _describe_answer(answer: Any) -> str:
    match answer:
        case Accepted():
            return f"accepted at revision {answer.revision}"
        case Refusal():
            return f"refused, {answer.reason.value}: {answer.message}"
        case Exception():
            return f"{type(answer).__name__}: {answer}"
    return type(answer).__name__
