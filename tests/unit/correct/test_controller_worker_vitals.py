"""How controllers are doing: their heartbeat, and the counts of what they do."""

from __future__ import annotations

import random
from datetime import timedelta

from holdfast.correct.controller_worker import REASONS_MAX, ControllerWorker, Vitals
from holdfast.correct.workload.controller import WorkloadController
from holdfast.model.errors import OutcomeUnknown, Unavailable
from holdfast.model.lifecycle import State
from holdfast.model.refusal import Reason, Refusal
from holdfast.model.requests import Accepted, Move
from tests.unit.correct.controller_rig import DONE, DOWN, Rig, target
from tests.unit.correct.views import NOW, later, replica


def test_every_answer_is_counted_as_what_it_is() -> None:
    """Refusals by reason, and no more reasons than a bound. [M6]"""
    vitals = Vitals()
    vitals.looked(3, NOW)
    refusal = Refusal(Reason.EXISTS, "x")
    for answer in (Accepted(1), refusal, refusal, Unavailable("x"), OutcomeUnknown("x")):
        vitals.answered(answer, NOW)
    assert (vitals.looks, vitals.sent, vitals.last_look_ms) == (1, 3, NOW.monotonic_ms)
    assert (vitals.accepted, vitals.down, vitals.unknown) == (1, 1, 1)
    assert vitals.refused == {"AlreadyExists": 2}
    assert (vitals.last_error, vitals.last_error_ms) == ("OutcomeUnknown: x", NOW.monotonic_ms)
    vitals.refused = {str(number): 1 for number in range(REASONS_MAX)}
    vitals.answered(refusal, NOW)
    assert len(vitals.refused) == REASONS_MAX


def test_each_controller_of_a_runner_has_a_heartbeat_and_counts_of_its_own() -> None:
    """The lease is renewed under its name for as long as it lives, also with nothing to do. [A4]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.plane.workload(replicas=2)
    rig.fate = lambda ask: DOWN if len(rig.sent) < 3 else DONE
    rig.turn()
    beats = rig.runner.beats(rig.plane.now)
    vitals = {it.scope.removeprefix("controller:"): it for it in beats}
    assert sorted(vitals) == sorted(it.name for it in rig.controllers)
    mine = vitals["workload"]
    assert mine.accepted >= 2
    assert sum(it.down for it in vitals.values()) == 2
    assert mine.sent == mine.accepted + mine.down + mine.unknown + sum(mine.refused.values())
    before = {it.name: it.spec.renewed for it in rig.all("leases")}
    rig.run(60_000)
    after = {it.name: it.spec.renewed for it in rig.all("leases")}
    for name in vitals:
        beat = after[f"controller-{name}"]
        assert beat - before[f"controller-{name}"] > timedelta(seconds=50)


def test_a_beat_says_since_when_something_waits_and_what_went_wrong_last() -> None:
    """[H3, M6]"""
    rig = Rig()
    rig.plane.tenant()
    rig.plane.node("node-a")
    rig.turn()
    beats = {it.scope: it for it in rig.runner.beats(rig.plane.now)}
    assert sorted(beats) == sorted(f"controller:{it.name}" for it in rig.controllers)
    assert all(it.epoch > 0 and not it.overdue_ms for it in beats.values())
    assert beats["controller:nodes"].looks > 0
    rig.plane.workload(replicas=2)
    rig.fate = lambda ask: DOWN
    rig.run(20_000)
    mine = next(it for it in rig.runner.beats(rig.plane.now) if it.scope == "controller:workload")
    assert mine.down > 0
    assert mine.waiting >= 1
    assert "Unavailable" in mine.last_error
    assert mine.last_error_ago_ms is not None


def test_the_oldest_request_without_an_answer_counts_as_waiting() -> None:
    """[H3]"""
    made = ControllerWorker(WorkloadController(), random.Random(3))
    move = Move(target(replica()), State.RELEASED)
    made.takes_off(("acme", "web"), [("", move)], None, NOW)
    made.takes_off(("acme", "api"), [("", move)], None, later(900))
    assert made.beat(later(1_000)).overdue_ms == 1_000
    assert (made.beat(later(1_000)).waiting, made.beat(later(1_000)).epoch) == (2, 0)
