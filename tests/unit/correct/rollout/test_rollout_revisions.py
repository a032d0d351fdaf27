"""controller:rollout: pauses, a second template on top of the first, and the history."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.workload import CanaryStep, RolloutPhase
from holdfast.model.lifecycle import State
from holdfast.model.requests import Remove
from tests.unit.correct.shipyard import Yard, all_of, canary, name_of, rolling, version
from tests.unit.correct.team_rig import ADMIN, accepted

MINUTE = 60


def test_a_pause_holds_everything_until_its_owner_lets_it_go_on() -> None:
    """At any moment, and births meanwhile are of the revision that the place has."""
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
    """Nothing of it is made, and it is taken up afterwards."""
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
    """Places that had the first go straight to the second."""
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
    """The broken one makes way at once, without canary steps."""
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
    """Oldest first, never one that is in use."""
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


def test_revisions_go_with_their_workload() -> None:
    """And those of an earlier one of its name are none of the next one's."""
    yard = Yard()
    yard.build(1, rolling(1))
    accepted(yard.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    yard.ship(10)
    assert yard.all("workloads") == []
    assert yard.all("workloadrevisions") == []
