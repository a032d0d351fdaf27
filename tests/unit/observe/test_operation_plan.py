"""Steps of a plan: when each is sent, and how the plan ends."""

from __future__ import annotations

import random

import msgspec
import pytest

from holdfast.model.lifecycle import State
from holdfast.model.requests import Bind, Reserve, StopAndReserve
from holdfast.observe.operation_plan import (
    AwaitProgress,
    AwaitShown,
    OperationPlan,
    PlanDone,
    PlanGivenUp,
    PlanStep,
)
from tests.plan_world import GANG, POLICY, PREEMPTION, World, binds_of


def kinds(world: World) -> list[str]:
    return [type(request).__name__ for request in world.sent]


def test_a_preemption_binds_only_after_its_victim_is_released() -> None:
    """[E5, F6]"""
    world = World(*PREEMPTION)
    assert kinds(world) == ["StopAndReserve"]
    world.answer(0, "yes")
    world.look((), whole=True)
    assert kinds(world) == ["StopAndReserve"], "the victim is stopping"
    world.release()
    world.go_on()
    assert kinds(world) == ["StopAndReserve"], "and nobody has seen its release yet"
    world.look(["victim"], whole=False)
    assert kinds(world) == ["StopAndReserve", "Bind"]
    world.answer(0, "yes")
    world.look((), whole=True)
    assert world.plan.end == PlanDone()
    assert world.plan.next_ms is None


def test_the_next_step_is_made_from_a_snapshot_that_has_caught_up() -> None:
    """From an older one it would name old transition numbers, and be refused. [C3, E5]"""
    world = World(*GANG)
    assert kinds(world) == ["Reserve"] * 3
    while world.waiting:
        world.answer(0, "yes")
    assert kinds(world) == ["Reserve"] * 3
    world.look(["a", "b"], whole=False)
    assert kinds(world) == ["Reserve"] * 3
    world.look(["c"], whole=False)
    binds = [it for it in world.sent if isinstance(it, Bind)]
    assert [it.target.number for it in binds] == [1, 1, 1]


def test_a_lost_answer_holds_the_next_step_until_its_outcome_is_known() -> None:
    """[E5, F6]"""
    world = World(*GANG)
    world.answer(0, "lost")
    world.answer(0, "yes")
    world.answer(0, "yes")
    assert len(world.waiting) == 1, "the look for the lost one"
    world.answer(0, "down")
    world.now_ms += 30_000
    world.go_on()
    world.answer(0, "yes")
    assert kinds(world) == ["Reserve"] * 3
    world.look((), whole=True)
    assert kinds(world) == ["Reserve"] * 3 + ["Bind"] * 3


def test_a_snapshot_may_show_an_outcome_before_its_answer() -> None:
    """A late answer then changes nothing. [E5]"""
    world = World(*PREEMPTION)
    (waiting,) = world.waiting
    request = waiting[1]
    assert isinstance(request, StopAndReserve)
    world.authority.decide(request)
    world.release()
    world.look((), whole=True)
    assert kinds(world) == ["StopAndReserve", "Bind"]
    world.answer(0, "refused")
    assert world.plan.end is None


def test_after_a_restart_the_plan_goes_on_where_the_store_is() -> None:
    """[E5]"""
    world = World(*GANG)
    world.answer(0, "yes")
    world.restart()
    assert [it.target.name for it in world.sent if isinstance(it, Reserve)] == list("abcbc")
    world.settle()
    assert world.plan.end == PlanDone()


@pytest.mark.parametrize("order", [("refused", "late"), ("late", "refused")])
def test_after_a_failure_nothing_is_sent_again(order: tuple[str, str]) -> None:
    """The plan ends when the outcome of all that was sent is known. [E5]"""
    world = World(*GANG)
    world.answer(0, order[0])
    world.answer(0, order[1])
    # The lost copy never arrives.
    world.late.clear()
    world.answer(1, "yes")
    assert world.plan.end is None
    world.settle()
    assert kinds(world) == ["Reserve"] * 3
    assert isinstance(world.plan.end, PlanGivenUp)
    assert world.plan.end.step == "reserve"
    assert world.plan.end.reason == "NodeFull: no room"


def test_no_step_begins_after_the_deadline() -> None:
    """[E5]"""
    world = World(*PREEMPTION)
    (stop, bind) = PREEMPTION[0]()
    plan = OperationPlan([stop, bind], POLICY, random.Random(1), deadline_ms=5_000)
    ((number, request),) = plan.due(world.snapshot, 0)
    assert isinstance(request, StopAndReserve)
    plan.answered(number, request, world.authority.decide(request), 0)
    world.look((), whole=True)
    assert plan.due(world.snapshot, 4_999) == []
    assert plan.end is None
    assert plan.next_ms == 5_000
    assert plan.due(world.snapshot, 5_000) == []
    assert isinstance(plan.end, PlanGivenUp)
    assert plan.end.step == "bind"
    assert "the deadline has passed" in plan.end.reason
    late = OperationPlan([stop, bind], POLICY, random.Random(1), deadline_ms=5_000)
    fresh = World(*PREEMPTION)
    assert late.due(fresh.snapshot, 5_000) == []
    assert isinstance(late.end, PlanGivenUp)
    assert late.end.step == "stop"


def test_no_step_is_made_from_a_snapshot_that_is_too_old() -> None:
    """[C5]"""
    world = World(*GANG)
    plan = OperationPlan(GANG[0](), POLICY, random.Random(1), deadline_ms=5_000)
    old = msgspec.structs.replace(world.snapshot, age_ms=world.snapshot.age_max_ms + 1)
    assert plan.due(old, 0) == []
    assert plan.end is None
    assert len(plan.due(world.snapshot, 1)) == 3


def test_what_cannot_come_true_any_more_is_not_waited_for() -> None:
    """[E5]"""
    world = World(*PREEMPTION)
    world.authority.move("victim", State.FAILED)
    world.look((), whole=True)
    ready = AwaitShown("that the victim is ready", lambda _snapshot: AwaitProgress.IMPOSSIBLE)
    steps = [PlanStep("bind", binds_of("winner"), (ready,))]
    plan = OperationPlan(steps, POLICY, random.Random(1), deadline_ms=5_000)
    assert plan.due(world.snapshot, 0) == []
    assert isinstance(plan.end, PlanGivenUp)
    assert "cannot come true" in plan.end.reason
