"""A node is drained while the scheduler, which does not know it yet, picks it.

t0 node-a reports 8 free CPUs; t1 the scheduler's cache has it; t2 a drain of node-a is committed;
t3 the scheduler picks node-a for job-17; t4 the bind arrives; t5 node-a takes no more work. News
and requests of the scheduler are under way for a second or two, so that t3 lies after t2.
"""

from __future__ import annotations

from holdfast.model.lifecycle import CHARGED, State
from holdfast.model.refusal import Reason, Refusal
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt
from holdfast.sim.scenarios.people import wants
from holdfast.sim.scenarios.sentences import Expect, demand
from holdfast.sim.scenarios.stage import PATRON, Stage
from holdfast.sim.scenarios.story import Bound, Judged, Moment, Moved, Story
from holdfast.sim.world import World

JOB = "job-17-0-0"
NODE, ELSEWHERE = "node-a", "node-b"
WANTED_AT_MS, END_MS = 22_000, 70_000


def build(world: World) -> None:
    stage = Stage(world)
    stage.scheduler("main")
    stage.drainer()
    stage.node(NODE, cpu="9")
    stage.node(ELSEWHERE, cpu="8")
    stage.act(8_000, {"do": "cordon", "node": ELSEWHERE})
    # What is drained away; it leaves node-a 8 free CPUs.
    stage.act(12_000, wants("resident", "billing"))
    delay_ms = between(stage.rng, 800, 2_200)
    begin_ms = WANTED_AT_MS - 1_000
    stage.fault(begin_ms, "delay", "main", peer="*", for_ms=14_000, amount=delay_ms)
    stage.act(WANTED_AT_MS, wants("job-17", "fraud", cpu="6"))

    def drain(world: World) -> None:
        prompt(world, PATRON, {"do": "drain", "node": NODE})
        prompt(world, PATRON, {"do": "uncordon", "node": ELSEWHERE})

    stage.cue(_is_wanted, drain)
    stage.ready(EXPECTS)


def _is_wanted(moment: Moment) -> bool:
    what = moment.what
    return isinstance(what, Moved) and what.name == JOB and what.state is State.PENDING


def _drained(story: Story) -> Moment:
    """t2."""
    found = story.all(Judged, lambda it: it.node == NODE and not it.is_open)
    demand(found, f"{NODE} was never drained")
    return found[0]


def _refusal(story: Story) -> tuple[Moment, Refusal]:
    """t3 and what it came to."""
    asked, told = story.binds(JOB, "main"), story.answers(JOB, "main")
    demand(asked and asked[0].what.request.node == NODE, f"{NODE} was not picked for {JOB}")
    demand(asked[0].at_ms > _drained(story).at_ms, "it was picked before the drain")
    demand(told, "nothing became known of the bind")
    answer = told[0].what.answer
    demand(isinstance(answer, Refusal), f"the bind to a draining node came to {answer!r}")
    return asked[0], answer


def _refused(story: Story) -> str:
    asked, refusal = _refusal(story)
    reason = refusal.reason
    demand(reason is Reason.NODE_DRAINING, f"it was refused with {reason.value}")
    return f"drained at {_drained(story).at_ms} ms, picked at {asked.at_ms} ms: {refusal.message}"


def _names_revisions(story: Story) -> str:
    asked, refusal = _refusal(story)
    rested, now = (refusal.details.get(it, "") for it in ("snapshotRevision", "nodeRevision"))
    seen = asked.what.request.snapshot_revision
    demand(rested == str(seen), f"it rested on {seen}, the refusal says {rested or 'nothing'}")
    demand(now.isdigit(), f"the refusal does not name the node's revision: {refusal.details}")
    known = story.ledgers.get(NODE, [])
    demand(int(now) in known, f"{now} is no revision of the node's ledger: {known}")
    drained = _drained(story).revision
    demand(int(now) >= drained > seen, f"{seen} was seen, {drained} drained it, {now} is named")
    return f"the proposal rested on revision {rested}, the node is at {now}"


def _lands_elsewhere(story: Story) -> str:
    nodes = [it.what.node for it in story.bounds(JOB)]
    demand(nodes == [ELSEWHERE], f"{JOB} was bound to {nodes}")
    replica = story.replica(JOB)
    state = replica.status.state.value if replica is not None else "gone"
    demand(state == State.RUNNING.value, f"{JOB} is {state}")
    return f"{JOB} runs on {ELSEWHERE}"


def _drain_ends(story: Story) -> str:
    drained = _drained(story)
    later = story.all(Bound, lambda it: it.node == NODE)
    late = [it.what.replica.name for it in later if it.revision > drained.revision]
    demand(not late, f"{NODE} took {late} after its drain began")
    left = [
        it.name
        for it in story.books.all("objects/replicas/")
        if it.status.binding and it.status.binding.node == NODE and it.status.state in CHARGED
    ]
    demand(not left, f"{left} are still on {NODE}")
    moved = [it.what.node for it in story.bounds("resident-0-1")]
    demand(moved == [ELSEWHERE], f"what was there went to {moved}")
    return f"{NODE} took nothing more and is empty; what was there runs on {ELSEWHERE}"


EXPECTS = (
    Expect("sc2.refused", "The bind is refused at t4 with NodeDraining.", _refused),
    Expect(
        "sc2.names-revisions",
        "The refusal names the node revision that the proposal rested on and the current one.",
        _names_revisions,
    ),
    Expect("sc2.elsewhere", "job-17 lands elsewhere.", _lands_elsewhere),
    Expect("sc2.drain-ends", "node-a takes no more work, and the drain ends.", _drain_ends),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc2_drain_races_placement:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
