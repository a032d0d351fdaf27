"""How the kernel's choice of what to kill for memory is set, on a folder in place of /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.host.runtime.cgroups.oom import adjust


def _process(proc: Path, pid: int) -> Path:
    (proc / str(pid)).mkdir()
    path = proc / str(pid) / "oom_score_adj"
    path.write_text("0")
    return path


def test_a_child_that_appears_meanwhile_is_set_too(tmp_path: Path) -> None:
    """A process that ended meanwhile is no error. [A3]"""
    paths = [_process(tmp_path, pid) for pid in (7, 8)]
    rounds = iter(([7, 99], [7, 8]))
    assert adjust(lambda: next(rounds), 875, tmp_path) == "oom_score_adj 875"
    assert [path.read_text() for path in paths] == ["875", "875"]


@pytest.mark.parametrize("score, says", [(-997, "CAP_SYS_RESOURCE"), (500, "cannot be set")])
def test_it_says_when_the_kernel_refuses(tmp_path: Path, score: int, says: str) -> None:
    """No user relies on a preference that does not exist. [A3]"""
    (tmp_path / "7" / "oom_score_adj").mkdir(parents=True)
    said = adjust(lambda: [7], score, tmp_path)
    assert said.startswith("none: ")
    assert says in said
    assert adjust(list, 5, tmp_path).startswith("none: ")
