"""Failing plans made small."""

from __future__ import annotations

import msgspec

from holdfast.sim.plan import Act, Fault, Plan
from holdfast.sim.run import BrokenInvariant, draw_plan, run
from holdfast.sim.shrink import ENTRIES_GOAL, shrink
from tests.unit.sim.small_world import FAILING


def _failing_seed() -> tuple[int, Plan, BrokenInvariant]:
    for seed in range(20):
        report = run(FAILING, seed, tell=False)
        if report.broken is not None:
            return seed, draw_plan(FAILING, seed), report.broken
    raise AssertionError("no seed fails")


def test_a_failing_plan_shrinks_to_what_makes_it_fail() -> None:
    """One crash is enough, and it is what remains. [N6]"""
    seed, plan, broken = _failing_seed()
    assert plan.size() > 40
    small = shrink(FAILING, seed, plan, broken)
    assert small.reached_goal()
    assert [(fault.kind, fault.target) for fault in small.plan.faults] == [("crash", "ticker")]
    assert small.plan.acts == ()
    assert small.plan.settle_ms == plan.settle_ms
    assert run(FAILING, seed, small.plan, tell=False).broken == small.broken


def test_a_search_is_bounded_in_runs_and_keeps_the_best_so_far() -> None:
    """It returns only a plan that was seen to fail. [N6]"""
    seed, plan, broken = _failing_seed()
    small = shrink(FAILING, seed, plan, broken, runs_max=3)
    assert small.runs == 3
    assert small.plan.size() <= plan.size()
    assert run(FAILING, seed, small.plan, tell=False).broken == small.broken


def test_a_plan_that_breaks_another_invariant_is_not_taken() -> None:
    """The smaller plan must break the same invariant. [N6]"""
    report = run(FAILING, 0, Plan(1, 0), tell=False)
    faults = tuple(Fault(number, "crash", "a", amount=number) for number in range(60))
    acts = tuple(Act(number, "a", number) for number in range(60))

    def runner(_scenario: object, _seed: int, plan: Plan) -> object:
        wanted = faults[13] in plan.faults and acts[57] in plan.acts
        broken = BrokenInvariant("INV1" if wanted else "INV2", "", 100)
        return msgspec.structs.replace(report, broken=broken)

    plan = Plan(1_000, 0, faults, acts)
    small = shrink(FAILING, 0, plan, BrokenInvariant("INV1", "", 100), runner=runner)  # type: ignore[arg-type]
    assert small.plan.faults == (faults[13],)
    assert small.plan.acts == (acts[57],)
    assert small.plan.size() <= ENTRIES_GOAL
