"""The worked examples: every sentence is true for every seed, and each can become untrue."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.sim import campaign
from holdfast.sim.catalogue import NAMES
from holdfast.sim.check import CRASHED, LIVELOCK
from holdfast.sim.plan import Plan
from holdfast.sim.run import find, invariants_of, run
from holdfast.sim.scenarios.example_plane import ExamplePlane
from holdfast.sim.scenarios.sentences import SentenceChecks, perform
from holdfast.sim.world import World
from tests.scale import scaled, some_of
from tests.sim.scenarios.bugs import BUGS as FIRST_BUGS
from tests.sim.scenarios.bugs import SC2, SC7, Bug
from tests.sim.scenarios.incident_bugs import INCIDENT_BUGS, SC4, SC6, SC13

BUGS = (*FIRST_BUGS, *INCIDENT_BUGS)
SEEDS = scaled(2, 20)
# Examples with a dozen nodes, or many rounds, take longer: `holdfast sim run` runs more seeds.
SEEDS_OF = {SC4: 2, SC6: 2, SC13: 2}
# The bug makes the sentence untrue with one of this many seeds.
BUG_SEEDS = 6

EXAMPLES = [name for name in NAMES if name.is_example and not name.is_long]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda name: name.name)
def test_every_sentence_of_a_worked_example_is_true(example) -> None:  # type: ignore[no-untyped-def]
    """Each sentence has evidence, with every seed.

    [C3, C4, D1, D2, E1, F5, F6, H2, H4, H5, H6, H10, I3, I4, K2, K3, M2, M3, N1.2, N4, N5,
    SC1, SC2, SC3, SC4, SC6, SC7, SC8, SC13, SC15]
    """
    scenario = find(example.scenario)
    for seed in range(SEEDS_OF.get(example.name, SEEDS)):
        played = perform(scenario, seed)
        assert played.broken is None, f"{example.name} seed {seed}: {played.broken}"
        assert played.outcomes
        assert all(outcome.evidence and not outcome.wrong for outcome in played.outcomes)


@pytest.mark.parametrize("bug", some_of(BUGS, 6), ids=lambda bug: bug.sentence)
def test_a_sentence_is_untrue_of_a_plane_with_a_bug(
    bug: Bug, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence finds the bug by itself, with no invariant beside it. [N6]"""
    monkeypatch.setattr(ExamplePlane, "has_invariants", False)
    scenario = find(bug.mutant.scenario)
    with bug.mutant.planted():
        for seed in range(BUG_SEEDS):
            played = perform(scenario, seed)
            if any(it.name == bug.sentence and it.wrong for it in played.outcomes):
                assert played.broken is not None
                assert played.broken.invariant not in (CRASHED, LIVELOCK)
                return
    pytest.fail(f"{bug.sentence} stayed true: {bug.mutant.mistake}")


def test_every_sentence_has_a_bug_that_makes_it_untrue() -> None:
    """A check that cannot fail is a defect. [N6]"""
    sentences = set()
    for example in EXAMPLES:
        world = World(0)
        find(example.scenario).build(world)
        sentences |= set(world.checker(SentenceChecks).invariants)
    assert {bug.sentence for bug in BUGS} == sentences


@pytest.mark.parametrize("example", some_of(EXAMPLES, 8), ids=lambda name: name.name)
def test_a_seed_of_an_example_means_the_same_run(example) -> None:  # type: ignore[no-untyped-def]
    """A run depends only on its seed. [N6]"""
    scenario = find(example.scenario)
    assert run(scenario, 7).digest == run(scenario, 7).digest
    assert run(scenario, 7).digest != run(scenario, 8).digest


# The command --------------------------------------------------------------------------------------


def test_the_command_lists_what_there_is_to_play(capsys: pytest.CaptureFixture[str]) -> None:
    """[N6]"""
    assert main(["sim", "list"]) == 0
    said = capsys.readouterr().out
    assert all(name.name in said and name.title in said for name in NAMES)


def test_the_command_says_each_sentence_with_its_evidence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """[N6]"""
    assert main(["sim", "run", SC7, "--seed", "3", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "holds   Every later write of A is refused with StaleEpoch." in said
    assert "refused, StaleEpoch" in said
    assert "BROKEN" not in said


def test_the_command_fails_with_the_sentence_and_how_to_repeat_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """[N6]"""
    bug = next(bug for bug in BUGS if bug.sentence == "sc2.names-revisions")
    with bug.mutant.planted():
        assert main(["sim", "run", SC2, "--seeds", "4-5"]) == 1
    said = capsys.readouterr().out
    assert "BROKEN  The refusal names the node revision" in said
    assert "holds   job-17 lands elsewhere. (2 of 2)" in said
    assert f"replay: holdfast sim run {SC2} --seed 5 --trace" in said


def test_the_command_plays_a_world_by_its_laws(capsys: pytest.CaptureFixture[str]) -> None:
    """[N6]"""
    assert main(["sim", "run", "authority", "--seed", "1"]) == 0
    said = capsys.readouterr().out
    (authority,) = (name for name in NAMES if name.name == "authority")
    assert ", ".join(invariants_of(find(authority.scenario))) in said
    assert "violations" in said


def test_the_command_repeats_a_saved_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """[N6]"""
    (example,) = (name for name in NAMES if name.name == SC2)
    file = tmp_path / "saved.json"
    plan = Plan(faults_ms=1_000, settle_ms=1_000)
    campaign.save(campaign.Artifact(example.scenario, 0, plan), file)
    # The run is too short for the example.
    assert main(["sim", "replay", str(file)]) == 1
    assert "sc2.refused broken" in capsys.readouterr().out
    file.write_text("{}")
    assert main(["sim", "replay", str(file)]) == 2
    assert "is not a saved run" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line, sentence",
    [
        ("run nix", "NAME: nix: must be one of sc1-"),
        ("run end-to-end --seed 1 --seeds 1-2", "--seed: cannot be combined with --seeds"),
        ("run end-to-end --seeds 2-1", "--seeds: '2-1' must be 1 to"),
        ("run end-to-end --seeds 1-x", "--seeds: '1-x' must be a range"),
        ("run end-to-end --seeds 0-99999999999999999999", "must be 1 to"),
        ("replay nix.json", "nix.json"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """[N6]"""
    assert main(["sim", *line.split()]) == 2
    assert sentence in capsys.readouterr().err
