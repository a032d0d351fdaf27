"""The process table of this world: work has behaviours, disks fill up, shims stall, and in some
scenarios work opens its ports late.

It extends `planes/process_table`. A stalled shim enforces no deadline: its work may run on, as
on a frozen machine, and is marked in the same way (`was_frozen`). Its agent ends the shim when a
requested stop is overdue, as `host/runtime` does.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import (
    Attempt,
    Check,
    Extend,
    Halt,
    Launch,
    PortsOpened,
    Probed,
    RunProbe,
)
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.cell import Cell, Host
from holdfast.sim.faults import HOST, FaultKind, Heal
from holdfast.sim.plan import Fault
from holdfast.sim.planes.process_table import SIGKILL, HeldProcess, Processes
from holdfast.sim.randomness import between
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.behaviours import (
    PRE_STOP_MS,
    Behaviour,
    BehaviourKind,
    behaviour_of,
)
from holdfast.sim.worlds.agents.secrets import contains_secret

FULL, STALLED = "disk full", "shims still"
DISK_FULL = "NotStarted: its directory cannot be prepared: no space left on device"
# An agent ends a shim that has not stopped its work this long after the grace period.
OVERDUE_MS = 2_000
ANSWER_MS = (1, 150)
# The ports of work. Each opens this long after the one before: less or more than agents wait.
ADDRESSES = {"http": "10.0.0.1:20001", "rpc": "10.0.0.1:20002"}
OPENS_MS = (0, 8_000)


class StopOrdered(msgspec.Struct, frozen=True):
    """A fact: an agent ordered work to stop, or its pre-stop hook to run first."""

    host: str
    uid: str
    number: int
    is_pre_stop: bool
    within_ms: int


class StartRefused(msgspec.Struct, frozen=True):
    """A fact: the machine refused a start."""

    host: str
    uid: str


class SecretExposed(msgspec.Struct, frozen=True):
    """A fact: the value of a Secret appeared where it must not."""

    where: str


class PortOpened(msgspec.Struct, frozen=True):
    """A fact: work opened one more of its ports, this long after its start."""

    after_ms: int


class AgentProcesses(Processes):
    """Processes with behaviours, disks that fill up, and shims that stall."""

    def __init__(self, world: World, timing: FenceTiming, *, opens_late: bool = False) -> None:
        super().__init__(world, timing)
        self._opens_late = opens_late
        # When each attempt began, by true time, and how often it was probed.
        self.began_us: dict[Attempt, int] = {}
        self._probes: dict[Attempt, int] = {}
        # Requests at the sockets of stalled shims.
        self._waiting: dict[str, list[tuple[HeldProcess, Any]]] = {}
        world.faults.add("disk_full", FaultKind(HOST, self._disk_full))
        world.faults.add("shim_pause", FaultKind(HOST, self._shim_pause))

    def age_ms(self, held: HeldProcess) -> int:
        """How long ago an attempt started."""
        return (self._world.now_us - self.began_us[held.launch.attempt]) // 1000

    def behaviour(self, held: HeldProcess) -> Behaviour:
        return behaviour_of(held.launch)

    # Starting --------------------------------------------------------------------------------

    def _launch(self, cell: Cell, launch: Launch) -> None:
        if contains_secret(repr(launch)):
            self._world.fact(SecretExposed(f"the trace of {cell.name}"))
        if cell.host.things.get(FULL, 0):
            self._world.fact(StartRefused(cell.host.own_name, launch.attempt.uid))
            self._refuse(cell, launch, DISK_FULL)
            return
        super()._launch(cell, launch)

    def _exec(self, _number: int, cell: Cell, held: HeldProcess) -> None:
        self.began_us[held.launch.attempt] = self._world.now_us
        super()._exec(_number, cell, held)
        behaviour = self.behaviour(held)
        if held.is_running and behaviour.ends_itself:
            self._after(cell.host, behaviour.at_ms, self._end_itself, cell.host, held)

    def _begin(self, host: Host, held: HeldProcess) -> None:
        if self._opens_late:
            held.process = msgspec.structs.replace(held.process, addresses=ADDRESSES)
            held.unopened = tuple(ADDRESSES)
            self._after(host, between(self._rng, *OPENS_MS), self._open, host, held)

    def _open(self, _number: int, host: Host, held: HeldProcess) -> None:
        if not held.is_running:
            return
        held.unopened = held.unopened[1:]
        self._world.fact(PortOpened(self.age_ms(held)))
        for cell in host.cells:
            self._tell(host, cell, PortsOpened(held.launch.attempt, held.unopened))
        if held.unopened:
            self._after(host, between(self._rng, *OPENS_MS), self._open, host, held)

    def _end_itself(self, _number: int, host: Host, held: HeldProcess) -> None:
        if not held.is_running:
            return
        shim = held.shim
        match self.behaviour(held).kind:
            case BehaviourKind.FINISHES:
                self._end(host, held, shim.ended("Exited"), code=0)
            case BehaviourKind.EATS:
                held.process = msgspec.structs.replace(held.process, oom_killed=True)
                self._end(host, held, shim.ended("Killed"), signal=SIGKILL)
            case _:
                self._end(host, held, shim.ended("Exited"), code=1)

    # Probes ----------------------------------------------------------------------------------

    def _probe(self, cell: Cell, probe: RunProbe) -> None:
        attempt, held = probe.attempt, self.table(cell.host).get(probe.attempt)
        if probe.kind is Check.PRE_STOP:
            order = StopOrdered(
                cell.host.own_name, attempt.uid, attempt.number, True, probe.timeout_ms
            )
            self._world.fact(order)
        is_well, takes_ms = self._answer(probe, held)
        answer = Probed(attempt, probe.kind, is_well, "" if is_well else "no answer")
        self._after(cell.host, takes_ms, self._answered, (cell, cell.life), answer)

    def _answer(self, probe: RunProbe, held: HeldProcess | None) -> tuple[bool, int]:
        """Whether it passes, and after how long. A failing probe runs into its timeout."""
        if held is None or not held.is_running:
            return False, 1
        behaviour = self.behaviour(held)
        if probe.kind is Check.PRE_STOP:
            is_well = behaviour.kind is not BehaviourKind.HANGS and probe.timeout_ms >= PRE_STOP_MS
            return is_well, PRE_STOP_MS if is_well else probe.timeout_ms
        asked = self._probes.get(probe.attempt, 0)
        self._probes[probe.attempt] = asked + 1
        is_well = behaviour.answers(probe.kind, self.age_ms(held), asked)
        return is_well, between(self._rng, *ANSWER_MS) if is_well else probe.timeout_ms

    def _answered(self, _number: int, to: tuple[Cell, int], answer: Probed) -> None:
        cell, life = to
        if cell.life == life:
            self._tell(cell.host, cell, answer)

    # Stalled shims -----------------------------------------------------------------------------

    def _strike(self, _number: int, host: Host, held: HeldProcess) -> None:
        if not host.things.get(STALLED, 0):
            super()._strike(_number, host, held)
        elif held.is_running:
            held.was_frozen = True
            self._waiting.setdefault(host.own_name, []).append((held, None))

    def _extend(self, cell: Cell, effect: Extend) -> None:
        if not cell.host.things.get(STALLED, 0):
            super()._extend(cell, effect)
            return
        waiting = self._waiting.setdefault(cell.host.own_name, [])
        waiting += [(held, effect) for held in self.table(cell.host).values() if held.is_running]

    def _halt(self, cell: Cell, halt: Halt) -> None:
        attempt = halt.attempt
        order = StopOrdered(cell.host.own_name, attempt.uid, attempt.number, False, halt.grace_ms)
        self._world.fact(order)
        super()._halt(cell, halt)

    def _stop(self, host: Host, held: HeldProcess, grace_ms: int) -> None:
        if not host.things.get(STALLED, 0):
            super()._stop(host, held, grace_ms)
            return
        self._waiting.setdefault(host.own_name, []).append((held, grace_ms))
        for cell in host.cells:
            self._after(
                host, grace_ms + OVERDUE_MS, self._end_shim, (cell, cell.life), (host, held)
            )

    def _end_shim(self, _number: int, by: tuple[Cell, int], what: tuple[Host, HeldProcess]) -> None:
        """The agent, if it runs, kills the shim. The shim is the init process, so the work ends."""
        (cell, life), (host, held) = by, what
        if held.is_running and cell.life == life and cell.ready:
            self._end(host, held, "ShimDied")

    def _shim_pause(self, world: World, fault: Fault) -> Heal:
        """All shims of a node stall, and find their requests when they wake."""
        host = world.hosts[fault.target]
        host.things[STALLED] = host.things.get(STALLED, 0) + 1

        def heal() -> None:
            host.things[STALLED] -= 1
            if not host.things[STALLED]:
                self._wake_up(host)

        return heal

    def _wake_up(self, host: Host) -> None:
        for held, request in self._waiting.pop(host.own_name, []):
            if not held.is_running:
                continue
            # The deadline is checked before any request, so that no late request extends it.
            super()._strike(0, host, held)
            if isinstance(request, Extend):
                held.shim.extend(request.deadline_ms)
            elif request is not None and not held.shim.is_killed:
                super()._stop(host, held, request)

    def _power(self, host: Host) -> None:
        self._waiting.pop(host.own_name, None)
        super()._power(host)

    def _disk_full(self, world: World, fault: Fault) -> Heal:
        """The disk of a node is full, so nothing can be started there."""
        things = world.hosts[fault.target].things
        things[FULL] = things.get(FULL, 0) + 1

        def heal() -> None:
            things[FULL] -= 1

        return heal

    def _is_stubborn(self, held: HeldProcess) -> bool:
        return self.behaviour(held).kind is BehaviourKind.HANGS or super()._is_stubborn(held)
