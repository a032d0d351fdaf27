"""controller:rollout: new templates take the place of old ones, and never at any price."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.correct.each_node import home_of
from holdfast.model.indexes import parse
from holdfast.model.kinds.node import Node
from holdfast.model.kinds.workload import (
    CanaryStep,
    Disruption,
    RolloutPhase,
    RolloutStrategy,
    WorkloadType,
)
from holdfast.model.lifecycle import Cause, Stage, State
from holdfast.model.meta import condition
from holdfast.model.requests import Evict, Remove, Update
from tests.plane import SCHEDULER, bind
from tests.unit.correct.shipyard import Yard, canary, name_of, rolling, version
from tests.unit.correct.team_rig import ADMIN, accepted, is_write

MINUTE = 60


def all_of(number: int, count: int) -> dict[int, str]:
    return dict.fromkeys(range(count), str(number))


def test_a_new_template_replaces_all_and_becomes_stable() -> None:
    """Within maxUnavailable; then nothing is left to write. [I6, V4, E5]"""
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
    """Or a rollout of few replicas could never move. [I6]"""
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
    """Tools that wait for a Deployment wait for this; only trouble says False. [I6, A12]"""
    yard = Yard()
    yard.build(2, rolling(1))
    said = condition(yard.workload.status.conditions, "Progressing")
    assert said is not None
    assert (said.status.value, said.reason) == ("True", "Complete")


def test_a_deadline_with_auto_revert_goes_back_while_the_old_ones_serve() -> None:
    """Of itself, within the same limits; the spec stays as its owner wrote it. [I6, H4, C6.9]"""
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
    """Though all may be missing by its limits: the old one cannot start any more. [C6.9, I6]"""
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
    """Otherwise a mend for crashing work would wait for that work to be well. [I6]"""
    yard = Yard()
    yard.build(3, rolling(1))
    yard.gets(yard.replica(2), Stage.STARTING)
    yard.want(template=version(2))
    yard.ship(4)
    assert yard.versions()[2] == "2"
    yard.ship(40)
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_a_pause_holds_everything_until_its_owner_lets_it_go_on() -> None:
    """At any moment, and births meanwhile are of the revision that the place has. [I6]"""
    yard = Yard()
    yard.build(4, rolling(1))
    yard.want(template=version(2))
    yard.until({**all_of(1, 4), 0: "2"})
    yard.want(rollout={"paused": True})
    yard.ship(3)
    before = yard.versions()
    assert (yard.status.phase, yard.status.reason) == (RolloutPhase.PAUSED, "Paused")
    old = next(place for place, number in before.items() if number == "1")
    yard.ends(yard.replica(old))
    yard.ship(2 * MINUTE)
    assert yard.versions() == before
    yard.want(rollout={"paused": False})
    yard.ship(40)
    assert yard.versions(State.RUNNING) == all_of(2, 4)


def test_a_template_that_comes_during_a_pause_waits_for_its_end() -> None:
    """Nothing of it is made, and it is taken up afterwards. [I6]"""
    yard = Yard()
    yard.build(2, rolling(1, paused=True))
    yard.want(template=version(2))
    yard.ship(10)
    assert yard.versions() == all_of(1, 2)
    assert yard.status.phase is RolloutPhase.PAUSED
    yard.want(rollout={"paused": False})
    yard.ship(30)
    assert yard.versions(State.RUNNING) == all_of(2, 2)


def test_a_second_template_takes_over_from_the_first() -> None:
    """Places that had the first go straight to the second. [I6]"""
    yard = Yard()
    yard.build(4, rolling(1))
    yard.want(template=version(2, broken="yes"))
    yard.ship(8)
    yard.want(template=version(3))
    yard.ship(50)
    assert yard.fewest == 3
    assert yard.versions(State.RUNNING) == all_of(3, 4)
    assert [it.spec.number for it in sorted(yard.all("workloadrevisions"), key=_number)] == [
        1,
        2,
        3,
    ]


def _number(revision: Any) -> int:
    number: int = revision.spec.number
    return number


def test_going_back_to_the_old_template_makes_no_new_revision() -> None:
    """The broken one makes way at once, without canary steps. [I6, A2]"""
    yard = Yard()
    yard.build(4, canary(CanaryStep(1, 30)))
    yard.want(template=version(2, broken="yes"))
    yard.ship(8)
    assert sorted(yard.versions().values()) == ["1", "1", "1", "2"]
    yard.want(template=version(1))
    yard.ship(10)
    assert yard.versions(State.RUNNING) == all_of(1, 4)
    assert yard.status.phase is RolloutPhase.IDLE
    assert len(yard.all("workloadrevisions")) == 2


def test_history_keeps_as_many_as_are_wanted_and_numbers_never_come_again() -> None:
    """Oldest first, never one that is in use. [I6, A2]"""
    yard = Yard()
    yard.build(1, rolling(1, history=1))
    for number in (2, 3, 4):
        yard.want(template=version(number))
        yard.ship(15)
        assert yard.status.stable == name_of(number)
    assert sorted(map(_number, yard.all("workloadrevisions"))) == [3, 4]
    yard.want(rollout={"history": 0}, template=version(3))
    yard.ship(15)
    assert sorted(map(_number, yard.all("workloadrevisions"))) == [3]
    yard.want(template=version(5))
    yard.ship(15)
    assert sorted(map(_number, yard.all("workloadrevisions"))) == [5]


def test_a_canary_holds_each_step_for_its_time() -> None:
    """So many places and no more, however many others fall away meanwhile. [I6]"""
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
    """Its owner need not wait for the steps. [I6]"""
    yard = Yard()
    yard.build(3, canary(CanaryStep(1, 600)))
    yard.want(template=version(2))
    yard.ship(15)
    assert sorted(yard.versions().values()) == ["1", "1", "2"]
    yard.want(rollout=rolling(1))
    yard.ship(30)
    assert yard.versions(State.RUNNING) == all_of(2, 3)


def test_recreate_runs_no_two_revisions_at_once() -> None:
    """The last old one is proven to have stopped before the first new one is made. [I6]"""
    yard = Yard()
    yard.build(3, rolling(strategy=RolloutStrategy.RECREATE))
    yard.want(template=version(2))
    for _ in range(60):
        yard.ship(1, ms=500)
        assert len(set(yard.versions().values())) <= 1
    assert yard.versions(State.RUNNING) == all_of(2, 3)
    assert yard.status.phase is RolloutPhase.IDLE


def test_another_strategy_lets_go_of_births_that_recreate_held_back() -> None:
    """One that cannot be proven to have stopped stands in the way no longer. [I6, C7.6]"""
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


def test_recreate_does_not_go_back_over_what_is_healthy() -> None:
    """There would be nothing left that works, so a person has to say. [C6.9, I6]"""
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
    """And again no two revisions run at once. [I6]"""
    yard = Yard()
    yard.build(2, rolling(strategy=RolloutStrategy.RECREATE, auto_revert=True))
    yard.want(template=version(2, broken="yes"))
    for _ in range(100):
        yard.ship(1)
        assert len(set(yard.versions().values())) <= 1
    assert yard.versions(State.RUNNING) == all_of(1, 2)
    assert yard.status.phase is RolloutPhase.FAILED


def test_one_per_node_rolls_node_by_node() -> None:
    """Within maxUnavailable of its nodes. [I6]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    assert yard.ready == 3
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]
    assert yard.status.phase is RolloutPhase.IDLE


def test_one_per_node_goes_back_to_the_nodes_of_the_old_template() -> None:
    """The stated template, which is given up, says no longer where it belongs. [I6, C6.9]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1, auto_revert=True), type=WorkloadType.PER_NODE)
    broken = version(2, broken="yes")
    placement = msgspec.structs.replace(
        broken.placement, node_selector={"holdfast.dev/node": "node-a"}
    )
    yard.want(template=msgspec.structs.replace(broken, placement=placement))
    yard.ship(120)
    assert yard.status.phase is RolloutPhase.FAILED
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1", "1"]


def test_one_per_node_stays_on_a_node_that_takes_nothing_new() -> None:
    """Nobody could follow it there, and each one that goes would lower what is wanted. [I6, H4]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    for name in ("node-a", "node-b"):
        node: Node = yard.get("nodes", name)
        shut = msgspec.structs.replace(node.spec, cordoned=True)
        accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=shut))))
    yard.ship(2)
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1", "2"]
    for name in ("node-a", "node-b"):
        node = yard.get("nodes", name)
        opened = msgspec.structs.replace(node.spec, cordoned=False)
        accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=opened))))
    yard.ship(120)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_does_not_wait_for_a_node_that_was_emptied_by_others() -> None:
    """What ended there comes back when the node takes work again, as what is stable then. [I6]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    cordon(yard, "node-a", cordoned=True)
    yard.ends(next(it for it in yard.all("replicas") if home_of(it) == "node-a"))
    yard.want(template=version(2))
    yard.ship(40)
    assert yard.status.phase is RolloutPhase.IDLE
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2"]
    cordon(yard, "node-a", cordoned=False)
    yard.ship(20)
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def test_one_per_node_begins_no_second_node_while_the_first_is_closed() -> None:
    """It was closed after the rollout had emptied it; it is missing all the same. [I6, H4]"""
    yard = Yard("node-a", "node-b", "node-c")
    yard.bind_all = lambda: _bind_home(yard)  # type: ignore[method-assign]
    yard.build(1, rolling(1), type=WorkloadType.PER_NODE)
    yard.want(template=version(2))
    while not any(it.status.state is State.STOPPING for it in yard.all("replicas")):
        yard.run(200)
    gone = next(it for it in yard.all("replicas") if it.status.state is State.STOPPING)
    cordon(yard, home_of(gone), cordoned=True)
    yard.ship(30)
    assert yard.fewest == 2
    assert sorted(yard.versions(State.RUNNING).values()) == ["1", "1"]
    cordon(yard, home_of(gone), cordoned=False)
    yard.ship(60)
    assert sorted(yard.versions(State.RUNNING).values()) == ["2", "2", "2"]


def cordon(yard: Yard, name: str, *, cordoned: bool) -> None:
    node: Node = yard.get("nodes", name)
    spec = msgspec.structs.replace(node.spec, cordoned=cordoned)
    accepted(yard.plane.ask(ADMIN, Update(msgspec.structs.replace(node, spec=spec))))


def _bind_to(yard: Yard, name: str) -> None:
    """A scheduler that knows one node only."""
    if yard._bind_term is None:
        yard._bind_term = yard.plane.term(SCHEDULER)
    for it in yard.all("replicas"):
        if it.status.state is State.PENDING:
            accepted(yard.plane.ask(SCHEDULER, bind(it, yard.get("nodes", name), yard._bind_term)))


def _bind_home(yard: Yard) -> None:
    """A scheduler that binds one per node where it belongs."""
    if yard._bind_term is None:
        yard._bind_term = yard.plane.term(SCHEDULER)
    for it in yard.all("replicas"):
        if it.status.state is State.PENDING:
            node: Node = yard.get("nodes", home_of(it))
            accepted(yard.plane.ask(SCHEDULER, bind(it, node, yard._bind_term)))


def test_a_disruption_budget_holds_a_rollout_back_as_well() -> None:
    """One ledger for all causes, whatever maxUnavailable says. [I6, G4]"""
    yard = Yard()
    yard.build(4, rolling(3), disruption=Disruption(max_unavailable=1))
    yard.want(template=version(2))
    yard.ship(80)
    assert yard.fewest == 3
    assert yard.versions(State.RUNNING) == all_of(2, 4)


def test_scaling_during_a_rollout_ends_with_all_that_are_wanted() -> None:
    """Up and down, with a surge. [I6]"""
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
    """Nothing is remembered that matters, and nobody falls below the limit. [C7.4, I6, K2]"""
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
    """Each request of a rollout is lost once. [C7.5, I6]"""
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


def test_revisions_go_with_their_workload() -> None:
    """And those of an earlier one of its name are none of the next one's. [I5, A2]"""
    yard = Yard()
    yard.build(1, rolling(1))
    accepted(yard.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    yard.ship(10)
    assert yard.all("workloads") == []
    assert yard.all("workloadrevisions") == []


def test_only_what_is_of_another_revision_is_stopped() -> None:
    """Every eviction of a rollout names a replica whose place takes another. [A9, I6]"""
    yard = Yard()
    yard.build(3, rolling(1, 1))
    yard.want(template=version(2))
    yard.ship(40)
    stopped = [it.body for it in yard.sent if isinstance(it.body, Evict)]
    by_rollout = [it for it in stopped if it.cause is Cause.ROLLOUT]
    assert sorted(it.target.name for it in by_rollout) == ["web-0-0", "web-1-0", "web-2-0"]
