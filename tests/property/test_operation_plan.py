"""Plans under lost, late and repeated copies, refusals, old snapshots, crashes and restarts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.lifecycle import State
from holdfast.model.requests import Bind
from holdfast.observe.operation_plan import PlanDone, PlanGivenUp
from tests.plan_world import GANG, MEMBERS, PREEMPTION, World

NAMES = ("winner", "victim", *MEMBERS)
FATES = ("yes", "lost", "late", "down", "refused")
EVENTS = st.one_of(
    st.tuples(st.just("answer"), st.integers(0, 5), st.sampled_from(FATES)),
    st.tuples(st.just("answer"), st.integers(0, 5), st.sampled_from(FATES)),
    st.tuples(st.just("arrive"), st.integers(0, 5), st.none()),
    st.tuples(st.just("look"), st.integers(0, 1), st.sets(st.sampled_from(NAMES))),
    st.tuples(st.just("wait"), st.sampled_from([10, 1_000, 40_000]), st.none()),
    st.tuples(st.just("release"), st.just(0), st.none()),
    st.tuples(st.just("crash"), st.just(0), st.none()),
)


def play(world: World, events: list[tuple[str, int, Any]]) -> None:
    for what, number, more in events:
        match what:
            case "answer" if world.waiting:
                world.answer(number, more)
            case "arrive":
                world.arrive(number)
            case "look":
                world.look(sorted(more), whole=bool(number))
            case "wait":
                world.now_ms += number
                world.go_on()
            case "release":
                world.release()
            case "crash":
                world.restart()


@given(st.sampled_from([PREEMPTION, GANG]), st.lists(EVENTS, max_size=40))
def test_no_step_takes_effect_twice_and_none_comes_before_its_evidence(
    made: Any, events: list[tuple[str, int, Any]]
) -> None:
    """Whatever is lost, late, refused or forgotten. [E5, F6]"""
    world = World(*made)
    play(world, events)
    world.settle()
    assert max(world.authority.effects.values(), default=0) <= 1


@given(st.sampled_from([PREEMPTION, GANG]), st.lists(EVENTS, max_size=40))
def test_a_plan_ends_and_what_it_says_is_true(
    made: Any, events: list[tuple[str, int, Any]]
) -> None:
    """Done means that all took effect; after anything else a new plan completes it. [E5]"""
    world = World(*made)
    play(world, events)
    world.settle()
    assert world.plan.end is not None
    for _ in range(8):
        if isinstance(world.plan.end, PlanDone):
            break
        world.restart()
        world.settle()
    assert world.plan.end == PlanDone()
    last = ("winner",) if made is PREEMPTION else MEMBERS
    assert all(world.authority.objects[it].status.state is State.BOUND for it in last)


@given(st.integers(0, 3), st.sampled_from(["refused", "down"]))
def test_a_refusal_ends_the_plan_in_its_step_and_sends_nothing_of_the_next(
    which: int, fate: str
) -> None:
    """The other operations of the step are followed to their outcome. [E5]"""
    world = World(*GANG)
    if which < len(MEMBERS):
        world.answer(which, fate)
        assert world.plan.end is None
        world.settle()
        assert not any(isinstance(it, Bind) for it in world.sent)
        expected = "reserve"
    else:
        while not any(isinstance(it, Bind) for it in world.sent):
            while world.waiting:
                world.answer(0, "yes")
            world.look((), whole=True)
        world.answer(0, fate)
        world.settle()
        expected = "bind"
    assert isinstance(world.plan.end, PlanGivenUp)
    assert world.plan.end.step == expected
