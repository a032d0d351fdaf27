"""What must hold of marks and fences of nodes, and of the incarnations that follow from them."""

from __future__ import annotations

from typing import Any

from holdfast.commit.context import PlaneSettings
from holdfast.correct.nodes.controller import MARK_AFTER_HALF_PERIODS, SUSPECT_AFTER_PERIODS
from holdfast.correct.nodes.disruption_limits import (
    AGREEMENT_FACTOR,
    SILENT_PERCENT_MAX,
    ZONE_NODES_MIN,
)
from holdfast.model.kinds.lease import lease_name
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.nodes.fence import PPM
from holdfast.model.requests import NodeAction
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.node_health_taps import HeartbeatFilter, NodeDecision, Observation
from holdfast.sim.planes.process_table import Processes
from holdfast.sim.world import World

# The disruption limits as intended, whatever the code under test makes of them.
_SHARE, _FEWEST, _AGREEMENT = SILENT_PERCENT_MAX, ZONE_NODES_MIN, AGREEMENT_FACTOR
_EXPECTED = (NodePhase.READY, NodePhase.SUSPECT, NodePhase.UNKNOWN)
_GONE = (NodePhase.FENCED, NodePhase.LOST)
_UNMARKED = (NodePhase.READY, NodePhase.SUSPECT)
_LEASE = lease_name("controller:nodes")
# From when a mark is due to its commit: a few rounds of the controllers, and late answers.
MARKED_WITHIN_MS = 15_000
# A registration that was in flight when the fence came may begin an unintended incarnation.
UNAWARE_MS = 6_000
# Work of the old incarnation has ended by then: a grace, a kill, and a look at it.
ENDS_WITHIN_MS = 5_000


class JudgedNodes(Checker):
    """SC6: the observer's own failures are not mistaken for failures of the nodes.

    No node is marked or fenced while most of its zone is silent, until that has lasted for the wait
    of the plane or a person approved it. Silence counts only from when a server listens: a server
    that has just started has received no heartbeat.

    Nor is a zone held back for longer than that: once it has been observed for the wait without a
    gap, and the nodes had time to be suspected and marked, none of its silent nodes is unmarked.
    """

    invariants = ("SC6",)

    def __init__(
        self, store_copy: StoreCopy, heartbeats: HeartbeatFilter, settings: PlaneSettings
    ) -> None:
        self._store_copy, self._heartbeats = store_copy, heartbeats
        timing = settings.fence
        self._wait_ms = settings.zone_silence_max_ms
        mark_ms = timing.renew_every_ms * MARK_AFTER_HALF_PERIODS // 2
        # Measured by the slowest allowed server clock against the fastest.
        self._listened_ms = mark_ms * (PPM - 2 * timing.drift_ppm) // PPM - 1
        # Where nodes are marked before they count as silent, the limits cannot hold in time.
        self._has_limits = MARK_AFTER_HALF_PERIODS >= 2 * SUSPECT_AFTER_PERIODS
        # Since when each node has its present incarnation.
        self._since_ms: dict[str, int] = {}
        # Since when each zone has its present nodes, and controller:nodes its present leader.
        self._members: dict[str, tuple[tuple[str, ...], int]] = {}
        self._led_ms = 0

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/nodes/"):
            if new is not None and (
                old is None or old.status.incarnation != new.status.incarnation
            ):
                self._since_ms[new.name] = world.now_us // 1000
        for _, _, lease in self._store_copy.changed("objects/leases/"):
            # Renewals are left out: its holder has changed.
            if lease is not None and lease.name == _LEASE:
                self._led_ms = world.now_us // 1000
        seen, self._heartbeats.observation = self._heartbeats.observation, None
        if seen is not None:
            self._check_held(world.now_us // 1000, seen)

    def _check_held(self, now_ms: int, seen: Observation) -> None:
        """Whether a zone is held back although its wait is over."""
        zones: dict[str, list[Node]] = {}
        for node in self._store_copy.all("objects/nodes/"):
            if node.status.phase in _EXPECTED:
                zones.setdefault(self._heartbeats.zones[node.name], []).append(node)
        period_ms = seen.timing.renew_every_ms
        # Servers that agree shorten the wait from then on.
        agree = seen.agreed_ms >= MARKED_WITHIN_MS
        wait_ms = self._wait_ms // _AGREEMENT if agree else self._wait_ms
        given_up_ms = period_ms * SUSPECT_AFTER_PERIODS + wait_ms
        due_ms = max(given_up_ms, period_ms * MARK_AFTER_HALF_PERIODS // 2) + MARKED_WITHIN_MS
        for zone, nodes in zones.items():
            names = tuple(sorted(f"{it.name}/{it.status.incarnation}" for it in nodes))
            if self._members.get(zone, ())[:1] != (names,):
                self._members[zone] = (names, now_ms)
            steady_ms = min(seen.whole_ms, now_ms - self._led_ms, now_ms - self._members[zone][1])
            silent = [it for it in nodes if seen.silent_ms[it.name] >= due_ms]
            most = -(-len(nodes) * _SHARE // 100)
            if len(nodes) < _FEWEST or len(silent) < most or steady_ms < due_ms:
                continue
            for node in silent:
                if node.status.phase in _UNMARKED:
                    for_s = seen.silent_ms[node.name] / 1_000
                    what = f"{node.name} is not marked, and most of its zone has been silent"
                    self.violated("SC6", f"{what} for {for_s:g} s")

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, NodeDecision):
            return
        what = f"{fact.node} is to be {'marked' if fact.action is NodeAction.MARK else 'fenced'}"
        if fact.action is NodeAction.MARK:
            for listening_ms in fact.listening_ms:
                if listening_ms < self._listened_ms:
                    self.violated("SC6", f"{what}, and a server listens for {listening_ms} ms")
        if self._has_limits:
            self._check_limits(world, fact, what)

    def _check_limits(self, world: World, fact: NodeDecision, what: str) -> None:
        zone = self._heartbeats.zones[fact.node]
        nodes = [
            node.name
            for node in self._store_copy.all("objects/nodes/")
            if self._heartbeats.zones[node.name] == zone and node.status.phase in _EXPECTED
        ]
        # The silence of an earlier incarnation does not count for the present one.
        before_ms = world.now_us // 1000 - 2 * self._heartbeats.silent_ms
        silent_ms = sorted(
            (
                fact.silent_ms[name]
                for name in nodes
                if name in fact.silent_ms and self._since_ms[name] < before_ms
            ),
            reverse=True,
        )
        most = -(-len(nodes) * _SHARE // 100)
        if len(nodes) < _FEWEST or len(silent_ms) < most or fact.approval:
            # The commit checks an approval.
            return
        # Servers that agree shorten the wait, and more than one is needed for that.
        wait_ms = self._wait_ms // _AGREEMENT if len(fact.listening_ms) > 1 else self._wait_ms
        if silent_ms[most - 1] < wait_ms:
            many = f"{len(silent_ms)} of {len(nodes)}"
            for_s = silent_ms[most - 1] / 1_000
            self.violated("SC6", f"{what}, and {many} have been silent for only {for_s:g} s")


class Reborn(Checker):
    """INV2: a node begins a new incarnation only after the work of the old one has ended.

    This holds for a machine that was frozen as a whole, too. Its work may resume after its
    deadline, but the agent that resumes with it stops it before it registers again.
    """

    invariants = ("INV2",)

    def __init__(self, store_copy: StoreCopy, processes: Processes) -> None:
        self._store_copy, self._processes = store_copy, processes
        self._fenced_ms: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/nodes/"):
            if new is None:
                continue
            was_gone = old is not None and old.status.phase in _GONE
            if new.status.phase in _GONE and not was_gone:
                self._fenced_ms[new.name] = world.now_us // 1000
            elif was_gone and new.status.incarnation > old.status.incarnation:
                self._check_start(world, new)

    def _check_start(self, world: World, node: Node) -> None:
        old = self._old_process(world, node.name)
        aware_ms = world.now_us // 1000 - self._fenced_ms.get(node.name, 0)
        if old and aware_ms > UNAWARE_MS:
            self.violated("INV2", f"{node.name} begins an incarnation while {old} still runs")
        if old:
            at_us = world.now_us + ENDS_WITHIN_MS * 1000
            world.post(at_us, self._check_ended, world, (node.name, old))

    def _check_ended(self, _number: int, world: World, what: tuple[str, str]) -> None:
        node, name = what
        if world.hosts[node].frozen or not world.cells[node].ready:
            # No agent runs that could have stopped it; the deadline will.
            return
        if name == self._old_process(world, node):
            self.violated("INV2", f"{name} of an earlier incarnation of {node} still runs")

    def _old_process(self, world: World, node: str) -> str:
        """One process that must not outlive the incarnation it was started in, or ""."""
        for held in self._processes.table(world.hosts[node]).values():
            keeps = held.launch.template.on_disconnect is OnDisconnect.KEEP
            if held.is_running and not keeps:
                return f"{held.launch.name} attempt {held.launch.attempt.number}"
        return ""
