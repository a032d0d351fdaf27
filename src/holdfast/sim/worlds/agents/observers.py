"""Observes agents: which renewals were acknowledged, whether an agent exposes a Secret, and since
when each agent has had all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.model.machine import Answered, ArchiveRecord, Ask, Persist
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.nodes.heartbeat import Renew, Renewed
from holdfast.model.read_requests import Get
from holdfast.model.time import Instant
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.check import Checker
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.process_table import FULL, STALLED, SecretExposed
from holdfast.sim.worlds.agents.secrets import contains_secret

_LASTING = (Ask, Persist, ArchiveRecord)


class AcknowledgedRenewal(msgspec.Struct, frozen=True):
    """A fact: a renewal was acknowledged that the node sent at this time of its own clock."""

    node: str
    sent_ms: int


class AgentTap:
    """A machine that steps an agent and states facts about it for the checkers."""

    def __init__(self, node: str, machine: SimulatedMachine) -> None:
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


def tapped_agent(_identity: str, make: Factory) -> Callable[[Seat], AgentTap]:
    """A factory of agents with a tap."""
    return lambda seat: AgentTap(seat.name, make(seat))


CHECK_MS = 250
# Requests to a stalled machine take effect when it wakes. This is longer than any grace period.
STALLED_AGO_US = 30_000_000


def check_every(world: World, ms: int, check: Callable[[World], None]) -> None:
    """Calls `check` with the world at this interval."""

    def again(_number: int, _a: None, _b: None) -> None:
        check(world)
        world.post(world.now_us + ms * 1000, again, None, None)

    world.post(world.now_us + ms * 1000, again, None, None)


class AgentAvailability(Checker):
    """Since when each agent is available. It checks nothing itself.

    An agent is available while it runs, the servers acknowledge it, and its machine carries out its
    requests. The other checkers demand something of an agent only from then on.
    """

    def __init__(self, world: World, nodes: tuple[str, ...], timing: FenceTiming) -> None:
        self._nodes = nodes
        self._silence_us = timing.self_stop_after_ms * 1000
        # By true time: when the agent was last unavailable, last not running, when its shims or its
        # machine last stalled, and when it was last acknowledged.
        self.unavailable_us = dict.fromkeys(nodes, 0)
        self.asleep_us = dict.fromkeys(nodes, 0)
        self.stalled_us = dict.fromkeys(nodes, 0)
        self.acked_us = dict.fromkeys(nodes, 0)
        # The boot, and the time by the node's own clock at which it sent the last acknowledged
        # renewal.
        self.sent_ms: dict[str, tuple[str, int]] = {}
        check_every(world, CHECK_MS, self._check)

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, AcknowledgedRenewal):
            boot = world.hosts[fact.node].boot
            known_boot, sent_ms = self.sent_ms.get(fact.node, ("", 0))
            latest_ms = max(sent_ms, fact.sent_ms) if known_boot == boot else fact.sent_ms
            self.sent_ms[fact.node] = (boot, latest_ms)
            self.acked_us[fact.node] = world.now_us

    def _check(self, world: World) -> None:
        for node in self._nodes:
            host, cell = world.hosts[node], world.cells[node]
            if host.frozen or host.things.get(STALLED, 0):
                self.stalled_us[node] = world.now_us
            if not cell.ready:
                self.asleep_us[node] = world.now_us
            is_silent = world.now_us - self.acked_us[node] > self._silence_us
            is_hindered = host.things.get(FULL, 0) or host.things.get(STALLED, 0)
            if not cell.ready or is_silent or is_hindered:
                self.unavailable_us[node] = world.now_us

    def available_ms(self, world: World, node: str, since_us: int = 0) -> int:
        """How long an agent has been available, counted from `since_us` at the earliest."""
        return (world.now_us - max(since_us, self.unavailable_us[node])) // 1000

    def was_stalled(self, node: str, around_us: int) -> bool:
        """Whether the machine stalled shortly before a moment, or since."""
        return self.stalled_us[node] > around_us - STALLED_AGO_US

    def was_awake(self, node: str, since_us: int) -> bool:
        """Whether the agent has run without interruption since a moment."""
        return self.asleep_us[node] < since_us
