"""The end-to-end world with servers that hang: one of two stops for 20 to 60 s, and new work is
created.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.hung_servers:HUNG --seeds 0-99

A server that hangs is worse than one that died: connections stay open, and no request is answered.
What is created while at most one server hangs must be placed soon, whichever server each component
is connected to (`PromptPlacement`). Components choose their server as `host/client/transport` does:
they stay with one until it fails them, then take the other (`ServerChoice`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

from holdfast.model.errors import HoldfastError, OutcomeUnknown, Unavailable
from holdfast.model.kinds.workload import Workload
from holdfast.model.lifecycle import State
from holdfast.model.machine import Answered, Ask, Ended, Leave, Open, Pushed
from holdfast.model.time import Instant
from holdfast.observe.watch_events import SERVERS
from holdfast.sim.cell import Cell, Seat, SimulatedMachine
from holdfast.sim.check import Checker
from holdfast.sim.plan import Act, Hazard, calendar_steps, late_requests
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.component_taps import ComponentTap
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.scenario import (
    LAWS,
    SERVER_NAMES,
    WELL_WITHIN_MS,
    parts,
)

NODES = 4
FAULTS_MS = 300_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
CREATE_EVERY_MS = (4_000, 12_000)
# New work is placed within this time although a server hangs: a stream is silent for 5.5 s before
# it is left, then a request may get no answer for 5 s, and one that is forwarded to the server that
# hangs for 2 s more. Half as much again is for pauses between tries.
PROMPT_MS = 19_000
# A stream that is left after it was silent for this long was at a server that hangs.
SILENT_MS = 4_000
LOOK_EVERY_MS = 500

_HAZARDS = (
    late_requests(0.25),
    calendar_steps(60, share=0.3),
    Hazard("pause", 60, for_ms=(20_000, 60_000), amount=(0, 4), only="server"),
    Hazard("stream_break", 30),
)
_WAITING = (State.PENDING, State.RESERVED)


class ServerChoice:
    """A machine with its connection to the servers: it uses one until that server fails it."""

    def __init__(self, machine: SimulatedMachine, first: int) -> None:
        self._machine, self._current = machine, first
        self._asked: dict[int, str] = {}
        # The server of each stream, and when the stream last brought something.
        self._streams: dict[int, tuple[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        match stimulus:
            case Answered(call=call, body=body):
                server = self._asked.pop(call, "")
                if server and isinstance(body, (OutcomeUnknown, Unavailable)):
                    self._fault(server)
            case Pushed(stream=stream) if stream in self._streams:
                self._streams[stream] = (self._streams[stream][0], now.monotonic_ms)
            case Ended(stream=stream, body=body) if stream in self._streams:
                server, _ = self._streams.pop(stream)
                if isinstance(body, HoldfastError):
                    self._fault(server)
        return [self._address(effect, now) for effect in self._machine.step(stimulus, now)]

    def _address(self, effect: Any, now: Instant) -> Any:
        """The effect with the present server as its destination, where it goes to any server."""
        match effect:
            case Ask(to=to, call=call) if to == SERVERS:
                self._asked[call] = SERVER_NAMES[self._current]
                return msgspec.structs.replace(effect, to=SERVER_NAMES[self._current])
            case Open(to=to, stream=stream) if to == SERVERS:
                self._streams[stream] = (SERVER_NAMES[self._current], now.monotonic_ms)
                return msgspec.structs.replace(effect, to=SERVER_NAMES[self._current])
            case Leave(stream=stream) if stream in self._streams:
                server, received_ms = self._streams.pop(stream)
                if now.monotonic_ms - received_ms >= SILENT_MS:
                    self._fault(server)
        return effect

    def _fault(self, server: str) -> None:
        if SERVER_NAMES[self._current] == server:
            self._current = (self._current + 1) % len(SERVER_NAMES)


class PromptPlacement(Checker):
    """New work is placed soon, if no more than one server hung at that time.

    Servers that hang one right after the other are two faults: each may cost as much as one.
    """

    invariants = ("V2",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # When the set of hung servers last changed.
        self._changed_ms = 0
        self._hung: tuple[str, ...] = ()
        # Whether no other server hung when the present one began to hang.
        self._is_single = True
        self.judged = 0

    def watch(self, world: World) -> None:
        self._look(0, world, None)

    def _look(self, _number: int, world: World, _: None) -> None:
        hung = tuple(name for name in SERVER_NAMES if world.cells[name].paused)
        if hung != self._hung:
            self._is_single = len(hung) <= 1 and len(self._hung) <= 1
            self._hung, self._changed_ms = hung, world.now_us // 1_000
        world.post(world.now_us + LOOK_EVERY_MS * 1_000, self._look, world, None)

    def on_commit(self, world: World, commit: Any) -> None:
        for key, old, new in self._store_copy.changed("objects/workloads/"):
            if old is None and new is not None:
                at_us = world.now_us + PROMPT_MS * 1_000
                world.post(at_us, self._judge, key, world.now_us // 1_000)

    def _judge(self, _number: int, key: str, created_ms: int) -> None:
        workload: Workload | None = self._store_copy.now.get(key)
        was_disturbed = self._changed_ms > created_ms or not self._is_single
        if workload is None or was_disturbed or len(self._hung) != 1:
            return
        self.judged += 1
        bound = [
            it
            for it in self._store_copy.all("objects/replicas/")
            if it.spec.workload_uid == workload.metadata.uid and it.status.state not in _WAITING
        ]
        if len(bound) < workload.spec.replicas:
            late = f"{workload.name}: {len(bound)} of {workload.spec.replicas} places"
            self.violated("V2", f"{late} {PROMPT_MS} ms after creation, with {self._hung} hung")


def prompt(plane: SimulatedPlane) -> None:
    checker = PromptPlacement(plane.store_copy)
    plane.world.check(checker)
    checker.watch(plane.world)


def choose_servers(plane: SimulatedPlane) -> None:
    """Let all components stay with one server until it fails them."""
    rng = plane.world.rng("choosing")
    for name, cell in plane.world.cells.items():
        if name.startswith(("agent", "controllers", "scheduler")):
            _choose(cell, rng)


def _choose(cell: Cell, rng: Random) -> None:
    make: Callable[[Seat], Any] = cell.factory

    def made(seat: Seat) -> ComponentTap:
        overheard: ComponentTap = make(seat)
        overheard.machine = ServerChoice(overheard.machine, between(rng, 0, len(SERVER_NAMES) - 1))
        return overheard

    cell.factory = made


def script(rng: Random) -> Sequence[Act]:
    """Every few seconds one small service is created and one is deleted."""
    acts: list[Act] = []
    at_ms, number = 2_000, 0
    while at_ms < FAULTS_MS:
        acts.append(Act(at_ms, "operator", _service(number)))
        acts.append(Act(at_ms + 20_000, "operator", {"do": "delete", "some": 2 * number + 1}))
        at_ms, number = at_ms + between(rng, *CREATE_EVERY_MS), number + 1
    return sorted(acts, key=lambda act: act.at_ms)


def _service(number: int) -> dict[str, Any]:
    return {
        "do": "create",
        "name": f"w{number}",
        "tenant": TENANTS[0],
        "replicas": 1,
        "cpu": "100m",
        "gpu": "",
        "urgent": False,
        "gang": False,
        "eu": False,
        "keep": False,
        "budget": None,
        "port": 0,
        "grace": 1,
    }


HUNG = Scenario(
    name="holdfast.sim.worlds.end_to_end.hung_servers:HUNG",
    build=world_of(*parts(NODES, faults_ms=FAULTS_MS), *LAWS, choose_servers, prompt),
    hazards=_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)
