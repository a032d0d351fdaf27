"""Events that would have woken waiting work are dropped, and the resync finds it.

Twice a tenant gives quota back and a node is opened again, and work waits for each. The first time
the scheduler is told; the second time everything that the servers tell it in those seconds is lost,
though its streams go on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.refusal import Reason
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.example_plane import RESYNC_MS, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.scheduler_taps import SchedulerTap
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

TOLD_AT_MS, DROPPED_AT_MS = 15_000, 75_000
# Work that finds no place comes first; so long after it what it waits for happens.
WAIT_MS = 5_000
ALL = 1_000
# What is told is acted on within this.
AT_ONCE_MS = 2_000
# A resync is due once in its period; what it finds is placed at once.
FOUND_WITHIN_MS = RESYNC_MS + AT_ONCE_MS
END_MS = 170_000


class WakeupRound:
    """One time round: its names, and when what they wait for happens."""

    def __init__(self, name: str, at_ms: int) -> None:
        self.at_ms = at_ms
        self.filler, self.by_quota, self.by_node = (
            f"{it}-{name}" for it in ("filler", "by-quota", "by-node")
        )
        self.node = f"node-{name}"
        self.tenant = {"told": "billing", "dropped": "analytics"}[name]


TOLD, DROPPED = WakeupRound("told", TOLD_AT_MS), WakeupRound("dropped", DROPPED_AT_MS)


def build(world: World) -> None:
    plane = ExamplePlane(world, {"billing": {"cpu": "1"}, "analytics": {"cpu": "1"}})
    plane.scheduler("main")
    plane.node("node-a")
    for turn in (TOLD, DROPPED):
        plane.node(turn.node, pool=turn.node)
        _play(plane, turn)
    _drop(plane)
    plane.at(DROPPED_AT_MS - 1_000, _note("before", plane.log))
    plane.at(END_MS, _note("after", plane.log))
    plane.ready(EXPECTS)


def _play(plane: ExamplePlane, turn: WakeupRound) -> None:
    begin_ms = turn.at_ms - WAIT_MS
    plane.act(begin_ms - 2_000, {"do": "cordon", "node": turn.node})
    plane.act(begin_ms - 1_500, workload_act(turn.filler, turn.tenant, pool="general"))
    plane.act(begin_ms, workload_act(turn.by_quota, turn.tenant, pool="general"))
    plane.act(begin_ms, workload_act(turn.by_node, "search", pool=turn.node))
    plane.act(turn.at_ms, {"do": "scale", "name": turn.filler, "replicas": 0})
    plane.act(turn.at_ms, {"do": "uncordon", "node": turn.node})


def _drop(plane: ExamplePlane) -> None:
    """Lose what is told until the quota is free and the node open, and a little longer."""
    early_ms, for_ms = between(plane.rng, 50, 500), between(plane.rng, 6_000, 12_000)
    at_ms = DROPPED_AT_MS - early_ms
    plane.fault(at_ms, "delivery_lose", "main", for_ms=for_ms, amount=ALL)


def _note(when: str, log: RunLog) -> Callable[[World], None]:
    def note(world: World) -> None:
        machine = world.cells["main"].machine
        if isinstance(machine, SchedulerTap):
            log.counts[when] = machine.missed

    return note


# The sentences ------------------------------------------------------------------------------------


def _freed_ms(log: RunLog, turn: WakeupRound) -> tuple[int, int]:
    """When the quota was given back, and when the node was open again."""
    released = log.all(
        StateChanged, lambda it: it.name == f"{turn.filler}-0-0" and it.state.value == "Released"
    )
    opened = log.all(NodeChanged, lambda it: it.node == turn.node and it.is_open)
    demand(released, f"{turn.filler} never gave its quota back")
    demand(opened and opened[-1].at_ms > turn.at_ms, f"{turn.node} was never opened again")
    return released[-1].at_ms, opened[-1].at_ms


def _waited(log: RunLog, turn: WakeupRound) -> None:
    for name, reason in (
        (turn.by_quota, Reason.QUOTA_EXCEEDED),
        (turn.by_node, Reason.NODE_CORDONED),
    ):
        waits = [it for it in log.waits(f"{name}-0-0") if it.at_ms < turn.at_ms]
        demand(waits and reason.value in waits[-1].what.pending.reasons, f"{name} did not wait")


def _found(log: RunLog, turn: WakeupRound, within_ms: int) -> str:
    _waited(log, turn)
    after = []
    freed = _freed_ms(log, turn)
    for name, freed_ms in zip((turn.by_quota, turn.by_node), freed, strict=True):
        bounds = log.bindings(f"{name}-0-0")
        demand(bounds, f"{name} was never bound")
        late_ms = bounds[0].at_ms - freed_ms
        demand(late_ms <= within_ms, f"{name} was bound {late_ms} ms after it could have been")
        after.append(late_ms)
    return f"bound {after[0]} ms after the quota and {after[1]} ms after the node was free"


def _told_at_once(log: RunLog) -> str:
    return _found(log, TOLD, AT_ONCE_MS)


def _found_by_resync(log: RunLog) -> str:
    return _found(log, DROPPED, FOUND_WITHIN_MS)


def _counted(log: RunLog) -> str:
    more = log.counts.get("after", 0) - log.counts.get("before", 0)
    demand(more > 0, "nothing was counted as missed")
    return f"{more} changes were counted as found by a resync only"


def _zero(log: RunLog) -> str:
    before = log.counts.get("before")
    demand(before is not None, "nobody has counted")
    demand(not before, f"{before} changes were counted as missed, and none was dropped")
    return "nothing was counted before anything was dropped"


EXPECTS = (
    Sentence("sc15.woken", "With no event dropped, the work is woken at once.", _told_at_once),
    Sentence("sc15.zero", "With no event dropped, the counter stays zero.", _zero),
    Sentence(
        "sc15.found",
        "With the events dropped, the resync finds the work within its period.",
        _found_by_resync,
    ),
    Sentence("sc15.counted", "The find is counted as a defect.", _counted),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc15_lost_wakeup:SCENARIO",
    build=build,
    faults_ms=END_MS + 5_000,
    settle_ms=5_000,
)
