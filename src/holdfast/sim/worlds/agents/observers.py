"""Listens at an agent's door: what was acknowledged to it, and whether it says what it must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import Renew, Renewed
from holdfast.model.machine import Answered, ArchiveRecord, Ask, Machine, Persist
from holdfast.model.time import Instant
from holdfast.observe.watch_events import Get
from holdfast.sim.cell import Seat
from holdfast.sim.check import Checker
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.process_table import FULL, STILL, SecretExposed
from holdfast.sim.worlds.agents.secrets import contains_secret
from holdfast.sim.worlds.authority.scripted_clients import StateFact

_LASTING = (Ask, Persist, ArchiveRecord)


class AcknowledgedRenewal(msgspec.Struct, frozen=True):
    """A fact: a renewal that was sent at this reading of a node's clock was acknowledged."""

    node: str
    sent_ms: int


class AgentTap:
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
                facts.append(StateFact(AcknowledgedRenewal(self._node, sent[1])))
        for effect in effects:
            if type(effect) is Ask and isinstance(effect.body, Renew):
                self._renewals[effect.call] = (effect.body, now.monotonic_ms)
            elif isinstance(effect, _LASTING) and _exposes_secret(effect):
                facts.append(StateFact(SecretExposed(f"{type(effect).__name__} of {self._node}")))
        return [*facts, *effects] if facts else effects


def _exposes_secret(effect: Any) -> bool:
    if type(effect) is Ask and isinstance(effect.body, Get):
        return False
    return contains_secret(msgspec.msgpack.encode(effect))


def tapped_agent(node: str, make: Callable[[Seat], Machine]) -> Callable[[Seat], AgentTap]:
    """A factory of agents that are listened to."""
    return lambda seat: AgentTap(node, make(seat))


# Since when each agent has had all that it needs: what an agent owes, it owes from then on.
#
# Kept for the checkers of this world. An agent is well that runs, is acknowledged by the servers,
# and whose machine takes what it is told.

LOOK_MS = 250
# What was told to a machine that stands still takes effect when it wakes, within any grace.
STILL_AGO_US = 30_000_000


def every(world: World, ms: int, look: Callable[[World], None]) -> None:
    """Look at the world again and again."""

    def again(_number: int, _a: None, _b: None) -> None:
        look(world)
        world.post(world.now_us + ms * 1000, again, None, None)

    world.post(world.now_us + ms * 1000, again, None, None)


class AgentAvailability(Checker):
    """See the module's docstring. Finds nothing itself."""

    def __init__(self, world: World, nodes: tuple[str, ...], timing: FenceTiming) -> None:
        self._nodes = nodes
        self._silence_us = timing.self_stop_after_ms * 1000
        # By true time: when it was last not well, last not awake, its shims or itself last stood
        # still, and when it was last acknowledged.
        self.unavailable_us = dict.fromkeys(nodes, 0)
        self.asleep_us = dict.fromkeys(nodes, 0)
        self.stalled_us = dict.fromkeys(nodes, 0)
        self.acked_us = dict.fromkeys(nodes, 0)
        # The sending of the last acknowledged renewal by the node's own clock, and in which boot.
        self.sent_ms: dict[str, tuple[str, int]] = {}
        every(world, LOOK_MS, self._look)

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, AcknowledgedRenewal):
            boot = world.hosts[fact.node].boot
            known_boot, sent_ms = self.sent_ms.get(fact.node, ("", 0))
            latest_ms = max(sent_ms, fact.sent_ms) if known_boot == boot else fact.sent_ms
            self.sent_ms[fact.node] = (boot, latest_ms)
            self.acked_us[fact.node] = world.now_us

    def _look(self, world: World) -> None:
        for node in self._nodes:
            host, cell = world.hosts[node], world.cells[node]
            if host.frozen or host.things.get(STILL, 0):
                self.stalled_us[node] = world.now_us
            if not cell.ready:
                self.asleep_us[node] = world.now_us
            is_silent = world.now_us - self.acked_us[node] > self._silence_us
            is_hindered = host.things.get(FULL, 0) or host.things.get(STILL, 0)
            if not cell.ready or is_silent or is_hindered:
                self.unavailable_us[node] = world.now_us

    def available_ms(self, world: World, node: str, since_us: int = 0) -> int:
        """For how long, and at most since then, an agent has been well."""
        return (world.now_us - max(since_us, self.unavailable_us[node])) // 1000

    def was_stalled(self, node: str, around_us: int) -> bool:
        """Whether the machine stood still not long before a moment, or since."""
        return self.stalled_us[node] > around_us - STILL_AGO_US

    def was_awake(self, node: str, since_us: int) -> bool:
        """Whether the agent was awake all the time since then."""
        return self.asleep_us[node] < since_us
