"""Nothing is bound before everything that a bind needs has answered.

fraud-batch needs a GPU in eu-central. node-gpu-7 has one, but its heartbeat is late; when the
heartbeat arrives, the store that keeps the quota ledger answers slowly. Later fraud-late needs a
GPU, and another replica takes that GPU while the bind is under way.
"""

from __future__ import annotations

from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import CHARGED
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Bind
from holdfast.sim.planes.scheduler_taps import RequestSent
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.cues import prompt, strike
from holdfast.sim.scenarios.example_plane import OPERATOR_CELL, RIVAL_CELL, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, LogEntry, NodeChanged, RunLog
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
    _take_the_gpu(plane)
    plane.ready(SENTENCES)


def _late_and_slow(plane: ExamplePlane) -> None:
    """The heartbeat arrives several seconds late, and then the ledger is slow."""
    rng, log = plane.rng, plane.log
    plane.fault(SILENT_AT_MS, "cut", NODE, peer="*", for_ms=between(rng, 10_000, 12_000))
    plane.act(WANTED_AT_MS, workload_act("fraud-batch", "fraud", gpus=1, residency="eu"))
    slow_ms = between(rng, 1_500, 6_500)

    def slow(world: World) -> None:
        log.marks["answers"] = world.now_us // 1000 + slow_ms
        strike(world, "store_stall", "store", for_ms=slow_ms)

    plane.cue(lambda it: _is_bind_request(it, EARLY), slow)


def _ready_again_ms(log: RunLog) -> int:
    """When the node was Ready again."""
    not_ready = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is not NodePhase.READY)
    demand(not_ready, f"{NODE} was always Ready")
    ready = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is NodePhase.READY)
    again = [it.at_ms for it in ready if it.at_ms > not_ready[0].at_ms]
    demand(again, f"{NODE} never became Ready again")
    return again[0]


def _take_the_gpu(plane: ExamplePlane) -> None:
    """While the bind is under way, another replica takes the same GPU."""
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

    plane.cue(lambda it: _is_bind_request(it, LATE), contend)


def _is_bind_request(entry: LogEntry, name: str) -> bool:
    what = entry.what
    return (
        isinstance(what, RequestSent)
        and isinstance(what.request, Bind)
        and what.request.target.name == name
    )


# The sentences ------------------------------------------------------------------------------------


def _not_before_the_quota(log: RunLog) -> str:
    bounds = log.bindings(EARLY)
    demand(bounds, f"{EARLY} was never bound")
    asked_ms = first(log.bind_requests(EARLY), f"no bind was sent for {EARLY}").at_ms
    at_ms, answers_ms = bounds[0].at_ms, log.marks.get("answers", 0)
    demand(at_ms >= answers_ms, f"bound at {at_ms} ms, the ledger answered at {answers_ms} ms")
    demand(bounds[0].what.charged, f"{EARLY} was bound in a revision without its quota")
    asked = f"bind sent at {asked_ms} ms, the ledger answered from {answers_ms} ms on"
    return f"{asked}, bound at {at_ms} ms in the revision that charges it"


def _waits_with_a_reason(log: RunLog) -> str:
    ready_ms = _ready_again_ms(log)
    waits = [it for it in log.waits(EARLY) if it.at_ms < ready_ms]
    demand(waits, f"{EARLY} had no pending reason before its node was Ready again")
    pending = waits[-1].what.pending
    demand(Reason.NODE_NOT_READY.value in pending.reasons, f"its reasons are {pending.reasons}")
    demand(pending.next_wake is not None, "its pending status has no next wake-up")
    demand(
        pending.since is not None and pending.since <= pending.next_wake,
        "its next wake-up is before the start of the wait",
    )
    return f"{pending.message}; next try by {pending.next_wake:%H:%M:%S}"


def _one_bind(log: RunLog) -> str:
    bounds = log.bindings(EARLY)
    nodes = [it.what.node for it in bounds]
    demand(nodes == [NODE], f"{EARLY} was bound to {nodes}")
    demand(bounds[0].at_ms >= _ready_again_ms(log), "it was bound before its node was Ready")
    return f"one bind, to {NODE}, at {bounds[0].at_ms} ms"


def _next_candidate(log: RunLog) -> str:
    asked = [it.what.request.node for it in log.bind_requests(LATE, "main")]
    demand(asked, f"no bind was sent for {LATE}")
    first_answer = first(log.bind_answers(LATE, "main"), f"the bind of {LATE} got no answer")
    answer = first_answer.what.answer
    demand(isinstance(answer, Refusal), f"the answer to the bind of the taken GPU was {answer!r}")
    demand(answer.reason is Reason.DEVICE_TAKEN, f"it was refused with {answer.reason.value}")
    nodes = [it.what.node for it in log.bindings(LATE)]
    demand(len(nodes) == 1 and nodes[0] != asked[0], f"requested {asked}, bound to {nodes}")
    return f"{asked[0]} was refused with DeviceTaken, then the bind to {nodes[0]} was accepted"


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
    bindings = log.all(Bound, lambda it: bool(it.replica.status.binding.devices))
    return f"{len(bindings)} owners of a GPU, one after the other" if len(bindings) > 1 else ""


SENTENCES = (
    Sentence(
        "sc1.quota-first",
        "Nothing is bound before the quota ledger answers.",
        _not_before_the_quota,
    ),
    Sentence(
        "sc1.says-why", "The replica is Pending with reason and next wake-up.", _waits_with_a_reason
    ),
    Sentence("sc1.one-bind", "Once heartbeat and quota arrive, there is one bind.", _one_bind),
    Sentence(
        "sc1.next-candidate",
        "With the GPU taken meanwhile, the bind is refused with DeviceTaken "
        "and the scheduler tries the next candidate.",
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
