"""The benchmarks' harness says what it measured, and does not flatter."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.harness import Goal, best_of, cores, figure, percentile, rate, side_by_side


def test_a_figure_is_one_json_line_with_its_peer_beside_it() -> None:
    """Name, value, unit, peer and its value, ratio, cores, durability, goal and verdict."""
    out = io.StringIO()
    returned = figure(
        "store.txn_per_s", 12_345.678, "1/s", peer="fsync", peer_value=20_000, goal=">= 5000",
        durability="power", out=out, writers=16,
    )  # fmt: skip
    assert out.getvalue().count("\n") == 1
    assert json.loads(out.getvalue()) == returned
    assert returned == {
        "name": "store.txn_per_s",
        "value": 12_350.0,
        "unit": "1/s",
        "peer": "fsync",
        "peer_value": 20_000.0,
        "ratio": 0.6173,
        "cores": cores(),
        "durability": "power",
        "goal": ">= 5000",
        "met": True,
        "writers": 16,
    }


@pytest.mark.parametrize(
    "goal, value, peer_value, met",
    [
        ("<= 10", 10, 1, True),
        ("<= 10", 10.001, 1, False),
        ("< 10", 10, 1, False),
        (">= 5_000", 5000, 1, True),
        ("> 0.5", 0.5, 1, False),
        ("ratio >= 0.5", 5, 10, True),
        ("ratio >= 0.5", 4.9, 10, False),
        ("ratio >= 0.5", 4.9, 0, False),
        (None, 1, 1, None),
    ],
)
def test_a_goal_is_judged_before_rounding(
    goal: str | None, value: float, peer_value: float, met: bool | None
) -> None:
    """Rounding to four digits for the reader must not turn a miss into a hit."""
    line = figure("x", value, "u", peer="p", peer_value=peer_value, goal=goal, out=io.StringIO())
    assert line["met"] is met
    assert line["goal"] == goal


@pytest.mark.parametrize("text", ["10", "<=10", "== 10", "<= ten", "ratio 5", "<= 10 us", ""])
def test_a_goal_with_a_typo_is_refused(text: str) -> None:
    """Else it would be a goal without a check."""
    with pytest.raises(ValueError, match="a goal has the form"):
        Goal.parse(text)


def test_a_ratio_may_be_given_and_a_peer_of_zero_has_none() -> None:
    """Some comparisons are not value by peer, and nothing divides by zero."""
    given = figure("x", 1, "u", peer="p", peer_value=2, ratio=7, out=io.StringIO())
    assert given["ratio"] == 7
    none = figure("x", 1, "u", peer="p", peer_value=0, out=io.StringIO())
    assert none["ratio"] is None


@pytest.mark.parametrize("value, peer_value", [(math.nan, 1.0), (1.0, math.inf)])
def test_what_is_not_a_number_is_not_a_figure(value: float, peer_value: float) -> None:
    """JSON has no NaN, and no goal can be judged by one."""
    with pytest.raises(ValueError, match="not a measurement"):
        figure("x", value, "u", peer="p", peer_value=peer_value, out=io.StringIO())


def test_a_benchmark_cannot_overwrite_what_the_harness_says() -> None:
    """`met` and `cores` are the harness's word."""
    with pytest.raises(ValueError, match="met"):
        figure("x", 1, "u", peer="p", peer_value=1, out=io.StringIO(), met=True)


def test_a_figure_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    """That is where `make bench` is read."""
    figure("x", 1, "u", peer="p", peer_value=1)
    assert json.loads(capsys.readouterr().out)["name"] == "x"


def test_timers_distinguish_a_slow_function_from_a_fast_one() -> None:
    """A hundredfold difference in work shows even on a busy machine."""

    def fast() -> object:
        return sum(range(50))

    def slow() -> object:
        return sum(range(5_000))

    assert best_of(slow, repeat=3) > 5 * best_of(fast, repeat=3)
    slow_s, fast_s = side_by_side(slow, fast, repeat=3)
    assert slow_s > 5 * fast_s
    assert rate(fast, seconds=0.02) > 5 * rate(slow, seconds=0.02)


def test_best_of_calls_as_often_as_asked() -> None:
    """A benchmark with side effects can count on the number."""
    calls = []
    best_of(lambda: calls.append(1), repeat=3, number=4)
    assert len(calls) == 12


def test_percentiles_are_samples() -> None:
    """No interpolation: a p99 is something that happened."""
    samples = [float(n) for n in range(100, 0, -1)]
    assert percentile(samples, 0.5) == 50
    assert percentile(samples, 0.99) == 99
    assert percentile(samples, 1) == 100
    assert percentile(samples, 0) == 1
    for bad in ([], samples):
        with pytest.raises(ValueError, match="percentile"):
            percentile(bad, 0.5 if not bad else 1.5)


def test_benchmarks_are_listed_with_what_they_measure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make bench` without a name lists them, and with a wrong one says which there are."""
    (tmp_path / "harness.py").write_text('"""Not one."""')
    (tmp_path / "model.py").write_text('"""How fast objects decode.\n\nMore."""\nraise SystemExit')
    assert bench.main([], tmp_path) == 0
    listed = capsys.readouterr().out
    assert "model" in listed
    assert "How fast objects decode." in listed
    assert "Not one" not in listed
    assert bench.main(["modle"], tmp_path) == 2
    assert "there are: model" in capsys.readouterr().err
