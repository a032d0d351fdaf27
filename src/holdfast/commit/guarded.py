"""A server machine behind its gates, as one machine: what the simulator runs.

Requests (`Asked`) wait at the gates of `commit/gates`; whatever else happens goes straight through.
A request is under way from when the inner machine is given it until its `Answer`. What is refused
is answered with `Overloaded`, which is Unavailable: it did not happen. On a real server
`host/api/turns` does the same at the door, before a body is even read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.commit.classes import Errand, classify, errand_of
from holdfast.commit.gate import Entry, Gate, State
from holdfast.commit.gates import Gates
from holdfast.model.identity import Identity
from holdfast.model.machine import Answer, Asked, Machine, Wake, Woken
from holdfast.model.time import Instant

WAKE = "gates"


class Guarded:
    """See the module's docstring. `errand` says what a request does; `machine` stays reachable."""

    def __init__(
        self, machine: Machine, gates: Gates, errand: Callable[[Any], Errand] = errand_of
    ) -> None:
        self.machine, self.gates = machine, gates
        self._errand = errand
        # What was given to the inner machine and is not answered yet, by its number.
        self._begun: dict[int, tuple[Gate, Entry]] = {}
        self._wake_ms: int | None = None

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects: list[Any] = []
        if isinstance(stimulus, Asked):
            self._asked(stimulus, now, effects)
        elif isinstance(stimulus, Woken) and stimulus.name == WAKE:
            self._wake_ms = None
        else:
            self._through(stimulus, now, effects)
        self._turns(now, effects)
        return effects

    def _asked(self, asked: Asked, now: Instant, effects: list[Any]) -> None:
        sender = asked.sender
        identity = sender if isinstance(sender, Identity) else Identity(name=sender)
        errand = self._errand(asked.body)
        gate = self.gates.of(errand)
        entry = gate.enter(classify(identity, errand), now.monotonic_ms, about=asked)
        if entry.state is State.BEGUN:
            self._begin(gate, entry, now, effects)
        elif entry.state is State.REFUSED:
            effects.append(Answer(asked.call, entry.error))

    def _begin(self, gate: Gate, entry: Entry, now: Instant, effects: list[Any]) -> None:
        self._begun[entry.about.call] = (gate, entry)
        self._through(entry.about, now, effects)

    def _through(self, stimulus: Any, now: Instant, effects: list[Any]) -> None:
        """Hand a stimulus to the inner machine; whom it answers has left his seat."""
        for effect in self.machine.step(stimulus, now):
            effects.append(effect)
            if type(effect) is Answer:
                begun = self._begun.pop(effect.call, None)
                if begun is not None:
                    begun[0].leave(begun[1], now.monotonic_ms)

    def _turns(self, now: Instant, effects: list[Any]) -> None:
        """Give free seats away until nobody more can begin."""
        decided: deque[tuple[Gate, Entry]] = deque()
        while True:
            for gate in self.gates.all:
                decided += [(gate, entry) for entry in gate.turn(now.monotonic_ms)]
            if not decided:
                break
            while decided:
                gate, entry = decided.popleft()
                if entry.state is State.BEGUN:
                    self._begin(gate, entry, now, effects)
                else:
                    effects.append(Answer(entry.about.call, entry.error))
        firsts = [gate.next_ms for gate in self.gates.all]
        at_ms = min((it for it in firsts if it is not None), default=None)
        if at_ms is not None and (self._wake_ms is None or at_ms < self._wake_ms):
            self._wake_ms = at_ms
            effects.append(Wake(WAKE, max(at_ms, now.monotonic_ms + 1)))
