"""What controller:nodes is told of the nodes, and what it decides on that.

Two faults make it deaf: to one node (`deaf`), or to all of a zone (`deaf_zone`). The agents renew
all the same and are acknowledged until the mark, so that marks and fences come at any moment of
their lives. Safety must not rest on who was heard: that is what the deadline is there for.

A `HeartbeatTap` stands around each team of controllers. It takes from the servers' answers what must
not be heard, and states as a fact what the team knew when it decided to mark or to fence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.correct.controller_runner import ControllerRunner
from holdfast.correct.nodes.controller import SUSPECT_AFTER_PERIODS
from holdfast.correct.nodes.silence import FRESH_MS
from holdfast.model.fence import FenceTiming
from holdfast.model.heartbeat import HeartbeatReport
from holdfast.model.machine import Answered, Ask
from holdfast.model.requests import JudgeNode, NodeAction
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.sim.cell import Seat
from holdfast.sim.faults import HOST, FaultKind, Heal
from holdfast.sim.plan import Fault
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.scripted_clients import StateFact

_GRAVE = (NodeAction.MARK, NodeAction.FENCE)


class NodeDecision(msgspec.Struct, frozen=True):
    """A fact: a team decided to say this word of a node.

    `listening_ms` is for how long each server that was heard of lately has listened, by its word;
    `silent` are the nodes that nobody has told it of for so long that it must know.
    """

    word: NodeAction
    node: str
    listening_ms: tuple[int, ...]
    silent: tuple[str, ...]


class HeartbeatFilter:
    """Who is not heard at present. Give it to the world once, before its controllers."""

    def __init__(self, world: World, zones: dict[str, str], timing: FenceTiming) -> None:
        """`zones` has the zone of each node."""
        self.zones = zones
        # From when on a node is silent even for a controller that lacks one server's answers.
        self.silent_ms = timing.renew_every_ms * SUSPECT_AFTER_PERIODS + FRESH_MS
        self._deaf: dict[str, int] = {}
        world.faults.add("deaf", FaultKind(HOST, self._node))
        world.faults.add("deaf_zone", FaultKind(HOST, self._zone))

    def _node(self, _world: World, fault: Fault) -> Heal:
        return self._deafen([fault.target])

    def _zone(self, _world: World, fault: Fault) -> Heal:
        zone = self.zones.get(fault.target)
        return self._deafen([node for node, where in self.zones.items() if where == zone])

    def _deafen(self, nodes: Sequence[str]) -> Heal:
        for node in nodes:
            self._deaf[node] = self._deaf.get(node, 0) + 1

        def heal() -> None:
            for node in nodes:
                self._deaf[node] -= 1
                if not self._deaf[node]:
                    del self._deaf[node]

        return heal

    def heard(self, heard: HeartbeatReport) -> HeartbeatReport:
        """What arrives of a server's answer."""
        if not self._deaf:
            return heard
        ages_ms = {node: age for node, age in heard.ages_ms.items() if node not in self._deaf}
        return msgspec.structs.replace(heard, ages_ms=ages_ms)

    def around(self, make: Callable[[Seat], ControllerRunner]) -> Callable[[Seat], HeartbeatTap]:
        """A factory of teams that hear through this."""
        return lambda seat: HeartbeatTap(self, make(seat))


class HeartbeatTap:
    """See the module's docstring. All it remembers is what its team was told."""

    def __init__(self, hearing: HeartbeatFilter, team: ControllerRunner) -> None:
        self._hearing, self._team = hearing, team
        self._heard_ms: dict[str, int] = {}
        # As of when each server was last heard of, and since when it listens.
        self._listening: dict[str, tuple[int, int]] = {}
        # Since when it has been told without a gap, and when it was told last.
        self._since_ms = self._told_ms = 0

    @property
    def cache(self) -> Cache:
        return self._team.cache

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if isinstance(stimulus, Answered) and isinstance(stimulus.body, HeartbeatReport):
            stimulus = Answered(stimulus.call, self._told(stimulus.body, now.monotonic_ms))
        effects = self._team.step(stimulus, now)
        told = [
            StateFact(self._decided(effect.body, now.monotonic_ms))
            for effect in effects
            if isinstance(effect, Ask)
            and isinstance(effect.body, JudgeNode)
            and effect.body.word in _GRAVE
        ]
        return [*told, *effects] if told else effects

    def _told(self, heard: HeartbeatReport, now_ms: int) -> HeartbeatReport:
        heard = self._hearing.heard(heard)
        if not self._listening or now_ms - self._told_ms > FRESH_MS:
            # It takes office, or comes back to it: whoever was silent before is none of its own.
            self._since_ms = now_ms
        self._told_ms = now_ms
        for word in heard.all_words():
            at_ms = now_ms - word.age_ms
            if at_ms >= self._listening.get(word.server, (at_ms, 0))[0]:
                self._listening[word.server] = (at_ms, now_ms - word.listening_ms)
        for node, age_ms in heard.ages_ms.items():
            self._heard_ms[node] = max(self._heard_ms.get(node, 0), now_ms - age_ms)
        return heard

    def _decided(self, judge: JudgeNode, now_ms: int) -> NodeDecision:
        before_ms = now_ms - self._hearing.silent_ms
        return NodeDecision(
            judge.word,
            judge.node,
            tuple(
                now_ms - since_ms
                for at_ms, since_ms in self._listening.values()
                if now_ms - at_ms <= FRESH_MS
            ),
            tuple(
                node
                for node in self._hearing.zones
                if max(self._heard_ms.get(node, 0), self._since_ms) < before_ms
            ),
        )
