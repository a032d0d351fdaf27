"""Counts what really happened in a run. This checker reports no violations.

A world in which something never happens proves nothing about it. The tests add up the counts of
many seeds and compare them with what must occur.
"""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.lease import Lease
from holdfast.model.kinds.node import Node, NodePhase
from holdfast.model.lifecycle import State
from holdfast.sim.check import Checker, Commit
from holdfast.sim.planes.checkers.ledger_oracle import LEASES, StoreCopy
from holdfast.sim.planes.checkers.permitted_changes import same, steps_of
from holdfast.sim.planes.component_taps import ComponentTap
from holdfast.sim.planes.facts import AcknowledgedRequest, ServerOutcome
from holdfast.sim.planes.process_table import Adopted, ProcessEnded, ProcessStarted
from holdfast.sim.world import World

# How often the caches are asked what they missed; one that ends in between is not.
LOOK_MS = 10_000

# What is counted when a node enters this phase.
_PHASE_CHANGES = {
    NodePhase.SUSPECT: "suspected",
    NodePhase.UNKNOWN: "marked",
    NodePhase.FENCED: "fenced",
}

MISSED = "cache missed a change, and the resync found it"


class PlaneCensus(Checker):
    """Counts by name. The taps around the machines report what the machines went through."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self.store_copy = store_copy
        self.counts: dict[str, int] = {}
        self._missed: dict[tuple[str, int], int] = {}

    def begin(self, world: World) -> None:
        """Look at the caches from time to time."""
        world.post(world.now_us + LOOK_MS * 1000, self._look, world, None)

    def _count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times

    @property
    def missed(self) -> int:
        """How many objects only a list found."""
        return self.counts.get(MISSED, 0)

    def _look(self, _number: int, world: World, _: None) -> None:
        for cell in world.cells.values():
            if isinstance(cell.machine, ComponentTap):
                name, missed = (cell.name, cell.life), cell.machine.missed
                more = missed - self._missed.get(name, 0)
                if more:
                    self._missed[name] = missed
                    self._count(MISSED, more)
        self.begin(world)

    def at_end(self, world: World) -> None:
        self._look(0, world, None)

    def on_fact(self, world: World, fact: Any) -> None:
        match fact:
            case ServerOutcome(what=what):
                self._count(what)
            case AcknowledgedRequest(request=request, answer=answer):
                if answer.replayed:
                    self._count("repeated request")
                self._count(f"accepted {type(request).__name__}")
            case ProcessStarted(number=number):
                self._count("started again in place" if number else "started")
            case ProcessEnded(why=why):
                self._count(f"ended: {why}")
            case Adopted():
                self._count("adopted by the next agent")

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self.store_copy.changed("objects/nodes/"):
            if old is not None and new is not None:
                self._count_node(old, new)
        for _, old, new in self.store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            if not same(old, new) and new.spec.incarnation:
                self._count("replaced")
            for record in steps_of(old if same(old, new) else None, new):
                self._count(f"move {_name(record.from_state)} -> {record.to.value}")
        for _, old, new in self.store_copy.changed(LEASES):
            if isinstance(old, Lease) and isinstance(new, Lease):
                self._count_lease(old, new)

    def _count_node(self, old: Node, new: Node) -> None:
        was, now = old.status, new.status
        if now.incarnation > was.incarnation:
            self._count("node returned in a new life")
        elif was.phase is not now.phase:
            cleared = was.phase is NodePhase.UNKNOWN and now.phase is NodePhase.READY
            change = "cleared" if cleared else _PHASE_CHANGES.get(now.phase, now.phase.value)
            self._count(f"node {change}")

    def _count_lease(self, old: Lease, new: Lease) -> None:
        if old.spec.holder != new.spec.holder or old.spec.epoch == new.spec.epoch:
            return
        if old.spec.instance == new.spec.instance:
            self._count("lease taken back by a later life")
        else:
            self._count("lease taken over by an instance of the same identity")


def _name(state: State | None) -> str:
    return state.value if state is not None else "nothing"
