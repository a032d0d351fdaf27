"""Two schedulers with equally stale caches compete for the last GPU, CPU and unit of quota.

Two replicas need each slot. Scheduler one sees the first replica and sends a bind at once; the
request takes long. Scheduler two was paused meanwhile and its lease is uncertain; when it has the
lease again, it finds both replicas, and the second one is more urgent. At that moment both
schedulers see a free slot. On half of the seeds one's request arrives first, on half two's. Later
the winners release the slots, and the losers get them.
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
# Longer than a lease, so that two has to acquire it again before it acts.
ASLEEP_AT_MS, AWAKE_AT_MS = 12_000, 35_000
FIRST_AT_MS, SECOND_AT_MS = 34_000, 34_700
FREED_AT_MS, END_MS = 60_000, 110_000
# The delays of two's messages, and of one's, so that its bind arrives while two's is under way, or
# after it. Each is shorter than the time-out of a lease renewal.
TWO_DELAY_MS = 800
ONE_WINS_MS, TWO_WINS_MS = (920, 1_080), (1_720, 1_920)


class ContestedSlot:
    """A resource that is available once, the two workloads that need it, and the refusal reason."""

    def __init__(self, what: str, tenants: tuple[str, str], reason: Reason) -> None:
        self.what, self.tenants, self.reason = what, tenants, reason
        self.workloads = (f"{what}-early", f"{what}-urgent")
        self.replicas = tuple(f"{name}-0-0" for name in self.workloads)


GPU = ContestedSlot("gpu", ("fraud", "risk"), Reason.DEVICE_TAKEN)
CPU = ContestedSlot("cpu", ("billing", "search"), Reason.NODE_FULL)
# One tenant with quota for one more CPU.
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
    _delay_schedulers(plane)
    for slot in SLOTS:
        early, urgent = slot.workloads
        plane.act(FIRST_AT_MS, _act_for(slot, early, slot.tenants[0], ""))
        plane.act(SECOND_AT_MS, _act_for(slot, urgent, slot.tenants[1], "urgent"))
        plane.act(FREED_AT_MS, {"do": "free", "among": list(slot.workloads)})
    plane.ready(SENTENCES)


def _delay_schedulers(plane: ExamplePlane) -> None:
    wins = pick(plane.rng, (ONE_WINS_MS, TWO_WINS_MS))
    delay_ms = between(plane.rng, *wins)
    for_ms = FREED_AT_MS - 10_000 - FIRST_AT_MS
    plane.fault(ASLEEP_AT_MS, "pause", TWO, for_ms=AWAKE_AT_MS - ASLEEP_AT_MS)
    plane.fault(FIRST_AT_MS - 500, "delay", ONE, peer="*", for_ms=for_ms, amount=delay_ms)
    plane.fault(FIRST_AT_MS - 500, "delay", TWO, peer="*", for_ms=for_ms, amount=TWO_DELAY_MS)


def _act_for(slot: ContestedSlot, name: str, tenant: str, priority: str) -> dict[str, object]:
    gpus = 1 if slot is GPU else 0
    pool = {GPU: "gpu", CPU: "small"}.get(slot, "general")
    return workload_act(name, tenant, gpus=gpus, pool=pool, priority=priority)


# The sentences ------------------------------------------------------------------------------------


def _first_round(log: RunLog, slot: ContestedSlot) -> list[LogEntry]:
    """The answers to all binds for a slot before it was released."""
    answers = [it for name in slot.replicas for it in log.bind_answers(name)]
    return [it for it in answers if it.at_ms < FREED_AT_MS]


def _refusals(log: RunLog, slot: ContestedSlot) -> list[LogEntry]:
    """The refusals of the loser, because the slot is taken."""
    return [
        it
        for it in _first_round(log, slot)
        if isinstance(it.what.answer, Refusal) and it.what.answer.reason is slot.reason
    ]


def _one_acceptance(slot: ContestedSlot) -> Callable[[RunLog], str]:
    def judge(log: RunLog) -> str:
        answers = _first_round(log, slot)
        accepted = [it for it in answers if isinstance(it.what.answer, Accepted)]
        names = [it.what.request.target.name for it in accepted]
        demand(len(accepted) == 1, f"binds for the last {slot.what} were accepted for {names}")
        lost = _refusals(log, slot)
        demand(lost, f"no bind for the last {slot.what} was refused with {slot.reason.value}")
        winner = accepted[0].what
        others = [it.what for it in lost if it.what.who != winner.who]
        demand(others, f"only {winner.who} sent a bind for the last {slot.what}")
        loser = others[0]
        both = f"{winner.who} got it for {names[0]}"
        return f"{both}, {loser.who} was refused {loser.request.target.name}"

    return judge


def _is_not_repeated(log: RunLog) -> str:
    for slot in SLOTS:
        for lost in _refusals(log, slot):
            what = lost.what
            soon = [
                it.at_ms - lost.at_ms
                for it in log.bind_requests(what.request.target.name, what.who)
                if 0 <= it.at_ms - lost.at_ms < 1_000
                and (slot is QUOTA or it.what.request.node == what.request.node)
            ]
            demand(not soon, f"{what.who} sent the same bind again after {soon} ms")
    return "no scheduler repeated a refused bind at once"


def _gets_the_slot_later(log: RunLog) -> str:
    accepted = []
    for slot in SLOTS:
        lost = {it.what.request.target.name for it in _refusals(log, slot)}
        for name in sorted(lost):
            later = [it.at_ms for it in log.bindings(name) if it.at_ms >= FREED_AT_MS]
            demand(len(later) == 1, f"{name} was bound at {later} ms after the slot was free")
            accepted.append(name)
    return f"{', '.join(accepted)} got the slot when it was released" if accepted else ""


def _publishes_reason(log: RunLog) -> str:
    reasons = []
    for slot in SLOTS:
        for name in sorted({it.what.request.target.name for it in _refusals(log, slot)}):
            waits = [it for it in log.waits(name) if it.at_ms < FREED_AT_MS]
            demand(waits, f"{name} waits without a pending reason")
            pending = waits[-1].what.pending
            demand(
                slot.reason.value in pending.reasons, f"the reasons of {name} are {pending.reasons}"
            )
            demand(pending.next_wake is not None, f"{name} has no next wake-up")
            reasons.append(f"{name}: {slot.reason.value}")
    return "; ".join(reasons)


def _all_serve(log: RunLog) -> str:
    """Each released slot is in use again: nothing leaked."""
    for slot in SLOTS:
        running = [
            it.name
            for it in log.store_copy.all("objects/replicas/")
            if it.spec.workload in slot.workloads and it.status.state is State.RUNNING
        ]
        demand(len(running) == 1, f"of the workloads that need the {slot.what}, {running} run")
    return "each slot is in use by one replica"


SENTENCES = (
    *(
        Sentence(
            f"sc8.one-{slot.what}",
            f"Exactly one bind for the last {words} is accepted.",
            _one_acceptance(slot),
        )
        for slot, words in ((GPU, "GPU"), (CPU, "CPU"), (QUOTA, "unit of quota"))
    ),
    Sentence("sc8.learns", "The loser does not repeat a refused bind at once.", _is_not_repeated),
    Sentence(
        "sc8.requeues",
        "The loser stays queued and gets the slot when it is free.",
        _gets_the_slot_later,
    ),
    Sentence(
        "sc8.explains", "The loser publishes the reason and its next wake-up.", _publishes_reason
    ),
    Sentence("sc8.nothing-leaks", "Each slot serves one replica at the end.", _all_serve),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc8_one_free_slot:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=20_000,
)
