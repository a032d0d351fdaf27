"""docs/ARCHITECTURE.md names files and functions that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
WALK = PAGE.partition("## The walk of one replica")[2].partition("\n## ")[0]
_FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|c))`((?:,? `\w+`)*)", re.ASCII)


def named() -> list[tuple[str, str]]:
    """Every file of the walk with the names that stand right after it. Lines may break anywhere."""
    text = " ".join(WALK.split())
    return _FILE.findall(text)


def test_the_walk_is_there() -> None:
    """A page that lost it would pass all other checks."""
    assert len(named()) > 40


@pytest.mark.parametrize("path, names", named())
def test_what_the_walk_names_is_there(path: str, names: str) -> None:
    """Each file, and in it each function or class."""
    file = ROOT / "src" / "holdfast" / path
    if path.startswith("tests/"):
        file = ROOT / path
    assert file.is_file(), f"{path} is not there"
    text = file.read_text(encoding="utf-8")
    for name in re.findall(r"\w+", names):
        is_python = file.suffix == ".py"
        made = rf"(?:def|class) {name}\b" if is_python else rf"^static \w+ {name}\("
        assert re.search(made, text, re.MULTILINE), f"{path} has no {name}"
