"""Which place takes which revision, and how many may be missing or too many meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.model.kinds.replica import Replica, ReplicaSpec
from holdfast.model.kinds.template import Template
from holdfast.model.kinds.workload import (
    Rollout,
    RolloutPhase,
    RolloutStatus,
    Workload,
    WorkloadSpec,
    WorkloadStatus,
    WorkloadType,
)
from holdfast.model.meta import ObjectMeta
from holdfast.model.validation.names import NAME_MAX
from holdfast.model.validation.workload import NAME_MAX as WORKLOAD_NAME_MAX
from holdfast.model.workload.rollouts import (
    goal,
    is_misplaced,
    limits,
    revision_name,
    target_of,
    wanted_places,
)


def workload(type_: WorkloadType = WorkloadType.SERVICE, **rollout: Any) -> Workload:
    spec = WorkloadSpec(Template(), type_, replicas=4 if type_ is WorkloadType.SERVICE else 1)
    status = WorkloadStatus(rollout=RolloutStatus(**rollout))
    return Workload(ObjectMeta(name="web"), spec=spec, status=status)


def targets(it: Workload, places: int = 6) -> list[str]:
    return [target_of(it, place) for place in range(places)]


def test_without_a_rollout_no_place_has_a_target() -> None:
    """The template as it stands is what is made."""
    assert targets(workload()) == [""] * 6


def test_places_that_were_begun_and_those_of_the_surge_take_the_new_revision() -> None:
    """All others keep the old one."""
    it = workload(current="new", stable="old", updated="0,2", surge=1)
    assert targets(it) == ["new", "old", "new", "old", "new", "new"]
    assert wanted_places(it) == 5


def test_one_per_node_has_no_surge() -> None:
    """Its places are numbers of nodes, far beyond any count."""
    it = workload(WorkloadType.PER_NODE, current="new", stable="old", updated="0-2")
    assert targets(it) == ["new"] * 3 + ["old"] * 3


@pytest.mark.parametrize("phase", [RolloutPhase.REVERTING, RolloutPhase.FAILED])
def test_on_the_way_back_and_after_it_all_take_the_old_revision(phase: RolloutPhase) -> None:
    """Those of the surge too."""
    it = workload(current="new", stable="old", surge=1, phase=phase)
    assert targets(it) == ["old"] * 6
    assert goal(it) == "old"


def test_where_nothing_was_ever_well_all_take_the_new_revision() -> None:
    """There is nothing to keep."""
    assert targets(workload(current="new")) == ["new"] * 6


def test_a_replica_of_another_revision_is_misplaced() -> None:
    """One without targets never is."""
    spec = ReplicaSpec("web", "uid", Template(), ordinal=1, revision="new")
    replica = Replica(ObjectMeta(name="web-1-0"), spec=spec)
    assert is_misplaced(workload(current="new", stable="old", updated="0"), replica)
    assert not is_misplaced(workload(current="new", stable="old", updated="1"), replica)
    assert not is_misplaced(workload(), msgspec.structs.replace(replica))


@pytest.mark.parametrize(
    "missing, surge, places, expected",
    [
        ("25%", "25%", 4, (1, 1)),
        ("25%", "25%", 3, (0, 1)),
        ("25%", 0, 3, (1, 0)),
        (0, "25%", 0, (1, 0)),
        (10, 0, 3, (3, 0)),
        ("100%", 0, 5, (5, 0)),
    ],
)
def test_limits_round_to_the_safe_side_and_leave_something_to_move(
    missing: int | str, surge: int | str, places: int, expected: tuple[int, int]
) -> None:
    """Where both come to nothing, one may be missing. [I6]"""
    assert limits(Rollout(max_unavailable=missing, max_surge=surge), places) == expected


def test_the_name_of_a_revision_always_fits() -> None:
    """For the longest name that a workload may have."""
    assert len(revision_name("w" * WORKLOAD_NAME_MAX, "0123456789")) <= NAME_MAX
