"""What a run says about its costs, on one process and on several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import Cost, shares, slowest, table, without_group

ROOT = Path(__file__).parents[2]
TESTS = """
import subprocess, sys
import pytest

BUSY = "for _ in range(3_000_000): pass"

@pytest.mark.xdist_group("together")
def test_computes(): exec(BUSY)

def test_has_it_computed(): subprocess.run([sys.executable, "-c", BUSY], check=True)

def test_does_nothing(): pass
"""


@pytest.mark.parametrize("arguments", [(), ("-n", "2", "--dist", "loadgroup")], ids=["1", "2"])
def test_every_test_is_counted_with_the_processes_it_waited_for(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """The controller hears of all tests of its workers, and names the slowest."""
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.costs"]')
    kept = tmp_path / "costs"
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", ".", "--costs", "--costs-to", str(kept), *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [Cost(**json.loads(line)) for line in kept.read_text().splitlines()]
    cpu_s = {it.test.partition("::test_")[2]: it.cpu_s for it in found}
    assert set(cpu_s) == {"computes", "has_it_computed", "does_nothing"}
    assert cpu_s["does_nothing"] < min(cpu_s["computes"], cpu_s["has_it_computed"])
    assert "the slowest 3 tests" in ran.stdout
    assert "CPU minutes" in ran.stdout


def test_slow_is_what_computes_and_what_waits() -> None:
    waits, computes, both = Cost("a", 0.0, 9.0), Cost("b", 8.0, 0.0), Cost("c", 1.0, 1.0)
    assert slowest([both, computes, waits], 2) == [waits, computes]


def test_folders_are_reported_with_their_share() -> None:
    costs = [
        Cost("tests/unit/host/api/test_a.py::test", 2.0, 0.0),
        Cost("tests/sim/b.py::t", 6.0, 0.0),
    ]
    assert shares(costs) == {"tests/sim": 6.0, "tests/unit/host": 2.0}
    lines = list(table(costs, outside_cpu_s=2.0))
    assert [line.split() for line in lines[4:7]] == [
        ["6.0", "60.0%", "tests/sim"],
        ["2.0", "20.0%", "tests/unit/host"],
        ["2.0", "20.0%", "(collecting,", "importing)"],
    ]


@pytest.mark.parametrize(
    "test, bare", [("a.py::t@one", "a.py::t"), ("a.py::t[x@y]", "a.py::t[x@y]"), ("t[@]@g", "t[@]")]
)
def test_the_group_of_a_test_is_no_part_of_its_name(test: str, bare: str) -> None:
    assert without_group(test) == bare
