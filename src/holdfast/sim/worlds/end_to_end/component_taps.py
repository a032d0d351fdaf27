"""Listens at a component's door: what it was told is ground truth for the checkers.

The component itself is the product's own machine and does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.errors import Expired, OutcomeUnknown
from holdfast.model.machine import Answered, Ask, Ended, Machine
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Bind, Create, Evict, JudgeNode, Move, RenewLease
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.observe.watch_events import Get
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.census import Seen
from holdfast.sim.worlds.authority.scripted_clients import Acknowledged, Tell

_WRITES = (Bind, Create, Evict, JudgeNode, Move)


class Overheard:
    """A machine that steps another and says which of its requests were accepted.

    That a lease was kept is no news: it happens all the time and changes nothing.
    """

    def __init__(self, identity: str, machine: Machine) -> None:
        self.machine = machine
        self._identity = identity
        self._asked: dict[int, Ask] = {}

    @property
    def missed(self) -> int:
        """How much of what it was to be told only a list brought to light."""
        cache: Cache = getattr(self.machine, "cache", None) or self.machine._cache  # type: ignore[attr-defined]
        return cache.missed

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects: Sequence[Any] = self.machine.step(stimulus, now)
        kind = type(stimulus)
        if kind is Answered:
            ask = self._asked.pop(stimulus.call, None)
            fact = self._heard(ask, stimulus.body, effects) if ask is not None else None
            if fact is not None:
                effects = [Tell(fact), *effects]
        elif kind is Ended and isinstance(stimulus.body, Expired):
            effects = [Tell(Seen("list begun anew after Expired")), *effects]
        for effect in effects:
            if type(effect) is Ask:
                self._asked[effect.call] = effect
        return effects

    def _heard(self, ask: Ask, answer: Any, effects: Sequence[Any]) -> Any:
        """What an answer tells the checkers, if anything."""
        match answer:
            case Accepted():
                if type(ask.body) is not RenewLease:
                    return Acknowledged(ask.sender or self._identity, ask.body, answer)
            case Refusal():
                return Seen(f"{type(ask.body).__name__} refused")
            case OutcomeUnknown() if isinstance(ask.body, _WRITES):
                reads = [it.body for it in effects if isinstance(it, Ask)]
                if any(isinstance(it, Get) for it in reads):
                    return Seen("lost answer settled by a read")
        return None


def overheard(identity: str, make: Callable[[Seat], Machine]) -> Callable[[Seat], Overheard]:
    """A factory of machines that are listened to."""
    return lambda seat: Overheard(identity, make(seat))
