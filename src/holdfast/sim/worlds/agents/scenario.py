"""The participants of the agents world, its faults, and its checkers.

    python -m holdfast.sim run holdfast.sim.worlds.agents.scenario:AGENTS --seeds 0-99

`AGENTS` has all faults that an agent must survive. `AWAY` has few, but the servers are silent for
ten minutes. In `PORTS` work opens its ports late. In `STOPPING` all work hangs and has a long grace
period, and nodes are cut off while they stop it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from holdfast.agent.runtime_protocol import OPENING_MS
from holdfast.agent.secret_values import SECRET_MISSING
from holdfast.commit.context import PlaneSettings
from holdfast.model.kinds.replica import CRASH_LOOP
from holdfast.model.lifecycle import State
from holdfast.model.nodes import fence
from holdfast.model.nodes.fence import FenceTiming
from holdfast.sim.check import Checker, Commit, Settles
from holdfast.sim.plan import LATENESS, SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes import invariants
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.components import (
    controllers,
    equal_nodes,
    operator,
    process_tables,
    scheduler,
    servers,
    store,
)
from holdfast.sim.planes.initial_objects import defaults
from holdfast.sim.planes.process_table import (
    KILL_MS,
    Adopted,
    ProcessEnded,
    ProcessStarted,
)
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, Trait, world_of
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.agents.observers import AgentAvailability, tapped_agent
from holdfast.sim.worlds.agents.people import FAULTS_MS, WorkloadOwner, script, stopping_script
from holdfast.sim.worlds.agents.process_table import (
    AgentProcesses,
    PortOpened,
    StartRefused,
    StopOrdered,
)
from holdfast.sim.worlds.agents.report_checks import (
    PublishedAddresses,
    ReportedStatus,
    SecretConfinement,
)
from holdfast.sim.worlds.agents.secrets import secret
from holdfast.sim.worlds.agents.start_checks import RestartBackoff, RestartCounts
from holdfast.sim.worlds.agents.stop_checks import GracefulStops, StopDeadlines, StopReasons

# What the census must have counted at least once over a campaign.
DEMANDED = (
    "started",
    "started again",
    "start refused",
    "adopted",
    "pre-stop",
    "halted",
    "ended: DeadlinePassed",
    "ended: Exited",
    "ended: Killed",
    "ended: Rebooted",
    "ended: ShimDied",
    "ended: Stopped",
    "reported: Succeeded",
    "reported: Failed",
    "reported: LivenessProbeFailed",
    "reported: StartupProbeFailed",
    "reported: NotReady",
    "reported: CrashLoop",
    "reported: SecretMissing",
    "reported: out of memory",
    "port opened",
    "port opened late",
    "new life",
)


class AgentCensus(Checker):
    """Counts what happened, so that a test can demand it. It checks nothing."""

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        self.counts: dict[str, int] = {}

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def on_fact(self, world: World, fact: Any) -> None:
        match fact:
            case ProcessStarted(number=number):
                self._count("started again" if number else "started")
            case ProcessEnded(why=why):
                self._count(f"ended: {why}")
            case StopOrdered(is_pre_stop=is_pre_stop):
                self._count("pre-stop" if is_pre_stop else "halted")
            case StartRefused():
                self._count("start refused")
            case PortOpened(after_ms=after_ms):
                self._count("port opened late" if after_ms > OPENING_MS else "port opened")
            case Adopted():
                self._count("adopted")

    def on_commit(self, world: World, commit: Commit) -> None:
        for _, old, new in self._store_copy.changed("objects/nodes/"):
            is_known = old is not None and new is not None
            if is_known and new.status.incarnation > old.status.incarnation:
                self._count("new life")
        for _, old, new in self._store_copy.changed("objects/replicas/"):
            if new is None:
                continue
            if old is None or old.status.state is not new.status.state:
                self._count(f"reported: {new.status.state.value}")
            if old is None or old.status.process != new.status.process:
                self._count_process(new)

    def _count_process(self, replica: Any) -> None:
        process = replica.status.process
        for reason in ("LivenessProbeFailed", "StartupProbeFailed", "NotReady"):
            if process.reason.startswith(reason):
                self._count(f"reported: {reason}")
        if process.reason.startswith(CRASH_LOOP):
            self._count("reported: CrashLoop")
        if process.reason.startswith(SECRET_MISSING):
            self._count("reported: SecretMissing")
        if process.oom_killed and replica.status.state is not State.RELEASED:
            self._count("reported: out of memory")


NODES = ("agent-0", "agent-1")
REPORTED_WITHIN_MS = 60_000
SETTLE_MS = REPORTED_WITHIN_MS + 60_000
AWAY_FROM_MS, AWAY_MS = 60_000, 600_000
_TIMES = FenceTiming(
    ack_window_ms=500,
    self_stop_after_ms=9_000,
    grace_ms=2_000,
    kill_bound_ms=KILL_MS[1],
    margin_ms=100,
    fence_after_ms=0,
)
TIMING = msgspec.structs.replace(_TIMES, fence_after_ms=fence.fence_after_min_ms(_TIMES))

HAZARDS = (
    *LATENESS,
    Hazard("crash", 120, for_ms=(0, 8_000), amount=(0, 6), only="agent"),
    Hazard("crash", 30, for_ms=(0, 40_000), amount=(0, 6), only="agent", share=0.4),
    Hazard("pause", 90, for_ms=(500, 8_000), amount=(0, 6), only="agent"),
    Hazard("pause", 30, for_ms=(10_000, 40_000), amount=(0, 6), only="agent", share=0.4),
    Hazard("start_stall", 60, amount=(500, 15_000), only="agent"),
    Hazard("reboot", 40, for_ms=(500, 20_000), only="agent", share=0.5),
    Hazard("machine_freeze", 20, for_ms=(500, 20_000), amount=(0, 1), only="agent", share=0.3),
    Hazard("disk_full", 60, for_ms=(1_000, 20_000), only="agent", share=0.5),
    Hazard("shim_pause", 60, for_ms=(500, 15_000), only="agent", share=0.5),
    Hazard("shim_kill", 40, only="agent", share=0.5),
    Hazard("work_exit", 60, amount=(0, 1), only="agent", share=0.5),
    Hazard("clock_rate", 120, amount=(-200, 200)),
    calendar_steps(60),
    Hazard("partition", 60, for_ms=(500, 30_000), only="agent"),
    Hazard("cut", 60, for_ms=(500, 20_000), only="agent", share=0.5),
    Hazard("delay", 40, for_ms=(1_000, 20_000), amount=(50, 900), only="agent", share=0.5),
    Hazard("loss", 40, for_ms=(1_000, 20_000), amount=(50, 500), only="agent", share=0.5),
    Hazard("crash", 30, for_ms=(0, 4_000), amount=(0, 6), only="server", share=0.5),
    Hazard("store_mute", 30, for_ms=(1_000, 15_000), amount=(100, 800), share=0.3),
)
# Faults of a node while the servers are silent.
_AWAY_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("crash", 10, for_ms=(0, 20_000), amount=(0, 6), only="agent"),
    Hazard("reboot", 3, for_ms=(500, 20_000), only="agent", share=0.3),
    Hazard("work_exit", 10, amount=(0, 1), only="agent", share=0.5),
    Hazard("shim_kill", 5, only="agent", share=0.5),
    Hazard("clock_rate", 20, amount=(-200, 200)),
)
# Partitions that last longer than work may run without renewal.
_STOPPING_HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("partition", 200, for_ms=(12_000, 25_000), only="agent", share=0.8),
    Hazard("crash", 240, for_ms=(0, 5_000), amount=(0, 6), only="agent", share=0.8),
    Hazard("clock_rate", 60, amount=(-200, 200)),
)


def silent_servers(plane: SimulatedPlane) -> None:
    """All servers are paused for ten minutes."""
    plane.world.post(AWAY_FROM_MS * 1000, _pause_servers, plane, None)


def _pause_servers(_number: int, plane: SimulatedPlane, _: None) -> None:
    for name in plane.plane.servers:
        plane.world.pause_for(plane.world.cells[name], AWAY_MS)


def promises(plane: SimulatedPlane) -> None:
    """What agents promise: stops in time, pauses that grow, confined Secrets, true reports."""
    world, store_copy, table = plane.world, plane.store_copy, plane.tables(AgentProcesses)
    availability = AgentAvailability(world, NODES, TIMING)
    status = ReportedStatus(store_copy, table)
    world.check(availability, StopDeadlines(world, table, availability, TIMING))
    world.check(
        RestartBackoff(world, store_copy, table, availability), RestartCounts(store_copy, table)
    )
    world.check(
        StopReasons(world, store_copy, table, availability),
        GracefulStops(store_copy, table, availability),
    )
    world.check(
        SecretConfinement(store_copy, table),
        PublishedAddresses(store_copy, table),
        AgentCensus(store_copy),
    )
    world.check(
        Settles("C7.3", status.mismatch, within_ms=REPORTED_WITHIN_MS),
        Settles("I5", status.leftover, within_ms=REPORTED_WITHIN_MS),
    )


def agents(*more: Trait, opens_late: bool = False) -> Callable[[World], None]:
    """Two servers over one store, a scheduler, all controllers, and two nodes with work."""
    return world_of(
        store(*defaults(), *(secret(tenant, 0) for tenant in TENANTS)),
        process_tables(partial(AgentProcesses, opens_late=opens_late)),
        servers(),
        scheduler,
        controllers("controllers"),
        equal_nodes(len(NODES), zones="01", tap=tapped_agent),
        operator(WorkloadOwner),
        invariants.copied,
        invariants.processes,
        invariants.node_lives,
        promises,
        *more,
        settings=PlaneSettings(fence=TIMING),
    )


def _away_script(rng: Random) -> Sequence[Act]:
    """The acts of `script`; those that would fall into the silence come after it."""
    later_ms = AWAY_FROM_MS + AWAY_MS
    return [
        act if act.at_ms < AWAY_FROM_MS - 10_000 else _later(act, later_ms) for act in script(rng)
    ]


def _later(act: Act, by_ms: int) -> Act:
    return msgspec.structs.replace(act, at_ms=act.at_ms - (AWAY_FROM_MS - 10_000) + by_ms)


AGENTS = Scenario(
    name="holdfast.sim.worlds.agents.scenario:AGENTS",
    build=agents(),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)

# The same with servers that are silent for ten minutes.
AWAY = Scenario(
    name="holdfast.sim.worlds.agents.scenario:AWAY",
    build=agents(silent_servers),
    hazards=_AWAY_HAZARDS,
    faults_ms=AWAY_FROM_MS + AWAY_MS + 10_000,
    settle_ms=SETTLE_MS,
    script=_away_script,
)

# The same with work that shares the ports of its node and opens them late.
PORTS = msgspec.structs.replace(
    AGENTS,
    name="holdfast.sim.worlds.agents.scenario:PORTS",
    build=agents(opens_late=True),
)

# The same with stops during a loss of contact.
STOPPING = msgspec.structs.replace(
    AGENTS,
    name="holdfast.sim.worlds.agents.scenario:STOPPING",
    hazards=_STOPPING_HAZARDS,
    script=stopping_script,
)
