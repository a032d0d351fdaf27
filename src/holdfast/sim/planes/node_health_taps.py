"""What controller:nodes learns about heartbeats, and what it decides from that.

Two faults hide heartbeats from it: of one node (`deaf`), or of all nodes of a zone (`deaf_zone`).
The agents still renew and are acknowledged until the mark, so that marks and fences come at any
moment of their lives. Safety must not rest on received heartbeats: the deadline ensures it.

A `HeartbeatTap` wraps each controller runner. It removes the hidden heartbeats from the servers'
answers, and states as a fact what the runner knew when it decided to mark or to fence. It also
keeps what the last answer told, so that a checker can demand a mark that is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.correct.controller_runner import ControllerRunner
from holdfast.correct.nodes.controller import SUSPECT_AFTER_PERIODS
from holdfast.correct.nodes.disruption_limits import OBSERVERS_MIN
from holdfast.correct.nodes.silence import FRESH_MS
from holdfast.model.machine import Answered, Ask
from holdfast.model.nodes.fence import FenceTiming, greatest_timing
from holdfast.model.nodes.heartbeat import HeartbeatReport
from holdfast.model.requests import JudgeNode, NodeAction
from holdfast.model.time import Instant
from holdfast.observe.cache import Cache
from holdfast.sim.cell import Seat
from holdfast.sim.faults import HOST, FaultKind, Heal
from holdfast.sim.plan import Fault
from holdfast.sim.planes.facts import StateFact
from holdfast.sim.world import World

_GRAVE = (NodeAction.MARK, NodeAction.FENCE)
# What is known this late may be too old for the controller before the next answer.
_LATE_MS = FRESH_MS // 2


class NodeDecision(msgspec.Struct, frozen=True):
    """A fact: controllers decided on this action for a node.

    `listening_ms` is how long each recently reported server has listened, by its own report;
    `silent_ms` has the nodes without a reported heartbeat for so long that the runner must know it,
    with that time. `approval` is the override that the decision rests on.
    """

    action: NodeAction
    node: str
    listening_ms: tuple[int, ...]
    silent_ms: dict[str, int]
    approval: str = ""


class Observation(msgspec.Struct, frozen=True):
    """What a runner knew when it received the last answer, by its own clock.

    `whole_ms` is for how long the reports of all servers have arrived without a gap, `agreed_ms`
    for how long so many servers have heard nodes that they agree about the others, and `silent_ms`
    for how long each node has been silent.
    """

    whole_ms: int
    agreed_ms: int
    silent_ms: dict[str, int]
    timing: FenceTiming


class HeartbeatFilter:
    """The nodes whose heartbeats are hidden. Create it once per world, before its controllers."""

    def __init__(self, world: World, zones: dict[str, str], timing: FenceTiming) -> None:
        """`zones` has the zone of each node."""
        self.zones = zones
        # After this time a node is silent even for a controller without one server's answers.
        self.silent_ms = timing.renew_every_ms * SUSPECT_AFTER_PERIODS + FRESH_MS
        # The one of whichever runner received an answer last.
        self.observation: Observation | None = None
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

    def visible_part(self, report: HeartbeatReport) -> HeartbeatReport:
        """The part of a server's answer that is not hidden."""
        if not self._deaf:
            return report
        ages_ms = {node: age for node, age in report.ages_ms.items() if node not in self._deaf}
        return msgspec.structs.replace(report, ages_ms=ages_ms)

    def around(self, make: Callable[[Seat], ControllerRunner]) -> Callable[[Seat], HeartbeatTap]:
        """A factory of controller runners that receive reports through this filter."""
        return lambda seat: HeartbeatTap(self, make(seat))


class HeartbeatTap:
    """See the module's docstring. All it remembers is what its runner received."""

    def __init__(self, heartbeats: HeartbeatFilter, runner: ControllerRunner) -> None:
        self._filter, self._runner = heartbeats, runner
        self._renewed_ms: dict[str, int] = {}
        # As of when each server was last reported, and since when it listens.
        self._listening: dict[str, tuple[int, int]] = {}
        # Since when reports have arrived without a gap, and when the last one arrived.
        self._since_ms = self._report_ms = 0
        # The life of each server with a report, and since when all live servers have one.
        self._lives: dict[str, str] = {}
        self._whole_since_ms = self._agreed_since_ms = 0

    @property
    def cache(self) -> Cache:
        return self._runner.cache

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        if type(stimulus) is Answered and type(stimulus.body) is HeartbeatReport:
            stimulus = Answered(stimulus.call, self._take_report(stimulus.body, now.monotonic_ms))
        effects = self._runner.step(stimulus, now)
        if not effects:
            return effects
        facts = [
            StateFact(self._decision(effect.body, now.monotonic_ms))
            for effect in effects
            if type(effect) is Ask and type(effect.body) is JudgeNode and effect.body.word in _GRAVE
        ]
        return [*facts, *effects] if facts else effects

    def _take_report(self, report: HeartbeatReport, now_ms: int) -> HeartbeatReport:
        report = self._filter.visible_part(report)
        is_late = now_ms - self._report_ms > _LATE_MS
        if not self._listening or now_ms - self._report_ms > FRESH_MS:
            # It becomes leader, or does so again: silence from before that does not count.
            self._since_ms = now_ms
        self._report_ms = now_ms
        for server in report.all_words():
            at_ms = now_ms - server.age_ms
            if at_ms >= self._listening.get(server.server, (at_ms, 0))[0]:
                self._listening[server.server] = (at_ms, now_ms - server.listening_ms)
        for node, age_ms in report.ages_ms.items():
            self._renewed_ms[node] = max(self._renewed_ms.get(node, 0), now_ms - age_ms)
        self._filter.observation = self._observation(report, is_late, now_ms)
        return report

    def _observation(self, report: HeartbeatReport, is_late: bool, now_ms: int) -> Observation:
        fresh = [it for it in report.all_words() if it.age_ms <= _LATE_MS]
        before, self._lives = self._lives, {it.server: it.life for it in fresh}
        roster = report.roster
        is_whole = (
            not is_late
            and self._lives == before
            and roster is not None
            and roster.age_ms <= _LATE_MS
            and all(it.life in ("", self._lives.get(it.server)) for it in roster.servers)
        )
        if not is_whole:
            self._whole_since_ms = now_ms
        if sum(it.heard > 0 for it in fresh) < OBSERVERS_MIN:
            self._agreed_since_ms = now_ms
        return Observation(
            now_ms - self._whole_since_ms,
            now_ms - self._agreed_since_ms,
            {
                node: now_ms - max(self._renewed_ms.get(node, 0), self._since_ms)
                for node in self._filter.zones
            },
            greatest_timing(*(it.timing for it in report.all_words())),
        )

    def _decision(self, judge: JudgeNode, now_ms: int) -> NodeDecision:
        before_ms = now_ms - self._filter.silent_ms
        return NodeDecision(
            judge.word,
            judge.node,
            tuple(
                now_ms - since_ms
                for at_ms, since_ms in self._listening.values()
                if now_ms - at_ms <= FRESH_MS
            ),
            {
                node: now_ms - last_ms
                for node in self._filter.zones
                if (last_ms := max(self._renewed_ms.get(node, 0), self._since_ms)) < before_ms
            },
            judge.approval,
        )
