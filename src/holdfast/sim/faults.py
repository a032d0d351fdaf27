"""Strikes a world with the faults of its plan, and heals them.

What each kind does is told in `fault_kinds`; a room with faults of its own (a policy changed in
flight, a person's override during a repair) adds kinds with `Faults.add`. Faults are counted where
they take place: a lossy minute counts the messages that it lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.errors import invariant
from holdfast.sim.cell import NEVER
from holdfast.sim.fault_kinds import HOST, KINDS, MACHINE, STORE, Heal, Kind
from holdfast.sim.plan import Aim, Fault

if TYPE_CHECKING:
    from holdfast.sim.world import World


class Faults:
    """Strikes a world with faults and heals them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kinds: dict[str, Kind] = dict(KINDS)
        self._active: dict[int, Heal] = {}

    def add(self, name: str, kind: Kind) -> None:
        invariant(name not in self.kinds, f"there is a fault {name} already")
        self.kinds[name] = kind

    def aims(self) -> dict[str, Aim]:
        """What each kind can strike in this world as it stands, for drawing plans."""
        world = self._world
        names = {
            MACHINE: tuple(world.cells),
            HOST: tuple(world.hosts),
            STORE: tuple(world.stores),
        }
        # A dictionary instead of a set, for its order.
        regions = dict.fromkeys(host.region for host in world.hosts.values() if host.region)
        aims = {}
        for name, kind in self.kinds.items():
            # What strikes a way between two can also strike the ways of a whole region.
            also = tuple(regions) if kind.paired else ()
            aims[name] = Aim(names[kind.scope] + also, kind.paired)
        return aims

    def schedule(self, fault: Fault) -> None:
        invariant(fault.kind in self.kinds, f"no kind of fault is named {fault.kind}")
        if fault.nth:
            # It strikes at a point, not at a time, and the first point may be the very first event.
            self.kinds[fault.kind].strike(self._world, fault)
        else:
            self._world.post(fault.at_ms * 1000, self._strike, fault, None)

    def _strike(self, number: int, fault: Fault, _: None) -> None:
        world = self._world
        kind = self.kinds[fault.kind]
        world.note(f"fault {fault.kind} {fault.target} {fault.peer} {fault.amount}")
        if kind.counted:
            world.inject(fault.kind)
        heal = kind.strike(world, fault)
        if heal is not None:
            self._active[number] = heal
            world.post(world.now_us + fault.for_ms * 1000, self._heal, number, None)

    def _heal(self, _number: int, strike: int, _: None) -> None:
        heal = self._active.pop(strike, None)
        if heal is not None:
            heal()

    def heal_all(self) -> None:
        """End every fault, planned or active, and start whatever is down."""
        world = self._world
        while self._active:
            self._active.pop(next(iter(self._active)))()
        for cell in world.cells.values():
            cell.fuse = NEVER
            cell.fuses.clear()
            world.resume(cell)
            cell.held_until_us = 0
            cell.delivery_faults.clear()
            cell.holds.clear()
            if cell.machine is None:
                world.post(world.now_us, world.start_event, cell, None)
        for store in world.stores.values():
            store.crash_author_at.clear()
