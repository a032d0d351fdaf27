"""Listens at an agent's door: what was acknowledged to it, and whether it says what it must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.heartbeat import Renew, Renewed
from holdfast.model.machine import Answered, Ask, Machine, Persist, Record
from holdfast.model.time import Instant
from holdfast.observe.news import Get
from holdfast.sim.cell import Seat
from holdfast.sim.worlds.agents.seals import is_shown
from holdfast.sim.worlds.agents.table import Shown
from holdfast.sim.worlds.authority.hands import Tell

_LASTING = (Ask, Persist, Record)


class Acknowledged(msgspec.Struct, frozen=True):
    """A fact: a renewal that was sent at this reading of a node's clock was acknowledged."""

    node: str
    sent_ms: int


class Ears:
    """A machine that steps an agent and states what the checkers have to know of it."""

    def __init__(self, node: str, machine: Machine) -> None:
        self.machine = machine
        self._node = node
        self._renewals: dict[int, tuple[Renew, int]] = {}

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        effects: Sequence[Any] = self.machine.step(stimulus, now)
        facts: list[Any] = []
        if type(stimulus) is Answered:
            sent = self._renewals.pop(stimulus.call, None)
            answer = stimulus.body
            if sent is not None and isinstance(answer, Renewed) and answer.acknowledges(sent[0]):
                facts.append(Tell(Acknowledged(self._node, sent[1])))
        for effect in effects:
            if type(effect) is Ask and isinstance(effect.body, Renew):
                self._renewals[effect.call] = (effect.body, now.monotonic_ms)
            elif isinstance(effect, _LASTING) and _shows(effect):
                facts.append(Tell(Shown(f"{type(effect).__name__} of {self._node}")))
        return [*facts, *effects] if facts else effects


def _shows(effect: Any) -> bool:
    if type(effect) is Ask and isinstance(effect.body, Get):
        return False
    return is_shown(msgspec.msgpack.encode(effect))


def listened(node: str, make: Callable[[Seat], Machine]) -> Callable[[Seat], Ears]:
    """A factory of agents that are listened to."""
    return lambda seat: Ears(node, make(seat))
