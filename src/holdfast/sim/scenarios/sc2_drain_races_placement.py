"""A node is drained while the scheduler, whose cache is stale, picks it.

t0 node-a reports 8 free CPUs; t1 the scheduler's cache has it; t2 a drain of node-a is committed;
t3 the scheduler picks node-a for job-17; t4 the bind arrives; t5 node-a takes no more work. Watch
events and requests of the scheduler are delayed by a second or two, so that t3 is after t2.
"""

from __future__ import annotations

from holdfast.model.lifecycle import CHARGED, State
from holdfast.model.refusal import Reason, Refusal
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt
from holdfast.sim.scenarios.example_plane import OPERATOR_CELL, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

JOB = "job-17-0-0"
NODE, ELSEWHERE = "node-a", "node-b"
WANTED_AT_MS, END_MS = 22_000, 70_000


def build(world: World) -> None:
    plane = ExamplePlane(world)
    plane.scheduler("main")
    plane.drainer()
    plane.node(NODE, cpu="9")
    plane.node(ELSEWHERE, cpu="8")
    plane.act(8_000, {"do": "cordon", "node": ELSEWHERE})
    # The drain moves this one away; it leaves node-a 8 free CPUs.
    plane.act(12_000, workload_act("resident", "billing"))
    delay_ms = between(plane.rng, 800, 2_200)
    begin_ms = WANTED_AT_MS - 1_000
    plane.fault(begin_ms, "delay", "main", peer="*", for_ms=14_000, amount=delay_ms)
    plane.act(WANTED_AT_MS, workload_act("job-17", "fraud", cpu="6"))

    def drain(world: World) -> None:
        prompt(world, OPERATOR_CELL, {"do": "drain", "node": NODE})
        prompt(world, OPERATOR_CELL, {"do": "uncordon", "node": ELSEWHERE})

    plane.cue(_is_created, drain)
    plane.ready(SENTENCES)


def _is_created(entry: LogEntry) -> bool:
    what = entry.what
    return isinstance(what, StateChanged) and what.name == JOB and what.state is State.PENDING


def _drain_entry(log: RunLog) -> LogEntry:
    """The log entry of t2."""
    found = log.all(NodeChanged, lambda it: it.node == NODE and not it.is_open)
    demand(found, f"{NODE} was never drained")
    return found[0]


def _refusal(log: RunLog) -> tuple[LogEntry, Refusal]:
    """The log entry of t3, and the refusal."""
    asked, answers = log.bind_requests(JOB, "main"), log.bind_answers(JOB, "main")
    demand(asked and asked[0].what.request.node == NODE, f"{NODE} was not picked for {JOB}")
    demand(asked[0].at_ms > _drain_entry(log).at_ms, "it was picked before the drain")
    demand(answers, "the bind got no answer")
    answer = answers[0].what.answer
    demand(isinstance(answer, Refusal), f"the answer to the bind to a draining node was {answer!r}")
    return asked[0], answer


def _is_refused_with_reason(log: RunLog) -> str:
    asked, refusal = _refusal(log)
    reason = refusal.reason
    demand(reason is Reason.NODE_DRAINING, f"it was refused with {reason.value}")
    return f"drained at {_drain_entry(log).at_ms} ms, picked at {asked.at_ms} ms: {refusal.message}"


def _names_revisions(log: RunLog) -> str:
    asked, refusal = _refusal(log)
    rested, now = (refusal.details.get(it, "") for it in ("observedNodeRevision", "nodeRevision"))
    seen = asked.what.request.node_revision
    demand(seen, "the bind does not say which revision of the node the proposal used")
    demand(rested == str(seen), f"the proposal used {seen}, the refusal says {rested or 'nothing'}")
    demand(now.isdigit(), f"the refusal has no node revision: {refusal.details}")
    known = log.node_revisions.get(NODE, [])
    demand(seen in known and int(now) in known, f"{seen} or {now} is no revision of it: {known}")
    drained = _drain_entry(log).revision
    demand(
        int(now) >= drained > seen, f"seen at {seen}, drained at {drained}, the refusal names {now}"
    )
    return f"the proposal used revision {rested} of the node, which is at {now}"


def _lands_elsewhere(log: RunLog) -> str:
    nodes = [it.what.node for it in log.bindings(JOB)]
    demand(nodes == [ELSEWHERE], f"{JOB} was bound to {nodes}")
    replica = log.replica(JOB)
    state = replica.status.state.value if replica is not None else "gone"
    demand(state == State.RUNNING.value, f"{JOB} is {state}")
    return f"{JOB} runs on {ELSEWHERE}"


def _drain_ends(log: RunLog) -> str:
    drained = _drain_entry(log)
    later = log.all(Bound, lambda it: it.node == NODE)
    late = [it.what.replica.name for it in later if it.revision > drained.revision]
    demand(not late, f"{NODE} took {late} after its drain began")
    left = [
        it.name
        for it in log.store_copy.all("objects/replicas/")
        if it.status.binding and it.status.binding.node == NODE and it.status.state in CHARGED
    ]
    demand(not left, f"{left} are still on {NODE}")
    moved = [it.what.node for it in log.bindings("resident-0-1")]
    demand(moved == [ELSEWHERE], f"its replica moved to {moved}")
    return f"{NODE} took no more work and is empty; its replica runs on {ELSEWHERE}"


SENTENCES = (
    Sentence(
        "sc2.refused", "The bind is refused at t4 with NodeDraining.", _is_refused_with_reason
    ),
    Sentence(
        "sc2.names-revisions",
        "The refusal names the node revision of the proposal and the current one.",
        _names_revisions,
    ),
    Sentence("sc2.elsewhere", "job-17 lands elsewhere.", _lands_elsewhere),
    Sentence("sc2.drain-ends", "node-a takes no more work, and the drain ends.", _drain_ends),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc2_drain_races_placement:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
