"""`python -m holdfast.sim`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from holdfast.sim.__main__ import main
from holdfast.sim.mutants import load, save
from tests.unit.sim.small_world import FAILING, HEALTHY

# Seeds 0 to 9 contain some that fail.
SEEDS = "0-9"


def _failing_seed(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["run", FAILING.name, "--seeds", SEEDS]) == 1
    out = capsys.readouterr().out
    return out[out.index("--seed ") :].split()[1]


def test_run_prints_a_summary_and_fails_when_an_invariant_was_broken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Scripts use the exit code, users read the table. [N6]"""
    assert main(["run", HEALTHY.name, "--seeds", "0-2"]) == 0
    assert "violations" in capsys.readouterr().out
    _failing_seed(capsys)


def test_the_printed_command_replays_the_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The printed command works. [N6]"""
    seed = _failing_seed(capsys)
    assert main(["replay", FAILING.name, "--seed", seed]) == 1
    out = capsys.readouterr().out
    assert out.startswith("BACK broken at ")
    assert "ticker crashes" in out


def test_a_failure_is_shrunk_saved_and_replayed_from_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a seed to a file of a few lines. [N6]"""
    seed, path = _failing_seed(capsys), tmp_path / "small.json"
    assert main(["shrink", FAILING.name, "--seed", seed, "--out", str(path)]) == 1
    assert "to 1 entries" in capsys.readouterr().out
    assert main(["replay", "--file", str(path)]) == 1
    assert "BACK broken at" in capsys.readouterr().out


def test_replay_prints_the_whole_trace_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Every stimulus and every effect. [N6]"""
    assert main(["replay", HEALTHY.name, "--seed", "1", "--trace"]) == 0
    out = capsys.readouterr().out
    assert "ticker <- Started" in out
    assert "ticker -> Wake" in out
    assert "digest" in out


def test_a_healthy_seed_is_not_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to shrink. [N6]"""
    path = tmp_path / "none.json"
    assert main(["shrink", HEALTHY.name, "--seed", "1", "--out", str(path)]) == 0
    assert not path.exists()


def test_mutants_are_searched_for_recorded_and_can_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table of planted bugs, and one of them replayed. [N6]"""
    path, mutants = tmp_path / "found.json", "tests.sim.demo.mutants:MUTANTS"
    options = ["--seeds", "5", "--only", "early-takeover", "--record", str(path)]
    assert main(["mutants", mutants, *options]) == 0
    assert f"--mutant {mutants}:early-takeover" in capsys.readouterr().out
    (finding,) = load(path)
    seed = ["--seed", str(finding.seed)]
    scenario = "tests.sim.demo.world:SCENARIO"
    assert main(["replay", scenario, *seed, "--mutant", f"{mutants}:early-takeover"]) == 1
    assert "INV1 broken" in capsys.readouterr().out
    assert main(["replay", scenario, *seed]) == 0


def test_a_record_is_renewed_where_its_seeds_miss_their_bugs(tmp_path: Path) -> None:
    """A bug that is still found keeps its seed; a seed that misses its bug is replaced. [N6]"""
    path, mutants = tmp_path / "found.json", "tests.sim.demo.mutants:MUTANTS"
    options = ["--only", "early-takeover", "--record", str(path)]
    assert main(["mutants", mutants, "--renew", "--only", "early-takeover"]) == 2
    assert main(["mutants", mutants, *options]) == 0
    [first] = load(path)
    save([msgspec.structs.replace(first, seeds=7)], path)
    assert main(["mutants", mutants, *options, "--renew"]) == 0
    assert load(path) == [msgspec.structs.replace(first, seeds=7)]
    save([msgspec.structs.replace(first, seed=None)], path)
    assert main(["mutants", mutants, *options, "--renew", "--processes", "2"]) == 0
    assert load(path) == [first]


def test_replay_without_a_scenario_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error says what to pass. [N6]"""
    assert main(["replay"]) == 2
    assert "name a scenario" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, says",
    [("nosuch", "must be one of"), ("nosuch:X", "No module"), ("holdfast.sim.run:find", "not a")],
)
def test_a_scenario_that_does_not_exist_is_refused_with_what_there_is(
    name: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """[N6]"""
    with pytest.raises(SystemExit) as ended:
        main(["run", name])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err
