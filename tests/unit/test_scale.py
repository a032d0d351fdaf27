"""What the default run leaves for the long one, and that the long one has it all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import long_run
from tests.scale import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORLDS = "tests/sim/test_agents.py"


def collected(**environment: str) -> set[str]:
    plain = {name: value for name, value in os.environ.items() if name != VARIABLE}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, WORLDS],
        cwd=ROOT,
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line for line in ran.stdout.splitlines() if "::" in line}


def test_a_long_form_is_left_out_and_is_there_in_the_long_run() -> None:
    """Nothing is skipped in silence: it is deselected here, and run there."""
    here, long = collected(), collected(**{VARIABLE: "1"})
    assert here < long
    assert any("planted" in test for test in here)


def test_every_part_of_the_long_run_is_a_target_that_says_what_it_is() -> None:
    assert set(long_run.PARTS) <= long_run.described(MAKEFILE).keys()


def test_every_long_target_is_part_of_the_long_run() -> None:
    """A new one must be added there, too."""
    long = {it for it in long_run.described(MAKEFILE) if it.endswith("-long") or "sim-" in it}
    assert long - {"test-long"} <= set(long_run.PARTS)


def test_a_part_that_is_unknown_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert long_run.main(["nothing-long"]) == 2
    assert "no such part: nothing-long" in capsys.readouterr().out
