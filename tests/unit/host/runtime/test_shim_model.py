"""The model of a shim plays the scripts that the C program plays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shim_script import play, read, scripts


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_the_model_ends_as_the_script_says(path: Path) -> None:
    """[INV2, SC6]"""
    script = read(path)
    answers, ending = play(script)
    assert answers == [step.answer for step in script.steps]
    assert ending == script.ending


def test_a_line_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("deadline 3 4\n")
    with pytest.raises(ValueError, match="not a line of a script"):
        read(tmp_path / "odd.txt")
