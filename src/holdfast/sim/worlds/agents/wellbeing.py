"""Since when each agent has had all that it needs: what an agent owes, it owes from then on.

Kept for the checkers of this world. An agent is well that runs, is acknowledged by the servers, and
whose machine takes what it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.model.fence import FenceTiming
from holdfast.sim.check import Checker
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.ears import Acknowledged
from holdfast.sim.worlds.agents.table import FULL, STILL

LOOK_MS = 250
# What was told to a machine that stands still takes effect when it wakes, within any grace.
STILL_AGO_US = 30_000_000


def every(world: World, ms: int, look: Callable[[World], None]) -> None:
    """Look at the world again and again."""

    def again(_number: int, _a: None, _b: None) -> None:
        look(world)
        world.post(world.now_us + ms * 1000, again, None, None)

    world.post(world.now_us + ms * 1000, again, None, None)


class Wellbeing(Checker):
    """See the module's docstring. Finds nothing itself."""

    def __init__(self, world: World, nodes: tuple[str, ...], timing: FenceTiming) -> None:
        self._nodes = nodes
        self._silence_us = timing.self_stop_after_ms * 1000
        # By true time: when it was last not well, last not awake, its shims or itself last stood
        # still, and when it was last acknowledged.
        self.unwell_us = dict.fromkeys(nodes, 0)
        self.asleep_us = dict.fromkeys(nodes, 0)
        self.still_us = dict.fromkeys(nodes, 0)
        self.acked_us = dict.fromkeys(nodes, 0)
        # The sending of the last acknowledged renewal by the node's own clock, and in which boot.
        self.sent_ms: dict[str, tuple[str, int]] = {}
        every(world, LOOK_MS, self._look)

    def on_fact(self, world: World, fact: Any) -> None:
        if isinstance(fact, Acknowledged):
            boot = world.hosts[fact.node].boot
            known_boot, sent_ms = self.sent_ms.get(fact.node, ("", 0))
            latest_ms = max(sent_ms, fact.sent_ms) if known_boot == boot else fact.sent_ms
            self.sent_ms[fact.node] = (boot, latest_ms)
            self.acked_us[fact.node] = world.now_us

    def _look(self, world: World) -> None:
        for node in self._nodes:
            host, cell = world.hosts[node], world.cells[node]
            if host.frozen or host.things.get(STILL, 0):
                self.still_us[node] = world.now_us
            if not cell.ready:
                self.asleep_us[node] = world.now_us
            is_silent = world.now_us - self.acked_us[node] > self._silence_us
            is_hindered = host.things.get(FULL, 0) or host.things.get(STILL, 0)
            if not cell.ready or is_silent or is_hindered:
                self.unwell_us[node] = world.now_us

    def well_ms(self, world: World, node: str, since_us: int = 0) -> int:
        """For how long, and at most since then, an agent has been well."""
        return (world.now_us - max(since_us, self.unwell_us[node])) // 1000

    def was_still(self, node: str, around_us: int) -> bool:
        """Whether the machine stood still not long before a moment, or since."""
        return self.still_us[node] > around_us - STILL_AGO_US

    def was_awake(self, node: str, since_us: int) -> bool:
        """Whether the agent was awake all the time since then."""
        return self.asleep_us[node] < since_us
