"""The world of all controllers with zones that go dark.

    python -m holdfast.sim run holdfast.sim.worlds.all_controllers.dark_zones:DARK --seeds 0-99

For up to 90 s no heartbeat of a zone's nodes reaches the controllers. Since most of the zone is
silent, no node is marked at first: the replicas stay Running, and ready by their last report.
Status must not count them. Once two servers that hear other zones have agreed for 30 s, the zone is
given up: its nodes are marked, and come back when they are heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.sim.check import Checker, Commit
from holdfast.sim.plan import SELDOM_LATE, Act, Hazard, calendar_steps
from holdfast.sim.planes.checkers.ledger_oracle import StoreCopy
from holdfast.sim.planes.shared_names import TENANTS
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.randomness import between
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers.invariants import is_ready
from holdfast.sim.worlds.all_controllers.scenario import (
    LAWS,
    SCENARIO,
    SERVER_NAMES,
    SETTINGS,
    parts,
)

# Three in each zone: the limit on silent nodes does not apply to smaller zones.
NODES = 9
FAULTS_MS = 150_000
# Status may count a replica for this long after its node fell silent or it ceased to be ready.
STATUS_LAG_MS = 10_000
# While a server hangs, status may be late: its clients wait for an answer before they turn to the
# other one. This long after that, status has to be true again.
BACK_MS = 20_000
LOOK_EVERY_MS = 500


HAZARDS = (
    *SELDOM_LATE,
    calendar_steps(60, share=0.3),
    Hazard("deaf_zone", 120, for_ms=(30_000, 90_000), only="agent", share=1, alone=True),
)


class CountedReady(Checker):
    """STATUS: what is reported ready is ready, on a node with heartbeats, or was a moment ago."""

    invariants = ("STATUS",)

    def __init__(self, store_copy: StoreCopy) -> None:
        self._store_copy = store_copy
        # Until when each replica was ready on a node with heartbeats.
        self._until_ms: dict[str, int] = {}
        # How often a workload had ready replicas that status must not count.
        self.silent = 0
        # When a server was last seen to hang.
        self._hung_ms = -BACK_MS

    def watch(self, world: World) -> None:
        self._look(0, world, None)

    def _look(self, _number: int, world: World, _: None) -> None:
        if any(world.cells[name].paused for name in SERVER_NAMES):
            self._hung_ms = world.now_us // 1000
        world.post(world.now_us + LOOK_EVERY_MS * 1_000, self._look, world, None)

    def on_commit(self, world: World, commit: Commit) -> None:
        now_ms = world.now_us // 1000
        is_judged = now_ms - self._hung_ms >= BACK_MS
        reachable = {
            it.name
            for it in self._store_copy.all("objects/nodes/")
            if it.status.phase is NodePhase.READY
        }
        working: dict[str, int] = {}
        ready: dict[str, int] = {}
        for replica in self._store_copy.all("objects/replicas/"):
            uid, owner = replica.metadata.uid, replica.spec.workload_uid
            if is_ready(replica):
                ready[owner] = ready.get(owner, 0) + 1
                if _node(replica) in reachable:
                    self._until_ms[uid] = now_ms
            if now_ms - self._until_ms.get(uid, -STATUS_LAG_MS) < STATUS_LAG_MS:
                working[owner] = working.get(owner, 0) + 1
        for workload in self._store_copy.all("objects/workloads/"):
            uid, said = workload.metadata.uid, workload.status.progress.ready
            self.silent += ready.get(uid, 0) > working.get(uid, 0)
            if is_judged and said > working.get(uid, 0):
                works = working.get(uid, 0)
                message = f"{workload.name} reports {said} ready, {works} are on reachable nodes"
                self.violated("STATUS", message)


def _node(replica: Replica) -> str:
    return replica.status.binding.node if replica.status.binding is not None else ""


def counted_ready(plane: SimulatedPlane) -> None:
    counted = CountedReady(plane.store_copy)
    plane.world.check(counted)
    counted.watch(plane.world)


def script(rng: Random) -> Sequence[Act]:
    """A few services, and an operator who scales them, so that status is written all the time."""
    made = [
        {"do": "make", "type": "Service", "name": f"w{n}", "tenant": TENANTS[0], "replicas": 4}
        for n in range(3)
    ]
    acts = [Act(500 + 100 * n, "operator", body) for n, body in enumerate(made)]
    for _ in range(6):
        scaled = {"do": "scale", "some": between(rng, 0, 99), "replicas": between(rng, 2, 5)}
        acts.append(Act(between(rng, 5_000, FAULTS_MS - 10_000), "operator", scaled))
    return sorted(acts, key=lambda act: act.at_ms)


DARK = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.worlds.all_controllers.dark_zones:DARK",
    build=world_of(*parts(NODES), *LAWS, counted_ready, settings=SETTINGS),
    hazards=HAZARDS,
    faults_ms=FAULTS_MS,
    script=script,
)
