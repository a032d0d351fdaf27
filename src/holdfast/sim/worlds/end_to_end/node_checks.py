"""What must hold of the words that are said of nodes, and of the lives that follow from them."""

from __future__ import annotations

from typing import Any

from holdfast.correct.nodes.controller import MARK_AFTER_HALF_PERIODS, SUSPECT_AFTER_PERIODS
from holdfast.correct.nodes.disruption_limits import SILENT_PERCENT_MAX, ZONE_NODES_MIN
from holdfast.model.fence import PPM, FenceTiming
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.requests import NodeAction
from holdfast.sim.check import Checker, Commit
from holdfast.sim.world import World
from holdfast.sim.worlds.authority.ledger_oracle import Books
from holdfast.sim.worlds.end_to_end.node_health_taps import Decided, Hearing
from holdfast.sim.worlds.end_to_end.process_table import Processes

# The brake as it is meant to be, whatever the code under test makes of it.
_SHARE, _FEWEST = SILENT_PERCENT_MAX, ZONE_NODES_MIN
_EXPECTED = (NodePhase.READY, NodePhase.SUSPECT, NodePhase.UNKNOWN)
_GONE = (NodePhase.FENCED, NodePhase.LOST)
# A registration that was on its way when the fence came may begin a life that nobody meant to.
UNAWARE_MS = 6_000
# What a new life finds of the old one is gone by then: a grace, a kill, and a look at it.
ENDS_WITHIN_MS = 5_000


class Judged(Checker):
    """SC6: the observer's own troubles are never taken for those of the nodes.

    Nothing is marked or fenced while most of a zone is silent, and silence counts only from when
    somebody was there to hear: a server that has just started has heard nobody.
    """

    invariants = ("SC6",)

    def __init__(self, books: Books, hearing: Hearing, timing: FenceTiming) -> None:
        self._books, self._hearing = books, hearing
        mark_ms = timing.renew_every_ms * MARK_AFTER_HALF_PERIODS // 2
        # By a server whose clock is as slow as it may be, of one that is as fast.
        self._listened_ms = mark_ms * (PPM - 2 * timing.drift_ppm) // PPM - 1
        # Where nodes are marked before they count as silent, the brake cannot know in time.
        self._can_brake = MARK_AFTER_HALF_PERIODS >= 2 * SUSPECT_AFTER_PERIODS
        # Since when each node lives its present life.
        self._since_ms: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/nodes/"):
            if new is not None and (
                old is None or old.status.incarnation != new.status.incarnation
            ):
                self._since_ms[new.name] = world.now_us // 1000

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, Decided):
            return
        what = f"{fact.node} is to be {'marked' if fact.word is NodeAction.MARK else 'fenced'}"
        if fact.word is NodeAction.MARK:
            for listening_ms in fact.listening_ms:
                if listening_ms < self._listened_ms:
                    self.violated("SC6", f"{what}, and a server listens for {listening_ms} ms")
        if self._can_brake:
            self._braked(world, fact, what)

    def _braked(self, world: World, fact: Decided, what: str) -> None:
        zone = self._hearing.zones[fact.node]
        nodes = [
            node.name
            for node in self._books.all("objects/nodes/")
            if self._hearing.zones[node.name] == zone and node.status.phase in _EXPECTED
        ]
        # A life that has just begun is not silent for as long as the one before it was.
        before_ms = world.now_us // 1000 - 2 * self._hearing.silent_ms
        silent = sum(name in fact.silent and self._since_ms[name] < before_ms for name in nodes)
        if len(nodes) >= _FEWEST and silent * 100 >= len(nodes) * _SHARE:
            self.violated("SC6", f"{what}, and {silent} of {len(nodes)} are silent")


class Reborn(Checker):
    """INV2: a node begins a new life when the work of the old one has ended, and not before.

    That counts for a computer that stood still as a whole, too. Its work may wake after its
    deadline, but the agent that wakes with it stops it before it speaks for anything new.
    """

    invariants = ("INV2",)

    def __init__(self, books: Books, processes: Processes) -> None:
        self._books, self._processes = books, processes
        self._fenced_ms: dict[str, int] = {}

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._books.changed("objects/nodes/"):
            if new is None:
                continue
            was_gone = old is not None and old.status.phase in _GONE
            if new.status.phase in _GONE and not was_gone:
                self._fenced_ms[new.name] = world.now_us // 1000
            elif was_gone and new.status.incarnation > old.status.incarnation:
                self._begun(world, new)

    def _begun(self, world: World, node: Node) -> None:
        old = self._of_the_old_life(world, node.name)
        aware_ms = world.now_us // 1000 - self._fenced_ms.get(node.name, 0)
        if old and aware_ms > UNAWARE_MS:
            self.violated("INV2", f"{node.name} begins a new life while {old} of the old one runs")
        if old:
            world.post(world.now_us + ENDS_WITHIN_MS * 1000, self._later, world, (node.name, old))

    def _later(self, _number: int, world: World, what: tuple[str, str]) -> None:
        node, name = what
        if world.hosts[node].frozen or not world.cells[node].ready:
            # Nobody is there who could have stopped it; the deadline will.
            return
        if name == self._of_the_old_life(world, node):
            self.violated("INV2", f"{name} of an old life of {node} runs on in its new one")

    def _of_the_old_life(self, world: World, node: str) -> str:
        """One process that must not outlive the life it was started in, if there is one."""
        for held in self._processes.table(world.hosts[node]).values():
            keeps = held.launch.template.on_disconnect is OnDisconnect.KEEP
            if held.is_running and not keeps:
                return f"{held.launch.name} attempt {held.launch.attempt.number}"
        return ""
