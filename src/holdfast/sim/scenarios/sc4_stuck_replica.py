"""The third replica of fraud-batch is stuck five times, each time for another reason.

In each round a user asks why: while the quota is used up; while the agent of its node does not
receive the binding; while the agent's reports about it are lost; while its node is down and the
fence has not passed; while the scheduler does not know that the node takes work again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from holdfast.explain.answer import Explanation, ProgressStep, StuckReason
from holdfast.model.kinds.node import NodePhase
from holdfast.model.lifecycle import Actor, State
from holdfast.model.machine import Ask
from holdfast.model.requests import Move
from holdfast.model.time import Instant, wall_ms
from holdfast.sim.cell import Factory, Seat, SimulatedMachine
from holdfast.sim.planes.process_table import ProcessStarted
from holdfast.sim.randomness import between
from holdfast.sim.run import Scenario
from holdfast.sim.scenarios.asking import ExplanationGiven
from holdfast.sim.scenarios.example_plane import RESYNC_MS, TIMING, ExamplePlane
from holdfast.sim.scenarios.people import workload_act
from holdfast.sim.scenarios.run_log import Bound, NodeChanged, RunLog, StateChanged
from holdfast.sim.scenarios.sentences import Sentence, demand
from holdfast.sim.world import World

NODE, OTHER = "node-gpu-7", "node-gpu-8"
TENANT, NAME = "fraud", "fraud-batch"
QUOTA, UNSEEN, UNSAID, FENCE, STALE = "quota", "unseen", "unsaid", "fence", "stale"
# When each round begins; its fault is healed before the next one.
QUOTA_AT_MS, UNSEEN_AT_MS, UNSAID_AT_MS = 20_000, 45_000, 160_000
FENCE_AT_MS, STALE_AT_MS, END_MS = 230_000, 330_000, 440_000
EVERYTHING = 1_000
# By this time the agent has renewed, and the scheduler has written its pending reason.
LOOK_AFTER_MS = 6_000
# The default time of a template from bound to running.
STARTUP_MS = 600_000
# The controller writes a fence at its next reconcile, and the log sees the commit.
EXACT_MS = 2_000
# A machine that never answers.
VOID = "void"


class SilentMachine:
    """A machine that answers nothing."""

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return ()


class ReportFilter:
    """Steps an agent; while it is on, the agent's reports about its work are lost.

    Its renewals still arrive.
    """

    is_on = False

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine

    def step(self, stimulus: Any, now: Instant) -> Sequence[Any]:
        return [self._redirect(it) for it in self.machine.step(stimulus, now)]

    def _redirect(self, effect: Any) -> Any:
        if self.is_on and isinstance(effect, Ask) and isinstance(effect.body, Move):
            return msgspec.structs.replace(effect, to=VOID)
        return effect


def _filter_reports(make: Factory) -> Callable[[Seat], ReportFilter]:
    return lambda seat: ReportFilter(make(seat))


def build(world: World) -> None:
    plane = ExamplePlane(world, {TENANT: {"cpu": "16", "gpu": "2"}})
    plane.scheduler("main")
    plane.node(OTHER, pool="gpu", gpus=2)
    plane.node(NODE, pool="gpu", gpus=1)
    agent = world.cells[NODE]
    agent.factory = _filter_reports(agent.factory)
    world.add(VOID, lambda _seat: SilentMachine())
    # The first two fill one node, so that the third is always bound to the other one.
    plane.act(8_000, {"do": "cordon", "node": NODE})
    plane.act(10_000, workload_act(NAME, TENANT, replicas=2, gpus=1))
    plane.act(16_000, {"do": "uncordon", "node": NODE})
    for add_round in (_use_up_quota, _lose_binding, _lose_reports, _lose_node, _lose_uncordon):
        add_round(plane)
    plane.ready(SENTENCES)


def _scale(plane: ExamplePlane, at_ms: int, replicas: int) -> None:
    plane.act(at_ms, {"do": "scale", "name": NAME, "replicas": replicas})


def _use_up_quota(plane: ExamplePlane) -> None:
    _scale(plane, QUOTA_AT_MS, 3)
    _ask(plane, QUOTA, QUOTA_AT_MS + LOOK_AFTER_MS)
    more = {"do": "limit", "tenant": TENANT, "hard": {"cpu": "16", "gpu": "3"}}
    plane.act(QUOTA_AT_MS + 8_000, more)


def _lose_binding(plane: ExamplePlane) -> None:
    """The agent still renews, but does not receive its watch events."""
    _scale(plane, UNSEEN_AT_MS, 2)
    begin_ms = UNSEEN_AT_MS + 7_000
    lost_ms = between(plane.rng, 15_000, 20_000)
    plane.fault(begin_ms, "delivery_lose", NODE, for_ms=lost_ms, amount=EVERYTHING)
    _scale(plane, begin_ms + 1_000, 3)
    plane.cue(
        lambda it: isinstance(it.what, Bound) and it.at_ms > begin_ms,
        lambda world: _ask(plane, UNSEEN, world.now_us // 1000 + LOOK_AFTER_MS),
    )


def _lose_reports(plane: ExamplePlane) -> None:
    """The agent starts the replica, and its reports are lost."""
    _scale(plane, UNSAID_AT_MS, 2)
    begin_ms = UNSAID_AT_MS + 7_000
    plane.at(begin_ms, lambda world: _set_filter(world, True))
    _scale(plane, begin_ms + 1_000, 3)

    def started(world: World) -> None:
        now_ms = world.now_us // 1000
        _ask(plane, UNSAID, now_ms + LOOK_AFTER_MS)
        plane.at(now_ms + LOOK_AFTER_MS + 2_000, lambda world: _set_filter(world, False))

    plane.cue(lambda it: isinstance(it.what, ProcessStarted) and it.at_ms > begin_ms, started)


def _set_filter(world: World, is_on: bool) -> None:
    machine = world.cells[NODE].machine
    if isinstance(machine, ReportFilter):
        machine.is_on = is_on


def _lose_node(plane: ExamplePlane) -> None:
    down_ms = between(plane.rng, 55_000, 65_000)
    plane.fault(FENCE_AT_MS, "reboot", NODE, for_ms=down_ms)
    plane.cue(
        lambda it: isinstance(it.what, StateChanged) and it.what.state is State.UNKNOWN,
        lambda world: _ask(plane, FENCE, world.now_us // 1000 + LOOK_AFTER_MS),
    )


def _lose_uncordon(plane: ExamplePlane) -> None:
    """The node is uncordoned, and the scheduler's watch events about it are lost."""
    _scale(plane, STALE_AT_MS, 2)
    plane.act(STALE_AT_MS + 5_000, {"do": "cordon", "node": NODE})
    _scale(plane, STALE_AT_MS + 8_000, 3)
    begin_ms = STALE_AT_MS + 14_000
    lost_ms = between(plane.rng, 8_000, 12_000)
    plane.fault(begin_ms, "delivery_lose", "main", for_ms=lost_ms, amount=EVERYTHING)
    plane.act(begin_ms + 1_000, {"do": "uncordon", "node": NODE})
    _ask(plane, STALE, begin_ms + 1_000 + LOOK_AFTER_MS)


def _ask(plane: ExamplePlane, label: str, at_ms: int) -> None:
    """Explain, at this time, the current replica with ordinal 2."""

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


def _explanation(log: RunLog, label: str) -> tuple[ExplanationGiven, Explanation]:
    found = log.all(ExplanationGiven, lambda it: it.about == label)
    demand(found, f"no explanation was requested in round {label}")
    return found[0].what, found[0].what.answer


def _says(log: RunLog, label: str, why: StuckReason, leg: ProgressStep, owner: str) -> Explanation:
    _, answer = _explanation(log, label)
    finding = answer.finding
    demand(finding.why is why, f"the reason given is {finding.why.value}: {finding.message}")
    demand(finding.leg is leg, f"the step given is {finding.leg.value}")
    demand(finding.owner == owner, f"the next owner given is {finding.owner or 'none'}")
    return answer


def _due_ms(log: RunLog, label: str, answer: Explanation, within_ms: int) -> int:
    """The deadline of the explanation, in the time of the run."""
    asked, deadline = _explanation(log, label)[0], answer.finding.deadline
    demand(deadline is not None, f"there is no deadline: {answer.finding.no_deadline}")
    due_ms = wall_ms(deadline) - log.marks["origin"] if deadline is not None else 0
    left_ms = due_ms - asked.asked_ms
    demand(
        0 <= left_ms <= within_ms,
        f"it is due in {left_ms} ms, and should be due within {within_ms} ms",
    )
    return due_ms


def _describe(answer: Explanation) -> str:
    finding = answer.finding
    until = f"{finding.deadline:%H:%M:%S}" if finding.deadline is not None else finding.no_deadline
    return f"{finding.leg.value}, {finding.owner} by {until}: {finding.message}"


def _names_quota(log: RunLog) -> str:
    answer = _says(log, QUOTA, StuckReason.QUOTA, ProgressStep.SCHEDULING, Actor.OPERATOR.value)
    _due_ms(log, QUOTA, answer, RESYNC_MS)
    return _describe(answer)


def _names_unseen(log: RunLog) -> str:
    answer = _says(log, UNSEEN, StuckReason.UNSEEN, ProgressStep.BINDING, f"system:node:{NODE}")
    _due_ms(log, UNSEEN, answer, STARTUP_MS)
    demand(answer.finding.then == Actor.REPAIR.value, f"then moves {answer.finding.then}")
    return _describe(answer)


def _names_lost_reports(log: RunLog) -> str:
    answer = _says(
        log, UNSAID, StuckReason.UNPROPAGATED, ProgressStep.STARTUP, f"system:node:{NODE}"
    )
    _due_ms(log, UNSAID, answer, STARTUP_MS)
    return _describe(answer)


def _names_fence(log: RunLog) -> str:
    answer = _says(log, FENCE, StuckReason.FENCE, ProgressStep.SERVING, Actor.NODES.value)
    demand(answer.finding.then == Actor.REPAIR.value, f"then moves {answer.finding.then}")
    due_ms = _due_ms(log, FENCE, answer, TIMING.fence_after_ms)
    fenced = log.all(NodeChanged, lambda it: it.node == NODE and it.phase is NodePhase.FENCED)
    demand(fenced, f"{NODE} was never fenced")
    late_ms = fenced[0].at_ms - due_ms
    demand(abs(late_ms) <= EXACT_MS, f"the fence came {late_ms} ms after it was due")
    return f"{_describe(answer)}; it came {late_ms} ms after that"


def _names_stale(log: RunLog) -> str:
    answer = _says(
        log, STALE, StuckReason.STALE_PICTURE, ProgressStep.SCHEDULING, Actor.SCHEDULER.value
    )
    _due_ms(log, STALE, answer, RESYNC_MS)
    return _describe(answer)


def _has_evidence(log: RunLog) -> str:
    """Each answer names the revision of the replica, and the age of its other evidence."""
    for label in (QUOTA, UNSEEN, UNSAID, FENCE, STALE):
        _, answer = _explanation(log, label)
        own = answer.signs[0]
        demand(own.revision > 0, f"{label}: the revision of the replica is missing")
        # Events belong to every answer, whatever it says.
        signs = [it for it in answer.signs[1:] if not it.what.startswith("event ")]
        aged = [it for it in signs if it.age_ms is not None]
        dated = [it for it in signs if it.revision]
        demand(aged, f"{label}: no evidence has an age")
        demand(dated, f"{label}: no other evidence has a revision")
        demand(answer.timeline, f"{label}: there is no timeline")
    return f"such as {answer.signs[-1]!r}"


def _goes_on(log: RunLog) -> str:
    """The replica runs after each round."""
    ran = log.all(StateChanged, lambda it: _is_third(it.name) and it.state is State.RUNNING)
    waited: list[int] = []
    for label, until_ms in (
        (QUOTA, UNSEEN_AT_MS),
        (UNSEEN, UNSAID_AT_MS),
        (UNSAID, FENCE_AT_MS),
        (FENCE, STALE_AT_MS),
        (STALE, END_MS),
    ):
        asked, _ = _explanation(log, label)
        later = [it.at_ms for it in ran if asked.asked_ms < it.at_ms < until_ms]
        demand(later, f"after {label} it did not run")
        waited.append(later[0] - asked.asked_ms)
    return f"it ran {waited} ms after each explanation"


def _is_third(name: str) -> bool:
    return name.startswith(f"{NAME}-2-")


SENTENCES = (
    Sentence("sc4.quota", "While the quota is used up, the answer says so.", _names_quota),
    Sentence(
        "sc4.unseen",
        "While its agent has not received the binding, the answer says so.",
        _names_unseen,
    ),
    Sentence(
        "sc4.unpropagated",
        "While it runs and the agent's reports are lost, the answer says so.",
        _names_lost_reports,
    ),
    Sentence(
        "sc4.fence",
        "While its node is down, the answer names the fence and its time.",
        _names_fence,
    ),
    Sentence(
        "sc4.stale",
        "While the scheduler does not know of the free node, the answer says so.",
        _names_stale,
    ),
    Sentence("sc4.evidence", "Each answer names revisions and ages.", _has_evidence),
    Sentence("sc4.goes-on", "Once the cause is gone, the replica runs.", _goes_on),
)

SCENARIO = Scenario(
    name="holdfast.sim.scenarios.sc4_stuck_replica:SCENARIO",
    build=build,
    faults_ms=END_MS,
    settle_ms=5_000,
)
