"""The end-to-end world behind one address: any server reports the heartbeats of all of them.

    python -m holdfast.sim run holdfast.sim.worlds.end_to_end.one_address:ONE --seeds 0-99

Agents stay with one of two servers each, so that each server receives the heartbeats of some, and
the answer to controllers comes from either. Servers hang or are down for minutes; agents are down
for minutes. A healthy node must not be marked, and a dead one must be, whatever happened to a
server (`DeadNodesMarked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from holdfast.model.kinds.node import NodePhase
from holdfast.model.requests import NodeAction
from holdfast.observe.watch_events import SERVERS
from holdfast.sim.check import Checker
from holdfast.sim.plan import Act, Hazard, calendar_steps, late_requests
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.node_health_taps import NodeDecision
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.hung_servers import choose_servers
from holdfast.sim.worlds.end_to_end.hung_servers import script as services
from holdfast.sim.worlds.end_to_end.scenario import (
    LAWS,
    SERVER_NAMES,
    WELL_WITHIN_MS,
    parts,
)

NODES = 4
# A zone for each node, so that no disruption limit hides a mark that is missing.
ZONES = "abcd"
FAULTS_MS = 400_000
SETTLE_MS = WELL_WITHIN_MS + 30_000
LOOK_EVERY_MS = 500
# An agent that was healthy for this long has renewed at a live server, whatever the other did.
WELL_MS = 60_000
# A node that is dead for this long is marked: three and a half renewals, after a server that is
# down no longer counts (15 s) and its agents have had time to find another one (30 s), and a few
# rounds of the controllers.
DEAD_MS = 100_000
SCRIPTED = 12

_HAZARDS = (
    late_requests(0.25),
    calendar_steps(60, share=0.3),
    Hazard("crash", 30, for_ms=(60_000, 200_000), only="server"),
    Hazard("pause", 30, for_ms=(20_000, 60_000), only="server"),
    Hazard("crash", 60, for_ms=(100_000, 250_000), only="agent"),
)
_MARKED = (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


class DeadNodesMarked(Checker):
    """SC6: no healthy node is marked, and dead nodes are."""

    invariants = ("SC6",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # Since when each machine runs, or does not.
        self._runs: dict[str, tuple[bool, int]] = {}

    def watch(self, world: World) -> None:
        self._look(0, world, None)

    def _look(self, _number: int, world: World, _: None) -> None:
        now_ms = world.now_us // 1_000
        for name, cell in world.cells.items():
            runs = cell.machine is not None and not cell.paused
            if self._runs.get(name, (not runs, 0))[0] is not runs:
                self._runs[name] = (runs, now_ms)
        if self._is_steady(now_ms):
            self._check_dead(now_ms)
        world.post(world.now_us + LOOK_EVERY_MS * 1_000, self._look, world, None)

    def _is_steady(self, now_ms: int) -> bool:
        """Whether no server or controller started or stopped lately, and a server runs."""
        others = [name for name in self._runs if name.startswith(("server", "controllers"))]
        if any(now_ms - self._runs[name][1] < DEAD_MS for name in others):
            return False
        return any(self._runs[name][0] for name in SERVER_NAMES)

    def _check_dead(self, now_ms: int) -> None:
        for node in self._store_copy.all("objects/nodes/"):
            runs, since_ms = self._runs.get(node.name, (True, 0))
            is_dead = not runs and now_ms - since_ms >= DEAD_MS
            if is_dead and node.status.phase not in _MARKED:
                down_s = (now_ms - since_ms) / 1_000
                self.violated("SC6", f"{node.name} is down for {down_s:g} s and not marked")

    def on_fact(self, world: World, fact: Any) -> None:
        if not isinstance(fact, NodeDecision) or fact.action is not NodeAction.MARK:
            return
        now_ms = world.now_us // 1_000
        if self._is_well(fact.node, now_ms) and any(
            self._is_well(server, now_ms) for server in SERVER_NAMES
        ):
            self.violated("SC6", f"{fact.node} is to be marked, and was healthy all the time")

    def _is_well(self, name: str, now_ms: int) -> bool:
        runs, since_ms = self._runs[name]
        return runs and now_ms - since_ms >= WELL_MS


def dead_nodes(plane: SimulatedPlane) -> None:
    checker = DeadNodesMarked(plane.store_copy)
    plane.world.check(checker)
    checker.watch(plane.world)


def script(rng: Random) -> Sequence[Act]:
    """A few small services, so that nodes have work."""
    return services(rng)[:SCRIPTED]


ONE = Scenario(
    name="holdfast.sim.worlds.end_to_end.one_address:ONE",
    build=world_of(
        *parts(NODES, zones=ZONES, faults_ms=FAULTS_MS, asked=(SERVERS,)),
        *LAWS,
        choose_servers,
        dead_nodes,
    ),
    hazards=_HAZARDS,
    faults_ms=FAULTS_MS,
    settle_ms=SETTLE_MS,
    script=script,
)
