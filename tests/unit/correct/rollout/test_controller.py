"""controller:rollout: new templates take the place of old ones, and never at any price."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.kinds.workload import Disruption, RolloutPhase
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import condition
from holdfast.model.requests import Evict
from holdfast.model.workload.indexes import parse
from tests.unit.correct.controller_rig import is_write
from tests.unit.correct.rollout_rig import RolloutRig, all_of, name_of, rolling, version


def test_a_new_template_replaces_all_and_becomes_stable() -> None:
    """Within maxUnavailable; then nothing is left to write. [I6, V4]"""
    rig = RolloutRig()
    rig.build(4, rolling(1))
    assert (rig.status.stable, rig.status.current) == (name_of(1), name_of(1))
    rig.want(template=version(2))
    rig.ship(40)
    assert rig.fewest == 3
    assert rig.versions(State.RUNNING) == all_of(2, 4)
    assert (rig.status.stable, rig.status.phase) == (name_of(2), RolloutPhase.IDLE)
    assert (rig.status.updated, rig.status.surge) == ("", 0)
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []


def test_a_surge_keeps_all_that_are_wanted_ready() -> None:
    """Places beyond the count have names of their own, and go when all is done. [I6]"""
    rig = RolloutRig()
    rig.build(3, rolling(0, 1))
    rig.want(template=version(2))
    rig.ship(6)
    assert rig.status.surge == 1
    assert rig.versions()[3] == "2"
    rig.ship(40)
    assert rig.fewest == 3
    assert rig.versions(State.RUNNING) == all_of(2, 3)
    assert rig.status.phase is RolloutPhase.IDLE


def test_where_both_portions_round_to_nothing_one_may_be_missing() -> None:
    """Or a rollout of few replicas could never move."""
    rig = RolloutRig()
    rig.build(3, rolling("25%", 0))
    rig.want(template=version(2))
    rig.ship(40)
    assert rig.fewest == 2
    assert rig.versions(State.RUNNING) == all_of(2, 3)


def test_a_broken_revision_gets_no_further_than_its_first_places() -> None:
    """Ready lags, so nothing more is begun; the deadline pauses, and stops nothing. [I6, H4]"""
    rig = RolloutRig()
    rig.build(4, rolling(1))
    rig.want(template=version(2, broken="yes"))
    rig.ship(90)
    status = rig.status
    assert (status.phase, status.reason) == (RolloutPhase.PAUSED, "ProgressDeadlineExceeded")
    assert (rig.fewest, rig.ready) == (3, 3)
    assert sorted(rig.versions().values()) == ["1", "1", "1", "2"]
    said = condition(rig.workload.status.conditions, "Progressing")
    assert said is not None
    assert (said.status.value, said.reason) == ("False", "ProgressDeadlineExceeded")
    rig.writes()
    rig.run(600_000)
    assert rig.writes() == []


def test_a_rollout_that_is_through_has_made_its_progress() -> None:
    """Tools that wait for a Deployment wait for this; only trouble says False."""
    rig = RolloutRig()
    rig.build(2, rolling(1))
    said = condition(rig.workload.status.conditions, "Progressing")
    assert said is not None
    assert (said.status.value, said.reason) == ("True", "Complete")


def test_a_deadline_with_auto_revert_goes_back_while_the_old_ones_serve() -> None:
    """Of itself, within the same limits; the spec stays as its owner wrote it. [H4, C6.9, A12]"""
    rig = RolloutRig()
    rig.build(4, rolling(1, auto_revert=True))
    rig.want(template=version(2, broken="yes"))
    rig.ship(100)
    assert rig.fewest == 3
    assert (rig.status.phase, rig.status.reason) == (RolloutPhase.FAILED, "Reverted")
    assert rig.status.stable == name_of(1)
    assert rig.versions(State.RUNNING) == all_of(1, 4)
    observed = condition(rig.workload.status.conditions, "RollbackObserved")
    assert observed is not None
    assert observed.status.value == "True"
    rig.want(template=version(3))
    rig.ship(40)
    assert rig.versions(State.RUNNING) == all_of(3, 4)
    assert rig.status.phase is RolloutPhase.IDLE


def test_a_way_back_never_stops_the_last_that_is_healthy() -> None:
    """Though all may be missing by its limits: the old one cannot start any more. [C6.9]"""
    rig = RolloutRig()
    rig.build(2, rolling("100%", auto_revert=True))
    rig.want(template=version(2))
    rig.until(all_of(2, 2))
    # Of the new ones one is ready; the other is not, and nothing finds a place from now on.
    rig.gets(rig.replica(1), Stage.STARTING)
    rig.bind_all = lambda: None  # type: ignore[method-assign]
    rig.ship(120)
    assert rig.status.phase is RolloutPhase.REVERTING
    assert rig.ready == 1
    assert rig.versions(State.RUNNING) == {0: "2"}


def test_work_that_is_ready_for_a_moment_only_is_not_taken_for_well() -> None:
    """It is ready each time it is started, and has to stay so longer each time. [I6]"""
    rig = RolloutRig()
    rig.build(3, rolling(1))
    rig.want(template=version(2))
    for _ in range(40):
        rig.ship(1, ms=2_000)
        for it in rig.all("replicas"):
            if it.spec.template == version(2) and it.status.state is State.RUNNING:
                rig.restarts(it)
    assert sorted(rig.versions().values()) == ["1", "1", "2"]
    assert rig.status.phase is RolloutPhase.PAUSED


def test_what_is_out_of_contact_counts_as_missing() -> None:
    """A rollout takes nothing away while a node is silent. [I6, H4]"""
    rig = RolloutRig("node-a", "node-b")
    rig.build(4, rolling(1))
    for name in ("web-1-0", "web-3-0"):
        gone = rig.get("replicas", name, "acme")
        rig.gets(gone, Stage.STARTING)
    rig.want(template=version(2, broken="yes"))
    rig.ship(10)
    assert rig.ready == 2
    assert sorted(rig.versions().values()) == ["1", "1", "1", "2"]
    assert len(parse(rig.status.updated)) == 1


def test_places_whose_holder_does_no_work_come_first() -> None:
    """Otherwise a mend for crashing work would wait for that work to be well."""
    rig = RolloutRig()
    rig.build(3, rolling(1))
    rig.gets(rig.replica(2), Stage.STARTING)
    rig.want(template=version(2))
    rig.ship(4)
    assert rig.versions()[2] == "2"
    rig.ship(40)
    assert rig.versions(State.RUNNING) == all_of(2, 3)


def test_a_disruption_budget_holds_a_rollout_back_as_well() -> None:
    """One ledger for all causes, whatever maxUnavailable says. [I6]"""
    rig = RolloutRig()
    rig.build(4, rolling(3), disruption=Disruption(max_unavailable=1))
    rig.want(template=version(2))
    rig.ship(80)
    assert rig.fewest == 3
    assert rig.versions(State.RUNNING) == all_of(2, 4)


def test_scaling_during_a_rollout_ends_with_all_that_are_wanted() -> None:
    """Up and down, with a surge."""
    rig = RolloutRig()
    rig.build(3, rolling(0, 1))
    rig.want(template=version(2))
    rig.ship(8)
    rig.want(replicas=6)
    rig.ship(10)
    rig.want(replicas=2)
    rig.ship(60)
    assert rig.versions(State.RUNNING) == all_of(2, 2)
    assert rig.status.phase is RolloutPhase.IDLE


def test_a_crash_after_any_write_ends_in_the_same_state() -> None:
    """Nothing is remembered that matters, and the limit always holds. [C7.4, K2]"""
    for at in range(1, 24, 2):
        rig = RolloutRig()
        rig.build(3, rolling(1, auto_revert=True))
        rig.want(template=version(2))
        rig.crash_after = len(rig.sent) + at
        rig.ship(40)
        assert rig.fewest == 2, at
        assert rig.versions(State.RUNNING) == all_of(2, 3), at
        assert rig.status.phase is RolloutPhase.IDLE, at


@pytest.mark.parametrize("fate", ["lost-after", "lost-before", "down"])
def test_answers_that_are_lost_change_nothing(fate: str) -> None:
    """Each request of a rollout is lost once. [C7.5]"""
    rig = RolloutRig()
    rig.build(3, rolling(1))
    spoiled: set[str] = set()

    def once(ask: Any) -> str:
        key = repr(ask.body)[:400]
        if "rollout" not in ask.sender or key in spoiled or not is_write(ask.body):
            return "done"
        spoiled.add(key)
        return fate

    rig.fate = once
    rig.want(template=version(2))
    rig.ship(80)
    assert len(spoiled) > 5
    assert rig.fewest == 2
    assert rig.versions(State.RUNNING) == all_of(2, 3)


def test_only_what_is_of_another_revision_is_stopped() -> None:
    """Every eviction of a rollout names a replica whose place takes another."""
    rig = RolloutRig()
    rig.build(3, rolling(1, 1))
    rig.want(template=version(2))
    rig.ship(40)
    stopped = [it.body for it in rig.sent if isinstance(it.body, Evict)]
    by_rollout = [it for it in stopped if it.cause is Cause.ROLLOUT]
    assert sorted(it.target.name for it in by_rollout) == ["web-0-0", "web-1-0", "web-2-0"]
