"""Many seeds."""

from __future__ import annotations

import io

import pytest

from holdfast.sim.campaign import campaign
from holdfast.sim.run import Scenario
from holdfast.sim.world import World
from tests.unit.sim.small_world import FAILING, HEALTHY


def _mistake(world: World) -> None:
    world.cells["nobody"].life += 1


MISTAKEN = Scenario(name="tests.unit.sim.test_campaign:MISTAKEN", build=_mistake)


def test_a_campaign_sums_up_its_seeds() -> None:
    """Seeds, virtual hours, faults by kind, violations. [N6]"""
    summary = campaign(HEALTHY.name, range(3))
    assert summary.seeds == 3
    assert summary.virtual_ms == 3 * 61_000
    assert summary.faults() == summary.injected["crash"] + summary.injected["pause"] > 20
    assert summary.failed == []
    assert "violations" in summary.describe()


def test_failing_seeds_are_printed_with_the_command_that_replays_them() -> None:
    """One printed command replays a failure. [N6]"""
    summary = campaign(FAILING.name, range(8))
    assert 1 <= len(summary.failed) < 8
    seed = summary.failed[0].seed
    assert f"replay {FAILING.name} --seed {seed}" in summary.describe()


def test_a_campaign_can_stop_at_its_first_failures() -> None:
    """A broken world need not be run to the end. [N6]"""
    summary = campaign(FAILING.name, range(50), failures_max=1)
    assert len(summary.failed) == 1
    assert summary.seeds < 20


def test_several_processes_find_the_same_as_one() -> None:
    """The result does not depend on how a campaign is divided. [N6]"""
    assert campaign(FAILING.name, range(8), processes=2) == campaign(FAILING.name, range(8))


def test_a_mistake_in_a_world_stops_the_campaign_and_says_where() -> None:
    """It is not a finding, and must not count as one. [N6]"""
    with pytest.raises(KeyError) as raised:
        campaign(MISTAKEN.name, range(3))
    assert raised.value.__notes__ == [
        f"to repeat it: python -m holdfast.sim replay {MISTAKEN.name} --seed 0"
    ]


def test_progress_is_shown_on_request() -> None:
    """A user at a terminal sees the progress. [N6]"""
    out = io.StringIO()
    campaign(HEALTHY.name, range(2), progress=out)
    assert out.getvalue().endswith("2/2 seeds, 0.0 virtual hours, 0 violations\n")
