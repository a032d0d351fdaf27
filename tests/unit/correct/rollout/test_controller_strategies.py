"""controller:rollout: canaries, and recreating all at once."""

from __future__ import annotations

from holdfast.model.kinds.workload import CanaryStep, RolloutPhase, RolloutStrategy
from holdfast.model.lifecycle import Stage, State
from tests.plane import SCHEDULER, bind
from tests.unit.correct.shipyard import Yard, all_of, canary, rolling, version
from tests.unit.correct.team_rig import accepted


def test_a_canary_holds_each_step_for_its_time() -> None:
    """This many ordinals and no more, however many others fail meanwhile. [I6]"""
    yard = Yard()
    yard.build(4, canary(CanaryStep(1, 20), CanaryStep("50%", 20)))
    yard.want(template=version(2))
    yard.ship(15)
    assert sorted(yard.versions().values()) == ["1", "1", "1", "2"]
    # One of the others ends by itself: what follows it is of the old revision.
    old = next(place for place, number in yard.versions().items() if number == "1")
    yard.ends(yard.replica(old))
    yard.ship(5)
    assert sorted(yard.versions().values()) == ["1", "1", "1", "2"]
    yard.ship(20)
    assert yard.status.step == 1
    assert sorted(yard.versions().values()) == ["1", "1", "2", "2"]
    yard.ship(60)
    assert yard.versions(State.RUNNING) == all_of(2, 4)
    assert yard.status.phase is RolloutPhase.IDLE


def test_a_restart_begins_a_canarys_hold_anew() -> None:
    """A gate is passed by work that was ready all the time. [I6]"""
    yard = Yard()
    yard.build(2, canary(CanaryStep(1, 30)))
    yard.want(template=version(2))
    yard.ship(25)
    place = next(place for place, number in yard.versions().items() if number == "2")
    yard.restarts(yard.replica(place))
    yard.ship(20)
    assert yard.status.step == 0
    yard.ship(40)
    assert yard.versions(State.RUNNING) == all_of(2, 2)


def test_another_strategy_promotes_a_canary() -> None:
    """Its owner need not wait for the steps."""
    yard = Yard()
    yard.build(3, canary(CanaryStep(1, 600)))
    yard.want(template=version(2))
    yard.ship(15)
    assert sorted(yard.versions().values()) == ["1", "1", "2"]
    yard.want(rollout=rolling(1))
    yard.ship(30)
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_recreate_runs_no_two_revisions_at_once() -> None:
    """The last old one is proven to have stopped before the first new one is made."""
    yard = Yard()
    yard.build(3, rolling(strategy=RolloutStrategy.RECREATE))
    yard.want(template=version(2))
    for _ in range(60):
        yard.ship(1, ms=500)
        assert len(set(yard.versions().values())) <= 1
    assert yard.versions(State.RUNNING) == all_of(2, 3)
    assert yard.status.phase is RolloutPhase.IDLE


def test_another_strategy_lets_go_of_births_that_recreate_held_back() -> None:
    """One that cannot be proven to have stopped stands in the way no longer. [C7.6]"""
    yard = Yard()
    yard.build(3, rolling(strategy=RolloutStrategy.RECREATE))
    yard.silent.add("node-a")
    yard.want(template=version(2))
    yard.ship(10)
    assert yard.status.held
    assert "2" not in yard.versions().values()
    yard.want(rollout=rolling(3))
    yard.bind_all = lambda: _bind_to(yard, "node-b")  # type: ignore[method-assign]
    yard.ship(10)
    assert not yard.status.held
    assert "2" in yard.versions(State.RUNNING).values()


def _bind_to(yard: Yard, name: str) -> None:
    """A scheduler that knows one node only."""
    if yard.bind_term is None:
        yard.bind_term = yard.plane.term(SCHEDULER)
    for it in yard.all("replicas"):
        if it.status.state is State.PENDING:
            accepted(yard.plane.ask(SCHEDULER, bind(it, yard.get("nodes", name), yard.bind_term)))


def test_recreate_does_not_go_back_over_what_is_healthy() -> None:
    """There would be nothing left that works, so a person has to say. [C6.9]"""
    yard = Yard()
    rollout = rolling(strategy=RolloutStrategy.RECREATE, auto_revert=True)
    yard.build(2, rollout)
    yard.want(template=version(2))
    yard.until(all_of(2, 2))
    yard.gets(yard.replica(1), Stage.STARTING)
    yard.ship(90)
    status = yard.status
    assert (status.phase, status.reason) == (RolloutPhase.PAUSED, "RevertWouldStopHealthy")
    assert yard.ready == 1


def test_recreate_goes_back_where_nothing_is_ready() -> None:
    """And again no two revisions run at once."""
    yard = Yard()
    yard.build(2, rolling(strategy=RolloutStrategy.RECREATE, auto_revert=True))
    yard.want(template=version(2, broken="yes"))
    for _ in range(100):
        yard.ship(1)
        assert len(set(yard.versions().values())) <= 1
    assert yard.versions(State.RUNNING) == all_of(1, 2)
    assert yard.status.phase is RolloutPhase.FAILED
