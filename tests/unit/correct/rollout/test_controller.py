"""controller:rollout: new templates take the place of old ones, and never at any price."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.indexes import parse
from holdfast.model.kinds.workload import Disruption, RolloutPhase
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import condition
from holdfast.model.requests import Evict
from tests.unit.correct.shipyard import Yard, all_of, name_of, rolling, version
from tests.unit.correct.team_rig import is_write


def test_a_new_template_replaces_all_and_becomes_stable() -> None:
    """Within maxUnavailable; then nothing is left to write. [I6, V4]"""
    yard = Yard()
    yard.build(4, rolling(1))
    assert (yard.status.stable, yard.status.current) == (name_of(1), name_of(1))
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 3
    assert yard.versions(State.RUNNING) == all_of(2, 4)
    assert (yard.status.stable, yard.status.phase) == (name_of(2), RolloutPhase.IDLE)
    assert (yard.status.updated, yard.status.surge) == ("", 0)
    yard.writes()
    yard.run(600_000)
    assert yard.writes() == []


def test_a_surge_keeps_all_that_are_wanted_ready() -> None:
    """Places beyond the count have names of their own, and go when all is done. [I6]"""
    yard = Yard()
    yard.build(3, rolling(0, 1))
    yard.want(template=version(2))
    yard.ship(6)
    assert yard.status.surge == 1
    assert yard.versions()[3] == "2"
    yard.ship(40)
    assert yard.fewest == 3
    assert yard.versions(State.RUNNING) == all_of(2, 3)
    assert yard.status.phase is RolloutPhase.IDLE


def test_where_both_portions_round_to_nothing_one_may_be_missing() -> None:
    """Or a rollout of few replicas could never move."""
    yard = Yard()
    yard.build(3, rolling("25%", 0))
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 2
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_a_broken_revision_gets_no_further_than_its_first_places() -> None:
    """Ready lags, so nothing more is begun; the deadline pauses, and stops nothing. [I6, H4]"""
    yard = Yard()
    yard.build(4, rolling(1))
    yard.want(template=version(2, broken="yes"))
    yard.ship(90)
    status = yard.status
    assert (status.phase, status.reason) == (RolloutPhase.PAUSED, "ProgressDeadlineExceeded")
    assert (yard.fewest, yard.ready) == (3, 3)
    assert sorted(yard.versions().values()) == ["1", "1", "1", "2"]
    said = condition(yard.workload.status.conditions, "Progressing")
    assert said is not None
    assert (said.status.value, said.reason) == ("False", "ProgressDeadlineExceeded")
    yard.writes()
    yard.run(600_000)
    assert yard.writes() == []


def test_a_rollout_that_is_through_has_made_its_progress() -> None:
    """Tools that wait for a Deployment wait for this; only trouble says False."""
    yard = Yard()
    yard.build(2, rolling(1))
    said = condition(yard.workload.status.conditions, "Progressing")
    assert said is not None
    assert (said.status.value, said.reason) == ("True", "Complete")


def test_a_deadline_with_auto_revert_goes_back_while_the_old_ones_serve() -> None:
    """Of itself, within the same limits; the spec stays as its owner wrote it. [H4, C6.9, A12]"""
    yard = Yard()
    yard.build(4, rolling(1, auto_revert=True))
    yard.want(template=version(2, broken="yes"))
    yard.ship(100)
    assert yard.fewest == 3
    assert (yard.status.phase, yard.status.reason) == (RolloutPhase.FAILED, "Reverted")
    assert yard.status.stable == name_of(1)
    assert yard.versions(State.RUNNING) == all_of(1, 4)
    observed = condition(yard.workload.status.conditions, "RollbackObserved")
    assert observed is not None
    assert observed.status.value == "True"
    yard.want(template=version(3))
    yard.ship(40)
    assert yard.versions(State.RUNNING) == all_of(3, 4)
    assert yard.status.phase is RolloutPhase.IDLE


def test_a_way_back_never_stops_the_last_that_is_healthy() -> None:
    """Though all may be missing by its limits: the old one cannot start any more. [C6.9]"""
    yard = Yard()
    yard.build(2, rolling("100%", auto_revert=True))
    yard.want(template=version(2))
    yard.until(all_of(2, 2))
    # Of the new ones one is ready; the other is not, and nothing finds a place from now on.
    yard.gets(yard.replica(1), Stage.STARTING)
    yard.bind_all = lambda: None  # type: ignore[method-assign]
    yard.ship(120)
    assert yard.status.phase is RolloutPhase.REVERTING
    assert yard.ready == 1
    assert yard.versions(State.RUNNING) == {0: "2"}


def test_work_that_is_ready_for_a_moment_only_is_not_taken_for_well() -> None:
    """It is ready each time it is started, and has to stay so longer each time. [I6]"""
    yard = Yard()
    yard.build(3, rolling(1))
    yard.want(template=version(2))
    for _ in range(40):
        yard.ship(1, ms=2_000)
        for it in yard.all("replicas"):
            if it.spec.template == version(2) and it.status.state is State.RUNNING:
                yard.restarts(it)
    assert sorted(yard.versions().values()) == ["1", "1", "2"]
    assert yard.status.phase is RolloutPhase.PAUSED


def test_what_is_out_of_contact_counts_as_missing() -> None:
    """A rollout takes nothing away while a node is silent. [I6, H4]"""
    yard = Yard("node-a", "node-b")
    yard.build(4, rolling(1))
    for name in ("web-1-0", "web-3-0"):
        gone = yard.get("replicas", name, "acme")
        yard.gets(gone, Stage.STARTING)
    yard.want(template=version(2, broken="yes"))
    yard.ship(10)
    assert yard.ready == 2
    assert sorted(yard.versions().values()) == ["1", "1", "1", "2"]
    assert len(parse(yard.status.updated)) == 1


def test_places_whose_holder_does_no_work_come_first() -> None:
    """Otherwise a mend for crashing work would wait for that work to be well."""
    yard = Yard()
    yard.build(3, rolling(1))
    yard.gets(yard.replica(2), Stage.STARTING)
    yard.want(template=version(2))
    yard.ship(4)
    assert yard.versions()[2] == "2"
    yard.ship(40)
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_a_disruption_budget_holds_a_rollout_back_as_well() -> None:
    """One ledger for all causes, whatever maxUnavailable says. [I6]"""
    yard = Yard()
    yard.build(4, rolling(3), disruption=Disruption(max_unavailable=1))
    yard.want(template=version(2))
    yard.ship(80)
    assert yard.fewest == 3
    assert yard.versions(State.RUNNING) == all_of(2, 4)


def test_scaling_during_a_rollout_ends_with_all_that_are_wanted() -> None:
    """Up and down, with a surge."""
    yard = Yard()
    yard.build(3, rolling(0, 1))
    yard.want(template=version(2))
    yard.ship(8)
    yard.want(replicas=6)
    yard.ship(10)
    yard.want(replicas=2)
    yard.ship(60)
    assert yard.versions(State.RUNNING) == all_of(2, 2)
    assert yard.status.phase is RolloutPhase.IDLE


def test_a_crash_after_any_write_ends_in_the_same_state() -> None:
    """Nothing is remembered that matters, and the limit always holds. [C7.4, K2]"""
    for at in range(1, 24, 2):
        yard = Yard()
        yard.build(3, rolling(1, auto_revert=True))
        yard.want(template=version(2))
        yard.crash_after = len(yard.sent) + at
        yard.ship(40)
        assert yard.fewest == 2, at
        assert yard.versions(State.RUNNING) == all_of(2, 3), at
        assert yard.status.phase is RolloutPhase.IDLE, at


@pytest.mark.parametrize("fate", ["lost-after", "lost-before", "down"])
def test_answers_that_are_lost_change_nothing(fate: str) -> None:
    """Each request of a rollout is lost once. [C7.5]"""
    yard = Yard()
    yard.build(3, rolling(1))
    spoiled: set[str] = set()

    def once(ask: Any) -> str:
        key = repr(ask.body)[:400]
        if "rollout" not in ask.sender or key in spoiled or not is_write(ask.body):
            return "done"
        spoiled.add(key)
        return fate

    yard.fate = once
    yard.want(template=version(2))
    yard.ship(80)
    assert len(spoiled) > 5
    assert yard.fewest == 2
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_only_what_is_of_another_revision_is_stopped() -> None:
    """Every eviction of a rollout names a replica whose place takes another."""
    yard = Yard()
    yard.build(3, rolling(1, 1))
    yard.want(template=version(2))
    yard.ship(40)
    stopped = [it.body for it in yard.sent if isinstance(it.body, Evict)]
    by_rollout = [it for it in stopped if it.cause is Cause.ROLLOUT]
    assert sorted(it.target.name for it in by_rollout) == ["web-0-0", "web-1-0", "web-2-0"]
