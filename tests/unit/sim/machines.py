"""Machines for tests of the simulator: a test sets their reaction and reads what they saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.model.machine import Answer, Asked
from holdfast.model.time import Instant
from holdfast.sim.cell import Seat, SimulatedMachine
from holdfast.sim.world import World

React = Callable[[Any, Instant], Sequence[Any] | None]


class Seen:
    """All stimuli of all lives of a machine, with the true time of each in ms."""

    def __init__(self, world: World, react: React | None = None) -> None:
        self._world = world
        self.react = react
        self.log: list[tuple[float, Any]] = []
        self.instants: list[Instant] = []
        self.seats: list[Seat] = []

    def __call__(self, seat: Seat) -> SimulatedMachine:
        """Act as the factory of every life."""
        self.seats.append(seat)
        return self

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        self.log.append((self._world.now_us / 1000, stimulus))
        self.instants.append(now)
        return (self.react(stimulus, now) or ()) if self.react is not None else ()

    def of(self, kind: type) -> list[Any]:
        return [stimulus for _, stimulus in self.log if isinstance(stimulus, kind)]

    def times_of(self, kind: type) -> list[float]:
        return [at_ms for at_ms, stimulus in self.log if isinstance(stimulus, kind)]


def echo(stimulus: Any, _now: Instant) -> Sequence[Any]:
    """Answer every request with its own body."""
    return (Answer(stimulus.call, stimulus.body),) if isinstance(stimulus, Asked) else ()


def on_start(*effects: Any) -> React:
    """Perform these effects at the start, and nothing else."""

    def react(stimulus: Any, _now: Instant) -> Sequence[Any]:
        return effects if type(stimulus).__name__ == "Started" else ()

    return react
