"""The third replica of fraud-batch is stuck, five times, and each time for another reason.

Each round somebody asks why: while the quota is used up; while the agent of its node is not told
what was bound there; while nothing that the agent says of it arrives; while its node is down and
the fence has not passed; while the scheduler is not told that its node takes work again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.explain.answer import Explanation, ProgressStep, StuckReason
from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import Actor, State
from holdfast.model.machine import Ask, Machine
from holdfast.model.requests import Move
from holdfast.model.time import Instant, wall_ms
from holdfast.sim.cell import Factory, Seat
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.asking import ExplanationGiven
from holdfast.sim.scenarios.example_plane import RESYNC_MS, TIMING, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World
from holdfast.sim.worlds.end_to_end.process_table import ProcessStarted

NODE, OTHER = "node-gpu-7", "node-gpu-8"
TENANT, NAME = "fraud", "fraud-batch"
QUOTA, UNSEEN, UNSAID, FENCE, STALE = "quota", "unseen", "unsaid", "fence", "stale"
# When each round begins; what it breaks is mended before the next one.
QUOTA_AT_MS, UNSEEN_AT_MS, UNSAID_AT_MS = 20_000, 45_000, 160_000
FENCE_AT_MS, STALE_AT_MS, END_MS = 230_000, 330_000, 440_000
EVERYTHING = 1_000
# After so long the agent has renewed, and the scheduler has said what it has to say.
LOOK_AFTER_MS = 6_000
# How long it may take from bound to running, as a template says that says nothing else.
STARTUP_MS = 600_000
# A fence is said when the controller looks, and seen when that is committed.
EXACT_MS = 2_000
# Nothing that is asked here is ever answered.
VOID = "void"


class SilentMachine:
    """A machine that takes in everything and answers nothing."""

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return ()


class ReportFilter:
    """Steps an agent; while it is on, what the agent says of its work goes nowhere.

    Its renewals arrive all the same.
    """

    is_on = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return [self._lost(it) for it in self.machine.step(stimulus, now)]

    def _lost(self, effect: Any) -> Any:
        if self.is_on and isinstance(effect, Ask) and isinstance(effect.body, Move):
            return msgspec.structs.replace(effect, to=VOID)
        return effect


def _gagged(make: Factory) -> Callable[[Seat], ReportFilter]:
    return lambda seat: ReportFilter(make(seat))


def build(world: World) -> None:
    plane = ExamplePlane(world, {TENANT: {"cpu": "16", "gpu": "2"}})
    plane.scheduler("main")
    plane.node(OTHER, pool="gpu", gpus=2)
    plane.node(NODE, pool="gpu", gpus=1)
    agent = world.cells[NODE]
    agent.factory = _gagged(agent.factory)
    world.add(VOID, lambda _seat: SilentMachine())
    # The first two fill one node, so that the third always goes to the other one.
    plane.act(8_000, {"do": "cordon", "node": NODE})
    plane.act(10_000, workload_act(NAME, TENANT, replicas=2, gpus=1))
    plane.act(16_000, {"do": "uncordon", "node": NODE})
    for play in (_quota, _unseen, _unsaid, _fence, _stale):
        play(plane)
    plane.ready(EXPECTS)


def _scale(plane: ExamplePlane, at_ms: int, replicas: int) -> None:
    plane.act(at_ms, {"do": "scale", "name": NAME, "replicas": replicas})


def _quota(plane: ExamplePlane) -> None:
    _scale(plane, QUOTA_AT_MS, 3)
    _ask(plane, QUOTA, QUOTA_AT_MS + LOOK_AFTER_MS)
    more = {"do": "limit", "tenant": TENANT, "hard": {"cpu": "16", "gpu": "3"}}
    plane.act(QUOTA_AT_MS + 8_000, more)


def _unseen(plane: ExamplePlane) -> None:
    """Its renewals go on; what it is told does not arrive."""
    _scale(plane, UNSEEN_AT_MS, 2)
    begin_ms = UNSEEN_AT_MS + 7_000
    lost_ms = between(plane.rng, 15_000, 20_000)
    plane.fault(begin_ms, "delivery_lose", NODE, for_ms=lost_ms, amount=EVERYTHING)
    _scale(plane, begin_ms + 1_000, 3)
    plane.cue(
        lambda it: isinstance(it.what, Bound) and it.at_ms > begin_ms,
        lambda world: _ask(plane, UNSEEN, world.now_us // 1000 + LOOK_AFTER_MS),
    )


def _unsaid(plane: ExamplePlane) -> None:
    """It starts what is bound, and nobody hears that it did."""
    _scale(plane, UNSAID_AT_MS, 2)
    begin_ms = UNSAID_AT_MS + 7_000
    plane.at(begin_ms, lambda world: _gag(world, True))
    _scale(plane, begin_ms + 1_000, 3)

    def started(world: World) -> None:
        now_ms = world.now_us // 1000
        _ask(plane, UNSAID, now_ms + LOOK_AFTER_MS)
        plane.at(now_ms + LOOK_AFTER_MS + 2_000, lambda world: _gag(world, False))

    plane.cue(lambda it: isinstance(it.what, ProcessStarted) and it.at_ms > begin_ms, started)


def _gag(world: World, is_on: bool) -> None:
    machine = world.cells[NODE].machine
    if isinstance(machine, ReportFilter):
        machine.is_on = is_on


def _fence(plane: ExamplePlane) -> None:
    down_ms = between(plane.rng, 55_000, 65_000)
    plane.fault(FENCE_AT_MS, "reboot", NODE, for_ms=down_ms)
    plane.cue(
        lambda it: isinstance(it.what, StateChanged) and it.what.state is State.UNKNOWN,
        lambda world: _ask(plane, FENCE, world.now_us // 1000 + LOOK_AFTER_MS),
    )


def _stale(plane: ExamplePlane) -> None:
    """Its node is opened, and everything that tells the scheduler so is lost."""
    _scale(plane, STALE_AT_MS, 2)
    plane.act(STALE_AT_MS + 5_000, {"do": "cordon", "node": NODE})
    _scale(plane, STALE_AT_MS + 8_000, 3)
    begin_ms = STALE_AT_MS + 14_000
    lost_ms = between(plane.rng, 8_000, 12_000)
    plane.fault(begin_ms, "delivery_lose", "main", for_ms=lost_ms, amount=EVERYTHING)
    plane.act(begin_ms + 1_000, {"do": "uncordon", "node": NODE})
    _ask(plane, STALE, begin_ms + 1_000 + LOOK_AFTER_MS)


def _ask(plane: ExamplePlane, label: str, at_ms: int) -> None:
    """Have somebody ask about whoever holds the third place at that time."""

    def ask(world: World) -> None:
        third = [
            it
            for it in plane.store_copy.all("objects/replicas/")
            if it.spec.workload == NAME and it.spec.ordinal == 2
        ]
        newest = max(third, key=lambda it: it.spec.incarnation)
        plane.explain(label, newest)

    plane.at(at_ms, ask)


# The sentences ------------------------------------------------------------------------------------


def _asked(log: RunLog, label: str) -> tuple[ExplanationGiven, Explanation]:
    found = log.all(ExplanationGiven, lambda it: it.about == label)
    demand(found, f"nobody asked while {label}")
    return found[0].what, found[0].what.answer


def _says(log: RunLog, label: str, why: StuckReason, leg: ProgressStep, owner: str) -> Explanation:
    _, answer = _asked(log, label)
    say = answer.finding
    demand(say.why is why, f"it is said to be {say.why.value}: {say.message}")
    demand(say.leg is leg, f"it is said to have stopped at {say.leg.value}")
    demand(say.owner == owner, f"{say.owner or 'nobody'} is said to move next")
    return answer


def _due_ms(log: RunLog, label: str, answer: Explanation, within_ms: int) -> int:
    """By when it is promised, in the time of the run."""
    asked, deadline = _asked(log, label)[0], answer.finding.deadline
    demand(deadline is not None, f"no deadline is named: {answer.finding.no_deadline}")
    due_ms = wall_ms(deadline) - log.marks["origin"] if deadline is not None else 0
    left_ms = due_ms - asked.asked_ms
    demand(0 <= left_ms <= within_ms, f"it is due in {left_ms} ms, and should be in {within_ms}")
    return due_ms


def _told(answer: Explanation) -> str:
    say = answer.finding
    until = f"{say.deadline:%H:%M:%S}" if say.deadline is not None else say.no_deadline
    return f"{say.leg.value}, {say.owner} by {until}: {say.message}"


def _names_quota(log: RunLog) -> str:
    answer = _says(log, QUOTA, StuckReason.QUOTA, ProgressStep.SCHEDULING, Actor.OPERATOR.value)
    _due_ms(log, QUOTA, answer, RESYNC_MS)
    return _told(answer)


def _names_unseen(log: RunLog) -> str:
    answer = _says(log, UNSEEN, StuckReason.UNSEEN, ProgressStep.BINDING, f"system:node:{NODE}")
    _due_ms(log, UNSEEN, answer, STARTUP_MS)
    demand(answer.finding.then == Actor.REPAIR.value, f"then moves {answer.finding.then}")
    return _told(answer)


def _names_unsaid(log: RunLog) -> str:
    answer = _says(
        log, UNSAID, StuckReason.UNPROPAGATED, ProgressStep.STARTUP, f"system:node:{NODE}"
    )
    _due_ms(log, UNSAID, answer, STARTUP_MS)
    return _told(answer)


def _names_fence(log: RunLog) -> str:
    answer = _says(log, FENCE, StuckReason.FENCE, ProgressStep.SERVING, Actor.NODES.value)
    demand(answer.finding.then == Actor.REPAIR.value, f"then moves {answer.finding.then}")
    due_ms = _due_ms(log, FENCE, answer, TIMING.fence_after_ms)
    fenced = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is NodePhase.FENCED)
    demand(fenced, f"{NODE} was never fenced")
    late_ms = fenced[0].at_ms - due_ms
    demand(abs(late_ms) <= EXACT_MS, f"the fence came {late_ms} ms after it was due")
    return f"{_told(answer)}; it came {late_ms} ms after that"


def _names_stale(log: RunLog) -> str:
    answer = _says(
        log, STALE, StuckReason.STALE_PICTURE, ProgressStep.SCHEDULING, Actor.SCHEDULER.value
    )
    _due_ms(log, STALE, answer, RESYNC_MS)
    return _told(answer)


def _has_evidence(log: RunLog) -> str:
    """Each answer names the revision of the replica, and how old something is that it rests on."""
    for label in (QUOTA, UNSEEN, UNSAID, FENCE, STALE):
        _, answer = _asked(log, label)
        own = answer.signs[0]
        demand(own.revision > 0, f"{label}: the revision of the replica is not named")
        aged = [it for it in answer.signs[1:] if it.age_ms is not None]
        dated = [it for it in answer.signs[1:] if it.revision]
        demand(aged, f"{label}: nothing says how old it is")
        demand(dated, f"{label}: nothing else has a revision")
        demand(answer.timeline, f"{label}: there is no timeline")
    return f"such as {answer.signs[-1]!r}"


def _goes_on(log: RunLog) -> str:
    """Once what held it up is gone, it runs."""
    ran = log.all(StateChanged, lambda it: _is_third(it.name) and it.state is State.RUNNING)
    waited: list[int] = []
    for label, until_ms in (
        (QUOTA, UNSEEN_AT_MS),
        (UNSEEN, UNSAID_AT_MS),
        (UNSAID, FENCE_AT_MS),
        (FENCE, STALE_AT_MS),
        (STALE, END_MS),
    ):
        asked, _ = _asked(log, label)
        later = [it.at_ms for it in ran if asked.asked_ms < it.at_ms < until_ms]
        demand(later, f"after {label} it did not run")
        waited.append(later[0] - asked.asked_ms)
    return f"it ran {waited} ms after each question"


def _is_third(name: str) -> bool:
    return name.startswith(f"{NAME}-2-")


EXPECTS = (
    Sentence("sc4.quota", "While the quota is used up, that is the answer.", _names_quota),
    Sentence(
        "sc4.unseen", "While its agent has not seen the binding, that is the answer.", _names_unseen
    ),
    Sentence(
        "sc4.unpropagated",
        "While it runs and nobody was told, that is the answer.",
        _names_unsaid,
    ),
    Sentence(
        "sc4.fence",
        "While its node is down, the answer is the fence, and when it comes.",
        _names_fence,
    ),
    Sentence(
        "sc4.stale",
        "While the scheduler does not know of the place there is, that is the answer.",
        _names_stale,
    ),
    Sentence("sc4.evidence", "Each answer names revisions and ages.", _has_evidence),
    Sentence("sc4.goes-on", "Once what held it up is gone, it runs.", _goes_on),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc4_stuck_replica:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=5_000,
)
