"""Injects the faults of a plan into a world, and heals them.

The first part of this module defines what each kind does. A world with faults of its own (a policy
changed in flight, an operator's override during a repair) adds kinds with `Faults.add`. Faults are
counted where they take effect: a lossy minute counts the messages that it lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.model.errors import invariant
from holdfast.sim import streams
from holdfast.sim.cell import NEVER, Cell, Host
from holdfast.sim.plan import Aim, Fault
from holdfast.sim.storage import SimStore, StoreTrouble
from holdfast.sim.virtual_network import PathFault

if TYPE_CHECKING:
    from holdfast.sim.world import World


# The kinds of faults that every world has, and how each heals. `KINDS` below lists all of them.

Heal = Callable[[], None]
Strike = Callable[["World", Fault], Heal | None]

MACHINE = "machine"
HOST = "host"
STORE = "store"
REGION = "region"


class FaultKind(NamedTuple):
    """One kind of fault: the scope of its targets, and a function that injects it.

    `strike` returns the function that heals the fault, or None if it needs none. `counted` is
    False where single messages, requests or crashes are counted as they take place. `paired` kinds
    strike the paths between two hosts or regions, or between one and all others ("*").
    """

    scope: str
    strike: Strike
    counted: bool = True
    paired: bool = False


# Machines and computers. --------------------------------------------------------------------------


def _crash(world: World, fault: Fault) -> None:
    """Now, or `amount` effects later, or at the `nth` effect ever; down for `for_ms`."""
    cell = world.cells[fault.target]
    if fault.nth or fault.amount:
        cell.lay_fuse(fault.nth or cell.performed + fault.amount, "crash", fault.for_ms)
    elif cell.machine is not None:
        world.inject("crash")
        world.crash(cell, fault.for_ms)


def _pause(world: World, fault: Fault) -> None:
    """Now, or `amount` effects later, or at the `nth` effect ever.

    A pause between two effects of one step is the hardest case: the rest of an old decision is
    carried out much later.
    """
    cell = world.cells[fault.target]
    if fault.nth or fault.amount:
        cell.lay_fuse(fault.nth or cell.performed + fault.amount, "pause", fault.for_ms)
    else:
        world.inject("pause")
        world.pause_for(cell, fault.for_ms)


def _reboot(world: World, fault: Fault) -> Heal:
    host = world.hosts[fault.target]
    world.shut_down(host)
    return lambda: world.boot(host)


def _freeze(world: World, fault: Fault) -> Heal:
    """With `amount` 1 the clock stops as well, as under a hypervisor."""
    host = world.hosts[fault.target]
    world.freeze(host, clock_stops=fault.amount == 1)
    return lambda: world.thaw(host)


def _clock_rate(world: World, fault: Fault) -> None:
    """The clock runs `amount` parts per million fast, for good: crystals do not heal."""
    host = world.hosts[fault.target]
    host.clock.set_rate(world.now_us, fault.amount)
    world.timers.rewind(host)


def _clock_step(world: World, fault: Fault) -> Heal:
    """The wall clock jumps by `amount` ms until the fault heals."""
    host = world.hosts[fault.target]
    step_us = fault.amount * 1000
    host.clock.wall_offset_us += step_us
    return lambda: _step_back(host, step_us)


def _step_back(host: Host, step_us: int) -> None:
    host.clock.wall_offset_us -= step_us


# The network. -------------------------------------------------------------------------------------


def _hosts(world: World, name: str) -> frozenset[str] | None:
    """The hosts behind a name in a plan: a host, a machine, a region, or "*" for all."""
    if name == "*":
        return None
    if name in world.hosts:
        return frozenset((name,))
    if name in world.cells:
        return frozenset((world.cells[name].host.name,))
    region = frozenset(host.name for host in world.hosts.values() if host.region == name)
    invariant(region, f"{name!r} in a plan is not a host, machine or region")
    return region


def _two_way(kind: str) -> Strike:
    def strike(world: World, fault: Fault) -> Heal:
        there, back = _hosts(world, fault.target), _hosts(world, fault.peer or "*")
        lift_there = world.network.lay(PathFault(kind, there, back, fault.amount))
        lift_back = world.network.lay(PathFault(kind, back, there, fault.amount))

        def heal() -> None:
            lift_there()
            lift_back()

        return heal

    return strike


def _cut(world: World, fault: Fault) -> Heal:
    """Cut one direction: what the target sends does not arrive."""
    there, back = _hosts(world, fault.target), _hosts(world, fault.peer or "*")
    return world.network.lay(PathFault("cut", there, back))


# Stores. ------------------------------------------------------------------------------------------


def _store_trouble(field: str, *, is_time: bool = False) -> Strike:
    def strike(world: World, fault: Fault) -> Heal:
        store = world.stores[fault.target]
        value = world.now_us + fault.for_ms * 1000 if is_time else fault.amount
        entry = (field, value)
        store.troubles.append(entry)
        _sum_up(store)

        def heal() -> None:
            store.troubles.remove(entry)
            _sum_up(store)

        return heal

    return strike


def _sum_up(store: SimStore) -> None:
    """Combine the active faults; of two faults on one field the worse one counts."""
    store.trouble = StoreTrouble() if store.troubles else None
    for field, value in store.troubles:
        setattr(store.trouble, field, max(value, getattr(store.trouble, field)))


def _store_compact(world: World, fault: Fault) -> None:
    """Compact the store, so that only the last `amount` revisions stay readable."""
    keyspace = world.stores[fault.target].keyspace
    keyspace.compact(max(keyspace.compacted, keyspace.revision - fault.amount))


def _crash_author(world: World, fault: Fault) -> None:
    """The machine that writes the `nth` revision crashes before it receives the answer."""
    world.stores[fault.target].crash_author_at[fault.nth] = fault.for_ms


# Watches and streams. -----------------------------------------------------------------------------


def _watch_hold(world: World, fault: Fault) -> None:
    """A stale view: deliver nothing for a while, from now or from the `nth` delivery on."""
    cell = world.cells[fault.target]
    if fault.nth:
        cell.holds[fault.nth] = fault.for_ms * 1000
        return
    cell.held_until_us = max(cell.held_until_us, world.now_us + fault.for_ms * 1000)


def _watch_expire(world: World, fault: Fault) -> None:
    world.watches.expire(world.cells[fault.target])


def _delivery(kind: str) -> Strike:
    """Strike the `nth` delivery ever, or `amount` in a thousand for a while."""

    def strike(world: World, fault: Fault) -> Heal | None:
        cell = world.cells[fault.target]
        if fault.nth:
            cell.delivery_faults[fault.nth] = kind
            return None
        cell.delivery_permille[kind] = fault.amount
        return lambda: _deliver_well(cell, kind)

    return strike


def _deliver_well(cell: Cell, kind: str) -> None:
    cell.delivery_permille.pop(kind, None)


def _stream_break(world: World, fault: Fault) -> None:
    cell = world.cells[fault.target]
    for stream in [*cell.streams.values(), *cell.served.values()]:
        world.streams.break_off(stream, 0)


KINDS: dict[str, FaultKind] = {
    "crash": FaultKind(MACHINE, _crash, counted=False),
    "pause": FaultKind(MACHINE, _pause, counted=False),
    "reboot": FaultKind(HOST, _reboot),
    "freeze": FaultKind(HOST, _freeze),
    "clock_rate": FaultKind(HOST, _clock_rate),
    "clock_step": FaultKind(HOST, _clock_step),
    "partition": FaultKind(HOST, _two_way("cut"), paired=True),
    "region_cut": FaultKind(REGION, _two_way("cut"), paired=True),
    "cut": FaultKind(HOST, _cut, paired=True),
    "loss": FaultKind(HOST, _two_way("loss"), counted=False, paired=True),
    "duplicate": FaultKind(HOST, _two_way("duplicate"), counted=False, paired=True),
    "late": FaultKind(HOST, _two_way("late"), counted=False, paired=True),
    "delay": FaultKind(HOST, _two_way("delay"), paired=True),
    "scatter": FaultKind(HOST, _two_way("scatter"), paired=True),
    "store_slow": FaultKind(STORE, _store_trouble("slow_ms")),
    "store_fail": FaultKind(STORE, _store_trouble("fail_permille"), counted=False),
    "store_mute": FaultKind(STORE, _store_trouble("mute_permille"), counted=False),
    "store_late": FaultKind(STORE, _store_trouble("late_permille"), counted=False),
    "store_stall": FaultKind(STORE, _store_trouble("stalled_until_us", is_time=True)),
    "store_compact": FaultKind(STORE, _store_compact),
    "crash_author": FaultKind(STORE, _crash_author, counted=False),
    "watch_hold": FaultKind(MACHINE, _watch_hold),
    "watch_expire": FaultKind(MACHINE, _watch_expire),
    "delivery_lose": FaultKind(MACHINE, _delivery(streams.LOSE), counted=False),
    "delivery_repeat": FaultKind(MACHINE, _delivery(streams.REPEAT), counted=False),
    "delivery_stale": FaultKind(MACHINE, _delivery(streams.STALE), counted=False),
    "stream_break": FaultKind(MACHINE, _stream_break),
}


class Faults:
    """Injects faults into a world and heals them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.kinds: dict[str, FaultKind] = dict(KINDS)
        self._active: dict[int, Heal] = {}

    def add(self, name: str, kind: FaultKind) -> None:
        invariant(name not in self.kinds, f"fault kind {name!r} exists already")
        self.kinds[name] = kind

    def aims(self) -> dict[str, Aim]:
        """The possible targets of each kind in this world, for drawing plans."""
        world = self._world
        # A dictionary instead of a set, for its order.
        regions = dict.fromkeys(host.region for host in world.hosts.values() if host.region)
        names = {
            MACHINE: tuple(world.cells),
            HOST: tuple(world.hosts),
            STORE: tuple(world.stores),
            REGION: tuple(regions),
        }
        aims = {}
        for name, kind in self.kinds.items():
            # A fault on the path between two hosts can also strike all paths of a region.
            also = tuple(regions) if kind.paired and kind.scope == HOST else ()
            aims[name] = Aim(names[kind.scope] + also, kind.paired)
        return aims

    def schedule(self, fault: Fault) -> None:
        invariant(fault.kind in self.kinds, f"unknown fault kind {fault.kind!r}")
        if fault.nth:
            # It strikes at a point, not at a time, and that may be the very first event.
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
        """End every fault, planned or active, and start all machines that are down."""
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
