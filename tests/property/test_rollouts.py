"""Whatever people do and whatever ends meanwhile, a rollout keeps its limits and ends at last."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.kinds.workload import CanaryStep, Rollout, RolloutPhase, RolloutStrategy
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.machine import Ask
from holdfast.model.placement.disruption import is_available
from holdfast.model.requests import Evict
from holdfast.model.workload.rollouts import limits, target_of
from tests.scale import examples
from tests.unit.correct.rollout_rig import RolloutRig, canary, rolling, version

EXAMPLES = examples(60)
LAST = 9
_PLACES = st.integers(0, 5)

STEPS = st.one_of(
    st.tuples(st.just("template"), st.integers(1, 3), st.sampled_from(["", "yes"])),
    st.tuples(st.just("scale"), st.integers(0, 5)),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("end"), _PLACES),
    st.tuples(st.just("restart"), _PLACES),
    st.tuples(st.just("ill"), _PLACES),
    st.tuples(st.just("crash"), st.integers(1, 4)),
    st.tuples(st.just("time"), st.integers(1, 15)),
)
ROLLOUTS = st.one_of(
    st.builds(rolling, st.sampled_from([0, 1, 2, "25%"]), st.sampled_from([1, 2])),
    st.builds(rolling, st.sampled_from([1, 2, "50%", "100%"]), auto_revert=st.booleans()),
    st.builds(rolling, strategy=st.just(RolloutStrategy.RECREATE), auto_revert=st.booleans()),
    st.builds(
        lambda first, hold, back: canary(
            CanaryStep(first, hold), CanaryStep("60%", hold), auto_revert=back
        ),
        st.sampled_from([1, "20%"]),
        st.integers(0, 20),
        st.booleans(),
    ),
)


class WatchedYard(RolloutRig):
    """A rig that looks at every eviction of a rollout before it takes effect."""

    def _ask(self, ask: Ask) -> None:
        if isinstance(ask.body, Evict) and ask.body.cause is Cause.ROLLOUT:
            self._check(ask.body)
        super()._ask(ask)

    def _check(self, evict: Evict) -> None:
        workload, all_ = self.workload, self.all("replicas")
        replica = next(it for it in all_ if it.name == evict.target.name)
        if not is_available(replica) or workload.status.rollout.held:
            return
        assert replica.spec.revision != target_of(workload, replica.spec.ordinal)
        left = sum(is_available(it) for it in all_) - 1
        wanted = workload.spec.replicas
        floor = wanted - limits(workload.spec.rollout, wanted)[0]
        if workload.status.rollout.phase is RolloutPhase.REVERTING:
            floor = max(floor, min(1, wanted))
        assert left >= floor, (evict, left, floor)


def play(rig: RolloutRig, step: tuple[Any, ...]) -> None:
    found = [it for it in rig.all("replicas") if it.status.state is State.RUNNING]
    at = {it.spec.ordinal: it for it in found}
    match step:
        case ("template", number, broken):
            rig.want(template=version(number, broken))
        case ("scale", count):
            rig.want(replicas=count)
        case ("pause", is_paused):
            rig.want(rollout={"paused": is_paused})
        case ("end", place) if place in at:
            rig.ends(at[place])
        case ("restart", place) if place in at and is_available(at[place]):
            rig.restarts(at[place])
        case ("ill", place) if place in at:
            rig.gets(at[place], Stage.STARTING)
        case ("crash", writes):
            rig.crash_after = len(rig.sent) + writes
        case ("time", turns):
            rig.ship(turns)


def recover(rig: RolloutRig) -> None:
    """What was ill becomes ready again, where it is able to."""
    for it in rig.all("replicas"):
        is_broken = len(it.spec.template.env) > 1
        if it.status.state is State.RUNNING and not is_available(it) and not is_broken:
            rig.gets(it, Stage.READY)


@settings(max_examples=EXAMPLES)
@given(rollout=ROLLOUTS, replicas=st.integers(1, 4), steps=st.lists(STEPS, min_size=2, max_size=10))
def test_a_rollout_keeps_its_limits_and_comes_to_its_end(
    rollout: Rollout, replicas: int, steps: list[tuple[Any, ...]]
) -> None:
    """Nothing that is ready is stopped below the limit, and the last template wins. [I6, C6.9]"""
    rig = WatchedYard()
    rig.build(replicas, rollout)
    for step in steps:
        play(rig, step)
        rig.ship(1)
    rig.crash_after = None
    rig.want(rollout={"paused": False}, template=version(LAST), replicas=replicas)
    for _ in range(60):
        recover(rig)
        rig.ship(5)
        if rig.status.phase is RolloutPhase.IDLE and rig.status.current == rig.status.stable:
            break
    rig.ship(8)
    assert rig.versions() == dict.fromkeys(range(replicas), str(LAST)), rig.status
    assert rig.status.phase is RolloutPhase.IDLE
    rig.writes()
    rig.run(120_000)
    assert rig.writes() == []
