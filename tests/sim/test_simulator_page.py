"""The example of docs/simulator.md is what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.sim.catalogue import NAMES
from holdfast.sim.faults import KINDS

PAGE = (Path(__file__).parents[2] / "docs/simulator.md").read_text(encoding="utf-8")


def test_the_example_on_the_page_runs_as_printed() -> None:
    """It holds under crashes and breaks when beats overtake each other. [N6]"""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/simulator.md", "exec"), names)
    assert names["SCENARIO"].name == "example"


def test_the_page_names_every_kind_of_fault() -> None:
    """A vocabulary that is not written down is not used. [N6]"""
    table = PAGE.partition("## Faults")[2].partition("## Checkers")[0]
    assert set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", table)) >= set(KINDS)


def test_the_page_names_every_worked_example() -> None:
    """[N6]"""
    table = PAGE.partition("## The worked examples")[2].partition("\n## ")[0]
    assert all(f"`{it.name}`" in table for it in NAMES if it.is_example)
