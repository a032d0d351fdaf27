"""Two schedulers with equally stale caches bind for the last GPU, CPU and unit of quota.

Each slot is wanted by two replicas. Scheduler one sees the first of them come and asks for it at
once; its request is long under way. Scheduler two slept meanwhile and lost sight of its lease; when
it is sure of that again it finds both, and the second is more urgent. At that moment both believe
that the slot is free. Half of the seeds let one's request arrive first, half two's. Later whoever
has the slots gives them back, and the losers get them.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted
from holdfast.sim.randomness import between, pick
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.example_plane import ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import LogEntry, RunLog
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

ONE, TWO = "one", "two"
# Longer than a lease, so that two has to ask for it again before it acts.
ASLEEP_AT_MS, AWAKE_AT_MS = 12_000, 35_000
FIRST_AT_MS, SECOND_AT_MS = 34_000, 34_700
FREED_AT_MS, END_MS = 60_000, 110_000
# Two's messages take so long each; one's so long that its bind arrives while two's is under way, or
# after it. Each is less than either waits for the renewal of its lease.
TWO_DELAY_MS = 800
ONE_WINS_MS, TWO_WINS_MS = (920, 1_080), (1_720, 1_920)


class ContestedSlot:
    """What there is one of, the two that want it, and what the loser is told."""

    def __init__(self, what: str, tenants: tuple[str, str], reason: Reason) -> None:
        self.what, self.tenants, self.reason = what, tenants, reason
        self.workloads = (f"{what}-early", f"{what}-urgent")
        self.replicas = tuple(f"{name}-0-0" for name in self.workloads)


GPU = ContestedSlot("gpu", ("fraud", "risk"), Reason.DEVICE_TAKEN)
CPU = ContestedSlot("cpu", ("billing", "search"), Reason.NODE_FULL)
# Of one tenant, which may have one CPU more.
QUOTA = ContestedSlot("quota", ("analytics", "analytics"), Reason.QUOTA_EXCEEDED)
SLOTS = (GPU, CPU, QUOTA)


def build(world: World) -> None:
    plane = ExamplePlane(world, {"analytics": {"cpu": "1"}})
    plane.scheduler(ONE)
    plane.scheduler(TWO)
    plane.node("node-gpu", pool="gpu", gpus=1)
    plane.node("node-small", pool="small", cpu="1")
    for name in ("node-a", "node-b"):
        plane.node(name)
    _blind(plane)
    for slot in SLOTS:
        early, urgent = slot.workloads
        plane.act(FIRST_AT_MS, _want(slot, early, slot.tenants[0], ""))
        plane.act(SECOND_AT_MS, _want(slot, urgent, slot.tenants[1], "urgent"))
        plane.act(FREED_AT_MS, {"do": "free", "among": list(slot.workloads)})
    plane.ready(EXPECTS)


def _blind(plane: ExamplePlane) -> None:
    wins = pick(plane.rng, (ONE_WINS_MS, TWO_WINS_MS))
    delay_ms = between(plane.rng, *wins)
    for_ms = FREED_AT_MS - 10_000 - FIRST_AT_MS
    plane.fault(ASLEEP_AT_MS, "pause", TWO, for_ms=AWAKE_AT_MS - ASLEEP_AT_MS)
    plane.fault(FIRST_AT_MS - 500, "delay", ONE, peer="*", for_ms=for_ms, amount=delay_ms)
    plane.fault(FIRST_AT_MS - 500, "delay", TWO, peer="*", for_ms=for_ms, amount=TWO_DELAY_MS)


def _want(slot: ContestedSlot, name: str, tenant: str, priority: str) -> dict[str, object]:
    gpus = 1 if slot is GPU else 0
    pool = {GPU: "gpu", CPU: "small"}.get(slot, "general")
    return workload_act(name, tenant, gpus=gpus, pool=pool, priority=priority)


# The sentences ------------------------------------------------------------------------------------


def _first_round(log: RunLog, slot: ContestedSlot) -> list[LogEntry]:
    """The answers to all binds for a slot before it was given back."""
    answers = [it for name in slot.replicas for it in log.bind_answers(name)]
    return [it for it in answers if it.at_ms < FREED_AT_MS]


def _refusals(log: RunLog, slot: ContestedSlot) -> list[LogEntry]:
    """Those of the loser: told that the slot is taken."""
    return [
        it
        for it in _first_round(log, slot)
        if isinstance(it.what.answer, Refusal) and it.what.answer.reason is slot.reason
    ]


def _one_acceptance(slot: ContestedSlot) -> Callable[[RunLog], str]:
    def judge(log: RunLog) -> str:
        told = _first_round(log, slot)
        given = [it for it in told if isinstance(it.what.answer, Accepted)]
        names = [it.what.request.target.name for it in given]
        demand(len(given) == 1, f"the last {slot.what} was given to {names}")
        lost = _refusals(log, slot)
        demand(lost, f"nobody was refused the last {slot.what} with {slot.reason.value}")
        winner = given[0].what
        others = [it.what for it in lost if it.what.who != winner.who]
        demand(others, f"only {winner.who} asked for the last {slot.what}")
        loser = others[0]
        both = f"{winner.who} got it for {names[0]}"
        return f"{both}, {loser.who} was refused {loser.request.target.name}"

    return judge


def _learns(log: RunLog) -> str:
    for slot in SLOTS:
        for lost in _refusals(log, slot):
            what = lost.what
            soon = [
                it.at_ms - lost.at_ms
                for it in log.bind_requests(what.request.target.name, what.who)
                if 0 <= it.at_ms - lost.at_ms < 1_000
                and (slot is QUOTA or it.what.request.node == what.request.node)
            ]
            demand(not soon, f"{what.who} asked for the same again after {soon} ms")
    return "nobody asked again for what was just refused"


def _requeues(log: RunLog) -> str:
    given = []
    for slot in SLOTS:
        lost = {it.what.request.target.name for it in _refusals(log, slot)}
        for name in sorted(lost):
            later = [it.at_ms for it in log.bindings(name) if it.at_ms >= FREED_AT_MS]
            demand(len(later) == 1, f"{name} was bound at {later} ms after the slot was free")
            given.append(name)
    return f"{', '.join(given)} got the slot when it was given back" if given else ""


def _explains(log: RunLog) -> str:
    said = []
    for slot in SLOTS:
        for name in sorted({it.what.request.target.name for it in _refusals(log, slot)}):
            waits = [it for it in log.waits(name) if it.at_ms < FREED_AT_MS]
            demand(waits, f"{name} waits and does not say why")
            pending = waits[-1].what.pending
            demand(slot.reason.value in pending.reasons, f"{name} says {pending.reasons}")
            demand(pending.next_wake is not None, f"{name} does not say until when it waits")
            said.append(f"{name}: {slot.reason.value}")
    return "; ".join(said)


def _all_serve(log: RunLog) -> str:
    """What was given back is in use again: nothing leaked in the contest."""
    for slot in SLOTS:
        running = [
            it.name
            for it in log.store_copy.all("objects/replicas/")
            if it.spec.workload in slot.workloads and it.status.state is State.RUNNING
        ]
        demand(len(running) == 1, f"of those that want the {slot.what} {running} run")
    return "each slot is in use by one"


EXPECTS = (
    *(
        Sentence(
            f"sc8.one-{slot.what}",
            f"Exactly one bind for the last {words} is accepted.",
            _one_acceptance(slot),
        )
        for slot, words in ((GPU, "GPU"), (CPU, "CPU"), (QUOTA, "unit of quota"))
    ),
    Sentence("sc8.learns", "The loser learns.", _learns),
    Sentence("sc8.requeues", "The loser requeues.", _requeues),
    Sentence("sc8.explains", "The loser explains.", _explains),
    Sentence("sc8.nothing-leaks", "Each slot serves one in the end.", _all_serve),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc8_one_free_slot:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
