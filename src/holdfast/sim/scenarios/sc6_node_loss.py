"""Nodes are lost in every way there is, and nothing that must run once runs twice.

Five nodes fall silent at once, each with two exclusive replicas and one of policy keep: one died,
one is cut off, one has a hung agent, one comes back a second before its fence and one a second
after. In another zone three of five nodes are silent for half a minute, which is more than the
disruption limit allows to mark. A third zone falls silent as a whole and stays so: it is given up,
and its work is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import msgspec

from holdfast.correct.nodes.disruption_limits import zone_wait_ms
from holdfast.model.kinds.node import NodePhase
from holdfast.model.kinds.replica import Replica
from holdfast.model.lifecycle import State
from holdfast.model.nodes.heartbeat import ZONE_SILENCE_MAX_MS
from holdfast.sim.plan import Fault
from holdfast.sim.planes.process_table import ProcessEnded, ProcessStarted
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt
from holdfast.sim.scenarios.example_plane import (
    OPERATOR_CELL,
    SERVER_NAMES,
    SUSPECT_MS,
    TIMING,
    ExamplePlane,
)
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

DIED, CUT, HUNG, EARLY, LATE = VICTIMS = (
    "node-died",
    "node-cut",
    "node-hung",
    "node-early",
    "node-late",
)
SPARES = ("node-spare-1", "node-spare-2")
# A zone of its own, of which three fifths fall silent.
LIMITED = tuple(f"node-limited-{number}" for number in range(5))
SILENT = LIMITED[:3]
# The zone that is lost has as many nodes as the variant of the example says.
LOST, LOST_SPARE = "node-lost-", "node-saved-"
EXCLUSIVE, KEPT, STEADY, NEW = "fraud-batch", "risk-keeper", "billing-api", "newcomer"
STRANDED = "search-index"
STRUCK_AT_MS, END_MS = 32_000, 160_000
# Shorter than the two servers together hold a silent zone back.
LIMITED_FOR_MS = 28_000
HOLD_MS = zone_wait_ms(ZONE_SILENCE_MAX_MS, len(SERVER_NAMES))
# Looks of the controllers, the way of a bind, and the start.
SLACK_MS = 15_000
SECOND_MS = 1_000
_MARKED = (NodePhase.UNKNOWN, NodePhase.FENCED, NodePhase.LOST)


def build(world: World, lost: int = 3) -> None:
    plane = ExamplePlane(world)
    plane.scheduler("main")
    for name in VICTIMS:
        # Zones of one node each: the limit per zone does not apply to them.
        plane.node(name, zone=name, cpu="8", gpus=2)
    for name in SPARES:
        plane.node(name, zone=name, cpu="8", gpus=5)
    for name in LIMITED:
        plane.node(name, zone="limited", pool="limited", cpu="2")
    for number in range(lost):
        plane.node(f"{LOST}{number}", zone="lost", pool="lost", cpu="1")
        plane.fault(STRUCK_AT_MS, "partition", f"{LOST}{number}", peer="*", for_ms=END_MS)
        plane.node(f"{LOST_SPARE}{number}", zone="saved", pool="lost", cpu="1")
        plane.act(8_000, {"do": "cordon", "node": f"{LOST_SPARE}{number}"})
        plane.act(26_000, {"do": "uncordon", "node": f"{LOST_SPARE}{number}"})
    _create_work(plane)
    plane.act(11_000, workload_act(STRANDED, "search", replicas=lost, pool="lost"))
    _silence_nodes(plane)
    plane.ready(SENTENCES)


def _create_work(plane: ExamplePlane) -> None:
    """Two exclusive replicas and a kept one fit on each victim; spare nodes open later."""
    for name in SPARES:
        plane.act(8_000, {"do": "cordon", "node": name})
        plane.act(26_000, {"do": "uncordon", "node": name})
    plane.act(11_000, workload_act(EXCLUSIVE, "fraud", replicas=2 * len(VICTIMS), gpus=1))
    plane.act(11_000, workload_act(KEPT, "risk", replicas=len(VICTIMS), cpu="5", keep=True))
    plane.act(11_000, workload_act(STEADY, "billing", replicas=5, cpu="1500m", pool="limited"))


def _silence_nodes(plane: ExamplePlane) -> None:
    rng = plane.rng
    away_ms = between(rng, 75_000, 95_000)
    plane.fault(STRUCK_AT_MS, "reboot", DIED, for_ms=away_ms)
    plane.fault(STRUCK_AT_MS, "partition", CUT, peer="*", for_ms=away_ms)
    plane.fault(STRUCK_AT_MS, "pause", HUNG, for_ms=away_ms)
    for name in SILENT:
        plane.fault(STRUCK_AT_MS, "partition", name, peer="*", for_ms=LIMITED_FOR_MS)
    # An agent that resumes renews at once; after a cut it takes a while until it retries.
    plane.fault(STRUCK_AT_MS, "pause", EARLY, for_ms=away_ms)
    plane.cue(
        lambda it: _is_phase_change(it, EARLY, NodePhase.UNKNOWN),
        lambda world: plane.at(
            world.now_us // 1000 + TIMING.fence_after_ms - SECOND_MS,
            lambda world: world.resume(world.cells[EARLY]),
        ),
    )
    _cut_until_fenced(plane, LATE)
    # A replica that needs a Suspect node by name must wait.
    plane.cue(
        lambda it: _is_phase_change(it, CUT, NodePhase.SUSPECT),
        lambda world: prompt(world, OPERATOR_CELL, workload_act(NEW, "search", node=CUT)),
    )


def _cut_until_fenced(plane: ExamplePlane, node: str) -> None:
    """Cut a node off until one second after its fence."""

    def cut(world: World) -> None:
        fault = Fault(STRUCK_AT_MS, "partition", node, "*")
        heal = world.faults.kinds["partition"].strike(world, fault)
        world.inject("partition")

        def mend(world: World) -> None:
            at_ms = world.now_us // 1000 + SECOND_MS
            if heal is not None:
                plane.at(at_ms, lambda _world: heal())

        plane.cue(lambda it: _is_phase_change(it, node, NodePhase.FENCED), mend)

    plane.at(STRUCK_AT_MS, cut)


def _is_phase_change(entry: LogEntry, node: str, phase: NodePhase) -> bool:
    what = entry.what
    return isinstance(what, NodeChanged) and what.node == node and what.phase is phase


# Queries ------------------------------------------------------------------------------------------


def _when(log: RunLog, node: str, phase: NodePhase) -> int | None:
    """When a node first came into this phase after it fell silent."""
    found = log.node_changes(node, phase)
    return next((it.at_ms for it in found if it.at_ms > STRUCK_AT_MS), None)


def _fenced_ms(log: RunLog, node: str) -> int:
    at_ms = _when(log, node, NodePhase.FENCED)
    demand(at_ms is not None, f"{node} was never fenced")
    return at_ms or 0


def _back_ms(log: RunLog, node: str) -> int:
    at_ms = _when(log, node, NodePhase.READY)
    demand(at_ms is not None, f"{node} never came back")
    return at_ms or 0


def _first_bound(log: RunLog, node: str, workload: str) -> list[Replica]:
    """The replicas of a workload on a node when it fell silent."""
    found = log.all(Bound, lambda it: it.node == node and it.replica.spec.workload == workload)
    there = [it.what.replica for it in found if it.at_ms < STRUCK_AT_MS]
    demand(there, f"nothing of {workload} was on {node}")
    return there


def _successors(log: RunLog, of: Replica) -> list[LogEntry]:
    """All later binds for the same ordinal."""
    spec = of.spec
    return log.all(
        Bound,
        lambda it: (
            it.replica.spec.workload_uid == spec.workload_uid
            and it.replica.spec.ordinal == spec.ordinal
            and it.replica.spec.incarnation > spec.incarnation
        ),
    )


def _fenced_nodes(log: RunLog) -> Iterable[str]:
    """The victims that were fenced."""
    return [it for it in VICTIMS if _when(log, it, NodePhase.FENCED) is not None]


def _ended_ms(log: RunLog, host: str, uid: str) -> int | None:
    """When the last process of a replica ended on a computer after it fell silent."""
    found = log.all(ProcessEnded, lambda it: it.host == host and it.uid == uid)
    return max((it.at_ms for it in found if it.at_ms >= STRUCK_AT_MS), default=None)


# The sentences ------------------------------------------------------------------------------------


def _no_new_work(log: RunLog) -> str:
    phases: dict[str, NodePhase] = {}
    suspects = 0
    for entry in log.entries:
        what = entry.what
        if isinstance(what, NodeChanged):
            phases[what.node] = what.phase
            suspects += what.phase is NodePhase.SUSPECT
        elif isinstance(what, Bound):
            phase = phases.get(what.node)
            name = what.replica.name
            demand(phase is NodePhase.READY, f"{name} was bound to {what.node}, which is {phase}")
    waited = log.waits(f"{NEW}-0-0")
    return f"{suspects} Suspect nodes; message: {waited[0].what.pending.message}" if waited else ""


def _not_before_the_fence(log: RunLog) -> str:
    after: list[int] = []
    for node in VICTIMS:
        fenced_ms = _when(log, node, NodePhase.FENCED)
        for old in _first_bound(log, node, EXCLUSIVE):
            for entry in _successors(log, old):
                name, at_ms = entry.what.replica.name, entry.at_ms
                demand(
                    fenced_ms is not None and fenced_ms <= at_ms,
                    f"{name} was bound at {at_ms} ms, the fence of {node} was at {fenced_ms}",
                )
                after.append(at_ms - (fenced_ms or 0))
    return f"the first of {len(after)} came {min(after)} ms after the fence" if after else ""


def _self_stop(log: RunLog) -> str:
    before: list[int] = []
    for node in _fenced_nodes(log):
        fenced_ms = _fenced_ms(log, node)
        for old in _first_bound(log, node, EXCLUSIVE):
            ended_ms = _ended_ms(log, node, old.metadata.uid)
            demand(ended_ms is not None, f"{old.name} never stopped on {node}")
            early_ms = fenced_ms - (ended_ms or 0)
            demand(early_ms > 0, f"{old.name} ran on {node} for {-early_ms} ms after its fence")
            before.append(early_ms)
    return f"the last of {len(before)} stopped {min(before)} ms before the fence" if before else ""


def _one_replacement(log: RunLog) -> str:
    count = 0
    for node in _fenced_nodes(log):
        for old in _first_bound(log, node, EXCLUSIVE):
            new = _successors(log, old)
            demand(len(new) == 1, f"{old.name} was replaced {len(new)} times")
            replica = log.replica(new[0].what.replica.name)
            state = replica.status.state if replica is not None else None
            demand(state is State.RUNNING, f"{new[0].what.replica.name} is {state}")
            count += 1
    demand(len(list(_fenced_nodes(log))) >= len(VICTIMS) - 1, "not all were lost")
    return f"{count} replicas of {len(list(_fenced_nodes(log)))} nodes, each once"


def _not_resurrected(log: RunLog) -> str:
    count = 0
    for node in _fenced_nodes(log):
        fenced_ms, back_ms = _fenced_ms(log, node), _back_ms(log, node)
        for old in _first_bound(log, node, EXCLUSIVE):
            uid = old.metadata.uid
            started = [it for it in log.all(ProcessStarted) if it.what.uid == uid]
            late = [it for it in started if it.at_ms > fenced_ms]
            demand(not late, f"{old.name} was started after the fence of {node}")
            ended_ms = _ended_ms(log, node, uid)
            is_over = ended_ms is not None and ended_ms < back_ms
            demand(is_over, f"{old.name} still ran when {node} was back")
            found = log.replica(old.name)
            state = found.status.state if found is not None else State.RELEASED
            demand(state is State.RELEASED, f"{old.name} is {state.value}")
            count += 1
    return f"{count} old copies ended before their nodes were back, and stayed so"


def _keep_runs_once(log: RunLog) -> str:
    ran: list[str] = []
    for node in VICTIMS:
        (old,) = _first_bound(log, node, KEPT)
        released = log.state_changes(old.name, State.RELEASED)
        for entry in _successors(log, old):
            is_later = bool(released) and released[0].at_ms <= entry.at_ms
            demand(is_later, f"{entry.what.replica.name} was bound beside {old.name}")
        ended_ms = _ended_ms(log, node, old.metadata.uid)
        if node != DIED:
            back_ms = _back_ms(log, node)
            demand(
                ended_ms is None or ended_ms >= back_ms - SECOND_MS,
                f"{old.name} ended on {node} at {ended_ms} ms, {back_ms - (ended_ms or 0)} ms "
                "before the node was back",
            )
            ran.append(old.name)
    return f"{', '.join(ran)} ran until their nodes were back; none was replaced while it ran"


def _early_or_fenced(log: RunLog) -> str:
    """A second is too short to be sure: it renewed in time, or it was fenced. Never both."""
    back_ms, fenced_ms = _back_ms(log, EARLY), _when(log, EARLY, NodePhase.FENCED)
    old = _first_bound(log, EARLY, EXCLUSIVE)
    if fenced_ms is not None:
        return f"it was fenced {back_ms - fenced_ms} ms before it was Ready again"
    for it in old:
        demand(not _successors(log, it), f"{it.name} was replaced, and {EARLY} was not fenced")
        found = log.replica(it.name)
        state = found.status.state if found is not None else None
        demand(state is State.RUNNING, f"{it.name} is {state} on a node that came back in time")
    return f"it was Ready again at {back_ms} ms, and its {len(old)} replicas still run"


def _zone_limit_holds(log: RunLog) -> str:
    changes = log.all(NodeChanged, lambda it: it.node in LIMITED and it.phase in _MARKED)
    demand(not changes, f"{[it.what for it in changes]} though three of five were silent")
    suspects = log.all(NodeChanged, lambda it: it.node in LIMITED and it.phase is NodePhase.SUSPECT)
    demand(len({it.what.node for it in suspects}) == len(SILENT), "not three of five were silent")
    lost = log.all(StateChanged, lambda it: it.name.startswith(f"{STEADY}-") and it.state in _ENDS)
    demand(not lost, f"{[it.what for it in lost]}")
    return f"{len(SILENT)} of {len(LIMITED)} were Suspect, none was marked, nothing was replaced"


def _zone_given_up(log: RunLog) -> str:
    stranded = log.all(Bound, lambda it: it.node.startswith(LOST))
    demand(stranded, "no work was in the zone that was lost")
    after: list[int] = []
    for entry in stranded:
        old = entry.what.replica
        marked_ms = _when(log, entry.what.node, NodePhase.UNKNOWN)
        demand(marked_ms is not None, f"{entry.what.node} was never marked")
        held_ms = (marked_ms or 0) - STRUCK_AT_MS
        demand(held_ms >= HOLD_MS, f"{entry.what.node} was marked after {held_ms} ms")
        new = _successors(log, old)
        demand(len(new) == 1, f"{old.name} was replaced {len(new)} times")
        is_elsewhere = new[0].what.node.startswith(LOST_SPARE)
        demand(is_elsewhere, f"{old.name} went to {new[0].what.node}")
        fenced_ms = _fenced_ms(log, entry.what.node)
        demand(fenced_ms <= new[0].at_ms, f"{old.name} was replaced before the fence")
        after.append(new[0].at_ms - STRUCK_AT_MS)
    most_ms = SUSPECT_MS + HOLD_MS + TIMING.fence_after_ms + SLACK_MS
    demand(max(after) <= most_ms, f"the last was replaced after {max(after)} ms")
    return f"{len(after)} replicas were replaced within {max(after)} ms of the silence"


_ENDS = (State.UNKNOWN, State.STOPPING, State.FAILED, State.RELEASED)

SENTENCES = (
    Sentence("sc6.no-new-work", "A node gets no new work from Suspect on.", _no_new_work),
    Sentence(
        "sc6.not-before",
        "Nothing exclusive is replaced before the fence.",
        _not_before_the_fence,
    ),
    Sentence("sc6.self-stop", "Exclusive replicas stop themselves before the fence.", _self_stop),
    Sentence("sc6.one-after", "After the fence each replica is replaced once.", _one_replacement),
    Sentence(
        "sc6.no-resurrection",
        "When the node returns, the old copy is not started again.",
        _not_resurrected,
    ),
    Sentence(
        "sc6.keep",
        "Replicas of policy keep still run, and no second copy is bound.",
        _keep_runs_once,
    ),
    Sentence(
        "sc6.a-second-before",
        "A node that comes back a second before its fence is cleared or fenced, never both.",
        _early_or_fenced,
    ),
    Sentence(
        "sc6.zone-limit",
        "With 60 % of a zone silent for a while, no node of it is marked.",
        _zone_limit_holds,
    ),
    Sentence(
        "sc6.given-up",
        "A zone that stays silent is held back for its wait and then given up; its work is "
        "replaced once.",
        _zone_given_up,
    ),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc6_node_loss:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=10_000,
)

# A larger zone.
TEN = msgspec.structs.replace(
    SCENARIO,
    name="holdfast.sim.scenarios.sc6_node_loss:TEN",
    build=partial(build, lost=10),
)
