"""The process table of each node, with the shim that holds each process: the ground truth.

It carries out the agent's runtime protocol as `host/runtime` and the real shim do. The table
belongs to the host, not to the agent: it continues when the agent crashes or is paused, keeps its
deadlines by the host's own alarms, and is lost with the power, except for what was written to disk.
Every start and stop of a process is a fact that checkers see.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import (
    Attempt,
    Clear,
    Exited,
    Extend,
    Halt,
    Inventory,
    Item,
    Launch,
    Launched,
    LookAround,
    NotLaunched,
    Probed,
    RunProbe,
)
from holdfast.model.kinds.replica import Process
from holdfast.model.kinds.template import OnDisconnect
from holdfast.model.nodes.fence import FenceTiming
from holdfast.model.time import timestamp
from holdfast.sim.cell import Cell, Host
from holdfast.sim.faults import HOST, FaultKind, Heal
from holdfast.sim.plan import Fault
from holdfast.sim.planes.simulated_shim import STOPPED, Shim
from holdfast.sim.randomness import between
from holdfast.sim.world import World

THING = "processes"
STALL, DATED, ILL = "stall", "dated", "ill"
SIGTERM, SIGKILL = 15, 9
# How long the system takes to start, kill or look up something.
START_MS = (2, 60)
SLOW_START_MS = (500, 4_000)
SLOW_START_ONE_IN = 20
KILL_MS = (1, 400)
LOOK_MS = (1, 20)
# One process in this many ignores the request to stop.
STUBBORN_ONE_IN = 6


class ProcessStarted(msgspec.Struct, frozen=True):
    """A fact: a process runs from now on."""

    host: str
    uid: str
    number: int
    name: str
    namespace: str
    exclusive: bool


class ProcessEnded(msgspec.Struct, frozen=True):
    """A fact: a process, and everything that it started, has ended."""

    host: str
    uid: str
    number: int
    why: str


class Adopted(msgspec.Struct, frozen=True):
    """A fact: an agent that has just started found this process running."""

    host: str
    uid: str
    number: int


class HeldProcess:
    """One attempt: its shim, its process, and what its directory holds."""

    __slots__ = (
        "alarm",
        "death",
        "is_running",
        "is_void",
        "kill_takes_ms",
        "launch",
        "process",
        "shim",
        "stop_by_ms",
        "unopened",
        "was_frozen",
    )

    def __init__(self, launch: Launch, *, was_frozen: bool = False) -> None:
        self.launch = launch
        self.shim = Shim(launch.deadline_ms, launch.grace_ms)
        self.process = Process()
        # The ports on which the process does not listen yet.
        self.unopened: tuple[str, ...] = ()
        # Void means that it was cleared, or that its start was given up.
        self.is_running = self.is_void = False
        # The alarms of what the shim's clock demands next, and of the end that a stop leads to.
        self.alarm = self.death = 0
        # The end that a stop request from before it ran allows; how long a kill takes.
        self.stop_by_ms: int | None = None
        self.kill_takes_ms = 0
        # Work that was frozen with its host may resume after its deadline: a known limit.
        self.was_frozen = was_frozen

    @property
    def is_stopping(self) -> bool:
        return bool(self.shim.reason)


class Processes:
    """All tables of a world. Create it once per world, before its agents."""

    def __init__(self, world: World, timing: FenceTiming) -> None:
        self._world, self._self_stop_ms = world, timing.self_stop_after_ms
        self._rng: Random = world.rng("processes")
        self._pids = 0
        # How often a process has started or ended.
        self.changes = 0
        world.perform(Launch, self._launch)
        world.perform(Extend, self._extend)
        world.perform(Halt, self._halt)
        world.perform(Clear, self._clear)
        world.perform(RunProbe, self._probe)
        world.perform(LookAround, self._look)
        world.power_hooks.append(self._power)
        world.faults.add("work_exit", FaultKind(HOST, self._work_exit))
        world.faults.add("shim_kill", FaultKind(HOST, self._shim_kill))
        world.faults.add("machine_freeze", FaultKind(HOST, self._freeze))
        world.faults.add("start_stall", FaultKind(HOST, self._stall))
        world.faults.add("work_ill", FaultKind(HOST, self._ill))

    def table(self, host: Host) -> dict[Attempt, HeldProcess]:
        """What is or was on a host and has not been cleared."""
        table: dict[Attempt, HeldProcess] = host.things.setdefault(THING, {})
        return table

    def running(self) -> list[tuple[Host, HeldProcess]]:
        """Every process of the world."""
        return [
            (host, held)
            for host in self._world.hosts.values()
            for held in self.table(host).values()
            if held.is_running
        ]

    # Starting --------------------------------------------------------------------------------

    def _launch(self, cell: Cell, launch: Launch) -> None:
        table = self.table(cell.host)
        if launch.attempt in table:
            self._take_over(cell, table[launch.attempt])
            return
        held = table[launch.attempt] = HeldProcess(
            launch, was_frozen=self._is_dated(cell.host, launch)
        )
        slow = self._rng.random() * SLOW_START_ONE_IN < 1
        delay_ms = between(self._rng, *(SLOW_START_MS if slow else START_MS))
        stall_ms = cell.host.things.pop(STALL, 0)
        if stall_ms:
            self._world.pause_for(cell, stall_ms)
            delay_ms += stall_ms
        held.alarm = self._after(cell.host, delay_ms, self._exec, cell, held)

    def _take_over(self, cell: Cell, held: HeldProcess) -> None:
        """The directory exists already. To report that its work does not run would be false and
        could lead to a second copy; work that is being started reports its start itself."""
        attempt, process = held.launch.attempt, held.process
        if process.id:
            self._tell(cell.host, cell, Launched(attempt, process, held.unopened))
        if process.id and not held.is_running:
            self._tell(cell.host, cell, Exited(attempt, process))
        elif process.reason and not held.is_running:
            self._tell(cell.host, cell, NotLaunched(attempt, process))

    @staticmethod
    def _is_dated(host: Host, launch: Launch) -> bool:
        """Whether its deadline came from a clock that has stopped since."""
        deadline_ms = launch.deadline_ms
        return deadline_ms is not None and deadline_ms <= host.things.get(DATED, 0)

    def _refuse(self, cell: Cell, launch: Launch, why: str) -> None:
        process = Process(reason=why)
        self._tell(cell.host, cell, NotLaunched(launch.attempt, process))

    def _exec(self, _number: int, cell: Cell, held: HeldProcess) -> None:
        """The shim runs. It checks the deadline before it starts anything."""
        host = cell.host
        if held.is_void:
            return
        if held.shim.is_late(self._now_ms(host)):
            held.process = Process(reason="DeadlinePassed")
            self._refuse(cell, held.launch, "DeadlinePassed")
            return
        self._pids += 1
        launch = held.launch
        at = timestamp(host.clock.instant(self._world.now_us).wall_ms)
        held.process = Process(id=f"{host.boot}/{self._pids}/{self._world.now_us}", started_at=at)
        held.is_running = True
        self._begin(host, held)
        self.changes += 1
        # `keep` work may run twice only if its owner asked not to wait for it.
        keeps = launch.template.on_disconnect is OnDisconnect.KEEP
        exclusive = not keeps or launch.template.replace_after_seconds is None
        attempt = launch.attempt
        self._world.fact(
            ProcessStarted(
                host.own_name, attempt.uid, attempt.number, launch.name, launch.namespace, exclusive
            )
        )
        self._arm(host, held)
        self._tell(host, cell, Launched(attempt, held.process, held.unopened))
        if held.stop_by_ms is not None:
            self._stop(host, held, max(0, held.stop_by_ms - self._now_ms(host)))

    def _begin(self, host: Host, held: HeldProcess) -> None:
        """A hook for subclasses: what else starts with a process."""

    # The deadline ----------------------------------------------------------------------------

    def _arm(self, host: Host, held: HeldProcess) -> None:
        """Wake the shim when it has to act next; after the kill it has nothing else to do."""
        if held.alarm:
            self._world.timers.cancel(host, held.alarm)
            held.alarm = 0
        next_ms = held.shim.next_ms
        if next_ms is not None and not held.shim.is_killed:
            held.alarm = self._world.timers.alarm(host, next_ms, self._strike, host, held)

    def _strike(self, _number: int, host: Host, held: HeldProcess) -> None:
        if not held.is_running:
            return
        was_stopping, shim = held.is_stopping, held.shim
        shim.keep_time(self._now_ms(host))
        self._follow(host, held, was_stopping)
        if shim.is_killed:
            self._world.timers.cancel(host, held.death)
            how = (held, SIGKILL)
            held.death = self._after(host, held.kill_takes_ms, self._die, host, how)

    def _extend(self, cell: Cell, effect: Extend) -> None:
        # The clock comes before any request, so a deadline that has passed no longer moves. The
        # alarm is set again only when it fires: most deadlines move long before.
        now_ms = self._now_ms(cell.host)
        for held in self.table(cell.host).values():
            if not held.shim.is_late(now_ms):
                held.shim.extend(effect.deadline_ms)

    # Stopping --------------------------------------------------------------------------------

    def _halt(self, cell: Cell, halt: Halt) -> None:
        held = self.table(cell.host).get(halt.attempt)
        if held is None:
            self._tell(cell.host, cell, Exited(halt.attempt, Process(reason="NotFound")))
        elif held.is_running:
            self._stop(cell.host, held, halt.grace_ms)
        elif held.process.reason or held.process.id:
            self._tell(cell.host, cell, Exited(halt.attempt, held.process))
        else:
            # It is being started; the shim gets the request as soon as it is reachable.
            by_ms = self._now_ms(cell.host) + halt.grace_ms
            held.stop_by_ms = min(by_ms, by_ms if held.stop_by_ms is None else held.stop_by_ms)

    def _stop(self, host: Host, held: HeldProcess, grace_ms: int) -> None:
        """Ask it to stop, then kill it. A stop is never undone; a later one may shorten it."""
        was_stopping = held.is_stopping
        held.shim.stop(STOPPED, self._now_ms(host), grace_ms)
        self._follow(host, held, was_stopping)

    def _follow(self, host: Host, held: HeldProcess, was_stopping: bool) -> None:
        """Carry out what the shim has decided."""
        if held.is_stopping and not was_stopping:
            self._signal(host, held)
        self._arm(host, held)

    def _signal(self, host: Host, held: HeldProcess) -> None:
        """Ask the work to stop. Most of it does so within its grace."""
        grace_ms = max(0, (held.shim.kill_ms or 0) - self._now_ms(host))
        stubborn = self._is_stubborn(held) or not grace_ms
        held.kill_takes_ms = between(self._rng, *KILL_MS)
        if not stubborn:
            takes_ms = between(self._rng, 0, grace_ms)
            held.death = self._after(host, takes_ms, self._die, host, (held, SIGTERM))

    def _is_stubborn(self, held: HeldProcess) -> bool:
        return self._rng.random() * STUBBORN_ONE_IN < 1

    def _die(self, _number: int, host: Host, how: tuple[HeldProcess, int]) -> None:
        held, signal = how
        if held.is_running:
            self._end(host, held, held.shim.reason, signal=signal)

    def _end(
        self,
        host: Host,
        held: HeldProcess,
        why: str,
        *,
        signal: int | None = None,
        code: int | None = None,
    ) -> None:
        """The process has ended and its exit is on disk; then a running agent learns of it."""
        held.is_running = False
        self.changes += 1
        held.process = msgspec.structs.replace(
            held.process, exit_code=code, signal=signal, reason=why, addresses={}
        )
        attempt = held.launch.attempt
        self._world.fact(ProcessEnded(host.own_name, attempt.uid, attempt.number, why))
        for cell in host.cells:
            self._tell(host, cell, Exited(attempt, held.process))

    def _probe(self, cell: Cell, probe: RunProbe) -> None:
        """Work that runs is healthy unless a fault makes it ill; anything else fails the probe."""
        held = self.table(cell.host).get(probe.attempt)
        is_well = held is not None and held.is_running and not cell.host.things.get(ILL, 0)
        self._tell(cell.host, cell, Probed(probe.attempt, probe.kind, is_well))

    # Looking and clearing --------------------------------------------------------------------

    def _look(self, cell: Cell, _effect: LookAround) -> None:
        self._after(
            cell.host, between(self._rng, *LOOK_MS), self._report_inventory, cell, cell.life
        )

    def _report_inventory(self, _number: int, cell: Cell, life: int) -> None:
        latest: dict[str, HeldProcess] = {}
        for attempt, held in self.table(cell.host).items():
            known = latest.get(attempt.uid)
            if known is None or known.launch.attempt.number < attempt.number:
                latest[attempt.uid] = held
        items = tuple(
            Item(
                held.launch.attempt,
                self._found(held),
                held.is_running,
                held.launch.namespace,
                held.launch.name,
                held.launch.grace_ms,
                held.unopened,
            )
            for held in latest.values()
        )
        if cell.life != life:
            return
        for item in items:
            if item.is_running:
                attempt = item.attempt
                self._world.fact(Adopted(cell.host.own_name, attempt.uid, attempt.number))
        self._world.hand(cell, Inventory(items))

    @staticmethod
    def _found(held: HeldProcess) -> Process:
        if held.process.id or held.process.reason:
            return held.process
        # A directory without shim and without exit: its start was interrupted.
        held.is_void, held.process = True, Process(reason="NeverStarted")
        return held.process

    def _clear(self, cell: Cell, clear: Clear) -> None:
        table = self.table(cell.host)
        for attempt in [attempt for attempt in table if attempt.uid == clear.uid]:
            if not table[attempt].is_running:
                table[attempt].is_void = True
                del table[attempt]

    # Power and faults ------------------------------------------------------------------------

    def _power(self, host: Host) -> None:
        """Without power nothing runs, and no exit is written."""
        host.things.pop(DATED, None)
        if host.up:
            return
        for attempt, held in self.table(host).items():
            if held.is_running:
                held.is_running = False
                self.changes += 1
                held.process = msgspec.structs.replace(
                    held.process, reason="Rebooted", addresses={}
                )
                self._world.fact(
                    ProcessEnded(host.own_name, attempt.uid, attempt.number, "Rebooted")
                )
            elif not held.process.reason:
                held.process = Process(reason="NeverStarted")
            held.is_void = True

    def _work_exit(self, world: World, fault: Fault) -> None:
        """Everything on a node ends by itself, with the code `amount`."""
        host = world.hosts[fault.target]
        for held in list(self.table(host).values()):
            if held.is_running and not host.frozen:
                self._end(host, held, held.shim.ended("Exited"), code=fault.amount)

    def _shim_kill(self, world: World, fault: Fault) -> None:
        """The shims of a node are killed; each is the init of its PID namespace and ends it."""
        host = world.hosts[fault.target]
        for held in list(self.table(host).values()):
            if held.is_running and not host.frozen:
                self._end(host, held, "ShimDied")

    def _freeze(self, world: World, fault: Fault) -> Heal:
        """A whole host freezes. What runs on it may continue before any timer fires."""
        host = world.hosts[fault.target]
        for held in self.table(host).values():
            held.was_frozen = True
        if fault.amount == 1:
            # Renewals acknowledged so far let work run until then, by the clock that stops.
            host.things[DATED] = self._now_ms(host) + self._self_stop_ms
        world.freeze(host, clock_stops=fault.amount == 1)
        return lambda: world.thaw(host)

    def _ill(self, world: World, fault: Fault) -> Heal:
        """Probes of the work on a node fail."""
        things = world.hosts[fault.target].things
        things[ILL] = things.get(ILL, 0) + 1

        def heal() -> None:
            things[ILL] -= 1

        return heal

    def _stall(self, world: World, fault: Fault) -> None:
        """The next start on a node stalls: its agent and the shim that it just started."""
        world.hosts[fault.target].things[STALL] = fault.amount

    # Time ------------------------------------------------------------------------------------

    def _now_ms(self, host: Host) -> int:
        return host.clock.instant(self._world.now_us).monotonic_ms

    def _after(self, host: Host, delay_ms: int, handler: Any, a: Any, b: Any) -> int:
        return self._world.timers.alarm(host, self._now_ms(host) + delay_ms, handler, a, b)

    def _tell(self, host: Host, cell: Cell, stimulus: Any) -> None:
        """The agent receives it through a local pipe, in order, if it runs."""
        if cell.machine is not None:
            self._world.send(cell, stimulus, 1_000)
