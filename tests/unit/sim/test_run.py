"""One run, its report and its artifact."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import InvariantBroken
from holdfast.sim import campaign
from holdfast.sim.campaign import Artifact, replay_command, replay_file_command
from holdfast.sim.check import TOO_SHORT, Checker, Settles, Violation
from holdfast.sim.plan import Fault, Plan
from holdfast.sim.run import Scenario, draw_plan, find, play, run
from holdfast.sim.world import World
from tests.unit.sim.small_world import FAILING, HEALTHY

CRASH = Plan(10_000, 1_000, (Fault(5_500, "crash", "ticker", for_ms=100),))


def test_a_run_is_a_function_of_scenario_seed_and_plan() -> None:
    """The same three give the same digest; another seed another. [N6]"""
    assert run(HEALTHY, 1) == run(HEALTHY, 1)
    assert run(HEALTHY, 1).digest != run(HEALTHY, 2).digest
    assert run(HEALTHY, 1, draw_plan(HEALTHY, 1)) == run(HEALTHY, 1)


def test_a_violation_is_reported_with_its_trace_and_the_command_that_repeats_it() -> None:
    """A second run with a full trace provides the last lines. [N6]"""
    report = run(FAILING, 0, CRASH)
    assert report.broken is not None
    assert report.broken.invariant == "BACK"
    assert report.broken.message == "from 6 back to 1"
    text = report.describe(replay_command(report.scenario, report.seed))
    assert "ticker crashes" in text
    assert text.endswith(
        "replay: python -m holdfast.sim replay tests.unit.sim.small_world:FAILING --seed 0"
    )


def test_a_run_counts_its_faults() -> None:
    """Faults are counted as they take place. [N6]"""
    report = run(FAILING, 0, CRASH)
    assert report.injected == {"crash": 1}
    assert report.faults() == 1
    assert run(HEALTHY, 0).injected.keys() == {"crash", "pause"}


def test_faults_end_when_the_time_to_settle_begins() -> None:
    """Machines that are down are started, and cuts are healed. [N6]"""
    plan = Plan(
        5_000,
        5_000,
        (
            Fault(1_000, "crash", "idle", for_ms=900_000),
            Fault(1_000, "reboot", "store", for_ms=900_000),
            Fault(1_000, "partition", "ticker", "*", for_ms=900_000),
            Fault(1_000, "pause", "ticker", for_ms=900_000),
            Fault(1_000, "freeze", "ticker", for_ms=900_000),
            Fault(1_000, "store_mute", "store", for_ms=900_000, amount=1_000),
            Fault(1_000, "clock_step", "ticker", for_ms=900_000, amount=300_000),
        ),
    )
    world = World(0)
    play(HEALTHY, world, plan)
    assert all(cell.ready for cell in world.cells.values())
    assert world.stores["store"].trouble is None
    assert world.hosts["ticker"].clock.wall_offset_us == world.origin_us
    assert world.stores["store"].keyspace.revision > 5


@pytest.mark.parametrize(
    "lit_ms, broken_at_ms",
    [
        (range(11_999, 99_999), None),
        (range(12_001, 99_999), 12_000),
        (range(14_000), 14_000),
    ],
)
def test_liveness_is_demanded_after_the_faults_and_for_the_rest_of_the_run(
    lit_ms: range, broken_at_ms: int | None
) -> None:
    """The state is reached within a time, and then stays. [V1]"""

    def missing(world: World) -> str | None:
        return None if world.now_us // 1000 in lit_ms else "it is dark"

    def build(world: World) -> None:
        world.check(Settles("V1", missing, within_ms=2_000))

    scenario = Scenario("lamp", build, faults_ms=10_000, settle_ms=5_000)
    broken = run(scenario, 0, tell=False).broken
    assert (broken and broken.at_ms) == broken_at_ms


def test_a_liveness_check_that_is_never_due_is_itself_a_finding() -> None:
    """A check that cannot fail is a defect. [N6]"""

    def build(world: World) -> None:
        world.check(Settles("V1", lambda _world: None, within_ms=9_000))

    broken = run(Scenario("short", build, faults_ms=1, settle_ms=5_000), 0).broken
    assert broken is not None
    assert broken.invariant == TOO_SHORT


def test_a_checker_is_called_at_the_end() -> None:
    """A checker can demand at the end what must have happened. [N6]"""

    class Last(Checker):
        def at_end(self, world: World) -> None:
            raise Violation("LAST", "nothing came about")

    broken = run(Scenario("x", lambda world: world.check(Last()), faults_ms=1, settle_ms=1), 0)
    assert broken.broken is not None
    assert broken.broken.invariant == "LAST"


def test_a_saved_run_can_be_replayed(tmp_path: Path) -> None:
    """A replay artifact is a readable file. [N6]"""
    report = run(FAILING, 3, CRASH)
    path = tmp_path / "deep" / "failing.json"
    saved = Artifact(FAILING.name, 3, CRASH, report.broken, report.digest)
    campaign.save(saved, path)
    loaded = campaign.load(path)
    assert loaded == saved
    assert run(find(loaded.scenario), loaded.seed, loaded.plan) == report
    assert replay_file_command(path).endswith(f"replay --file {path}")


def test_an_artifact_of_another_format_is_refused(tmp_path: Path) -> None:
    """A later simulator does not guess. [N6]"""
    path = tmp_path / "old.json"
    campaign.save(Artifact("x", 0, CRASH, format=99), path)
    with pytest.raises(msgspec.ValidationError, match="format 99"):
        campaign.load(path)


def test_only_a_scenario_can_be_run_by_name() -> None:
    """The error names the wrong name. [N6]"""
    with pytest.raises(InvariantBroken, match="is not a scenario"):
        find("tests.unit.sim.small_world:build")
