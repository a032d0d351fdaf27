"""Nothing is bound before everything that a bind needs has answered.

fraud-batch wants a GPU in eu-central. node-gpu-7 would do, but its heartbeat is late; when it is
heard again, the store that keeps the quota ledger answers slowly. Later fraud-late wants a GPU, and
the one it is being bound to is taken by somebody else meanwhile.
"""

from __future__ import annotations

from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import CHARGED
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Bind
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt, strike
from holdfast.sim.scenarios.example_plane import OPERATOR_CELL, RIVAL_CELL, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, NodeChanged, RunLog
from holdfast.sim.scenarios.scheduler_taps import RequestSent
from holdfast.sim.scenarios.sentences import Sentence, SentenceBroken, demand, first
from holdfast.sim.world import World

EARLY, LATE = "fraud-batch-0-0", "fraud-late-0-0"
NODE = "node-gpu-7"
WHOLE = 1_000
SILENT_AT_MS, WANTED_AT_MS = 14_000, 23_500
FREED_AT_MS, CONTEST_AT_MS, END_MS = 60_000, 72_000, 100_000


def build(world: World) -> None:
    plane = ExamplePlane(world, {"fraud": {"cpu": "16", "gpu": "1"}})
    plane.scheduler("main")
    plane.rival()
    for name in (NODE, "node-gpu-8"):
        plane.node(name, pool="gpu", gpus=1)
    plane.node("node-us-1", region="us-west", pool="gpu", gpus=1)
    plane.node("node-a")
    plane.act(10_000, workload_act("hog", "analytics", gpus=1, node="node-gpu-8"))
    _late_and_slow(plane)
    _taken_meanwhile(plane)
    plane.ready(EXPECTS)


def _late_and_slow(plane: ExamplePlane) -> None:
    """The heartbeat comes several seconds late, and then the ledger takes its time."""
    rng, log = plane.rng, plane.log
    plane.fault(SILENT_AT_MS, "cut", NODE, peer="*", for_ms=between(rng, 10_000, 12_000))
    plane.act(WANTED_AT_MS, workload_act("fraud-batch", "fraud", gpus=1, residency="eu"))
    slow_ms = between(rng, 1_500, 6_500)

    def slow(world: World) -> None:
        log.marks["answers"] = world.now_us // 1000 + slow_ms
        strike(world, "store_stall", "store", for_ms=slow_ms)

    plane.cue(lambda it: _asks_for(it, EARLY), slow)


def _heard_ms(log: RunLog) -> int:
    """When the node was heard again."""
    doubts = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is not NodePhase.READY)
    demand(doubts, f"{NODE} was never doubted")
    heard = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is NodePhase.READY)
    again = [it.at_ms for it in heard if it.at_ms > doubts[0].at_ms]
    demand(again, f"{NODE} was never heard again")
    return again[0]


def _taken_meanwhile(plane: ExamplePlane) -> None:
    """While the bind is on its way, somebody else takes that very GPU."""
    for name in ("hog", "fraud-batch"):
        plane.act(FREED_AT_MS, {"do": "scale", "name": name, "replicas": 0})
    delay_ms = between(plane.rng, 1_600, 2_400)
    begin_ms = CONTEST_AT_MS - 500
    plane.fault(begin_ms, "delay", "main", peer="*", for_ms=12_000, amount=delay_ms)
    plane.act(CONTEST_AT_MS, workload_act("fraud-late", "fraud", gpus=1, residency="eu"))

    def contend(world: World) -> None:
        (first, *_) = plane.log.bind_requests(LATE)
        node = first.what.request.node
        prompt(world, OPERATOR_CELL, workload_act("quick", "analytics", gpus=1, node=node))
        prompt(world, RIVAL_CELL, {"replica": "quick-0-0", "node": node})

    plane.cue(lambda it: _asks_for(it, LATE), contend)


def _asks_for(moment: LogEntry, name: str) -> bool:
    what = moment.what
    return (
        isinstance(what, RequestSent)
        and isinstance(what.request, Bind)
        and what.request.target.name == name
    )


# The sentences ------------------------------------------------------------------------------------


def _not_before_the_quota(log: RunLog) -> str:
    bounds = log.bindings(EARLY)
    demand(bounds, f"{EARLY} was never bound")
    asked_ms = first(log.bind_requests(EARLY), f"{EARLY} was never asked for").at_ms
    at_ms, answers_ms = bounds[0].at_ms, log.marks.get("answers", 0)
    demand(at_ms >= answers_ms, f"bound at {at_ms} ms, the ledger answered at {answers_ms} ms")
    demand(bounds[0].what.charged, f"{EARLY} was bound in a revision without its quota")
    asked = f"asked for at {asked_ms} ms, the ledger answered from {answers_ms} ms on"
    return f"{asked}, bound at {at_ms} ms in the revision that charges it"


def _waits_with_a_reason(log: RunLog) -> str:
    heard_ms = _heard_ms(log)
    waits = [it for it in log.waits(EARLY) if it.at_ms < heard_ms]
    demand(waits, f"{EARLY} did not say why it waits before its node was heard again")
    pending = waits[-1].what.pending
    demand(Reason.NODE_NOT_READY.value in pending.reasons, f"its reasons are {pending.reasons}")
    demand(pending.next_wake is not None, "it does not say when it is tried again")
    demand(pending.since is not None and pending.since <= pending.next_wake, "it looks back")
    return f"{pending.message}; next look by {pending.next_wake:%H:%M:%S}"


def _one_bind(log: RunLog) -> str:
    bounds = log.bindings(EARLY)
    nodes = [it.what.node for it in bounds]
    demand(nodes == [NODE], f"{EARLY} was bound to {nodes}")
    demand(bounds[0].at_ms >= _heard_ms(log), "it was bound before its node was heard")
    return f"one bind, to {NODE}, at {bounds[0].at_ms} ms"


def _next_candidate(log: RunLog) -> str:
    asked = [it.what.request.node for it in log.bind_requests(LATE, "main")]
    demand(asked, f"{LATE} was never asked for")
    told = first(log.bind_answers(LATE, "main"), f"nothing became known of the bind of {LATE}")
    answer = told.what.answer
    demand(isinstance(answer, Refusal), f"the bind to the GPU that was taken came to {answer!r}")
    demand(answer.reason is Reason.DEVICE_TAKEN, f"it was refused with {answer.reason.value}")
    nodes = [it.what.node for it in log.bindings(LATE)]
    demand(len(nodes) == 1 and nodes[0] != asked[0], f"asked for {asked}, bound to {nodes}")
    return f"{asked[0]} was refused with DeviceTaken, then {nodes[0]} was asked for and given"


def _one_owner(log: RunLog) -> str:
    owners: dict[tuple[str, str], int] = {}
    for replica in log.store_copy.all("objects/replicas/"):
        binding = replica.status.binding
        if binding is None or replica.status.state not in CHARGED:
            continue
        for share in binding.devices:
            place = (binding.node, share.device)
            owners[place] = owners.get(place, 0) + share.milli
            if owners[place] > WHOLE:
                raise SentenceBroken(f"{place[1]} of {place[0]} has two owners")
    given = log.all(Bound, lambda it: bool(it.replica.status.binding.devices))
    return f"{len(given)} owners of a GPU, one after the other" if len(given) > 1 else ""


EXPECTS = (
    Sentence("sc1.quota-first", "No bind before the quota answers.", _not_before_the_quota),
    Sentence(
        "sc1.says-why", "The replica is Pending with reason and next wake-up.", _waits_with_a_reason
    ),
    Sentence("sc1.one-bind", "Once both arrive, there is one bind.", _one_bind),
    Sentence(
        "sc1.next-candidate",
        "With the GPU taken meanwhile, the bind is refused with DeviceTaken "
        "and the next candidate tried.",
        _next_candidate,
    ),
    Sentence("sc1.one-owner", "The GPU never has two owners.", _one_owner, always=True),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc1_conservative_binding:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
