"""The answer to a bind is lost: once after it was committed, once before it arrived.

First half: risk-api is bound to node-b7, and no message of the servers reaches the scheduler for a
while; node-b7's agent is paused, so that its heartbeat is late and the replica is not ready. Second
half: three copies of a bind for billing-api are lost on their way to the servers, and the chosen
node is cordoned meanwhile.
"""

from __future__ import annotations

from holdfast.model.errors import OutcomeUnknown
from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import Stage as Progress
from holdfast.model.lifecycle import State
from holdfast.model.read_requests import GetResult
from holdfast.model.requests import Bind
from holdfast.propose.feasibility.outcome import SCHEDULING_RETRYING
from holdfast.sim.planes.scheduler_taps import AnswerReceived, RequestSent
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt, strike
from holdfast.sim.scenarios.example_plane import OPERATOR_CELL, SERVER_NAMES, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand, first
from holdfast.sim.world import World

KEPT, LATER, LOST = "risk-api-0-0", "search-index-0-0", "billing-api-0-0"
NODE = "node-b7"
FIRST_AT_MS, SECOND_AT_MS, END_MS = 12_000, 60_000, 120_000
# How long messages of the servers are lost; shorter than the scheduler waits for an answer.
DEAF_MS = (2_500, 4_500)
# How long the scheduler gets no watch events: its 5 s time-out passes, and it has to read.
HELD_MS = 7_000
# How long the agent is paused at most; it sends no heartbeat and starts nothing.
LATE_MS = 25_000
# Long enough for a message under way to be lost.
LOST_MS = 50
COPIES = 3
_GONE = (State.STOPPING, State.FAILED, State.SUCCEEDED, State.RELEASED)


def build(world: World) -> None:
    plane = ExamplePlane(world)
    plane.scheduler("main")
    # The largest, so that it is the best choice whenever it is feasible.
    plane.node(NODE, cpu="16")
    for name in ("node-b8", "node-b9"):
        plane.node(name, cpu="4")
    _lose_answers(plane)
    _lose_requests(plane)
    plane.ready(SENTENCES)


def _lose_answers(plane: ExamplePlane) -> None:
    # It waits for a moment, so that there is a pending reason that must be removed.
    plane.act(FIRST_AT_MS - 4_000, {"do": "cordon", "node": NODE})
    plane.act(FIRST_AT_MS - 1_000, workload_act("risk-api", "risk", node=NODE))
    plane.act(FIRST_AT_MS, {"do": "uncordon", "node": NODE})
    deaf_ms = between(plane.rng, *DEAF_MS)

    def lose(world: World) -> None:
        for server in SERVER_NAMES:
            strike(world, "cut", server, peer="main", for_ms=deaf_ms)
        strike(world, "watch_hold", "main", for_ms=HELD_MS)
        strike(world, "pause", NODE, for_ms=LATE_MS)

    plane.cue(lambda it: isinstance(it.what, Bound) and it.what.replica.name == KEPT, lose)
    # As soon as the node is Suspect, more work is created.
    plane.cue(
        lambda it: isinstance(it.what, NodeChanged) and it.what.phase is NodePhase.SUSPECT,
        lambda world: prompt(world, OPERATOR_CELL, workload_act("search-index", "search", cpu="2")),
    )
    plane.cue(
        lambda it: isinstance(it.what, Bound) and it.what.replica.name == LATER,
        lambda world: world.resume(world.cells[NODE]),
    )


def _lose_requests(plane: ExamplePlane) -> None:
    plane.act(SECOND_AT_MS, workload_act("billing-api", "billing"))
    plane.cue(
        _is_lost_bind,
        lambda world: strike(world, "cut", "main", peer="*", for_ms=LOST_MS),
        COPIES,
    )
    plane.cue(
        _is_lost_bind,
        lambda world: prompt(
            world,
            OPERATOR_CELL,
            {"do": "cordon", "node": plane.log.bind_requests(LOST)[0].what.request.node},
        ),
    )


def _is_lost_bind(entry: LogEntry) -> bool:
    what = entry.what
    is_bind = isinstance(what, RequestSent) and isinstance(what.request, Bind)
    return is_bind and what.request.target.name == LOST


# The sentences ------------------------------------------------------------------------------------


def _lost_answer(log: RunLog, name: str) -> LogEntry:
    lost = [it for it in log.bind_answers(name) if isinstance(it.what.answer, OutcomeUnknown)]
    demand(lost, f"no answer to a bind of {name} was lost")
    return lost[0]


def _reads(log: RunLog) -> str:
    lost = _lost_answer(log, KEPT)
    found = log.all(
        AnswerReceived, lambda it: isinstance(it.answer, GetResult) and it.request.name == KEPT
    )
    demand(found and found[0].at_ms >= lost.at_ms, f"{KEPT} was not read after its answer was lost")
    again = [it for it in log.bind_requests(KEPT) if lost.at_ms <= it.at_ms <= found[0].at_ms]
    demand(not again, f"a bind for {KEPT} was sent again before it was read")
    operation = first(
        log.bind_requests(KEPT), f"no bind was sent for {KEPT}"
    ).what.request.operation
    held = [past.id for past in found[0].what.answer.object.metadata.operations]
    demand(operation in held, f"the object that was read has {held}, not {operation}")
    return f"lost at {lost.at_ms} ms, read at {found[0].at_ms} ms, and it contains {operation}"


def _status_says_bound(log: RunLog) -> str:
    demand(log.waits(KEPT), f"{KEPT} never had a pending reason")
    bound = first(log.bindings(KEPT), f"{KEPT} is not bound")
    status = bound.what.replica.status
    demand(status.state is State.BOUND, f"status says {status.state.value}")
    demand(status.stage is Progress.BOUND, f"its stage is {status.stage.value}")
    demand(status.pending is None, f"it still has a pending reason: {status.pending}")
    return f"status says Bound on {bound.what.node} from revision {bound.revision} on"


def _once(log: RunLog) -> str:
    bounds, asked = log.bindings(KEPT), log.bind_requests(KEPT)
    demand(len(bounds) == 1, f"{KEPT} was bound {len(bounds)} times")
    nodes = {it.what.request.node for it in asked}
    demand(nodes == {NODE}, f"binds were sent for {nodes}")
    demand(len(asked) == 1, f"its bind was sent {len(asked)} times though it was committed")
    held = log.store_copy.all("objects/reservations/")
    demand(not held, f"there are reservations: {held}")
    return "one bind was sent and committed, and nothing is reserved"


def _count_stays(log: RunLog) -> str:
    workloads = [it for it in log.store_copy.all("objects/workloads/") if it.name == "risk-api"]
    wanted = sum(it.spec.replicas for it in workloads)
    created = log.all(
        StateChanged, lambda it: it.name.startswith("risk-api-") and it.state is State.PENDING
    )
    demand((wanted, len(created)) == (1, 1), f"{wanted} desired, {len(created)} ever created")
    return "one is desired and one was ever created"


def _node_gets_no_work(log: RunLog) -> str:
    not_ready = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is not NodePhase.READY)
    demand(not_ready, f"{NODE} was always Ready")
    ready = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is NodePhase.READY)
    demand(ready and ready[-1].at_ms > not_ready[0].at_ms, f"{NODE} never became Ready again")
    until_ms = ready[-1].at_ms
    bindings = log.all(Bound, lambda it: it.node == NODE)
    late = [it.what.replica.name for it in bindings if not_ready[0].at_ms <= it.at_ms < until_ms]
    demand(not late, f"{NODE} got {late} while it was not Ready")
    other = log.bindings(LATER)
    demand(other and other[0].at_ms < until_ms, f"{LATER} was not placed meanwhile")
    return f"{LATER} was bound to {other[0].what.node} while {NODE} was not Ready"


def _not_destroyed(log: RunLog) -> str:
    ends = log.all(StateChanged, lambda it: it.name == KEPT and it.state in _GONE)
    demand(not ends, f"{KEPT} became {[it.what.state.value for it in ends]}")
    replica = log.replica(KEPT)
    demand(replica is not None, f"{KEPT} is gone")
    state = replica.status.state if replica is not None else None
    demand(state is State.RUNNING, f"{KEPT} is {state}")
    restarts = replica.status.process.restarts if replica is not None else 0
    demand(not restarts, f"it was started again {restarts} times")
    return f"{KEPT} runs on {NODE} as it did"


def _says_retrying(log: RunLog) -> str:
    retrying = [it for it in log.waits(LOST) if SCHEDULING_RETRYING in it.what.pending.reasons]
    demand(retrying, f"{LOST} never had the reason SchedulingRetrying")
    return f"its message: {retrying[0].what.pending.message}"


def _backs_off(log: RunLog) -> str:
    sent = [it.at_ms for it in log.bind_requests(LOST)]
    lost = [it.at_ms for it in log.bind_answers(LOST) if isinstance(it.what.answer, OutcomeUnknown)]
    demand(len(lost) == COPIES, f"{len(lost)} copies were lost")
    pauses = [again - lost_ms for lost_ms, again in zip(lost, sent[1:], strict=False)]
    demand(len(pauses) == COPIES, f"the scheduler gave up: {sent}")
    demand(all(pause_ms >= 100 for pause_ms in pauses), f"it was sent again after {pauses} ms")
    reads = log.reads(LOST)
    demand(len(reads) >= COPIES, f"it was read {len(reads)} times for {COPIES} lost answers")
    return f"sent again {pauses} ms after each lost answer, each time after a read"


def _fresh(log: RunLog) -> str:
    sent = [it.what.request for it in log.bind_requests(LOST)]
    demand(len(sent) > COPIES, f"{len(sent)} binds were sent")
    first_bind, last = sent[0], sent[-1]
    same = [it.operation for it in sent[:COPIES]]
    demand(len(set(same)) == 1, f"copies have the operation ids {set(same)}")
    demand(
        last.node != first_bind.node,
        f"binds were sent for {first_bind.node} to the end, though it is cordoned",
    )
    demand(last.snapshot_revision > first_bind.snapshot_revision, "it uses the same old snapshot")
    was, fresh = (f"{it.node} as of {it.snapshot_revision}" for it in (first_bind, last))
    return f"{was}, then {fresh}"


def _one_in_the_end(log: RunLog) -> str:
    bounds = log.bindings(LOST)
    demand(len(bounds) == 1, f"{LOST} was bound {len(bounds)} times")
    return f"one, to {bounds[0].what.node} at {bounds[0].at_ms} ms"


SENTENCES = (
    Sentence("sc3.read-by-operation", "The lost answer is read by operation id.", _reads),
    Sentence("sc3.bound-published", "Bound is published.", _status_says_bound),
    Sentence("sc3.no-second", "There is no second binding or reservation.", _once),
    Sentence("sc3.count-stays", "The desired count is not raised.", _count_stays),
    Sentence(
        "sc3.node-spared",
        "node-b7 gets no new work while its heartbeat is late.",
        _node_gets_no_work,
    ),
    Sentence("sc3.not-destroyed", "The replica on node-b7 is not destroyed.", _not_destroyed),
    Sentence(
        "sc3.retrying",
        "Where the write did not commit, the replica says SchedulingRetrying.",
        _says_retrying,
    ),
    Sentence(
        "sc3.backs-off", "The scheduler backs off, and reads before it sends again.", _backs_off
    ),
    Sentence("sc3.fresh-candidate", "The scheduler picks a new candidate.", _fresh),
    Sentence("sc3.one-in-the-end", "There is one binding at the end.", _one_in_the_end),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc3_answer_lost:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
