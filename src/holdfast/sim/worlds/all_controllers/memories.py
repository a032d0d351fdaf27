"""The world of all controllers, where what a controller remembers is compared with a new one.

    python -m holdfast.sim run holdfast.sim.worlds.all_controllers.memories:MEMORIES --seeds 0-99

A controller looks only at what events touched, and only a resync looks at everything again. So an
event that touches too little shows late, and then repairs itself. Here the leader is compared every
few seconds with a new controller on the same view, whose memories were just rebuilt: whatever that
one would request, the leader must have queued, sent or seen.
"""

from __future__ import annotations

from holdfast.correct.all_controllers import all_controllers
from holdfast.correct.controller_runner import ControllerRunner
from holdfast.correct.controller_worker import ControllerWorker
from holdfast.model.time import Instant
from holdfast.observe.snapshot import Snapshot
from holdfast.sim.cell import Cell
from holdfast.sim.check import TOO_SHORT, Checker
from holdfast.sim.planes.simulated_plane import SimulatedPlane, world_of
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from holdfast.sim.worlds.all_controllers import scenario

COMPARED_EVERY_MS = 5_000
# How often a key of a leader must have been compared, or the run proves nothing.
COMPARED_MIN = 100
# What may forget: where there are many events, controller:events drops those that warn of nothing.
FORGETFUL = ("events",)
# A cache that lost the event of a leader's own write shows the old object until it lists again, and
# a new controller would send that write again.
HAZARDS = tuple(it for it in scenario.HAZARDS if it.kind != "delivery_lose")


class MemoriesHideNothing(Checker):
    """See the module's docstring."""

    invariants = ("MEMORY",)

    def __init__(self) -> None:
        self.compared = 0

    def begin(self, world: World) -> None:
        """Compare from now on."""
        world.post(world.now_us + COMPARED_EVERY_MS * 1000, self._compare, world, None)

    def _compare(self, _number: int, world: World, _: None) -> None:
        for cell in world.cells.values():
            runner = _runner_in(cell)
            if runner is not None and cell.ready and runner.cache.is_ready:
                self._compare_runner(runner, cell.host.clock.instant(world.now_us))
        self.begin(world)

    def _compare_runner(self, runner: ControllerRunner, now: Instant) -> None:
        cache = runner.cache
        view = Snapshot(cache, cache.revision, cache.age_ms(now))
        for worker in runner.workers:
            self._compare_worker(worker, view, now)

    def _compare_worker(self, worker: ControllerWorker, view: Snapshot, now: Instant) -> None:
        term, name = worker.term(view, now), worker.controller.name
        if term is None or term.epoch != worker.listed_epoch or name in FORGETFUL:
            return
        fresh = next(it for it in all_controllers() if it.name == name)
        for memory in fresh.remembers:
            memory.resync(view)
        for key in fresh.all_keys(view):
            if not worker.is_settled(key, view):
                continue
            self.compared += 1
            requests = fresh.reconcile(view, key, term, now).requests
            if requests:
                what = f"{key}: a new one sends {type(requests[0]).__name__}"
                self.violated("MEMORY", f"controller:{name} has forgotten {what}")

    def at_end(self, world: World) -> None:
        if self.compared < COMPARED_MIN:
            self.violated(TOO_SHORT, f"only {self.compared} keys were compared")


def _runner_in(cell: Cell) -> ControllerRunner | None:
    """The runner of controllers inside the taps of a machine."""
    machine = getattr(getattr(cell.machine, "machine", None), "_runner", None)
    return machine if isinstance(machine, ControllerRunner) else None


def memories(plane: SimulatedPlane) -> None:
    """The comparison of each leader with a new controller."""
    checker = MemoriesHideNothing()
    plane.world.check(checker)
    checker.begin(plane.world)


MEMORIES = Scenario(
    name="holdfast.sim.worlds.all_controllers.memories:MEMORIES",
    build=world_of(
        *scenario.parts(scenario.NODES), *scenario.LAWS, memories, settings=scenario.SETTINGS
    ),
    hazards=HAZARDS,
    faults_ms=scenario.FAULTS_MS,
    settle_ms=scenario.SETTLE_MS,
    script=scenario.script,
)
