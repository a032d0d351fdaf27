"""Taps the stimuli and effects of a component: the answers it received are facts for checkers.

The component itself is the product's own machine and does not know of the tap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.errors import Expired, OutcomeUnknown
from holdfast.model.machine import Answered, Ask, Ended
from holdfast.model.read_requests import Get
from holdfast.model.refusal import Refusal
from holdfast.model.requests import Accepted, Bind, Create, Evict, JudgeNode, Move, RenewLease
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.planes.facts import AcknowledgedRequest, ServerOutcome, StateFact

_WRITES = (Bind, Create, Evict, JudgeNode, Move)


class ComponentTap:
    """A machine that steps another and states which of its requests were accepted.

    Accepted lease renewals are left out: they happen all the time and change nothing.
    """

    def __init__(self, identity: str, machine: SimulatedMachine) -> None:
        self.machine = machine
        self._identity = identity
        self._asked: dict[int, Ask] = {}

    @property
    def missed(self) -> int:
        """How many changes its streams should have brought and only a list found."""
        cache: Cache = getattr(self.machine, "cache", None) or self.machine._cache  # type: ignore[attr-defined]
        return cache.missed

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects: Sequence[Any] = self.machine.step(stimulus, now)
        kind = type(stimulus)
        if kind is Answered:
            ask = self._asked.pop(stimulus.call, None)
            fact = self._fact_of(ask, stimulus.body, effects) if ask is not None else None
            if fact is not None:
                effects = [StateFact(fact), *effects]
        elif kind is Ended and isinstance(stimulus.body, Expired):
            effects = [StateFact(ServerOutcome("list restarted after Expired")), *effects]
        for effect in effects:
            if type(effect) is Ask:
                self._asked[effect.call] = effect
        return effects

    def _fact_of(self, ask: Ask, answer: Any, effects: Sequence[Any]) -> Any:
        """The fact that an answer is for the checkers, or None."""
        match answer:
            case Accepted():
                if type(ask.body) is not RenewLease:
                    return AcknowledgedRequest(ask.sender or self._identity, ask.body, answer)
            case Refusal():
                return ServerOutcome(f"{type(ask.body).__name__} refused")
            case OutcomeUnknown() if isinstance(ask.body, _WRITES):
                reads = [it.body for it in effects if isinstance(it, Ask)]
                if any(isinstance(it, Get) for it in reads):
                    return ServerOutcome("lost answer settled by a read")
        return None


def tap_component(identity: str, make: Factory) -> Callable[[Seat], ComponentTap]:
    """Return a factory of machines that have a tap."""
    return lambda seat: ComponentTap(identity, make(seat))
