"""The pages for people who read the code name files and functions that are there."""

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


@pytest.mark.parametrize("page", ["day-one.md", "glossary.md", "state-machines.md"])
def test_what_a_page_names_is_there(page: str) -> None:
    """Each file and folder below src/holdfast that stands in backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src/holdfast/)?[a-z_]+/(?:[a-z_]+/)*(?:[a-z_]+\.(?:py|c))?)`", text)
    assert len(paths) > 5
    missing = [
        it
        for it in paths
        if not (ROOT / "src/holdfast" / it.removeprefix("src/holdfast/")).exists()
    ]
    assert missing == []


def test_the_classes_of_day_one_are_where_it_says() -> None:
    """A newcomer opens these first."""
    text = (ROOT / "docs" / "day-one.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `([a-z_/]+\.py)` \|", text, re.MULTILINE)
    assert len(rows) == 5
    for name, path in rows:
        assert f"class {name}" in (ROOT / "src" / "holdfast" / path).read_text(encoding="utf-8"), (
            name
        )
