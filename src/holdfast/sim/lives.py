"""Computers, machines and their lives.

This part of a world runs machines; `world` adds the network and the stores. Every effect of a
machine goes through `performers`, a table from the type of an effect to the function that performs
it. `calls`, `streams` and `storage` register theirs; a world with effects of its own registers them
with `perform`. A performer never calls a machine: it posts an event. Nothing here iterates a set.

A crash loses a machine's memory, its timers and the answers under way to it; messages that it sent
before still arrive. A pause loses nothing: stimuli wait in the cell's inbox and arrive late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from holdfast.model.access.identity import Identity
from holdfast.model.errors import InvariantBroken, invariant
from holdfast.model.machine import ArchiveRecord, Persist, Started, Tokens, Wake
from holdfast.sim.cell import Cell, Factory, Host, Seat
from holdfast.sim.check import CRASHED, Violation
from holdfast.sim.event_engine import Engine
from holdfast.sim.randomness import between, stream
from holdfast.sim.timers import Timers
from holdfast.sim.virtual_clock import WALL_ORIGIN_US, HostClock
from holdfast.sim.virtual_network import Network

# The longest uptime of a computer when a run begins.
_UPTIME_MAX_US = 30 * 24 * 3_600_000_000

Performer = Callable[[Cell, Any], None]


class Performers(dict[type, Performer]):
    """A table of performers that reports an effect type without one as a bug of the world."""

    def __missing__(self, effect_type: type) -> Performer:
        raise InvariantBroken(f"this world has no performer for {effect_type.__name__}")


class _NoTokens:
    """Refuses tokens to machines without a store."""

    def new_token(self) -> str:
        raise InvariantBroken("a machine without a store asked for a token")


class Lives(Engine):
    """Hosts and cells on one event heap."""

    def __init__(
        self,
        seed: int,
        *,
        origin_us: int = WALL_ORIGIN_US,
        full_trace: bool = False,
        keep_text: bool = False,
    ) -> None:
        """`origin_us` is the calendar's reading when the run begins."""
        super().__init__(full_trace=full_trace, keep_text=keep_text)
        self.seed = seed
        self.origin_us = origin_us
        self.hosts: dict[str, Host] = {}
        self.cells: dict[str, Cell] = {}
        self.network = Network(seed, self.inject)
        self.performers = Performers()
        # The source of tokens for machines, by the name of their store.
        self.tokens: dict[str, Tokens] = {}
        self.crash_hooks: list[Callable[[Cell], None]] = []
        # Called when a computer has been switched off or on; `Host.up` says which.
        self.power_hooks: list[Callable[[Host], None]] = []
        self.timers = Timers(self)
        self.perform(Wake, self.timers.wake)
        self.perform(Persist, self._persist)
        # Archived records leave the world: no machine in it acts on them.
        self.perform(ArchiveRecord, lambda cell, effect: None)

    # Building ----------------------------------------------------------------------------------

    def rng(self, purpose: str) -> Random:
        """A new random stream for a purpose; call it once and keep the stream."""
        return stream(self.seed, purpose)

    def add_host(self, name: str, *, region: str = "") -> Host:
        invariant(name not in self.hosts, f"host {name} exists already")
        uptime_us = between(self.rng(f"uptime/{name}"), 0, _UPTIME_MAX_US)
        host = Host(name, region, HostClock(self.now_us, uptime_us, self.origin_us))
        self.hosts[name] = host
        return host

    def add(
        self,
        name: str,
        factory: Factory,
        *,
        host: str | None = None,
        identity: str | Identity | None = None,
        store: str | None = None,
    ) -> Cell:
        """Add a machine and start it now. Without `host` it gets a computer of the same name."""
        invariant(name not in self.cells, f"machine {name} exists already")
        home = self.hosts.get(host or name) or self.add_host(host or name)
        cell = Cell(name, home, factory, identity or name, store)
        self.cells[name] = cell
        home.cells.append(cell)
        self.post(self.now_us, self.start_event, cell, None)
        return cell

    def remove(self, cell: Cell) -> None:
        """Remove a machine from the world for good, as when its process ended."""
        self.crash(cell)
        cell.host.cells.remove(cell)
        del self.cells[cell.name]

    def perform(self, effect_type: type, performer: Performer) -> None:
        """Register the performer of an effect type."""
        invariant(effect_type not in self.performers, f"{effect_type.__name__} has a performer")
        self.performers[effect_type] = performer

    # Stimuli -----------------------------------------------------------------------------------

    def send(self, cell: Cell, stimulus: Any, after_us: int) -> None:
        """Give a machine a stimulus later, unless its current life has ended by then."""
        self.post(self.now_us + after_us, self._send_event, (cell, cell.life), stimulus)

    def _send_event(self, _number: int, to: tuple[Cell, int], stimulus: Any) -> None:
        cell, life = to
        if cell.life == life:
            self.hand(cell, stimulus)

    def hand(self, cell: Cell, stimulus: Any) -> None:
        """Give a machine a stimulus now; a paused machine handles it when it resumes."""
        if not cell.ready:
            if cell.machine is not None:
                cell.inbox.append(stimulus)
            return
        now_us = self.now_us
        try:
            effects = cell.machine.step(stimulus, cell.host.clock.instant(now_us))  # type: ignore[union-attr]
        except Exception as error:
            self.note(f"{cell.name} <- {stimulus!r}")
            name = type(stimulus).__name__
            raise Violation(CRASHED, f"{cell.name} broke down on {name}: {error!r}") from error
        trace, count = self.trace, len(effects)
        if trace.full:
            trace.detail(now_us, f"{cell.name} <- {stimulus!r}")
        else:
            # The event loop flushes and hashes these lines.
            trace.lines.append(f"{now_us} {cell.name} {type(stimulus).__name__} {count}")
        if cell.burden is not None and self._occupy(cell, stimulus, effects):
            return
        if count:
            self._perform_all(cell, effects)

    def _perform_all(self, cell: Cell, effects: Sequence[Any]) -> None:
        count = len(effects)
        performed = cell.performed + count
        if self.trace.full or performed >= cell.fuse:
            self._perform_one_by_one(cell, effects)
            return
        cell.performed = performed
        performers = self.performers
        for effect in effects:
            performers[type(effect)](cell, effect)

    def _perform_one_by_one(self, cell: Cell, effects: Sequence[Any]) -> None:
        """A planned crash between two effects leaves a prefix of them, a pause delays the rest."""
        for count, effect in enumerate(effects, start=1):
            if self.trace.full:
                self.trace.detail(self.now_us, f"{cell.name} -> {effect!r}")
            self.performers[type(effect)](cell, effect)
            cell.performed += 1
            if cell.performed >= cell.fuse:
                kind, for_ms = cell.blow_fuse()
                self.inject(kind)
                if kind == "crash":
                    self.crash(cell, for_ms)
                else:
                    cell.unfinished = effects[count:]
                    self.pause_for(cell, for_ms)
                return

    def _occupy(self, cell: Cell, stimulus: Any, effects: Sequence[Any]) -> bool:
        """Make a machine with a burden busy; its effects are performed when it is done."""
        burden_us = cell.burden(stimulus, effects) if cell.burden is not None else 0
        if burden_us <= 0:
            return False
        cell.busy = True
        self._see(cell)
        self.post(self.now_us + burden_us, self._relieve, (cell, cell.life), effects)
        return True

    def _relieve(self, _number: int, of: tuple[Cell, int], effects: Sequence[Any]) -> None:
        cell, life = of
        if cell.life != life or cell.machine is None:
            return
        cell.busy = False
        if cell.paused or cell.host.frozen:
            # It was paused during its work, and finishes it when it resumes.
            cell.unfinished = (*cell.unfinished, *effects)
        elif effects:
            self._perform_all(cell, effects)
        self._see(cell)

    def _persist(self, cell: Cell, effect: Persist) -> None:
        if effect.value is None:
            cell.durable.pop(effect.key, None)
        else:
            cell.durable[effect.key] = effect.value

    # Lives -------------------------------------------------------------------------------------

    def start_event(self, _number: int, cell: Cell, _: None) -> None:
        """Start a machine unless it runs already, its computer is down, or it was removed."""
        removed = self.cells.get(cell.name) is not cell
        if cell.machine is not None or not cell.host.up or removed:
            return
        cell.life += 1
        self.note(f"{cell.name} starts its life {cell.life}")
        tokens = self.tokens[cell.store] if cell.store is not None else _NoTokens()
        rng = self.rng(f"machine/{cell.name}/{cell.life}")
        seat = Seat(cell.name.removeprefix(cell.prefix), cell.life, rng, tokens)
        cell.machine = cell.factory(seat)
        self._see(cell)
        self.hand(cell, Started(dict(cell.durable), cell.host.boot))

    def crash(self, cell: Cell, down_ms: int | None = None) -> None:
        """End a machine's life now; with `down_ms` a supervisor restarts it after that time."""
        if cell.machine is not None:
            self.note(f"{cell.name} crashes")
            cell.machine = None
            cell.busy = False
            cell.paused = 0
            cell.inbox.clear()
            cell.timers.clear()
            cell.unfinished = ()
            self._see(cell)
            for hook in self.crash_hooks:
                hook(cell)
        if down_ms is not None:
            self.post(self.now_us + down_ms * 1000, self.start_event, cell, None)

    def pause_for(self, cell: Cell, for_ms: int) -> None:
        """Pause a machine as SIGSTOP does, for a time. Pauses nest, and end with a crash."""
        cell.paused += 1
        self._see(cell)
        self.post(self.now_us + for_ms * 1000, self._resume_event, cell, cell.life)

    def _resume_event(self, _number: int, cell: Cell, life: int) -> None:
        if cell.life == life and cell.paused:
            cell.paused -= 1
            self._see(cell)

    def resume(self, cell: Cell) -> None:
        """End all pauses of a machine."""
        if cell.paused:
            cell.paused = 0
            self._see(cell)

    def freeze(self, host: Host, *, clock_stops: bool = False) -> None:
        """Pause a whole computer with everything that runs on it. Freezes nest."""
        host.frozen += 1
        if clock_stops:
            host.clock.stop(self.now_us)
        for cell in host.cells:
            self._see(cell)

    def thaw(self, host: Host) -> None:
        host.frozen -= 1
        if not host.frozen:
            host.clock.go(self.now_us)
            # Alarms come first: machines that resume find overdue work already done.
            self.timers.rewind(host)
        for cell in host.cells:
            self._see(cell)

    def shut_down(self, host: Host) -> None:
        """Switch a computer off: its machines crash, and the power hooks stop everything else."""
        if host.up:
            self.note(f"{host.name} goes down")
            host.up = False
            host.alarms.clear()
            for cell in list(host.cells):
                self.crash(cell)
            for hook in self.power_hooks:
                hook(host)

    def boot(self, host: Host) -> None:
        """Switch a computer on: a new boot, monotonic clock at zero, disk unchanged."""
        if not host.up:
            host.up = True
            host.boots += 1
            host.clock.reboot(self.now_us)
            for hook in self.power_hooks:
                hook(host)
            for cell in host.cells:
                self.post(self.now_us, self.start_event, cell, None)

    def _see(self, cell: Cell) -> None:
        """Update whether a machine can take stimuli, and give it those that waited."""
        runs = cell.machine is not None and not cell.paused and not cell.host.frozen
        cell.ready = runs and not cell.busy
        if cell.ready and cell.unfinished:
            effects, cell.unfinished = cell.unfinished, ()
            self._perform_one_by_one(cell, effects)
        while cell.burden is not None and cell.ready and cell.inbox:
            # One at a time: each of them may make it busy.
            self.hand(cell, cell.inbox.pop(0))
        if cell.ready and cell.inbox:
            waiting, cell.inbox = cell.inbox, []
            for stimulus in waiting:
                self.send(cell, stimulus, 0)
