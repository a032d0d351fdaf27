"""A door before each scheduler: what it asks for and what it is told are facts for the story.

The scheduler behind it is the product's own machine and does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.machine import Answered, Ask, Machine
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Bind
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.watch_events import Get
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.scripted_clients import StateFact


class RequestSent(msgspec.Struct, frozen=True):
    """A fact: this is on its way to the servers."""

    who: str
    request: Any

    def __repr__(self) -> str:
        return f"{self.who} asks for {_words(self.request)}"


class AnswerReceived(msgspec.Struct, frozen=True):
    """A fact: this is what came back."""

    who: str
    request: Any
    answer: Any

    def __repr__(self) -> str:
        return f"{self.who} is told of {_words(self.request)}: {_verdict(self.answer)}"


class Stall(msgspec.Struct, frozen=True):
    """An effect of the stage alone: stand still from here on, perhaps with the clock."""

    for_ms: int
    clock_stops: bool


class SchedulerTap:
    """A machine that steps a scheduler and tells what passes.

    `stall` makes it stand still once, in the midst of a batch: after so many binds of one step and
    before the others, which go out when it wakes.
    """

    def __init__(self, who: str, machine: Machine, stall: tuple[int, Stall] | None = None) -> None:
        self.who, self.machine = who, machine
        self._stall = stall
        self._asked: dict[int, Ask] = {}
        self._rest: list[Any] = []

    @property
    def missed(self) -> int:
        """How much only a resync brought to light, as the machine itself counts it."""
        missed: int = self.machine.missed  # type: ignore[attr-defined]
        return missed

    @property
    def cache(self) -> Cache:
        """The picture of the scheduler right behind this door."""
        cache: Cache = self.machine.cache  # type: ignore[attr-defined]
        return cache

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        told: list[Any] = []
        if isinstance(stimulus, Answered):
            asked = self._asked.pop(stimulus.call, None)
            if asked is not None:
                told.append(StateFact(AnswerReceived(self.who, asked.body, stimulus.body)))
        effects = [*self._rest, *self.machine.step(stimulus, now)]
        self._rest = []
        effects = self._stalled(effects)
        for effect in effects:
            if isinstance(effect, Ask):
                self._asked[effect.call] = effect
                told.append(StateFact(RequestSent(self.who, effect.body)))
            told.append(effect)
        return told

    def _stalled(self, effects: list[Any]) -> list[Any]:
        binds = [i for i, it in enumerate(effects) if isinstance(it, Ask) and _is_bind(it)]
        if self._stall is None or len(binds) <= self._stall[0]:
            return effects
        (count, stall), self._stall = self._stall, None
        place = binds[count]
        self._rest = effects[place:]
        return [*effects[:place], stall]


def tap_scheduler(
    who: str, make: Callable[[Seat], Machine], stall: tuple[int, Stall] | None = None
) -> Callable[[Seat], SchedulerTap]:
    """A factory of machines with a door."""
    return lambda seat: SchedulerTap(who, make(seat), stall)


def _is_bind(ask: Ask) -> bool:
    return isinstance(ask.body, Bind)


def _words(request: Any) -> str:
    match request:
        case Bind():
            return f"{request.target.name} on {request.node} (epoch {request.term.epoch})"
        case Get():
            return f"a look at {request.name}"
    target = getattr(request, "target", None)
    name = type(request).__name__
    return f"{name} of {target.name}" if target is not None else name


def _verdict(answer: Any) -> str:
    match answer:
        case Accepted():
            return f"accepted at revision {answer.revision}"
        case Refusal():
            return f"refused, {answer.reason.value}: {answer.message}"
        case Exception():
            return f"{type(answer).__name__}: {answer}"
    return type(answer).__name__
