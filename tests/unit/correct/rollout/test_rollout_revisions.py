"""controller:rollout: pauses, a second template on top of the first, and the history."""

from __future__ import annotations

from typing import Any

from holdfast.model.kinds.workload import CanaryStep, RolloutPhase
from holdfast.model.lifecycle import State
from holdfast.model.requests import Remove
from tests.unit.correct.controller_rig import ADMIN, accepted
from tests.unit.correct.rollout_rig import RolloutRig, all_of, canary, name_of, rolling, version

MINUTE = 60


def test_a_pause_holds_everything_until_its_owner_lets_it_go_on() -> None:
    """At any moment, and births meanwhile are of the revision that the place has."""
    rig = RolloutRig()
    rig.build(4, rolling(1))
    rig.want(template=version(2))
    rig.until({**all_of(1, 4), 0: "2"})
    rig.want(rollout={"paused": True})
    rig.ship(3)
    before = rig.versions()
    assert (rig.status.phase, rig.status.reason) == (RolloutPhase.PAUSED, "Paused")
    old = next(place for place, number in before.items() if number == "1")
    rig.ends(rig.replica(old))
    rig.ship(2 * MINUTE)
    assert rig.versions() == before
    rig.want(rollout={"paused": False})
    rig.ship(40)
    assert rig.versions(State.RUNNING) == all_of(2, 4)


def test_a_template_that_comes_during_a_pause_waits_for_its_end() -> None:
    """Nothing of it is made, and it is taken up afterwards."""
    rig = RolloutRig()
    rig.build(2, rolling(1, paused=True))
    rig.want(template=version(2))
    rig.ship(10)
    assert rig.versions() == all_of(1, 2)
    assert rig.status.phase is RolloutPhase.PAUSED
    rig.want(rollout={"paused": False})
    rig.ship(30)
    assert rig.versions(State.RUNNING) == all_of(2, 2)


def test_a_second_template_takes_over_from_the_first() -> None:
    """Places that had the first go straight to the second."""
    rig = RolloutRig()
    rig.build(4, rolling(1))
    rig.want(template=version(2, broken="yes"))
    rig.ship(8)
    rig.want(template=version(3))
    rig.ship(50)
    assert rig.fewest == 3
    assert rig.versions(State.RUNNING) == all_of(3, 4)
    assert [it.spec.number for it in sorted(rig.all("workloadrevisions"), key=_number)] == [
        1,
        2,
        3,
    ]


def _number(revision: Any) -> int:
    number: int = revision.spec.number
    return number


def test_going_back_to_the_old_template_makes_no_new_revision() -> None:
    """The broken one makes way at once, without canary steps."""
    rig = RolloutRig()
    rig.build(4, canary(CanaryStep(1, 30)))
    rig.want(template=version(2, broken="yes"))
    rig.ship(8)
    assert sorted(rig.versions().values()) == ["1", "1", "1", "2"]
    rig.want(template=version(1))
    rig.ship(10)
    assert rig.versions(State.RUNNING) == all_of(1, 4)
    assert rig.status.phase is RolloutPhase.IDLE
    assert len(rig.all("workloadrevisions")) == 2


def test_history_keeps_as_many_as_are_wanted_and_numbers_never_come_again() -> None:
    """Oldest first, never one that is in use."""
    rig = RolloutRig()
    rig.build(1, rolling(1, history=1))
    for number in (2, 3, 4):
        rig.want(template=version(number))
        rig.ship(15)
        assert rig.status.stable == name_of(number)
    assert sorted(map(_number, rig.all("workloadrevisions"))) == [3, 4]
    rig.want(rollout={"history": 0}, template=version(3))
    rig.ship(15)
    assert sorted(map(_number, rig.all("workloadrevisions"))) == [3]
    rig.want(template=version(5))
    rig.ship(15)
    assert sorted(map(_number, rig.all("workloadrevisions"))) == [5]


def test_revisions_go_with_their_workload() -> None:
    """And those of an earlier one of its name are none of the next one's."""
    rig = RolloutRig()
    rig.build(1, rolling(1))
    accepted(rig.plane.ask(ADMIN, Remove("workloads", "acme", "web")))
    rig.ship(10)
    assert rig.all("workloads") == []
    assert rig.all("workloadrevisions") == []
