"""controller:rollout: canaries, and recreating all at once."""

from __future__ import annotations

from holdfast.model.kinds.workload import CanaryStep, RolloutPhase, RolloutStrategy
from holdfast.model.lifecycle import Stage, State
from tests.plane import SCHEDULER, bind
from tests.unit.correct.controller_rig import accepted
from tests.unit.correct.rollout_rig import RolloutRig, all_of, canary, rolling, version


def test_a_canary_holds_each_step_for_its_time() -> None:
    """This many ordinals and no more, however many others fail meanwhile. [I6]"""
    rig = RolloutRig()
    rig.build(4, canary(CanaryStep(1, 20), CanaryStep("50%", 20)))
    rig.want(template=version(2))
    rig.ship(15)
    assert sorted(rig.versions().values()) == ["1", "1", "1", "2"]
    # One of the others ends by itself: what follows it is of the old revision.
    old = next(place for place, number in rig.versions().items() if number == "1")
    rig.ends(rig.replica(old))
    rig.ship(5)
    assert sorted(rig.versions().values()) == ["1", "1", "1", "2"]
    rig.ship(20)
    assert rig.status.step == 1
    assert sorted(rig.versions().values()) == ["1", "1", "2", "2"]
    rig.ship(60)
    assert rig.versions(State.RUNNING) == all_of(2, 4)
    assert rig.status.phase is RolloutPhase.IDLE


def test_a_restart_begins_a_canarys_hold_again() -> None:
    """A gate is passed by work that was ready all the time. [I6]"""
    rig = RolloutRig()
    rig.build(2, canary(CanaryStep(1, 30)))
    rig.want(template=version(2))
    rig.ship(25)
    place = next(place for place, number in rig.versions().items() if number == "2")
    rig.restarts(rig.replica(place))
    rig.ship(20)
    assert rig.status.step == 0
    rig.ship(40)
    assert rig.versions(State.RUNNING) == all_of(2, 2)


def test_another_strategy_promotes_a_canary() -> None:
    """Its owner need not wait for the steps."""
    rig = RolloutRig()
    rig.build(3, canary(CanaryStep(1, 600)))
    rig.want(template=version(2))
    rig.ship(15)
    assert sorted(rig.versions().values()) == ["1", "1", "2"]
    rig.want(rollout=rolling(1))
    rig.ship(30)
    assert rig.versions(State.RUNNING) == all_of(2, 3)


def test_recreate_runs_no_two_revisions_at_once() -> None:
    """The last old one is proven to have stopped before the first new one is made."""
    rig = RolloutRig()
    rig.build(3, rolling(strategy=RolloutStrategy.RECREATE))
    rig.want(template=version(2))
    for _ in range(60):
        rig.ship(1, ms=500)
        assert len(set(rig.versions().values())) <= 1
    assert rig.versions(State.RUNNING) == all_of(2, 3)
    assert rig.status.phase is RolloutPhase.IDLE


def test_another_strategy_lets_go_of_births_that_recreate_held_back() -> None:
    """One that cannot be proven to have stopped stands in the way no longer. [C7.6]"""
    rig = RolloutRig()
    rig.build(3, rolling(strategy=RolloutStrategy.RECREATE))
    rig.silent.add("node-a")
    rig.want(template=version(2))
    rig.ship(10)
    assert rig.status.held
    assert "2" not in rig.versions().values()
    rig.want(rollout=rolling(3))
    rig.bind_all = lambda: _bind_to(rig, "node-b")  # type: ignore[method-assign]
    rig.ship(10)
    assert not rig.status.held
    assert "2" in rig.versions(State.RUNNING).values()


def _bind_to(rig: RolloutRig, name: str) -> None:
    """A scheduler that knows one node only."""
    if rig.bind_term is None:
        rig.bind_term = rig.plane.term(SCHEDULER)
    for it in rig.all("replicas"):
        if it.status.state is State.PENDING:
            accepted(rig.plane.ask(SCHEDULER, bind(it, rig.get("nodes", name), rig.bind_term)))


def test_recreate_does_not_go_back_over_what_is_healthy() -> None:
    """There would be nothing left that works, so a person has to say. [C6.9]"""
    rig = RolloutRig()
    rollout = rolling(strategy=RolloutStrategy.RECREATE, auto_revert=True)
    rig.build(2, rollout)
    rig.want(template=version(2))
    rig.until(all_of(2, 2))
    rig.gets(rig.replica(1), Stage.STARTING)
    rig.ship(90)
    status = rig.status
    assert (status.phase, status.reason) == (RolloutPhase.PAUSED, "RevertWouldStopHealthy")
    assert rig.ready == 1


def test_recreate_goes_back_where_nothing_is_ready() -> None:
    """And again no two revisions run at once."""
    rig = RolloutRig()
    rig.build(2, rolling(strategy=RolloutStrategy.RECREATE, auto_revert=True))
    rig.want(template=version(2, broken="yes"))
    for _ in range(100):
        rig.ship(1)
        assert len(set(rig.versions().values())) <= 1
    assert rig.versions(State.RUNNING) == all_of(1, 2)
    assert rig.status.phase is RolloutPhase.FAILED
