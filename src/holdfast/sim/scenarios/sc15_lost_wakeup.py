"""Watch events that would have woken waiting replicas are dropped, and the resync finds them.

Twice a tenant releases quota and a node is uncordoned, and a replica waits for each. The first time
the scheduler receives the watch events; the second time all items of its streams in those seconds
are lost, though the streams stay open.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.refusal import Reason
from holdfast.sim.planes.component_taps import ComponentTap
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.example_plane import RESYNC_MS, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

DELIVERED_AT_MS, DROPPED_AT_MS = 15_000, 75_000
# The work that cannot be placed is created this long before the quota and the node are free.
WAIT_MS = 5_000
ALL = 1_000
# A received event is acted on within this time.
AT_ONCE_MS = 2_000
# A resync is due once in its period; what it finds is placed at once.
FOUND_WITHIN_MS = RESYNC_MS + AT_ONCE_MS
END_MS = 170_000


class WakeupRound:
    """One round: its names, and when the quota and the node become free."""

    def __init__(self, name: str, at_ms: int) -> None:
        self.at_ms = at_ms
        self.filler, self.by_quota, self.by_node = (
            f"{it}-{name}" for it in ("filler", "by-quota", "by-node")
        )
        self.node = f"node-{name}"
        self.tenant = {"told": "billing", "dropped": "analytics"}[name]


DELIVERED, DROPPED = WakeupRound("told", DELIVERED_AT_MS), WakeupRound("dropped", DROPPED_AT_MS)


def build(world: World) -> None:
    plane = ExamplePlane(world, {"billing": {"cpu": "1"}, "analytics": {"cpu": "1"}})
    plane.scheduler("main")
    plane.node("node-a")
    for turn in (DELIVERED, DROPPED):
        plane.node(turn.node, pool=turn.node)
        _add_round(plane, turn)
    _drop_events(plane)
    plane.at(DROPPED_AT_MS - 1_000, _read_counter("before", plane.log))
    plane.at(END_MS, _read_counter("after", plane.log))
    plane.ready(SENTENCES)


def _add_round(plane: ExamplePlane, turn: WakeupRound) -> None:
    begin_ms = turn.at_ms - WAIT_MS
    plane.act(begin_ms - 2_000, {"do": "cordon", "node": turn.node})
    plane.act(begin_ms - 1_500, workload_act(turn.filler, turn.tenant, pool="general"))
    plane.act(begin_ms, workload_act(turn.by_quota, turn.tenant, pool="general"))
    plane.act(begin_ms, workload_act(turn.by_node, "search", pool=turn.node))
    plane.act(turn.at_ms, {"do": "scale", "name": turn.filler, "replicas": 0})
    plane.act(turn.at_ms, {"do": "uncordon", "node": turn.node})


def _drop_events(plane: ExamplePlane) -> None:
    """Drop all watch events until the quota and the node are free, and a little longer."""
    early_ms, for_ms = between(plane.rng, 50, 500), between(plane.rng, 6_000, 12_000)
    at_ms = DROPPED_AT_MS - early_ms
    plane.fault(at_ms, "delivery_lose", "main", for_ms=for_ms, amount=ALL)


def _read_counter(when: str, log: RunLog) -> Callable[[World], None]:
    def note(world: World) -> None:
        machine = world.cells["main"].machine
        if isinstance(machine, ComponentTap):
            log.counts[when] = machine.missed

    return note


# The sentences ------------------------------------------------------------------------------------


def _freed_ms(log: RunLog, turn: WakeupRound) -> tuple[int, int]:
    """When the quota was released, and when the node was open again."""
    released = log.all(
        StateChanged, lambda it: it.name == f"{turn.filler}-0-0" and it.state.value == "Released"
    )
    opened = log.all(NodeChanged, lambda it: it.node == turn.node and it.is_open)
    demand(released, f"{turn.filler} never released its quota")
    demand(opened and opened[-1].at_ms > turn.at_ms, f"{turn.node} was never uncordoned")
    return released[-1].at_ms, opened[-1].at_ms


def _check_waited(log: RunLog, turn: WakeupRound) -> None:
    for name, reason in (
        (turn.by_quota, Reason.QUOTA_EXCEEDED),
        (turn.by_node, Reason.NODE_CORDONED),
    ):
        waits = [it for it in log.waits(f"{name}-0-0") if it.at_ms < turn.at_ms]
        demand(waits and reason.value in waits[-1].what.pending.reasons, f"{name} did not wait")


def _check_bound(log: RunLog, turn: WakeupRound, within_ms: int) -> str:
    _check_waited(log, turn)
    after = []
    freed = _freed_ms(log, turn)
    for name, freed_ms in zip((turn.by_quota, turn.by_node), freed, strict=True):
        bounds = log.bindings(f"{name}-0-0")
        demand(bounds, f"{name} was never bound")
        late_ms = bounds[0].at_ms - freed_ms
        demand(late_ms <= within_ms, f"{name} was bound {late_ms} ms after this was possible")
        after.append(late_ms)
    return f"bound {after[0]} ms after the quota and {after[1]} ms after the node was free"


def _bound_at_once(log: RunLog) -> str:
    return _check_bound(log, DELIVERED, AT_ONCE_MS)


def _bound_after_resync(log: RunLog) -> str:
    return _check_bound(log, DROPPED, FOUND_WITHIN_MS)


def _missed_are_counted(log: RunLog) -> str:
    more = log.counts.get("after", 0) - log.counts.get("before", 0)
    demand(more > 0, "nothing was counted as missed")
    return f"{more} changes were counted as found by a resync only"


def _none_counted_before(log: RunLog) -> str:
    before = log.counts.get("before")
    demand(before is not None, "the counter was not read")
    demand(not before, f"{before} changes were counted as missed, though none was dropped")
    return "nothing was counted before anything was dropped"


SENTENCES = (
    Sentence(
        "sc15.woken", "With no event dropped, the replicas are bound at once.", _bound_at_once
    ),
    Sentence("sc15.zero", "With no event dropped, the counter stays zero.", _none_counted_before),
    Sentence(
        "sc15.found",
        "With the events dropped, the resync finds the replicas within its period.",
        _bound_after_resync,
    ),
    Sentence(
        "sc15.counted",
        "Each change that only the resync found is counted as missed.",
        _missed_are_counted,
    ),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc15_lost_wakeup:SCENARIO",
    build=build,
    faults_ms=END_MS + 5_000,
    settle_ms=5_000,
)
