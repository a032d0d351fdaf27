"""Listens at a component's door: what it was told is ground truth for the checkers.

The component itself is the product's own machine and does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.machine import Answered, Ask, Machine
from holdfast.model.requests import Accepted, RenewLease
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.authority.hands import Acknowledged, Tell


class Overheard:
    """A machine that steps another and says which of its requests were accepted.

    That a lease was kept is no news: it happens all the time and changes nothing.
    """

    def __init__(self, identity: str, machine: Machine) -> None:
        self.machine = machine
        self._identity = identity
        self._asked: dict[int, Ask] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects: Any = self.machine.step(stimulus, now)
        if isinstance(stimulus, Answered):
            ask = self._asked.pop(stimulus.call, None)
            is_news = ask is not None and not isinstance(ask.body, RenewLease)
            if is_news and isinstance(stimulus.body, Accepted):
                who = ask.sender or self._identity
                effects = [Tell(Acknowledged(who, ask.body, stimulus.body)), *effects]
        for effect in effects:
            if isinstance(effect, Ask):
                self._asked[effect.call] = effect
        return effects


def overheard(identity: str, make: Callable[[Seat], Machine]) -> Callable[[Seat], Overheard]:
    """A factory of machines that are listened to."""
    return lambda seat: Overheard(identity, make(seat))
